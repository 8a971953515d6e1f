"""An engine learns how much the others place, and counts its own placements for as much."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bench.herd import ONCE, ORACLE, OURS, STALE, Contestant, imbalance
from dsec.placement.decision import Placement
from dsec.placement.engine import PlacementEngine
from dsec.placement.others import ENOUGH, LARGEST, Others
from dsec.placement.policy import PlacementPolicy
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Capacity, NodeView, Usage

NOTHING = Shape(cpu_millis=0, memory_bytes=0, disk_bytes=0)
CAPACITY = Capacity(cpu_millis=1000, memory_bytes=1000, disk_bytes=1000, sandboxes=1000, creations=1000)


@given(st.integers(1, 100), st.integers(1, 100))
def test_the_ratio_is_learnt_within_a_quarter(ratio: int, steps: int) -> None:
    others = Others()
    for _ in range(steps):
        others.note(ratio * ENOUGH, ENOUGH)
    assert ratio / 1.25 <= others.weight <= ratio * 1.25


def test_few_placements_teach_nothing() -> None:
    others = Others(3)
    assert not others.note(1000, ENOUGH - 1)
    assert others.weight == 3


def test_an_engine_that_places_little_has_a_bounded_weight() -> None:
    others = Others()
    others.note(10**9, ENOUGH)
    assert others.weight == LARGEST


def test_what_changed_long_ago_is_let_go() -> None:
    others = Others()
    for _ in range(400):
        others.note(8 * ENOUGH, ENOUGH)
    assert others.weight == 8
    for _ in range(800):
        others.note(2 * ENOUGH, ENOUGH)
    assert others.weight == 2


def placed(engine: PlacementEngine, number: int) -> str:
    outcome = engine.place(PlacementRequest(sandbox_id=f"s{number}", shape=NOTHING), 0.0)
    assert isinstance(outcome, Placement)
    return outcome.node


def test_a_gap_is_closed_once_by_all_and_not_once_by_each() -> None:
    def fill(schedulers: int) -> int:
        policy = PlacementPolicy(schedulers=schedulers, learn=False)
        engine = PlacementEngine(random.Random(1).getrandbits, policy=policy)
        for node, held in (("low", 10), ("high", 90)):
            engine.observe(NodeView(node=node, capacity=CAPACITY, used=Usage(sandboxes=held)), 0.0)
        return [placed(engine, number) for number in range(100)].index("high")

    assert fill(1) == 81
    assert fill(8) == 11  # Eight schedulers do the same, so that 80 are closed by eleven each.


def test_a_guess_about_others_makes_no_node_full() -> None:
    policy = PlacementPolicy(schedulers=8, learn=False)
    engine = PlacementEngine(random.Random(1).getrandbits, policy=policy)
    small = Capacity(cpu_millis=10, memory_bytes=10, disk_bytes=10, sandboxes=4, creations=4)
    for number in range(3):
        engine.observe(NodeView(node=f"n{number}", capacity=small), 0.0)
    nodes = [placed(engine, number) for number in range(12)]
    assert sorted(nodes.count(f"n{number}") for number in range(3)) == [4, 4, 4]


def test_eight_engines_learn_that_they_are_eight() -> None:
    engines = [PlacementEngine(random.Random(number).getrandbits) for number in range(8)]
    seen = [0] * 20
    for second in range(5):
        for number in range(20):
            view = NodeView(node=f"n{number}", capacity=CAPACITY, version=second + 1, creations_seen=seen[number])
            for engine in engines:
                engine.observe(view, float(second))
        for number in range(1600):
            engine = engines[number % 8]
            outcome = engine.place(PlacementRequest(sandbox_id=f"{second}-{number}", shape=NOTHING), float(second))
            assert isinstance(outcome, Placement)
            at = int(outcome.node[1:])
            seen[at] += 1
            engine.created(outcome.sandbox_id, outcome.node, float(second), ticket=seen[at])
    assert {engine.statistics().own_weight for engine in engines} <= {7, 8, 9}


@pytest.mark.slow
def test_the_herd_is_within_the_promise_where_least_loaded_runs_wild() -> None:
    def worst(contestant: Contestant) -> float:
        looks = sorted(look.sandboxes for look in imbalance(contestant, steady=False, seconds=3.0, seeds=(1,)))
        return looks[-1]

    oracle = worst(ORACLE)
    assert worst(OURS) <= 1.2 * oracle  # The promise is of the 99th percentile of a longer run.
    assert worst(ONCE) > 1.3 * oracle
    assert worst(STALE) > 10 * oracle
