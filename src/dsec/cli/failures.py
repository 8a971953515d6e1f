"""How an error looks on the command line, and with what a command exits."""

from __future__ import annotations

import json
from typing import NoReturn

import click

from dsec.base.errors import DsecError


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
    """Write an error to stderr: what was wrong, what was seen, what to do."""
    if as_json:
        click.echo(json.dumps({"error": describe(error)}), err=True)
        return
    click.echo(f"{click.style('error', fg='red', bold=True)} [{error.code}]: {error.brief}", err=True)
    for line in error.detail.splitlines():
        click.echo(f"  {line}", err=True)
    if error.resolution:
        click.echo(f"{click.style('to resolve', fg='cyan')}: {error.resolution}", err=True)


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
