"""`dsec node`: this node among its peers, and emptying it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dsec.base.errors import InvalidRequestError, NotFoundError, PlatformError
from dsec.base.units import format_duration, format_size
from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import LazyGroup
from dsec.cli.output import note, print_fields, print_json, print_table, printable
from dsec.cli.parameters import json_option
from dsec.model.fleet import DrainProgress, DrainReport, DrainRequest, FleetInfo, PeerInfo
from dsec.model.node import NodeInfo
from dsec.sdk._async.reported import report_of
from dsec.sdk.fleet import fleet_of
from dsec.service.port import SandboxService

_COLUMNS = ("NODE", "URL", "STATE", "SANDBOXES", "LOAD", "DETAIL")


@click.group(name="node", cls=LazyGroup)
def node() -> None:
    """Show a node and its peers, and empty it. Peers are named in its setting `peers`."""


@node.command(name="ls")
@json_option
@pass_options
def ls(options: Options, as_json: bool) -> None:
    """List the node and its peers, with how full they are and whether they answer."""
    info = options.run(lambda service: fleet_of(service).look())
    if as_json:
        print_json(info)
    else:
        print_table(_COLUMNS, _rows(info))


def _rows(info: FleetInfo) -> Iterator[tuple[str, ...]]:
    state = "draining" if info.draining else "takes" if info.takes else "full"
    yield info.node, "(this)", state, str(info.sandboxes), f"{info.load:.2f}", printable(info.detail)
    for peer in info.peers:
        yield _row(peer)


def _row(peer: PeerInfo) -> tuple[str, ...]:
    state = ("takes" if peer.takes else "takes none") if peer.answers else "no answer"
    figures = (str(peer.sandboxes), f"{peer.load:.2f}") if peer.answers else ("-", "-")
    return (peer.node, peer.url, state, *figures, printable(peer.detail))


@node.command(name="show")
@click.argument("name", metavar="[NODE]", required=False)
@json_option
@pass_options
def show(options: Options, name: str | None, as_json: bool) -> None:
    """Show the node, or the peer with this id or URL."""

    async def ask(service: SandboxService) -> tuple[NodeInfo, FleetInfo]:
        return await service.node(), await fleet_of(service).look()

    own, info = options.run(ask)
    if name is None or name == info.node:
        if as_json:
            print_json({"node": own, "fleet": info})
        else:
            print_fields(_own_fields(own, info))
        return
    peer = next((peer for peer in info.peers if name in (peer.node, peer.url)), None)
    if peer is None:
        raise NotFoundError(f"{name[:80]!r} is no peer of {info.node}", resolution="`dsec node ls` lists them")
    if as_json:
        print_json(peer)
    else:
        print_fields(zip(("node", "url", "state", "sandboxes", "load", "detail"), _row(peer), strict=True))


def _own_fields(own: NodeInfo, info: FleetInfo) -> Iterator[tuple[str, str]]:
    yield "node", own.node
    yield "version", own.version
    yield "runtime", own.runtime
    yield "processors", f"{own.cpu_millis / 1000:g}"
    yield "memory", format_size(own.memory_bytes)
    yield "state", "draining" if info.draining else "takes sandboxes" if info.takes else f"full: {info.detail}"
    yield "sandboxes", str(info.sandboxes)
    yield "load", f"{info.load:.2f}"
    yield "peers", f"{sum(peer.answers for peer in info.peers)} of {len(info.peers)} answer"


@node.command(name="drain")
@click.option("--to", "to", multiple=True, metavar="NODE", help="Id or URL of a peer that may take them; repeatable.")
@click.option(
    "--at-once", type=click.IntRange(1, 64), default=DrainRequest().at_once, show_default=True, help="Moves at a time."
)
@click.option("--undo", is_flag=True, help="Take sandboxes again; what moved stays where it is.")
@json_option
@pass_options
def drain(options: Options, to: tuple[str, ...], at_once: int, undo: bool, as_json: bool) -> None:
    """Take no more sandboxes and move all to peers; asking again does what is left.

    The node stays drained, also after a restart, until --undo. Interrupting this command does not stop the moves.
    """
    if undo:
        if to:
            raise InvalidRequestError("--undo takes no --to")
        options.run(lambda service: fleet_of(service).undo_drain())
        note("the node takes sandboxes again")
        return
    report = options.run(lambda service: _follow(service, DrainRequest(to=to, at_once=at_once)))
    if as_json:
        print_json(report)
    else:
        taken = format_duration(report.duration_s)
        click.echo(f"{len(report.moved)} moved, {len(report.ended)} ended, {len(report.failed)} still here; {taken}")
    for failure in report.failed:
        note(f"{failure.sandbox_id}: {failure.code}: {printable(failure.brief)}")
    note("the node takes no more sandboxes until `dsec node drain --undo`")
    if report.failed:
        click.get_current_context().exit(PlatformError.exit_code)


async def _follow(service: SandboxService, request: DrainRequest) -> DrainReport:
    """Show what moves where and return the report."""
    work = fleet_of(service).drain(request)
    return await report_of("drain", work, DrainReport, DrainProgress, lambda event: note(_line(event)))


def _line(event: DrainProgress) -> str:
    if not event.sandbox_id:
        return f"{event.total} sandboxes to move"
    return f"{event.done} of {event.total}: {event.sandbox_id} {f'is on {event.node}' if event.node else 'stays'}"
