"""The engine's choices are those of the plain rule, whatever happened before."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.placement import rule
from dsec.placement.decision import Placement
from dsec.placement.engine import PlacementEngine
from dsec.placement.policy import PlacementPolicy
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Capacity, Health, NodeView, Usage

SHAPES = (
    Shape(memory_bytes=4000, cpu_millis=1000, disk_bytes=0),
    Shape(memory_bytes=8000, cpu_millis=4000, disk_bytes=0, needs=frozenset({"gpu"})),
    Shape(memory_bytes=90_000, cpu_millis=100, disk_bytes=10),
)


def known(engine: PlacementEngine) -> list[rule.Known]:
    """Return the bare facts that an engine decides on, without what it derived from them."""
    return [
        rule.Known(
            view=state.view,
            own=tuple(proposal.increment for proposal in state.recent) if engine.policy.overlay else (),
            own_weight=state.own_weight,
            offered=state.offered,
            view_weight=state.view_weight,
            mean=state.mean,
            trust=state.trust.score,
        )
        for state in sorted(engine.fleet, key=lambda state: state.rank)
    ]


class History:
    """Plays events on an engine; before each placement it asks the plain rule."""

    def __init__(self, choices: int, overlay: bool, seed: int, schedulers: int = 1) -> None:
        self.source = random.Random(seed)
        policy = PlacementPolicy(choices=choices, overlay=overlay, rejections=3, tick_s=1.0, schedulers=schedulers)
        self.engine = PlacementEngine(self.source.getrandbits, policy=policy)
        self.now_s = 0.0
        self.waiting: list[Placement] = []
        self.versions: dict[int, int] = {}
        self.asked = 0
        self.compared = 0

    def view(self, number: int, used: int, health: Health) -> None:
        self.versions[number] = version = self.versions.get(number, 0) + 1
        capacity = Capacity(
            cpu_millis=4000 + 1000 * (number % 3), memory_bytes=100_000, disk_bytes=10, sandboxes=3, creations=2
        )
        features = frozenset({"gpu"}) if number % 4 == 0 or version % 5 == 0 else frozenset[str]()
        usage = Usage(cpu_millis=300 * used, memory_bytes=9_000 * used, sandboxes=used // 2, creating=used // 4)
        view = NodeView(
            node=f"n{number}", capacity=capacity, used=usage, version=version, health=health, features=features,
            creations_seen=version,
        )  # fmt: skip
        self.engine.observe(view, self.now_s)

    def place(self, number: int) -> None:
        if self.now_s >= self.engine._next_tick_s:
            self.engine.tick(self.now_s)  # As `place` does, but before the facts are read.
        self.asked += 1
        state = self.source.getstate()
        expected = rule.choose(known(self.engine), SHAPES[number], self.engine.policy, self.source.getrandbits)
        self.source.setstate(state)
        request = PlacementRequest(sandbox_id=f"s{self.asked}", shape=SHAPES[number])
        outcome = self.engine.place(request, self.now_s)
        if isinstance(outcome, Placement):
            assert (outcome.node, outcome.load) == expected
            self.waiting.append(outcome)
            self.compared += 1
        else:
            assert expected is None
            assert outcome.brief

    def answer(self, number: int, how: str) -> None:
        if not self.waiting:
            return
        placement = self.waiting.pop(number % len(self.waiting))
        sandbox_id, node = placement.sandbox_id, placement.node
        if how == "created":
            self.engine.created(sandbox_id, node, self.now_s, ticket=number % 3)
            return
        if how == "rejected":
            outcome = self.engine.rejected(sandbox_id, node, self.now_s)
        else:
            outcome = self.engine.failed(sandbox_id, node, self.now_s, elsewhere=how == "failed")
        if isinstance(outcome, Placement):
            self.waiting.append(outcome)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def forget(self, number: int) -> None:
        self.engine.forget(f"n{number}")


def any_event(source: random.Random) -> tuple[Any, ...]:
    """Return an event; fleets fill up, are refused, and empty again by all of them together."""
    kind = source.choices(["place", "view", "answer", "wait", "forget"], [50, 12, 30, 7, 1])[0]
    if kind == "place":
        return kind, source.randrange(len(SHAPES))
    if kind == "view":
        health = source.choices(list(Health), [12, 1, 1, 1])[0]
        return kind, source.randrange(10), source.randrange(7), health
    if kind == "answer":
        return kind, source.randrange(100), source.choice(["created", "created", "rejected", "failed", "again"])
    if kind == "wait":
        return kind, source.choice([0.1, 0.3, 2.0, 20.0, 70.0])
    return kind, source.randrange(10)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 8), st.booleans(), st.integers(1, 5))
def test_fast_path_and_plain_rule_choose_the_same_node(seed: int, choices: int, overlay: bool, schedulers: int) -> None:
    history = History(choices, overlay, seed, schedulers)
    for number in range(8):
        history.view(number, number % 4, Health.ACCEPTING)
    events = random.Random(seed)
    for _ in range(400):
        name, *arguments = any_event(events)
        getattr(history, name)(*arguments)


def test_the_comparison_does_compare() -> None:
    history = History(2, True, 7)
    for number in range(8):
        history.view(number, 0, Health.ACCEPTING)
    for _ in range(20):
        history.place(0)
    assert history.compared >= 15
