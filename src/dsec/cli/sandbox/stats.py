"""`dsec sandbox stats`."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import click

from dsec.base.errors import SandboxNotFoundError
from dsec.base.units import format_size
from dsec.cli.context import Options, pass_options
from dsec.cli.output import console, or_dash, print_json, print_json_line, print_table, size_or_dash, table
from dsec.cli.parameters import all_ids, duration, ids_parameters, json_option
from dsec.model.sandbox import SandboxFilter, SandboxState, SandboxStats, WritableUsage
from dsec.service.port import SandboxService

_COLUMNS = ("id", "cpu s", "memory", "swap", "peak", "written", "processes", "pressure cpu/mem/io", "oom kills")
_Reading = tuple[str, SandboxStats]


@click.command(name="stats")
@ids_parameters
@click.option("--watch", is_flag=True, help="Go on until interrupted.")
@click.option("--interval", type=duration, default="1", help="Time between readings of --watch.")
@json_option
@pass_options
def stats(
    options: Options,
    id_options: tuple[str, ...],
    id_arguments: tuple[str, ...],
    watch: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show what sandboxes use; without an ID, all that are ready.

    With --watch --json, every reading is one line.
    """
    ids = all_ids(id_options, id_arguments)
    if watch:
        options.run(lambda service: _watch(service, ids, max(0.1, interval), as_json=as_json))
        return
    readings = options.run(lambda service: _read(service, ids))
    if as_json:
        print_json(_by_id(readings))
    else:
        print_table(_COLUMNS, (_row(*reading) for reading in readings))


def _by_id(readings: Sequence[_Reading]) -> dict[str, SandboxStats]:
    return dict(readings)


async def _read(service: SandboxService, ids: tuple[str, ...]) -> list[_Reading]:
    if ids:
        return [(sandbox_id, await service.statistics(sandbox_id)) for sandbox_id in ids]
    ready = await service.list(SandboxFilter(states=(SandboxState.READY,)))
    readings: list[_Reading] = []
    for info in ready:
        try:
            readings.append((info.sandbox_id, await service.statistics(info.sandbox_id)))
        except SandboxNotFoundError:
            continue  # It was removed after it was listed.
    return readings


async def _watch(service: SandboxService, ids: tuple[str, ...], interval_s: float, *, as_json: bool) -> None:
    if as_json:
        while True:
            print_json_line(_by_id(await _read(service, ids)))
            await anyio.sleep(interval_s)
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            readings = await _read(service, ids)
            live.update(table(_COLUMNS, (_row(*reading) for reading in readings)), refresh=True)
            await anyio.sleep(interval_s)


def _row(sandbox_id: str, reading: SandboxStats) -> tuple[str, ...]:
    return (
        sandbox_id,
        "-" if reading.cpu_s is None else f"{reading.cpu_s:.2f}",
        size_or_dash(reading.memory_bytes),
        size_or_dash(reading.swap_bytes),
        size_or_dash(reading.memory_peak_bytes),
        _written(reading.writable),
        or_dash(reading.processes),
        "/".join(_percent(share) for share in (reading.cpu_pressure, reading.memory_pressure, reading.io_pressure)),
        or_dash(reading.oom_kills),
    )


def _written(usage: WritableUsage | None) -> str:
    if usage is None:
        return "-"
    return size_or_dash(usage.used_bytes) + (
        "" if usage.quota_bytes is None else f" of {format_size(usage.quota_bytes)}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
