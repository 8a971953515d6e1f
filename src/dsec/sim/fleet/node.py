"""One simulated node: the shell around a node's own admission, as a live node is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dsec.placement.view import Capacity, NodeView, Usage
from dsec.pools.admission import Admission, AdmissionPolicy, Pressure
from dsec.sim.fleet.links import ImageCache, Link
from dsec.sim.fleet.scenario import NodeGroup

if TYPE_CHECKING:
    from dsec.placement.creation import Creation, Send
    from dsec.sim.fleet.sandbox import SimSandbox

CLOUD = "cloud"
OWN = "own"
_NOT_KNOWN_S = float("inf")


class Work:
    """One creation on one node.

    Attributes:
        sandbox: for which sandbox.
        creation: on whose behalf; the sandbox may have another by the time it is done.
        node: where.
        life: the node's incarnation; another one has forgotten it.
        ticket: the node's number for it.
        asked_s, begun_s: when the node took it, and when it got a place.
        missing: parts of its image that are not there yet.
        ends_s: when the sandbox will stand; infinite until that is known.
        done: whether the sandbox stands.
        unwatched: the request whose deadline nobody watches, because this is in time.
    """

    __slots__ = (
        "asked_s",
        "begun_s",
        "creation",
        "done",
        "ends_s",
        "life",
        "missing",
        "node",
        "sandbox",
        "ticket",
        "unwatched",
    )

    def __init__(self, sandbox: SimSandbox, creation: Creation, node: SimNode, ticket: int, asked_s: float) -> None:
        self.sandbox, self.creation, self.node, self.ticket = sandbox, creation, node, ticket
        self.life = node.life
        self.asked_s = self.begun_s = asked_s
        self.ends_s = _NOT_KNOWN_S
        self.missing = 0
        self.done = False
        self.unwatched: tuple[SimSandbox, Send] | None = None


class SimNode:
    """A node: what it has, what it holds, what it is creating.

    Attributes:
        name, group, rack: which.
        cloud, creations_at_once: of the group, looked up for every sandbox.
        life: its incarnation; grows when it starts anew.
        alive: whether it answers.
        opens_s: it takes nothing before; rented machines need time.
        held: sandboxes that exist, those being created included.
        memory_bytes: in use.
        cores, best_effort_cores: in use, and of these by best-effort work.
        creating: creations that have begun.
        queue: creations that wait for a place.
        works: all of them, by the id of the sandbox.
        residents: sandboxes that stand, in the order in which they came; the keys of a dictionary.
    """

    __slots__ = (
        "_capacity", "_features", "_version", "admission", "alive", "best_effort_cores", "cache", "cloud", "cores",
        "creating", "creations_at_once", "down", "group", "held", "life", "memory_bytes", "name", "opens_s", "queue",
        "rack", "residents", "seen", "up", "works",
    )  # fmt: skip

    def __init__(self, name: str, group: NodeGroup, rack: int) -> None:
        self.name, self.group, self.rack = name, group, rack
        self.cloud, self.creations_at_once = group.cloud, group.creations_at_once
        self.alive = True
        self.opens_s = 0.0
        self.life = 1
        self.down, self.up = Link(group.link_bytes_per_s), Link(group.link_bytes_per_s)
        self.cache = ImageCache(group.image_cache_bytes)
        self._features = frozenset((CLOUD if group.cloud else OWN, f"group:{group.name}"))
        self._capacity = Capacity(
            cpu_millis=round(group.cores * 1000),
            memory_bytes=group.memory_bytes,
            disk_bytes=1 << 50,
            sandboxes=group.maximum_sandboxes,
            creations=group.creations_at_once,
        )
        self.admission = Admission(
            AdmissionPolicy(
                maximum_sandboxes=group.maximum_sandboxes, minimum_free_memory_bytes=group.free_memory_bytes
            )
        )
        self._begin()

    def _begin(self) -> None:
        self.held = self.creating = self.seen = self._version = 0
        self.memory_bytes = 0
        self.cores = self.best_effort_cores = 0.0
        self.queue: deque[Work] = deque()
        self.works: dict[str, Work] = {}
        self.residents: dict[SimSandbox, None] = {}

    def admits(self) -> bool:
        """Ask the node's admission whether it takes one more."""
        pressure = Pressure(sandboxes=self.held, memory_available_bytes=self.group.memory_bytes - self.memory_bytes)
        return not self.admission.judge(pressure).refusals

    def take(self, sandbox: SimSandbox, creation: Creation, now_s: float) -> Work:
        """Admit a creation; it then waits in the queue, and its memory is counted."""
        self.seen += 1
        self.held += 1
        self.memory_bytes += sandbox.memory_bytes
        work = Work(sandbox, creation, self, self.seen, now_s)
        self.works[sandbox.sandbox_id] = work
        self.queue.append(work)
        return work

    def release(self, memory_bytes: int) -> None:
        """A sandbox is gone."""
        self.held -= 1
        self.memory_bytes -= memory_bytes

    def die(self) -> None:
        """Lose everything."""
        self.alive = False
        self.life += 1
        self._begin()

    def view(self) -> NodeView:
        """Report."""
        self._version += 1
        return NodeView(
            node=self.name,
            capacity=self._capacity,
            used=Usage(
                cpu_millis=round(self.cores * 1000),
                memory_bytes=self.memory_bytes,
                sandboxes=self.held,
                creating=self.creating + len(self.queue),
            ),
            incarnation=self.life,
            version=self._version,
            creations_seen=self.seen,
            features=self._features,
        )


def make_nodes(groups: tuple[NodeGroup, ...]) -> list[SimNode]:
    """Make all nodes; racks are numbered through all groups, nodes are dealt to them in turn."""
    nodes: list[SimNode] = []
    first_rack = 0
    for group in groups:
        nodes += [SimNode(f"{group.name}-{at}", group, first_rack + at % group.racks) for at in range(group.count)]
        first_rack += group.racks
    return nodes
