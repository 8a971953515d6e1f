"""`dsec image peers`: who of the fleet has which chunks, who sends, and from whom nothing is taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
import msgspec

from dsec.cli.context import Options, pass_options
from dsec.cli.parameters import json_option

if TYPE_CHECKING:
    from dsec.distribution.overview import PeerStatus
    from dsec.images.lazy.peers.report import PeersReport
    from dsec.service.tracking import TrackerOverview

_VERDICTS = 16


@click.command(name="peers")
@json_option
@pass_options
def peers(options: Options, as_json: bool) -> None:
    """Show what this host took from peers and gave to them, and what the tracker of its fleet knows of each node.

    The tracker is named by the node's setting `tracker`, and asked with the fleet's secret.
    """
    from dsec.cli.output import print_json

    here, known = _here(options), _known(options)
    if as_json:
        print_json({"here": here, "tracker": known})
        return
    _show_here(here)
    _show_nodes(known)
    _show_verdicts(known)


def _known(options: Options) -> TrackerOverview:
    """Ask the tracker. Raises `InvalidRequestError` where there is none."""
    from dsec.base.errors import InvalidRequestError
    from dsec.cli.settings import load_beside_node
    from dsec.node.settings import secret_file
    from dsec.sdk.tracker import tracker_overview

    loaded = load_beside_node(options)
    settings = msgspec.structs.replace(loaded.settings, state_dir=str(loaded.state_dir))
    if not settings.tracker:
        raise InvalidRequestError(
            "this host's node takes part in no exchange of chunks: it has no tracker",
            resolution="set `tracker` to ID=URL of any node of the fleet, and `peer_listen` to HOST:PORT",
        )
    own = _node_id(loaded.state_dir)
    return anyio.run(tracker_overview, own, settings.tracker, secret_file(settings))


def _node_id(state_dir: Path) -> str:
    from dsec.base.errors import NodeUnavailableError

    try:
        return (state_dir / "node.id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NodeUnavailableError(
            f"no node was ever started in {state_dir}", resolution="start one with `dsec up`"
        ) from error


def _here(options: Options) -> PeersReport | None:
    """Return what this host's layer daemon says; None: it does not run, or has no peers."""
    from dsec.images.lazy.serving.client import LAZY, running_daemon

    daemon = running_daemon(options.state_dir / "images" / LAZY)
    return None if daemon is None else daemon.status().peers


def _show_here(here: PeersReport | None) -> None:
    from dsec.base.units import format_size
    from dsec.cli.output import note, or_dash, print_fields

    if here is None:
        note("this host's layer daemon does not run, or was started without a tracker")
        return
    failures = ", ".join(f"{count} {kind}" for kind, count in sorted(here.failures.items()))
    print_fields(
        (
            ("node", here.node),
            ("gives chunks at", or_dash(here.address)),
            ("given", f"{format_size(here.sent_bytes)}, {here.sending} under way, {here.waiting} waiting"),
            ("sent away", f"{here.refused} requests"),
            ("taken", f"{here.chunks} chunks, {format_size(here.received_bytes)}"),
            ("failures of peers", or_dash(failures)),
        )
    )


def _show_nodes(known: TrackerOverview) -> None:
    from dsec.cli.output import print_table, printable

    statistics = known.statistics
    click.echo(
        f"tracker {printable(known.node)}: {statistics.nodes} nodes, {statistics.chunks_asked} chunks asked for, "
        f"{statistics.sent_to_peers} of them sent to peers"
    )
    rows = [
        (
            printable(peer.node),
            printable(peer.address) or "-",
            ", ".join(_layers(peer)) or "-",
            f"{peer.uploads}/{peer.upload_slots}",
            _state(peer),
        )
        for peer in known.peers
    ]
    print_table(["node", "gives chunks at", "has", "uploads", "state"], rows)


def _layers(peer: PeerStatus) -> Iterator[str]:
    from dsec.base.units import format_number_of

    whole = sum(layer.complete for layer in peer.layers)
    chunks = sum(layer.chunks for layer in peer.layers)
    if whole:
        yield format_number_of(whole, "whole layer")
    if chunks:
        others = len(peer.layers) - whole
        of = f"{others} more" if whole else format_number_of(others, "layer")
        yield f"{format_number_of(chunks, 'chunk')} of {of}"


def _state(peer: PeerStatus) -> str:
    if peer.quarantined:
        return "quarantined"
    if peer.distrusted:
        return "not believed"
    return "gives" if peer.upload_slots else "takes only"


def _show_verdicts(known: TrackerOverview) -> None:
    from dsec.cli.output import age, note

    for verdict in known.verdicts[-_VERDICTS:]:
        what = verdict.kind.value.replace("_", " ")
        chunk = f", chunk {verdict.chunk[:12]}" if verdict.chunk else ""
        by = f", said by {', '.join(verdict.reporters)}" if verdict.reporters else ""
        note(f"{age(verdict.wall_s)} ago: {what}: node {verdict.node}{chunk}{by}, for {verdict.for_s:.0f} s")
