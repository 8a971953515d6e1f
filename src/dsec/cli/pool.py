"""`dsec pool`: keep sandboxes ready, see how they are used, watch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.output import print_json, print_table
from dsec.cli.parameters import duration, json_option, size, stack_of, stack_options
from dsec.cli.pool_picture import COLUMNS, watch_pools
from dsec.cli.pool_picture import row as pool_row
from dsec.model.pool import PoolChange, PoolInfo
from dsec.model.sandbox import QosClass, Resources, SandboxSpec
from dsec.sdk.pools import pools_of
from dsec.service.port import SandboxService

_COUNT = click.IntRange(min=0)


@click.group(name="pool")
def pool() -> None:
    """Keep sandboxes ready: creations that match are served at once."""


@pool.command(name="ls")
@json_option
@pass_options
def ls(options: Options, as_json: bool) -> None:
    """List the pools with what stands ready, waits, and is in use."""
    found = options.run(_list)
    if as_json:
        print_json(list(found))
    else:
        print_table(COLUMNS, (pool_row(info) for info in found))
        for info in found:
            for warning in info.statistics.warnings:
                click.echo(f"{info.pool_id}: {warning}", err=True)


async def _list(service: SandboxService) -> Sequence[PoolInfo]:
    return await pools_of(service).list_pools()


@pool.command(name="set")
@click.argument("image", default="python")
@stack_options
@click.option("--cpu", type=click.FloatRange(min=0.001), help="Cores of each, such as 0.5.")
@click.option("--memory", type=size, help="Memory of each, such as 512M.")
@click.option("--swap", type=size, help="Swap on top of memory.")
@click.option("--disk", type=size, help="Bytes that each may write.")
@click.option("--pids", type=click.IntRange(min=1), help="Processes and threads of each.")
@click.option("--open-files", type=click.IntRange(min=1), help="Open files of every process.")
@click.option("--qos", type=click.Choice([item.value for item in QosClass]), default=QosClass.LATENCY_SENSITIVE.value)
@click.option("--floor", type=_COUNT, help="Ready ones at least.")
@click.option("--share", "concurrency_share", type=float, help="Ready ones at least, as a share of those in use.")
@click.option("--fixed", "fixed_level", type=_COUNT, help="Keep exactly so many ready; follow no arrivals.")
@click.option("--follow", is_flag=True, help="Follow the arrivals again.")
@click.option("--maximum", type=click.IntRange(min=1), help="All of them at most: ready, in use and in flight.")
@click.option("--no-maximum", is_flag=True, help="Take the maximum away.")
@click.option("--maximum-ready", type=_COUNT, help="Ready ones at most.")
@click.option("--maximum-waiting", type=_COUNT, help="Tasks that may wait.")
@click.option("--horizon", "horizon_s", type=duration, help="How far ahead the level looks, such as 10s.")
@click.option("--spreads", type=float, help="Spreads of the arrivals kept beyond their mean.")
@click.option("--creations", "creations_at_once", type=click.IntRange(min=1), help="Creations in flight at most.")
@click.option("--recycles", "recycles_at_once", type=click.IntRange(min=1), help="Recycles in flight at most.")
@json_option
@pass_options
def set_pool(options: Options, /, as_json: bool, **given: Any) -> None:
    """Make the pool of sandboxes of IMAGE with these limits, or set it anew; what is not given stays.

    A creation is served from it when image, layers, disk, open files, processor class and network match; other limits
    are set when it is handed out.
    """
    spec, change = _spec(given), _change(given)
    info = options.run(lambda service: pools_of(service).set_pool(spec, change))
    if as_json:
        print_json(info)
    else:
        click.echo(info.pool_id)


def _spec(given: dict[str, Any]) -> SandboxSpec:
    cpu = given.pop("cpu")
    return SandboxSpec(
        image=given.pop("image"),
        layers=stack_of(given.pop("workspace"), given.pop("toolkits")),
        resources=Resources(
            cpu_millis=None if cpu is None else max(1, round(cpu * 1000)),
            memory_bytes=given.pop("memory"),
            swap_bytes=given.pop("swap"),
            disk_bytes=given.pop("disk"),
            pids=given.pop("pids"),
            open_files=given.pop("open_files"),
        ),
        qos=QosClass(given.pop("qos")),
    )


def _change(given: dict[str, Any]) -> PoolChange:
    follow, no_maximum = given.pop("follow"), given.pop("no_maximum")
    if follow and given["fixed_level"] is not None:
        raise click.UsageError("--fixed and --follow exclude each other.")
    if no_maximum and given["maximum"] is not None:
        raise click.UsageError("--maximum and --no-maximum exclude each other.")
    values = {name: value for name, value in given.items() if value is not None}
    if follow:
        values["fixed_level"] = None
    if no_maximum:
        values["maximum"] = None
    return PoolChange(**values)


@pool.command(name="rm")
@click.argument("pool_id")
@pass_options
def rm(options: Options, pool_id: str) -> None:
    """Take a pool away: what stands ready is destroyed, what tasks have is theirs until they end."""
    options.run(lambda service: pools_of(service).remove_pool(pool_id))


@pool.command(name="watch")
@click.option("--interval", type=duration, default="1s", show_default=True, help="Time between two looks.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many looks.  [until interrupted]")
@pass_options
def watch(options: Options, interval: float, count: int | None) -> None:
    """Show the pools live: queues, rates, and the ready level over the last minutes."""
    options.run(lambda service: watch_pools(pools_of(service), interval, count))
