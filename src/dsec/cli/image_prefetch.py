"""`dsec image trace`, `stats` and `prefetch`: what of an image is read first, what was read, and bringing it before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.image import opened_store
from dsec.cli.parameters import duration, json_option, stack_of, stack_options

if TYPE_CHECKING:
    from dsec.cli.bars import Bar
    from dsec.images.lazy.serving.client import LayerDaemon
    from dsec.images.lazy.tracing.image_use import ImageUse
    from dsec.images.lazy.tracing.traces import Trace
    from dsec.images.store import LocalImageStore


@click.command(name="trace", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="IMAGE")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@stack_options
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1, 100), help="Runs, laid over each other.")
@click.option("--first", is_flag=True, help="Keep it as that of the image's first use, whatever that will be.")
@click.option("--timeout", default="10m", show_default=True, metavar="TIME", help="Of each run.")
@json_option
@pass_options
def trace(
    options: Options,
    name: str,
    argv: tuple[str, ...],
    workspace: str | None,
    toolkits: tuple[str, ...],
    repeat: int,
    first: bool,
    timeout: str,
    as_json: bool,
) -> None:
    """Record what COMMAND reads of IMAGE, in a sandbox with cold layers, and keep it: prefetches go by it.

    Each program has one trace in an image: its name counts, whatever its arguments. Of a stack of images each has its
    own. `dsec image publish` publishes traces with the image. Needs root.
    """
    import msgspec

    from dsec.cli.image_tracing import TraceOrder, record_trace
    from dsec.cli.output import working
    from dsec.cli.settings import load
    from dsec.images.lazy.tracing.traces import FIRST_USE, TraceShelf

    settings = msgspec.structs.replace(load(options).settings, state_dir=str(options.state_dir.absolute()))
    with opened_store(options) as images, working(f"running {argv[0]} in {name}"):
        order = TraceOrder(
            image=name,
            above=stack_of(workspace, toolkits),
            argv=argv,
            repeat=repeat,
            timeout_s=duration(timeout),
            settings=settings,
        )
        made = options.run_alone(lambda: record_trace(images, order))
        if first:
            made = tuple(msgspec.structs.replace(each, command=FIRST_USE) for each in made)
        for each in made:
            TraceShelf(images.root).put(each)
    _show_traces((name, *order.above), made, as_json)


def _show_traces(names: tuple[str, ...], made: tuple[Trace, ...], as_json: bool) -> None:
    from dsec.base.units import format_size
    from dsec.cli.output import print_json, print_table

    if as_json:
        print_json(made)
        return
    rows = [
        (
            name,
            trace.command or "(first use)",
            f"{format_size(trace.read_bytes)} of {format_size(sum(layer.size_bytes for layer in trace.layers))}",
            str(len(trace.chunks())),
            str(trace.runs),
        )
        for name, trace in zip(names, made, strict=True)
    ]
    print_table(["image", "command", "read, beside metadata", "chunks", "runs"], rows)


@click.command(name="stats")
@click.argument("name", required=False, metavar="[IMAGE]")
@json_option
@pass_options
def stats(options: Options, name: str | None, as_json: bool) -> None:
    """Say how much of each image is here, was read, came before it was read, came for nothing, and was fetched.

    Bars show sizes: █ was read, ▒ is here and was not seen to be read, ░ is not here. Of whole chunks;
    what the kernel read ahead counts as read. Layers that are wholly here are read without us: of them only what was
    read before that is known.
    """
    from dsec.cli.output import or_dash, print_json, print_table
    from dsec.images.lazy.tracing.image_use import image_uses

    with opened_store(options) as images:
        chosen = images.list() if name is None else (images.get(name),)
        uses = image_uses(images, chosen, _daemon(options, images))
    if as_json:
        print_json(uses)
        return
    largest = max((use.size_bytes for use in uses), default=0)
    columns = ["image", "", "size", "here", "touched", "prefetched", "wasted", "fetched", "traces"]
    traces = [", ".join(command or "(first use)" for command in use.commands) for use in uses]
    for_each = zip(uses, traces, strict=True)
    print_table(columns, [[use.image, _bar(use, largest), *_cells(use), or_dash(named)] for use, named in for_each])


def _bar(use: ImageUse, largest_bytes: int) -> Bar:
    """Draw an image's size, and what of it was read and is here."""
    from dsec.cli.bars import Bar

    read = min(use.touched_bytes, use.here_bytes)
    return Bar(size=use.size_bytes, largest=largest_bytes, parts=(("█", read), ("▒", use.here_bytes - read)))


def _cells(use: ImageUse) -> tuple[str, ...]:
    """Return the sizes of a row, with their share of the image where it tells something."""
    from dsec.base.units import format_size

    def share(part_bytes: int) -> str:
        return f"{format_size(part_bytes)} ({part_bytes / max(1, use.size_bytes):.0%})"

    size, here = format_size(use.size_bytes), share(use.here_bytes)
    if not use.layers:
        return (size, here, "-", "-", "-", "-")  # Wholly here from the beginning: nothing was seen.
    rest = (use.prefetched_bytes, use.wasted_bytes, use.fetched_bytes)
    return (size, here, share(use.touched_bytes), *map(format_size, rest))


@click.command(name="prefetch")
@click.argument("name", metavar="IMAGE")
@click.option("--all", "everything", is_flag=True, help="All of it, what traces name first.")
@click.option("--command", "commands", multiple=True, metavar="PROGRAM", help="What this program reads; up to three.")
@click.option("--full-speed", is_flag=True, help="Do not keep to the share of the bandwidth that prefetches have.")
@click.option("--no-wait", is_flag=True, help="Return at once; the layer daemon goes on.")
@json_option
@pass_options
def prefetch(
    options: Options,
    name: str,
    everything: bool,
    commands: tuple[str, ...],
    full_speed: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Bring what will be read of IMAGE before it is: what its traces name, or all of it.

    Reads of sandboxes come first. Interrupted, it ends after what is under way.
    """
    from dsec.cli.image_prefetching import PrefetchOrder, bring
    from dsec.cli.output import note, print_json

    order = PrefetchOrder(
        image=name, everything=everything, commands=commands, is_limited=not full_speed, waits=not no_wait
    )
    with opened_store(options) as images:
        done = bring(images, _daemon(options, images), order)
    if as_json:
        print_json(done)
    else:
        note(f"{done.wanted} chunks wanted: {done.here} were here, {done.brought} came, {done.failed} could not be had")
    if done.failed:
        note(f"`dsec image verify {name} --full` says why")
        click.get_current_context().exit(1)


def _daemon(options: Options, images: LocalImageStore) -> LayerDaemon:
    from dsec.cli.image import store_url
    from dsec.images.lazy.serving.client import LAZY, LayerDaemon
    from dsec.images.lazy.serving.daemon_options import DaemonOptions

    return LayerDaemon(images.root / LAZY, DaemonOptions(store_url=store_url(options)))
