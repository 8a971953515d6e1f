"""Turns follow weights, nobody is passed over for ever, and no turn is lost or given twice."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsec.base.errors import InvalidRequestError
from dsec.routing.fairness import FairQueue


@dataclass(frozen=True, eq=False)
class Waiting:
    project: str
    work: float = 10.0


def take_all(queue: FairQueue[Waiting]) -> list[str]:
    taken = []
    while (waiter := queue.take()) is not None:
        taken.append(waiter.project)
    return taken


def test_a_project_that_floods_the_queue_does_not_delay_the_others() -> None:
    queue: FairQueue[Waiting] = FairQueue()
    for _ in range(100):
        queue.offer(Waiting("loud"))
    queue.offer(Waiting("quiet"))
    assert "quiet" in take_all(queue)[:2]


def test_turns_follow_weights() -> None:
    queue: FairQueue[Waiting] = FairQueue({"big": 3.0})
    for _ in range(100):
        queue.offer(Waiting("big"))
        queue.offer(Waiting("small"))
    assert take_all(queue)[:80].count("big") == 60


def test_long_calls_get_fewer_turns() -> None:
    queue: FairQueue[Waiting] = FairQueue()
    for _ in range(100):
        queue.offer(Waiting("long", work=1000))
        queue.offer(Waiting("short", work=100))
    taken = take_all(queue)[:55]
    assert taken.count("long") == pytest.approx(5, abs=1)


def test_within_a_project_who_came_first_is_first() -> None:
    queue: FairQueue[Waiting] = FairQueue()
    waiters = [Waiting("one") for _ in range(5)]
    for waiter in waiters:
        queue.offer(waiter)
    assert [queue.take() for _ in range(6)] == [*waiters, None]


def test_who_stayed_away_has_not_saved_up_turns() -> None:
    queue: FairQueue[Waiting] = FairQueue()
    for _ in range(50):
        queue.offer(Waiting("early"))
    for _ in range(40):
        queue.take()
    for _ in range(50):
        queue.offer(Waiting("late"))
    assert abs(take_all(queue)[:10].count("late") - 5) <= 1


def test_who_gives_up_costs_nothing() -> None:
    queue: FairQueue[Waiting] = FairQueue()
    impatient = [Waiting("one", work=1e6) for _ in range(5)]
    for waiter in impatient:
        queue.offer(waiter)
        queue.withdraw(waiter)
        queue.withdraw(waiter)
    assert len(queue) == 0
    queue.offer(Waiting("two"))
    queue.offer(Waiting("one"))
    assert sorted(take_all(queue)) == ["one", "two"]


def test_work_that_turns_out_longer_is_charged() -> None:
    queue: FairQueue[Waiting] = FairQueue()
    for _ in range(20):
        queue.offer(Waiting("one"))
        queue.offer(Waiting("two"))
    queue.charge("one", 50)
    taken = take_all(queue)
    assert taken[:5].count("one") <= 1
    queue.charge("nobody", -5)


def test_a_weight_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="weight 0"):
        FairQueue({"one": 0.0})


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=4),
    works=st.lists(st.floats(1, 100), min_size=200, max_size=200),
    turns=st.integers(1, 150),
)
@settings(max_examples=50, deadline=None)
def test_work_over_weight_never_differs_by_more_than_a_call_of_each(
    weights: list[float], works: list[float], turns: int
) -> None:
    names = [f"p{number}" for number in range(len(weights))]
    queue: FairQueue[Waiting] = FairQueue(dict(zip(names, weights, strict=True)))
    for number, work in enumerate(works):
        for name in names:
            queue.offer(Waiting(name, work=works[(number * 7 + int(name[1:])) % len(works)] if number else work))
    served = dict.fromkeys(names, 0.0)
    for _ in range(turns):
        waiter = queue.take()
        assert waiter is not None
        served[waiter.project] += waiter.work / weights[int(waiter.project[1:])]
    longest = max(works)
    for one, first in enumerate(names):
        for two, second in enumerate(names):
            if queue.waiting(first) and queue.waiting(second):
                bound = longest / weights[one] + longest / weights[two]
                assert abs(served[first] - served[second]) <= bound * (1 + 1e-9)


class FairMachine(RuleBasedStateMachine):
    """A queue, and a plain list of who waits."""

    @initialize()
    def begin(self) -> None:
        self.queue: FairQueue[Waiting] = FairQueue({"a": 2.0})
        self.waiting: list[Waiting] = []

    @rule(project=st.sampled_from("abcd"), work=st.floats(0, 100))
    def offer(self, project: str, work: float) -> None:
        waiter = Waiting(project, work)
        self.waiting.append(waiter)
        self.queue.offer(waiter)

    @rule()
    def take(self) -> None:
        waiter = self.queue.take()
        assert (waiter is None) is (not self.waiting)
        if waiter is not None:
            own = [other for other in self.waiting if other.project == waiter.project]
            assert waiter is own[0]
            self.waiting.remove(waiter)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(waiter)
        self.queue.withdraw(waiter)

    @rule(project=st.sampled_from("abcdefgh"), work=st.floats(-100, 100))
    def charge(self, project: str, work: float) -> None:
        self.queue.charge(project, work)

    @invariant()
    def holds_those_who_wait_and_little_else(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue) == len(self.waiting)
            assert len(self.queue._places) <= 64 + 2 * len(self.waiting) + 8


TestFair = FairMachine.TestCase
TestFair.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
