"""Several nodes of fakes that are each other's peers: each in a task of its own, so that one can be killed alone.

The network between them is calls; `Wire` loses them. A node that dies while it answers looks to the other side as one
that does not answer, and is started again at once on what it left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.abc

from dsec.base.errors import InvalidRequestError, NodeUnavailableError
from dsec.images.memory import MemoryImages
from dsec.node.node import Node
from dsec.placement.view import NodeView
from dsec.service.content import ByteStream
from dsec.service.migration import (
    MigrationAccepted,
    MigrationCommit,
    MigrationOffer,
    MigrationRound,
    MigrationStatus,
    ReleaseAnswer,
    RoundReceipt,
)
from dsec.service.peers import Peer
from dsec.stores.memory import MemoryJournal
from dsec.testing.faults import Faults, Killed
from dsec.testing.memory_node import CountingBytes, MemoryHost

_Answer = TypeVar("_Answer")
_FOR_EVER = 1 << 30
_IDS_EACH = 10_000


@dataclass(slots=True)
class Wire:
    """The network: every message has two chances to be lost, itself and its answer.

    Attributes:
        lose_at: the chance that is taken; 0: none.
        cut: how the names of messages begin that are always lost.
        lost: the name of what was lost.
        chances: how many there were.
    """

    lose_at: int = 0
    cut: tuple[str, ...] = ()
    lost: str = ""
    chances: int = 0

    def pass_on(self, name: str) -> None:
        self.chances += 1
        if self.chances == self.lose_at or name.startswith(self.cut):
            self.lost = name
            raise NodeUnavailableError(f"{name} was lost")


class FleetFaults(Faults):
    """Faults of one life of a node, whose strike may be something else than its death.

    Attributes:
        on_strike: what happens instead, perhaps in a thread; None: the node dies.
    """

    def __init__(self, *, kill_at: int = 0) -> None:
        super().__init__(kill_at=kill_at)
        self.on_strike: Callable[[], object] | None = None

    def _strike(self) -> None:
        if self.on_strike is None:
            super()._strike()
        else:
            self.on_strike()


class _MemoryPeer:
    """A node as another one of the fleet sees it."""

    def __init__(self, fleet: Fleet, node: str) -> None:
        self._fleet = fleet
        self.node = node
        self.url = f"memory://{node}"

    async def offer(self, offer: MigrationOffer) -> MigrationAccepted:
        return await self._call("offer", lambda node: node.offer(offer))

    async def round(self, migration_id: str, head: MigrationRound, content: ByteStream) -> RoundReceipt:
        try:
            return await self._call("round", lambda node: node.round(migration_id, head, content))
        finally:
            with anyio.CancelScope(shield=True):
                await content.aclose()

    async def commit(self, migration_id: str, commit: MigrationCommit) -> None:
        await self._call("commit", lambda node: node.commit(migration_id, commit))

    async def release(self, migration_id: str) -> ReleaseAnswer:
        return await self._call("release", lambda node: node.release(migration_id))

    async def abort(self, migration_id: str) -> None:
        await self._call("abort", lambda node: node.abort(migration_id))

    async def status(self, migration_id: str) -> MigrationStatus:
        return await self._call("status", lambda node: node.status(migration_id))

    async def view(self) -> NodeView:
        return await self._call("view", lambda node: node.view())

    async def _call(self, name: str, ask: Callable[[Peer], Awaitable[_Answer]]) -> _Answer:
        fleet = self._fleet
        node = fleet.nodes.get(self.node)
        if node is None:
            raise NodeUnavailableError(f"{self.node} is not there")
        fleet.wire.pass_on(f"{name} to {self.node}")
        try:
            answer = await ask(node.migrations)
        except Killed:
            if not fleet.faults[self.node].dead:
                raise  # Who asks died, not who answers.
            fleet.bury(self.node)
            raise NodeUnavailableError(f"{self.node} died") from None
        fleet.wire.pass_on(f"answer to {name} from {self.node}")
        return answer


class FleetPeers:
    """The `Peers` of every node of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._peers = {name: _MemoryPeer(fleet, name) for name in fleet.hosts}

    def known(self) -> Sequence[Peer]:
        return tuple(self._peers.values())

    async def find(self, node: str) -> Peer:
        peer = self._peers.get(node.removeprefix("memory://"))
        if peer is None:
            raise InvalidRequestError(f"{node[:80]!r} is no peer")
        return peer


@dataclass(slots=True)
class Fleet:
    """Hosts with a node on each.

    Attributes:
        group: where nodes run.
        hosts: by node id; they outlive their nodes.
        nodes: those that are alive.
        faults: of each node's present life.
        wire: the network.
        deaths: at what steps nodes were killed.
        restart_kill_at: step at which a node that is started again after a kill is killed, too; 0: at none.
    """

    group: anyio.abc.TaskGroup
    hosts: dict[str, MemoryHost]
    nodes: dict[str, Node] = field(default_factory=dict)
    faults: dict[str, FleetFaults] = field(default_factory=dict)
    wire: Wire = field(default_factory=Wire)
    deaths: list[str] = field(default_factory=list)
    restart_kill_at: int = 0
    _risen: dict[str, anyio.Event] = field(default_factory=dict)
    _ends: dict[str, anyio.Event] = field(default_factory=dict)
    _gone: dict[str, anyio.Event] = field(default_factory=dict)

    async def start(self, name: str, *, kill_at: int = 0) -> Node | None:
        """Start a node; None when it died while it did."""
        faults = FleetFaults(kill_at=kill_at or _FOR_EVER)
        faults.armed = bool(kill_at)
        self.faults[name], self._ends[name], self._gone[name] = faults, anyio.Event(), anyio.Event()
        tried = anyio.Event()
        self.group.start_soon(self._live, name, faults, tried)
        await tried.wait()
        return self.nodes.get(name)

    async def _live(self, name: str, faults: FleetFaults, tried: anyio.Event) -> None:
        try:
            async with Node.open(faults.parts(self.hosts[name])) as node:
                self.nodes[name] = node
                tried.set()
                await self._ends[name].wait()
        except* Killed:
            pass
        finally:
            self.nodes.pop(name, None)
            tried.set()
            self._gone[name].set()

    async def stop(self, name: str) -> None:
        """End a node, dead or alive."""
        self._ends[name].set()
        await self._gone[name].wait()

    def bury(self, name: str) -> None:
        """A node was killed: have the next one started."""
        self.nodes.pop(name, None)
        self.deaths.append(self.faults[name].struck)
        self._risen[name] = anyio.Event()
        self.group.start_soon(self._restart, name)

    async def _restart(self, name: str) -> None:
        """Start the next node of a host after a kill; it may be killed on its way, too, and the one after it lives."""
        await self.stop(name)
        if self.restart_kill_at:
            await self.start(name, kill_at=self.restart_kill_at)
            await self.stop(name)
        assert await self.start(name) is not None
        self._risen[name].set()

    async def wait_alive(self) -> None:
        """Wait until every node that was killed has a successor."""
        for risen in tuple(self._risen.values()):
            await risen.wait()


@asynccontextmanager
async def fleet_of(
    *names: str, journals: Sequence[MemoryJournal] = (), images: Callable[[], MemoryImages] = MemoryImages
) -> AsyncIterator[Fleet]:
    """Run a fleet.

    Args:
        names: ids of the nodes.
        journals: of each; empty: ordinary ones.
        images: makes what each has.
    """
    try:
        async with _running(names, journals or [MemoryJournal() for _ in names], images) as fleet:
            yield fleet
    except BaseExceptionGroup as wrapped:
        # Nodes end by themselves: it is the block's own error in a wrapper.
        raise wrapped.exceptions[0] from None


@asynccontextmanager
async def _running(
    names: Sequence[str], journals: Sequence[MemoryJournal], images: Callable[[], MemoryImages]
) -> AsyncIterator[Fleet]:
    async with anyio.create_task_group() as group:
        hosts = {
            name: MemoryHost(
                node_id=name, journal=journal, images=images(), random_bytes=CountingBytes(number * _IDS_EACH)
            )
            for number, (name, journal) in enumerate(zip(names, journals, strict=True))
        }
        fleet = Fleet(group, hosts)
        for host in fleet.hosts.values():
            host.peers = FleetPeers(fleet)
        for name in names:
            await fleet.start(name)
        try:
            yield fleet
        finally:
            for name in names:
                await fleet.stop(name)
            group.cancel_scope.cancel()
