"""`herd`: several schedulers on old views, and how evenly they fill the nodes.

A model of one scale unit of DeepSeek Elastic Compute (arXiv 2609.22978): 160 nodes, 5,000 creations a second, eight
schedulers that share the arrivals, and a watcher that shows all of them the fleet once a second. The engines are the
real ones; nodes are counters that take half a second for a creation and never refuse. The model is in virtual time
and determined by its seed, so that the figures do not depend on the host.

*Imbalance* is the fullest node's number of sandboxes over the mean, looked at ten times a second. Two situations:

burst
    One job comes to an empty fleet. The mean is small, so that each misplaced sandbox counts. This is the figure that
    is promised.
steady
    The same arrivals on a fleet that is full already (380,000 sandboxes that live 76 s on average). Here only a herd
    can be seen.

The *oracle* is one scheduler that sees every node as it is and takes the least loaded: what nobody can have.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsec.base.units import TIB
from dsec.bench.context import PureContext
from dsec.bench.distribution import distribution, percentile
from dsec.bench.report import Report, make_report
from dsec.placement.decision import Placement
from dsec.placement.engine import PlacementEngine
from dsec.placement.policy import PlacementPolicy
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Capacity, NodeView, Usage

_NODES = 160
_SCHEDULERS = 8
_ARRIVALS_PER_S = 5000
_VIEW_EVERY_S = 1.0
_LOOK_EVERY_S = 0.1
_CREATION_S = 0.5
_LIFE_S = 76.0
_STEADY = 380_000
_WARM_UP_S = 1.0
_ALL_SEEDS_S = 5.0
_GOAL = 1.15
_SEEDS = (1, 2, 3)
_CHOICES = (1, 2, 3, 4, 5, 6, 7, 8)
_CAPACITY = Capacity(
    cpu_millis=192_000_000, memory_bytes=64 * TIB, disk_bytes=64 * TIB, sandboxes=20_000, creations=20_000
)
_SHAPE = Shape(cpu_millis=0, memory_bytes=0, disk_bytes=0)


class Look(NamedTuple):
    """One look at the fleet: the fullest node over the mean, of sandboxes and of creations in flight."""

    sandboxes: float
    creations: float


@dataclass(slots=True)
class _Node:
    name: str
    sandboxes: int = 0
    creating: int = 0
    seen: int = 0
    version: int = 0

    def view(self) -> NodeView:
        self.version += 1
        used = Usage(sandboxes=self.sandboxes, creating=self.creating)
        return NodeView(node=self.name, capacity=_CAPACITY, used=used, version=self.version, creations_seen=self.seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """How nodes are chosen.

    Attributes:
        name: in the report.
        choices: k; None: the least loaded of all.
        overlay: whether own placements count before a view shows them.
        learn: whether each counts for as many as are made in the fleet meanwhile (`dsec.placement.others`).
        early: whether a node says at once that it has admitted a creation, and not only when it is done.
        answers: whether a node's answer carries a view.
        oracle: whether there is one scheduler that sees everything as it is.
    """

    name: str
    choices: int | None = 2
    overlay: bool = True
    learn: bool = True
    early: bool = True
    answers: bool = False
    oracle: bool = False


ORACLE = Contestant(name="oracle: one scheduler, least loaded of all as they are", choices=None, oracle=True)
OURS = Contestant(name="2 choices, overlay, answers carry views", answers=True)
STALE = Contestant(name="least loaded of all, old views", choices=None, overlay=False)
ONCE = Contestant(name="2 choices, overlay that counts own placements once", learn=False)
BARE = Contestant(name="2 choices, no overlay", overlay=False)


def contestants() -> list[Contestant]:
    """Return everybody, the oracle first."""
    return [
        ORACLE,
        OURS,
        STALE,
        ONCE,
        Contestant(name="2 choices, overlay, tickets only with the answer", early=False),
        Contestant(name="least loaded of all, overlay", choices=None),
        Contestant(name="least loaded of all, overlay that counts own placements once", choices=None, learn=False),
        *(_of(choices, overlay) for choices in _CHOICES for overlay in (False, True)),
    ]


def _of(choices: int, overlay: bool) -> Contestant:
    name = f"{choices} {'choice' if choices == 1 else 'choices'}, {'overlay' if overlay else 'no overlay'}"
    return Contestant(name=name, choices=choices, overlay=overlay)


@dataclass(slots=True)
class _Model:
    """One run of one contestant."""

    contestant: Contestant
    steady: bool
    seconds: float
    seed: int
    nodes: list[_Node] = field(default_factory=list)
    engines: list[PlacementEngine] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _counted: int = 0
    _now_s: float = 0.0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def run(self) -> list[Look]:
        """Return the looks after the warm-up."""
        each = _STEADY // _NODES if self.steady else 0
        self.nodes = [_Node(f"node-{number}", sandboxes=each) for number in range(_NODES)]
        choices = _NODES if self.contestant.choices is None else self.contestant.choices
        policy = PlacementPolicy(
            choices=choices, overlay=self.contestant.overlay, learn=self.contestant.learn, remembered=0
        )
        count = 0 if self.contestant.oracle else _SCHEDULERS
        self.engines = [
            PlacementEngine(random.Random(f"{self.seed}/{number}").getrandbits, policy=policy)
            for number in range(count)
        ]
        self._show_views()
        self._arrive(0)
        self._at(_LOOK_EVERY_S, self._look)
        self._end_old_ones()
        while self._events and self._events[0][0] <= self.seconds:
            self._now_s, _, act = heapq.heappop(self._events)
            act()
        return self.looks

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        self._counted += 1
        heapq.heappush(self._events, (time_s, self._counted, act))

    def _show_views(self) -> None:
        if self.engines:
            views = [node.view() for node in self.nodes]
            for engine in self.engines:
                for view in views:
                    engine.observe(view, self._now_s)
        self._at(self._now_s + _VIEW_EVERY_S, self._show_views)

    def _look(self) -> None:
        if self._now_s >= _WARM_UP_S:
            self.looks.append(Look(_over_mean(self.nodes, "sandboxes"), _over_mean(self.nodes, "creating")))
        self._at(self._now_s + _LOOK_EVERY_S, self._look)

    def _end_old_ones(self) -> None:
        """Let what was there at the beginning end at the rate at which it would."""
        if self.steady:
            for node in self.nodes:
                for _ in range(node.sandboxes):
                    ends_s = self.random.expovariate(1.0 / _LIFE_S)
                    if ends_s < self.seconds:
                        self._at(ends_s, lambda node=node: self._end(node))  # type: ignore[misc]

    def _end(self, node: _Node) -> None:
        node.sandboxes -= 1

    def _arrive(self, number: int) -> None:
        node, answer = self._choose(number)
        node.sandboxes += 1
        node.creating += 1
        node.seen += 1
        ticket = node.seen
        self._at(
            self._now_s + self.random.lognormvariate(0.0, 0.5) * _CREATION_S, lambda: self._create(node, ticket, answer)
        )
        ends_s = self._now_s + self.random.expovariate(1.0 / _LIFE_S)
        if ends_s < self.seconds:
            self._at(ends_s + _CREATION_S, lambda: self._end(node))
        self._at(self._now_s + self.random.expovariate(_ARRIVALS_PER_S), lambda: self._arrive(number + 1))

    def _choose(self, number: int) -> tuple[_Node, Callable[[int, NodeView | None], Any] | None]:
        if not self.engines:
            return min(self.nodes, key=lambda node: (node.sandboxes, node.creating)), None
        engine = self.engines[self.random.randrange(_SCHEDULERS)]
        placement = engine.place(PlacementRequest(sandbox_id=f"sbx-{number}", shape=_SHAPE), self._now_s)
        assert isinstance(placement, Placement), "no node is ever full here"
        node = self.nodes[int(placement.node.removeprefix("node-"))]
        if self.contestant.early:
            engine.admitted(placement.sandbox_id, placement.node, node.seen + 1, self._now_s)

        def answer(ticket: int, view: NodeView | None) -> None:
            engine.created(placement.sandbox_id, placement.node, self._now_s, ticket=ticket, view=view)

        return node, answer

    def _create(self, node: _Node, ticket: int, answer: Callable[[int, NodeView | None], Any] | None) -> None:
        node.creating -= 1
        if answer is not None:
            answer(ticket, node.view() if self.contestant.answers else None)


def _over_mean(nodes: list[_Node], what: str) -> float:
    values = [getattr(node, what) for node in nodes]
    mean = sum(values) / len(values)
    return max(values) / mean if mean else 1.0


def imbalance(contestant: Contestant, *, steady: bool, seconds: float, seeds: Sequence[int] = _SEEDS) -> list[Look]:
    """Return the looks of each seed's run."""
    return [look for seed in seeds for look in _Model(contestant, steady, seconds, seed).run()]


async def bench_herd(context: PureContext) -> Report:
    """Compare how evenly schedulers on old views fill the nodes."""
    seconds = float(max(2, context.options.samples))
    seeds = _SEEDS if seconds >= _ALL_SEEDS_S else _SEEDS[:1]
    context.note(f"virtual time, {seconds:g} s for each of the seeds {seeds}: the figures do not depend on the host")
    burst: dict[str, list[Look]] = {}
    series = []
    everybody = contestants()
    with context.progress.counting("contestants", len(everybody)) as advance:
        for contestant in everybody:
            burst[contestant.name] = looks = imbalance(contestant, steady=False, seconds=seconds, seeds=seeds)
            series.append(_row("burst", contestant, looks, burst[ORACLE.name]))
            advance()
    steady: dict[str, list[Look]] = {}
    for contestant in (ORACLE, OURS, STALE, ONCE, BARE):
        steady[contestant.name] = looks = imbalance(contestant, steady=True, seconds=seconds, seeds=_SEEDS[:1])
        series.append(_row("steady", contestant, looks, steady[ORACLE.name]))
    return make_report(
        "herd",
        "sandboxes of the fullest node / mean",
        "lower",
        ours=distribution([look.sandboxes for look in burst[OURS.name]]),
        references={
            one.name: distribution([look.sandboxes for look in burst[one.name]]) for one in (ORACLE, STALE, BARE, ONCE)
        },
        series=series,
        host=context.host,
    )


def _row(situation: str, contestant: Contestant, looks: list[Look], oracle: list[Look]) -> dict[str, Any]:
    ours, best = _p99(looks, "sandboxes"), _p99(oracle, "sandboxes")
    return {
        "situation": situation,
        "contestant": contestant.name,
        "imbalance_p50": round(percentile(sorted(look.sandboxes for look in looks), 0.5), 4),
        "imbalance_p99": round(ours, 4),
        "p99_over_oracle": round(ours / best, 4),
        "met": ours / best <= _GOAL,
        "creations_in_flight_p99": round(_p99(looks, "creations"), 4),
    }


def _p99(looks: list[Look], what: str) -> float:
    return percentile(sorted(getattr(look, what) for look in looks), 0.99)
