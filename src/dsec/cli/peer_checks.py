"""What `dsec doctor` says of the node's peers, and of its tracker: each is called as the node would call it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.base.ids import is_node_id
from dsec.cli.host_checks import Check, Need
from dsec.linux.probe import Finding, found, missing
from dsec.model.peer import Peer, parse_peers
from dsec.node.settings import NodeSettings
from dsec.placement.load import load_of

_ANSWER_S = 5.0
_NOBODY = "00000"
"""Stands for a node that has not been started yet: any id does to ask another one how it is."""


def peer_checks(settings: NodeSettings) -> Sequence[Check]:
    """Return a row for each peer of a node, and one for its tracker; `settings.state_dir` is filled in."""
    own = _own_id(Path(settings.state_dir))
    peers = [
        Check(
            name=f"peer_{peer.node}",
            title=f"peer {peer.node}",
            enables="moving sandboxes there and back",
            resolution="start it with `dsec up`, with the same peer-token and at the address in `peers`",
            need=Need.RECOMMENDED,
            probe=partial(_look, settings, own, peer),
        )
        for peer in parse_peers(settings.peers)
        if peer.node != own
    ]
    return [*peers, _tracker_check(settings, own)] if settings.tracker else peers


def _tracker_check(settings: NodeSettings, own: str) -> Check:
    return Check(
        name="tracker",
        title="tracker of chunks",
        enables="taking chunks of layers from peers; without it they come from their origins",
        resolution="start that node with `dsec up --host ...`, with the same peer-token, or correct `tracker`",
        need=Need.RECOMMENDED,
        probe=partial(_ask_tracker, settings, own),
    )


def _ask_tracker(settings: NodeSettings, own: str) -> Finding:
    from dsec.node.settings import secret_file
    from dsec.sdk.tracker import tracker_overview

    try:
        known = anyio.run(tracker_overview, own, settings.tracker, secret_file(settings))
    except InvalidRequestError as error:  # Of our own secret: it says how to make one.
        return missing(error.brief, error.resolution)
    except DsecError as error:
        return missing(f"{error.brief}: {error.detail}")
    return found(f"node {known.node}, which knows {known.statistics.nodes} nodes")


def _own_id(state_dir: Path) -> str:
    try:
        text = (state_dir / "node.id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return _NOBODY
    return text if is_node_id(text) else _NOBODY


def _look(settings: NodeSettings, own: str, peer: Peer) -> Finding:
    from dsec.base.secret_file import read_secret
    from dsec.node.settings import secret_file
    from dsec.sdk.peers import HttpPeer

    async def ask() -> Finding:
        http = HttpPeer(own, peer, lambda: read_secret(secret_file(settings)))
        try:
            with anyio.fail_after(_ANSWER_S):
                view = await http.view()
        finally:
            http.close()
        return found(
            f"{view.health.value}, {view.used.sandboxes} sandboxes, load {load_of(view.used, view.capacity):.2f}"
        )

    try:
        return anyio.run(ask)
    except TimeoutError:
        return missing(f"no answer within {_ANSWER_S:g} s at {peer.url}")
    except InvalidRequestError as error:  # Of our own secret: it says how to make one.
        return missing(error.brief, error.resolution)
    except DsecError as error:
        return missing(error.brief)
