"""`placement`: how many decisions a second one core makes, among 1,024 nodes on old views.

One sample is one virtual second at the highest rate of arrivals published for a scale unit: 5,000 decisions (arXiv
2609.22978). Each counts for the next, since the engine's own placements lie on top of views that are up to a second
old. Between samples, outside of the clock, nodes answer and new views come; what that takes is a row of the series,
because an engine has to do it too.

Counted is processor time of this thread: the figure is of one core, whatever else the host does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsec.base.units import GIB, TIB
from dsec.bench.context import PureContext
from dsec.bench.distribution import Distribution, distribution
from dsec.bench.report import Report, make_report
from dsec.placement import rule
from dsec.placement.affinity import NO_AFFINITY, AffinityPolicy
from dsec.placement.decision import Placement
from dsec.placement.engine import PlacementEngine
from dsec.placement.load import Increment
from dsec.placement.node_state import NodeState
from dsec.placement.policy import PlacementPolicy
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Capacity, NodeView, Usage

_NODES = 1024
_DECISIONS = 5000
_PLAIN_DECISIONS = 2
_SCAN_DECISIONS = 50
_HELD = 1500
_CAPACITY = Capacity(cpu_millis=192_000, memory_bytes=1536 * GIB, disk_bytes=16 * TIB, sandboxes=3200, creations=400)
_SHAPE = Shape(cpu_millis=4000, memory_bytes=2 * GIB)
_POLICY = PlacementPolicy()
_PLAIN, _SCAN = "plain rule, nothing kept", "full scan for the least loaded"


@dataclass(slots=True)
class Fleet:
    """Nodes that admit everything, and an engine that places on them.

    Args:
        nodes: how many.
        policy, affinity: of the engine.
        shapes: of the requests, in turn.
        tasks: how many tasks the requests belong to; 0: none.
    """

    nodes: int = _NODES
    policy: PlacementPolicy = _POLICY
    affinity: AffinityPolicy = NO_AFFINITY
    shapes: tuple[Shape, ...] = (_SHAPE,)
    tasks: int = 0
    now_s: float = 0.0
    decided: int = 0
    engine: PlacementEngine = field(init=False)
    seen: list[int] = field(init=False)
    versions: int = 0
    names: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.engine = PlacementEngine(random.Random(1).getrandbits, policy=self.policy, affinity=self.affinity)
        self.seen = [0] * self.nodes
        self.names = {f"node-{number}": number for number in range(self.nodes)}
        self.show_views()

    def requests(self, count: int) -> list[PlacementRequest]:
        """Return so many new requests."""
        first = self.decided
        self.decided += count
        return [
            PlacementRequest(
                sandbox_id=f"sbx-{number}",
                shape=self.shapes[number % len(self.shapes)],
                task_id=f"task-{number % self.tasks}" if self.tasks else "",
            )
            for number in range(first, first + count)
        ]

    def show_views(self) -> None:
        """Let a second pass, and show what the nodes had admitted by then."""
        self.now_s += 1.0
        self.versions += 1
        for name, number in self.names.items():
            # The same number of sandboxes ends as begins, so that the fleet neither fills nor empties.
            used = Usage(
                cpu_millis=60_000 + 7 * (number % 100), memory_bytes=_HELD * GIB // 2, sandboxes=_HELD + number % 50
            )
            view = NodeView(
                node=name, capacity=_CAPACITY, used=used, version=self.versions, creations_seen=self.seen[number]
            )
            self.engine.observe(view, self.now_s)

    def answer(self, placements: list[Placement]) -> None:
        """Let the nodes have made what was placed."""
        for placement in placements:
            number = self.names[placement.node]
            self.seen[number] += 1
            self.engine.created(placement.sandbox_id, placement.node, self.now_s + 0.5, ticket=self.seen[number])

    def known(self) -> list[rule.Known]:
        """Return the facts that the plain rule decides on."""
        return [
            rule.Known(view=state.view, own=tuple(proposal.increment for proposal in state.recent))
            for state in self.engine.fleet
        ]


def decide(fleet: Fleet, count: int = _DECISIONS) -> tuple[float, list[Placement]]:
    """Return decisions a second, and the placements."""
    requests, place, now_s = fleet.requests(count), fleet.engine.place, fleet.now_s
    begin = time.thread_time()
    outcomes = [place(request, now_s) for request in requests]
    per_s = count / (time.thread_time() - begin)
    placements = [outcome for outcome in outcomes if isinstance(outcome, Placement)]
    assert len(placements) == count, "the fleet has room for all of them"
    return per_s, placements


def second(fleet: Fleet) -> float:
    """Decide, and outside of the clock let the nodes answer and new views come."""
    per_s, placements = decide(fleet)
    fleet.answer(placements)
    fleet.show_views()
    return per_s


def with_upkeep(fleet: Fleet) -> float:
    """Return decisions a second when answers and views are counted too."""
    begin = time.thread_time()
    _, placements = decide(fleet)
    fleet.answer(placements)
    fleet.show_views()
    return _DECISIONS / (time.thread_time() - begin)


def plain(fleet: Fleet) -> float:
    """Return decisions a second of the plain rule, which keeps nothing from one to the next."""
    known, bits = fleet.known(), random.Random(2).getrandbits
    return _rate(_PLAIN_DECISIONS, lambda: rule.choose(known, _SHAPE, fleet.policy, bits))


def scan(fleet: Fleet) -> float:
    """Return decisions a second of a scan of every node, with the same sums kept up to date as ours."""
    index = fleet.engine.fleet.index(_SHAPE)
    increment = index.increment
    return _rate(_SCAN_DECISIONS, lambda: _least(index.nodes, increment))


def _least(nodes: list[NodeState], increment: Increment) -> NodeState:
    return min(nodes, key=lambda node: node.rank_with(increment))


def _rate(count: int, decide_one: Callable[[], object]) -> float:
    begin = time.thread_time()
    for _ in range(count):
        decide_one()
    return count / (time.thread_time() - begin)


async def bench_placement(context: PureContext) -> Report:
    """Measure decisions beside the same decisions without anything kept, and beside a full scan."""
    nodes, samples = context.options.count or _NODES, context.options.samples
    context.note(f"{nodes:,} nodes; decisions per second of this thread's processor time, which is what one core makes")
    fleet = Fleet(nodes=nodes)
    contestants: dict[str, Callable[[Fleet], float]] = {"ours": second, _PLAIN: plain, _SCAN: scan}
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    order = random.Random(1)
    with context.progress.counting("rounds", samples + 1) as advance:
        for number in range(samples + 1):
            for name in order.sample(list(contestants), len(contestants)):
                rate = contestants[name](fleet)
                if number:  # The first round warms up.
                    rates[name].append(rate)
            advance()
    return make_report(
        "placement",
        "decisions/s",
        "higher",
        ours=_of_rates(rates["ours"]),
        references={name: _of_rates(rates[name]) for name in (_PLAIN, _SCAN)},
        series=_series(nodes, max(3, samples // 5)),
        host=context.host,
    )


def _series(nodes: int, samples: int) -> list[dict[str, Any]]:
    shapes = tuple(Shape(cpu_millis=1000, memory_bytes=number * GIB) for number in range(1, 17))
    varied: dict[str, tuple[Fleet, Callable[[Fleet], float]]] = {
        f"{choices} choices": (Fleet(nodes=nodes, policy=PlacementPolicy(choices=choices)), second)
        for choices in (1, 2, 3, 4, 8)
    }
    varied["2 choices, without overlay"] = (Fleet(nodes=nodes, policy=PlacementPolicy(overlay=False)), second)
    varied["2 choices, one of eight schedulers"] = (
        Fleet(nodes=nodes, policy=PlacementPolicy(schedulers=8, learn=False)),
        second,
    )
    varied["2 choices, 16 shapes"] = (Fleet(nodes=nodes, shapes=shapes), second)
    varied["2 choices, soft affinity, 500 tasks"] = (Fleet(nodes=nodes, affinity=AffinityPolicy(), tasks=500), second)
    varied["2 choices, answers and a round of views included"] = (Fleet(nodes=nodes), with_upkeep)
    rows = []
    for what, (fleet, measure) in varied.items():
        rates = _of_rates([measure(fleet) for _ in range(samples)])
        rows.append({"what": what, "decisions_per_s": rates.p50, "us_each": round(1e6 / rates.p50, 2)})
    return rows


def _of_rates(rates: list[float]) -> Distribution:
    return distribution([round(rate) for rate in rates])
