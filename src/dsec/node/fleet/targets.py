"""The peers that may take a sandbox, the emptiest first.

Peers are asked once for many sandboxes. What was sent to one since is added to its answer by what a sandbox of that
shape is expected to use, until it is asked again: else all of them would go to the one that was the emptiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from dsec.base.errors import DsecError, NodeUnavailableError
from dsec.model.fleet import PeerInfo
from dsec.model.sandbox import SandboxSpec
from dsec.node.core import Core
from dsec.placement.load import Increment, load_of
from dsec.placement.policy import Expectation
from dsec.placement.request import Shape
from dsec.placement.view import Health, NodeView, Usage
from dsec.service.peers import Peer

ANSWER_S = 5.0
"""How long a peer may take to say how full it is."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A peer, and what it said or why not."""

    peer: Peer
    view: NodeView | None
    error: DsecError | None
    duration_s: float

    def info(self) -> PeerInfo:
        view, error = self.view, self.error
        if view is None:
            detail = "" if error is None else f"{error.code}: {error.brief}"
            return PeerInfo(
                node=self.peer.node, url=self.peer.url, answers=False, duration_s=self.duration_s, detail=detail
            )
        return PeerInfo(
            node=self.peer.node,
            url=self.peer.url,
            answers=True,
            takes=view.health is Health.ACCEPTING,
            load=load_of(view.used, view.capacity),
            sandboxes=view.used.sandboxes,
            duration_s=self.duration_s,
            detail=view.note,
        )


def others(core: Core) -> list[Peer]:
    """Return the peers of this node but itself: one list of peers may serve a whole fleet."""
    return [peer for peer in core.parts.peers.known() if peer.node != core.parts.node_id]


async def ask(core: Core, peers: Sequence[Peer]) -> list[Seen]:
    """Ask peers how full they are, all at once; return what they said in the order given."""
    seen: dict[str, Seen] = {}

    async def one(peer: Peer) -> None:
        began_s = core.now_boot_s()
        view: NodeView | None = None
        error: DsecError | None = NodeUnavailableError(f"the peer did not answer within {ANSWER_S:g} s")
        with anyio.move_on_after(ANSWER_S):
            try:
                view, error = await peer.view(), None
            except DsecError as failure:
                error = failure
        if view is not None and view.node != peer.node:
            error = NodeUnavailableError(f"the node {view.node} answers there")
            view = None
        seen[peer.node] = Seen(peer, view, error, core.now_boot_s() - began_s)

    async with anyio.create_task_group() as group:
        for peer in peers:
            group.start_soon(one, peer)
    return [seen[peer.node] for peer in peers]


class Targets:
    """Where sandboxes of this node can go.

    Args:
        seen: what the peers said.
        own: what this node says, where it is to be compared with them; it is never in `order`.
    """

    def __init__(self, seen: Sequence[Seen], own: NodeView | None = None) -> None:
        self._peers = {each.peer.node: each.peer for each in seen}
        views = [each.view for each in seen if each.view is not None and each.view.health is Health.ACCEPTING]
        self._standing = {view.node: (view.used, view.capacity) for view in (*views, *([own] if own else []))}

    def order(self, spec: SandboxSpec) -> list[Peer]:
        """Return the peers that take sandboxes, the one that would be the emptiest with this one first."""
        return [self._peers[node] for node in self.nodes(spec) if node in self._peers]

    def nodes(self, spec: SandboxSpec) -> list[str]:
        """Return the same by id, this node among them where it is compared."""
        increment = _increment(spec)
        after = {node: load_of(_with(used, increment), capacity) for node, (used, capacity) in self._standing.items()}
        return sorted(after, key=lambda node: (after[node], node))

    def count(self, node: str, spec: SandboxSpec, sign: int = 1) -> None:
        """A node is being sent a sandbox, or (-1) did not take it."""
        if node in self._standing:
            used, capacity = self._standing[node]
            self._standing[node] = _with(used, _increment(spec), sign), capacity

    def leave_out(self, node: str) -> None:
        """A node does not answer any more, or is full."""
        self._standing.pop(node, None)


def _increment(spec: SandboxSpec) -> Increment:
    shape = Shape(
        cpu_millis=spec.resources.cpu_millis or 0,
        memory_bytes=spec.resources.memory_bytes or 0,
        disk_bytes=spec.resources.disk_bytes or 0,
    )
    return Increment(shape, Expectation())


def _with(used: Usage, increment: Increment, sign: int = 1) -> Usage:
    return Usage(
        cpu_millis=max(0, used.cpu_millis + sign * int(increment.cpu_millis)),
        memory_bytes=max(0, used.memory_bytes + sign * int(increment.memory_bytes)),
        sandboxes=max(0, used.sandboxes + sign),
        creating=used.creating,
    )
