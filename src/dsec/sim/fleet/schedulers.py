"""The schedulers of a fleet, the watcher that feeds them, and what happens when one of these is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dsec.placement.creation import Creation, Step
from dsec.placement.engine import PlacementEngine
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.shards import first_table, rebalanced
from dsec.placement.view import NodeView
from dsec.sim.calendar import Calendar
from dsec.sim.distributions import Streams
from dsec.sim.fleet.node import SimNode
from dsec.sim.fleet.sandbox import SimSandbox
from dsec.sim.fleet.scenario import Scheduling

Carry = Callable[[float, SimSandbox, Step], None]
"""What carries a step out."""


class SimScheduler:
    """One scheduler: an engine, and the requests that it has not answered.

    Attributes:
        engine: the policy.
        alive: whether it works.
        free_s: until when it is busy with earlier decisions.
        open: requests that it works on, by sandbox id, where schedulers may die.
    """

    __slots__ = ("alive", "engine", "free_s", "open")

    def __init__(self, engine: PlacementEngine) -> None:
        self.engine = engine
        self.alive = True
        self.free_s = 0.0
        self.open: dict[str, SimSandbox] = {}


class Schedulers:
    """All schedulers.

    Args:
        rules: of the scenario.
        calendar: where events go.
        nodes: of the fleet.
        streams: of randomness.
        carry: is given every step of a creation.
        may_die: whether a scheduler is lost in this scenario.
    """

    def __init__(
        self,
        rules: Scheduling,
        calendar: Calendar,
        nodes: Sequence[SimNode],
        streams: Streams,
        carry: Carry,
        *,
        may_die: bool,
    ) -> None:
        self._rules, self._calendar, self._nodes, self._streams, self._carry = rules, calendar, nodes, streams, carry
        self.all = [SimScheduler(self._engine(f"scheduler {at}")) for at in range(rules.schedulers)]
        self.may_die = may_die
        self.watching = True
        self.takeovers = 0
        self._lives = 0
        self._numbers = {_name(at): at for at in range(rules.schedulers)}
        self._table = first_table(self._numbers)

    def _engine(self, name: str) -> PlacementEngine:
        bits = random.Random(self._streams.integer(name)).getrandbits
        return PlacementEngine(bits, policy=self._rules.placement, affinity=self._rules.affinity)

    # Views.

    def watch(self, now_s: float, _: None = None) -> None:
        """Take a view of every node, and hand it to the schedulers after the delay."""
        if self.watching:
            views = [node.view() for node in self._nodes if node.alive and node.opens_s <= now_s]
            if self._rules.view_delay_s:
                self._calendar.at(now_s + self._rules.view_delay_s, self._observe, views)
            else:
                self._observe(now_s, views, 0.0)
        self._calendar.at(now_s + self._rules.view_every_s, self.watch)

    def _observe(self, now_s: float, views: Sequence[NodeView], age_s: float | None = None) -> None:
        age = self._rules.view_delay_s if age_s is None else age_s
        for scheduler in self.all:
            if scheduler.alive:
                observe = scheduler.engine.observe
                for view in views:
                    observe(view, now_s, age_s=age)

    # Requests.

    def submit(self, now_s: float, sandbox: SimSandbox, shape: Shape) -> None:
        """Begin a creation with the scheduler that owns the task; wait while nobody does."""
        owner = self._numbers[self._table.owner_of(sandbox.task)] if len(self.all) > 1 else 0
        scheduler = self.all[owner]
        if not scheduler.alive:
            self._calendar.at(now_s + 1.0, self._again, (sandbox, shape))
            return
        sandbox.scheduler = owner
        if self.may_die:
            scheduler.open[sandbox.sandbox_id] = sandbox
        request = PlacementRequest(
            sandbox_id=sandbox.sandbox_id,
            shape=shape,
            task_id=sandbox.task,
            job_id=sandbox.job,
        )
        sandbox.creation = creation = Creation(request, scheduler.engine, self._rules.retries)
        if not self._rules.decision_s:
            self._carry(now_s, sandbox, creation.begin(now_s))
            return
        scheduler.free_s = max(now_s, scheduler.free_s) + self._rules.decision_s
        self._calendar.at(scheduler.free_s, self._begin, (sandbox, creation))

    def _again(self, now_s: float, pair: tuple[SimSandbox, Shape]) -> None:
        if not pair[0].ended:
            self.submit(now_s, *pair)

    def _begin(self, now_s: float, pair: tuple[SimSandbox, Creation]) -> None:
        sandbox, creation = pair
        if sandbox.creation is creation and self.all[sandbox.scheduler].alive:
            self._carry(now_s, sandbox, creation.begin(now_s))

    def answered(self, sandbox: SimSandbox) -> None:
        """A request is no longer open."""
        if self.may_die:
            self.all[sandbox.scheduler].open.pop(sandbox.sandbox_id, None)

    def engine_of(self, sandbox: SimSandbox) -> PlacementEngine:
        """Return the engine that a sandbox was placed by."""
        return self.all[sandbox.scheduler].engine

    # Losses.

    def lose(self, now_s: float, which: int) -> None:
        """A scheduler dies; what it knew is gone, and its requests are asked again when another has its shards."""
        self.all[which].alive = False
        self._calendar.at(now_s + self._rules.takeover_s, self._take_over, which)

    def _take_over(self, now_s: float, which: int) -> None:
        dead = self.all[which]
        if dead.alive:
            return
        heirs = self._living()
        if not heirs:
            self._calendar.at(now_s + self._rules.takeover_s, self._take_over, which)
            return
        self.takeovers += 1
        self._table = rebalanced(self._table, heirs)
        self._ask_again(now_s, dead)

    def _ask_again(self, now_s: float, scheduler: SimScheduler) -> None:
        orphans = list(scheduler.open.values())
        scheduler.open.clear()
        for sandbox in orphans:
            if not sandbox.ended and sandbox.node is None and sandbox.creation is not None:
                self.submit(now_s, sandbox, sandbox.creation.request.shape)

    def _living(self) -> list[str]:
        return [_name(at) for at, scheduler in enumerate(self.all) if scheduler.alive]

    def restore(self, now_s: float, which: int) -> None:
        """A scheduler comes back, knowing nothing; it gets shards from the others."""
        scheduler = self.all[which]
        self._lives += 1
        scheduler.alive, scheduler.free_s = True, now_s
        scheduler.engine = self._engine(f"scheduler {which} life {self._lives}")
        self._table = rebalanced(self._table, self._living())
        for node in self._nodes:
            if node.alive:
                scheduler.engine.observe(node.view(), now_s)
        self._ask_again(now_s, scheduler)


def _name(which: int) -> str:
    return f"scheduler-{which}"
