"""A cluster of fake nodes and real placement engines, with every fault that placement must bear, determined by a seed.

The engines, creations, retries and ledgers are the real ones. Nodes are fakes that admit by one rule, take some time,
and may crash, lie about their load, answer late and come back with what they had. Messages take time and get lost. A
watcher polls the nodes and may fall silent. Every clock but the cluster's own is off by up to an hour; nothing may
depend on that.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dsec.base.errors import DsecError
from dsec.model.retry import RetryPolicy
from dsec.placement.affinity import NO_AFFINITY, AffinityPolicy
from dsec.placement.creation import Creation, Done, GiveUp, Pause, Send, Step
from dsec.placement.decision import Orphan
from dsec.placement.duplicates import Holder
from dsec.placement.engine import PlacementEngine
from dsec.placement.ledger import CreationLedger
from dsec.placement.policy import PlacementPolicy
from dsec.placement.request import PlacementRequest
from dsec.placement.view import Capacity, Health, NodeView, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often things go wrong.

    Attributes:
        lost: share of messages that never arrive.
        late: share of messages that come after `late_s`.
        late_s: how late.
        crash_every_s: mean time between crashes of one node; 0: never.
        down_s: how long a crashed node stays away.
        liars: how many nodes report that they are empty.
        silent: from when to when the watcher hears of nothing.
        twice: share of requests that two schedulers get.
    """

    lost: float = 0.0
    late: float = 0.0
    late_s: float = 40.0
    crash_every_s: float = 0.0
    down_s: float = 15.0
    liars: int = 0
    silent: tuple[float, float] = (0.0, 0.0)
    twice: float = 0.0


@dataclass(slots=True)
class FakeNode:
    """A node that admits up to a number of sandboxes, and creations at once."""

    name: str
    capacity: Capacity
    liar: bool = False
    up: bool = True
    incarnation: int = 1
    version: int = 0
    ledger: CreationLedger = field(default_factory=CreationLedger)
    ready: dict[str, frozenset[str]] = field(default_factory=dict)
    most_held: int = 0
    most_creating: int = 0

    def has_room(self) -> bool:
        """The node's rule."""
        return len(self.ledger) < self.capacity.sandboxes and self.ledger.creating < self.capacity.creations

    def view(self) -> NodeView:
        """What it says of itself."""
        self.version += 1
        used = Usage() if self.liar else Usage(sandboxes=len(self.ledger), creating=self.ledger.creating)
        return NodeView(
            node=self.name,
            capacity=self.capacity,
            used=used,
            incarnation=self.incarnation,
            version=self.version,
            creations_seen=self.ledger.creations_seen,
            health=Health.ACCEPTING,
        )

    def restart(self) -> None:
        """Come back as a new incarnation with the sandboxes that were ready, and without those half made."""
        self.up, self.incarnation, self.version = True, self.incarnation + 1, 0
        self.ledger = CreationLedger()
        for sandbox_id, claims in self.ready.items():
            for claimant in claims or {""}:
                self.ledger.admit(sandbox_id, sandbox_id, claimant)
            self.ledger.ready(sandbox_id)


class PlacementCluster:
    """Schedulers, nodes, a watcher and the time.

    Args:
        seed: determines everything.
        nodes, schedulers: how many.
        capacity: of each node.
        faults: what goes wrong.
        policy, affinity, retry: of the engines.
    """

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        schedulers: int,
        capacity: Capacity,
        faults: Faults,
        policy: PlacementPolicy | None = None,
        affinity: AffinityPolicy = NO_AFFINITY,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._counted = 0
        self.nodes = {
            f"node-{number}": FakeNode(f"node-{number}", capacity, liar=number < faults.liars)
            for number in range(nodes)
        }
        self.engines = [
            PlacementEngine(random.Random(f"{seed}/{number}").getrandbits, policy=policy, affinity=affinity)
            for number in range(schedulers)
        ]
        self.offsets_s = [self.random.uniform(-3600.0, 3600.0) for _ in range(schedulers)]
        self.retry = retry or RetryPolicy()
        self.creations: list[list[Creation]] = []
        self.outcomes: dict[tuple[int, str], Step] = {}
        self.errors: list[DsecError] = []
        self.trace: list[str] = []
        self._poll(1.0)
        for node in self.nodes.values():
            self._plan_crash(node)

    # Time.

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something later."""
        self._counted += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._counted, act))

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = until_s

    def _clock_s(self, scheduler: int) -> float:
        return self.now_s + self.offsets_s[scheduler]

    def _happens(self, share: float) -> bool:
        return self.random.random() < share

    # Nodes and the watcher.

    def _poll(self, every_s: float) -> None:
        self.after(every_s, lambda: self._poll(every_s))
        begin_s, end_s = self.faults.silent
        if begin_s <= self.now_s < end_s:
            return
        for node in self.nodes.values():
            if node.up and not self._happens(self.faults.lost):
                view, held, age_s = node.view(), node.ledger.held, self.random.uniform(0.01, 0.5)
                self.after(age_s, lambda view=view, held=held, age_s=age_s: self._report(view, held, age_s))  # type: ignore[misc]

    def _report(self, view: NodeView, held: frozenset[str], age_s: float) -> None:
        for number, engine in enumerate(self.engines):
            engine.observe(view, self._clock_s(number), age_s=age_s)
            for orphan in engine.reconcile(view.node, held, self._clock_s(number)):
                self._release(number, orphan)

    def _plan_crash(self, node: FakeNode) -> None:
        if self.faults.crash_every_s:
            self.after(self.random.expovariate(1.0 / self.faults.crash_every_s), lambda: self._crash(node))

    def _crash(self, node: FakeNode) -> None:
        if not self.faults.crash_every_s:
            return
        node.up = False
        self.trace.append(f"{self.now_s:.3f} {node.name} crashed")
        self.after(self.faults.down_s, lambda: self._restart(node))

    def _restart(self, node: FakeNode) -> None:
        node.restart()
        self.trace.append(f"{self.now_s:.3f} {node.name} came back")
        self._plan_crash(node)

    def _release(self, scheduler: int, orphan: Orphan) -> None:
        node, claimant = self.nodes[orphan.node], f"s{scheduler}"
        self.trace.append(f"{self.now_s:.3f} {claimant} gives up {orphan.sandbox_id} on {orphan.node}: {orphan.reason}")
        if not node.up:
            return
        if node.ledger.release(orphan.sandbox_id, claimant):
            self._destroy(node, orphan.sandbox_id)
        elif orphan.sandbox_id in node.ready:
            node.ready[orphan.sandbox_id] = node.ledger.claims(orphan.sandbox_id)

    def _destroy(self, node: FakeNode, sandbox_id: str) -> None:
        node.ledger.removed(sandbox_id)
        node.ready.pop(sandbox_id, None)

    # Requests.

    def request(self, request: PlacementRequest) -> None:
        """Ask a scheduler for a sandbox, or two of them at once."""
        chosen = self.random.sample(range(len(self.engines)), 2 if self._happens(self.faults.twice) else 1)
        for scheduler in chosen:
            creation = Creation(request, self.engines[scheduler], self.retry)
            self._follow(scheduler, creation, creation.begin(self._clock_s(scheduler)))

    def _follow(self, scheduler: int, creation: Creation, step: Step) -> None:
        sandbox_id = creation.request.sandbox_id
        match step:
            case Send(node=name, at_s=at_s, deadline_s=deadline_s):
                self.trace.append(f"{self.now_s:.3f} s{scheduler} {sandbox_id} -> {name}")
                late_s = self.faults.late_s if self._happens(self.faults.late) else 0.0
                delay_s = at_s - self._clock_s(scheduler) + late_s + self.random.uniform(0.005, 0.05)
                if not self._happens(self.faults.lost):
                    self.after(delay_s, lambda: self._arrive(scheduler, creation, self.nodes[name]))
                self.after(deadline_s - self._clock_s(scheduler), lambda: self._time_out(scheduler, creation, step))
            case Pause(until_s=until_s):
                self.after(
                    until_s - self._clock_s(scheduler),
                    lambda: self._follow(scheduler, creation, creation.resume(self._clock_s(scheduler))),
                )
            case Done(node=name):
                self.trace.append(f"{self.now_s:.3f} s{scheduler} {sandbox_id} is on {name}")
                self.outcomes[scheduler, sandbox_id] = step
            case GiveUp(error=error):
                self.trace.append(f"{self.now_s:.3f} s{scheduler} {sandbox_id} given up: {error.brief}")
                self.errors.append(error)
                self.outcomes[scheduler, sandbox_id] = step

    def _time_out(self, scheduler: int, creation: Creation, step: Send) -> None:
        if creation.step is step:
            self._follow(scheduler, creation, creation.timed_out(step.node, self._clock_s(scheduler)))

    def _arrive(self, scheduler: int, creation: Creation, node: FakeNode) -> None:
        sandbox_id, incarnation = creation.request.sandbox_id, node.incarnation
        if not node.up:
            return
        if node.ledger.known(sandbox_id, sandbox_id) is None and not node.has_room():
            self._answer(scheduler, creation, node, None)
            return
        if not node.ledger.admit(sandbox_id, sandbox_id, f"s{scheduler}").known:
            node.most_held = max(node.most_held, len(node.ledger))
            node.most_creating = max(node.most_creating, node.ledger.creating)
        self.after(self.random.uniform(0.05, 0.5), lambda: self._finish(scheduler, creation, node, incarnation))

    def _finish(self, scheduler: int, creation: Creation, node: FakeNode, incarnation: int) -> None:
        sandbox_id = creation.request.sandbox_id
        admission = node.ledger.known(sandbox_id, sandbox_id)
        if not node.up or node.incarnation != incarnation or admission is None:
            return
        node.ledger.ready(sandbox_id)
        node.ready[sandbox_id] = node.ledger.claims(sandbox_id)
        self._answer(scheduler, creation, node, admission.ticket)

    def _answer(self, scheduler: int, creation: Creation, node: FakeNode, ticket: int | None) -> None:
        if self._happens(self.faults.lost):
            return
        late_s = self.faults.late_s if self._happens(self.faults.late) else 0.0
        self.after(
            late_s + self.random.uniform(0.005, 0.05), lambda: self._hear(scheduler, creation, node.name, ticket)
        )

    def _hear(self, scheduler: int, creation: Creation, node: str, ticket: int | None) -> None:
        before, now_s = creation.step, self._clock_s(scheduler)
        if ticket is None:
            step = creation.rejected(node, now_s)
        else:
            step, orphan = creation.created(node, now_s, ticket=ticket)
            if orphan is not None:
                self._release(scheduler, orphan)
        if step is not before:
            self._follow(scheduler, creation, step)

    # The end.

    def settle(self, seconds: float) -> None:
        """Let no further fault happen, and what is going on come to its end; then rule on what exists twice."""
        self.faults = Faults()
        self.run(self.now_s + seconds)
        for sandbox_id, holders in self.where().items():
            reports = [Holder(node=name, ready=sandbox_id in self.nodes[name].ready) for name in holders]
            for orphan in self.engines[0].rule_on(sandbox_id, reports):
                self.trace.append(f"{self.now_s:.3f} remove {sandbox_id} from {orphan.node}: {orphan.reason}")
                self._destroy(self.nodes[orphan.node], sandbox_id)

    def where(self) -> dict[str, list[str]]:
        """Return the nodes of every sandbox that exists."""
        found: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for sandbox_id in sorted(node.ledger.held):
                found.setdefault(sandbox_id, []).append(node.name)
        return found
