"""`dsec diagnose`: why something is slow, from what the node remembers or from a saved trace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from dsec.base.units import format_duration
from dsec.cli.context import Options, pass_options
from dsec.cli.output import print_json, print_table, printable
from dsec.cli.parameters import json_option
from dsec.model.diagnosis import Diagnosis
from dsec.model.event import NodeEvent
from dsec.service.port import SandboxService


@click.group(name="diagnose")
def diagnose() -> None:
    """Say why something is slow, and what would help."""


@diagnose.command(name="sandbox-create")
@click.option("--task-id", default="", help="Whose creations: its metadata's task_id or task.  [all]")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Look at saved events (events.jsonl of a state directory) instead of asking the node.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show each creation and all thresholds.")
@json_option
@pass_options
def sandbox_create(options: Options, task_id: str, trace: Path | None, verbose: bool, as_json: bool) -> None:
    """Find out why sandboxes are created slowly: the scheduler's side, then the node's, each beside its threshold."""
    from dsec.pools.diagnosis import diagnose as look

    found = look(options.run(_remembered) if trace is None else _saved(trace), task_id)
    if as_json:
        print_json(found)
        return
    for line in _lines(found, verbose=verbose):
        click.echo(printable(line))
    if verbose:
        click.echo()
        print_table(("sandbox", "asked", "waited", "outcome"), _rows(found))


async def _remembered(service: SandboxService) -> Sequence[NodeEvent]:
    from dsec.sdk.pools import pools_of

    return await pools_of(service).events()


def _saved(path: Path) -> Sequence[NodeEvent]:
    from dsec.base.errors import PathNotFoundError
    from dsec.pools.diagnosis import read_trace

    try:
        return read_trace(path.read_bytes(), str(path))
    except OSError as error:
        raise PathNotFoundError(
            f"{path} cannot be read", detail=str(error), resolution="name a file of events"
        ) from error


def _lines(found: Diagnosis, *, verbose: bool) -> list[str]:
    lines = []
    for finding in found.findings:
        mark = "ok" if finding.is_fine else "!!"
        limit = ""
        if verbose and finding.threshold is not None:
            limit = f"  (threshold {finding.threshold:g} {finding.unit})"
        lines.append(f"[{finding.side}] {mark} {finding.name}: {finding.text}{limit}")
    return [*lines, *(f"suggestion: {text}" for text in found.suggestions)]


def _rows(found: Diagnosis) -> list[tuple[str, ...]]:
    return [
        (
            each.sandbox_id,
            f"{datetime.fromtimestamp(each.at_s, UTC):%H:%M:%S}",
            "-" if each.waited_s is None else format_duration(each.waited_s),
            each.outcome,
        )
        for each in found.asked
    ]
