"""How an error looks on the command line, and with what a command exits."""

from __future__ import annotations

import json
from typing import NoReturn

import click

from dsec.base.errors import DsecError
from dsec.cli.output import printable


def describe(error: DsecError) -> dict[str, object]:
    """Return an error as the object that `--error-format json` prints."""
    return {
        "code": error.code,
        "brief": error.brief,
        "detail": error.detail,
        "resolution": error.resolution,
        "retryable": error.retryable,
        "fault": error.fault.value,
        "exit_code": error.exit_code,
    }


def show(error: DsecError, *, as_json: bool = False) -> None:
    """Write an error to stderr: what was wrong, what was seen, what to do.

    Words of a guest may be in it, such as the last ones of a hook: they must not steer the terminal.
    """
    if as_json:
        click.echo(json.dumps({"error": describe(error)}), err=True)
        return
    click.echo(f"{click.style('error', fg='red', bold=True)} [{error.code}]: {_lines(error.brief)}", err=True)
    for line in error.detail.splitlines():
        click.echo(f"  {printable(line)}", err=True)
    if error.resolution:
        click.echo(f"{click.style('to resolve', fg='cyan')}: {_lines(error.resolution)}", err=True)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def fail(ctx: click.Context, error: DsecError) -> NoReturn:
    """Show an error and exit with its class's code."""
    options = ctx.find_root().obj
    show(error, as_json=bool(getattr(options, "json_errors", False)))
    ctx.exit(error.exit_code)


def sole_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error that a task group wrapped, or the group when it has several."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner
