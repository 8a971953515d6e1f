"""`dsec doctor`: what this host has, what it enables, and how to get the rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.parameters import json_option

if TYPE_CHECKING:
    from rich.console import Console

    from dsec.cli.host_checks import Result

_TITLES = {
    "needed": "Needed: without these no sandbox runs here",
    "recommended": "Recommended: without these something is missing, and requests for it are refused",
    "optional": "Optional",
}


@click.command(name="doctor")
@json_option
@click.pass_context
@pass_options
def doctor(options: Options, ctx: click.Context, as_json: bool) -> None:
    """Say for every kernel feature and tool whether it is there, what it enables, and how to get it.

    Everything is tried, not looked up: small file systems are mounted, processes frozen and killed, out of sight and
    without a trace. Exits with 0 when sandboxes can run here, else with 69.
    """
    import msgspec

    from dsec.base.errors import CapabilityMissingError
    from dsec.cli.host_checks import can_run, checks, run_checks
    from dsec.cli.output import print_json
    from dsec.cli.peer_checks import peer_checks
    from dsec.cli.settings import load
    from dsec.cli.worker_checks import worker_check
    from dsec.sdk.workers import worker_state_dir

    loaded = load(options)
    settings = msgspec.structs.replace(loaded.settings, state_dir=str(loaded.state_dir))
    worker = worker_check(worker_state_dir(options.state_dir))
    results = run_checks((*checks(loaded.state_dir), *peer_checks(settings), worker), as_root=os.geteuid() == 0)
    if as_json:
        print_json(report(results))
    else:
        _show(results)
    if not can_run(results):
        ctx.exit(CapabilityMissingError.exit_code)


def report(results: Sequence[Result]) -> dict[str, Any]:
    """Return the results as `dsec doctor --json` prints them (docs/host.md)."""
    from dsec.cli.host_checks import can_run

    return {
        "can_run": can_run(results),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "checks": [_row(result) for result in results],
    }


def _row(result: Result) -> dict[str, Any]:
    check = result.check
    return {
        "name": check.name,
        "title": check.title,
        "need": result.need.value,
        "present": result.finding.present,
        "seen": result.finding.seen,
        "enables": check.enables,
        "capabilities": [capability.value for capability in check.capabilities],
        "resolution": result.resolution,
    }


def _show(results: Sequence[Result]) -> None:
    from dsec.cli.host_checks import Need
    from dsec.cli.output import console

    out = console()
    for need in Need:
        group = [result for result in results if result.need is need]
        out.print(_table(_TITLES[need.value], group))
    _show_remedies(out, results)
    out.print(_verdict(results))


def _table(title: str, results: Sequence[Result]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "what", "seen", "enables"):
        table.add_column(column, overflow="fold")
    for result in results:
        mark = Text("✓", "green") if result.finding.present else Text("✗", _color(result))
        table.add_row(mark, result.check.title, Text(result.finding.seen), result.check.enables)
    return table


def _color(result: Result) -> str:
    return {"needed": "bold red", "recommended": "yellow", "optional": "dim"}[result.need.value]


def _show_remedies(out: Console, results: Sequence[Result]) -> None:
    from rich.text import Text

    absent = [result for result in results if result.resolution]
    if not absent:
        return
    out.print(Text("How to get what is missing", "bold"))
    for result in absent:
        out.print(Text.assemble((f"  {result.check.title}", _color(result)), f": {result.resolution}"))
    out.print()


def _verdict(results: Sequence[Result]) -> Any:
    from rich.text import Text

    from dsec.cli.host_checks import Need, can_run

    absent = {need: [r for r in results if r.need is need and not r.finding.present] for need in Need}
    who = "root" if os.geteuid() == 0 else "this user"
    if can_run(results):
        lacking = len(absent[Need.RECOMMENDED])
        rest = f"{lacking} recommended missing" if lacking else "with everything recommended"
        return Text(f"Sandboxes can run here as {who}; {rest}.", "bold green")
    names = ", ".join(result.check.title for result in absent[Need.NEEDED])
    return Text(f"Sandboxes cannot run here as {who}. Missing: {names}.", "bold red")
