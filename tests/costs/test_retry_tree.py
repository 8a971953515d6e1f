"""Policies of attempts, repairs and upgrades."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.retry_tree import MAXIMUM_PATHS, Branch, Deadline, Node, evaluate_retries

CHAPTER: Mapping[str, Node] = {
    "first": Node(
        cost_usd=0.010,
        time_s=10,
        branches=(
            Branch(probability=0.80, passes=True),
            Branch(probability=0.12, to="repair"),
            Branch(probability=0.08, to="upgrade"),
        ),
    ),
    "repair": Node(
        cost_usd=0.006,
        time_s=4,
        branches=(Branch(probability=0.60, passes=True), Branch(probability=0.40, to="upgrade")),
    ),
    "upgrade": Node(
        cost_usd=0.030, time_s=8, branches=(Branch(probability=0.98, passes=True), Branch(probability=0.02))
    ),
}


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Node]:
    """Policies whose branches lead forward only, each node reached from the one before."""
    count = draw(st.integers(1, 5))
    nodes: dict[str, Node] = {}
    for number in range(count):
        weights = draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
        targets = [str(draw(st.integers(number + 1, count))) for _ in weights]
        targets[0] = str(number + 1)
        branches = tuple(
            Branch(
                probability=weight / sum(weights),
                to=target if int(target) < count else "",
                passes=int(target) >= count and draw(st.booleans()),
            )
            for weight, target in zip(weights, targets, strict=True)
        )
        nodes[str(number)] = Node(cost_usd=draw(st.integers(0, 9)), time_s=draw(st.integers(1, 9)), branches=branches)
    return nodes


def play(
    nodes: Mapping[str, Node], start: str, deadline_s: float, *, stops: bool, rng: random.Random
) -> tuple[float, float, bool]:
    """Play one task through; return cost, time and whether it passed. An independent way to the same means."""
    cost, now, name = 0.0, 0.0, start
    while name:
        node = nodes[name]
        if stops and now + node.time_s > deadline_s:
            return cost, now, False
        cost, now = cost + node.cost_usd, now + node.time_s
        branch = rng.choices(node.branches, [each.probability for each in node.branches])[0]
        if branch.passes:
            return cost, now, True
        name = branch.to
    return cost, now, False


def expected(nodes: Mapping[str, Node], name: str) -> tuple[float, float, float]:
    """Return cost, time and success by recursion over the nodes, without listing paths."""
    if not name:
        return 0.0, 0.0, 0.0
    node = nodes[name]
    cost, time, success = node.cost_usd, node.time_s, 0.0
    for branch in node.branches:
        further = expected(nodes, branch.to)
        cost += branch.probability * further[0]
        time += branch.probability * further[1]
        success += branch.probability * (1.0 if branch.passes else further[2])
    return cost, time, success


@settings(max_examples=40)
@given(nodes=policies())
def test_paths_give_what_recursion_over_nodes_gives(nodes: dict[str, Node]) -> None:
    outcome = evaluate_retries(nodes=nodes, start="0")
    cost, time, success = expected(nodes, "0")
    assert outcome.cost_usd == pytest.approx(cost)
    assert outcome.time_s == pytest.approx(time)
    assert outcome.success_share == pytest.approx(success)
    assert sum(path.probability for path in outcome.paths) == pytest.approx(1)
    assert sum(visit.cost_usd for visit in outcome.visits) == pytest.approx(cost)


@settings(max_examples=40)
@given(nodes=policies(), spare=st.integers(0, 40))
def test_enforcing_spends_no_more_and_passes_as_many_in_time_as_evaluating(nodes: dict[str, Node], spare: int) -> None:
    deadline_s = nodes["0"].time_s + spare
    counted = evaluate_retries(nodes=nodes, start="0", deadline_s=deadline_s)
    stopped = evaluate_retries(nodes=nodes, start="0", deadline_s=deadline_s, mode=Deadline.ENFORCE)
    assert stopped.cost_usd <= counted.cost_usd + 1e-9
    assert stopped.timely_share == pytest.approx(counted.timely_share)
    assert stopped.late_share == 0
    assert all(path.time_s <= deadline_s for path in stopped.paths)
    assert counted.stopped_share == 0


@settings(max_examples=40)
@given(nodes=policies(), spare=st.integers(0, 30), longer=st.integers(0, 10))
def test_a_later_deadline_never_passes_fewer_and_never_costs_less(
    nodes: dict[str, Node], spare: int, longer: int
) -> None:
    def outcome(deadline_s: float) -> tuple[float, float]:
        result = evaluate_retries(nodes=nodes, start="0", deadline_s=deadline_s, mode=Deadline.ENFORCE)
        return result.timely_share, result.cost_usd

    early, late = outcome(nodes["0"].time_s + spare), outcome(nodes["0"].time_s + spare + longer)
    assert early[0] <= late[0] + 1e-9
    assert early[1] <= late[1] + 1e-9


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("deadline_s", [14.0, 18.0, 22.0])
def test_played_tasks_agree_with_the_tree(deadline_s: float, stops: bool) -> None:
    rng = random.Random(int(deadline_s))
    runs = [play(CHAPTER, "first", deadline_s, stops=stops, rng=rng) for _ in range(20_000)]
    outcome = evaluate_retries(
        nodes=CHAPTER, start="first", deadline_s=deadline_s, mode=Deadline.ENFORCE if stops else Deadline.EVALUATE
    )
    assert sum(cost for cost, _, _ in runs) / len(runs) == pytest.approx(outcome.cost_usd, rel=0.02)
    in_time = sum(passed and now <= deadline_s for _, now, passed in runs) / len(runs)
    assert in_time == pytest.approx(outcome.timely_share, abs=0.01)
    assert sum(passed for *_, passed in runs) / len(runs) == pytest.approx(outcome.success_share, abs=0.01)


def test_paths_come_in_the_order_of_the_branches() -> None:
    outcome = evaluate_retries(nodes=CHAPTER, start="first", deadline_s=20)
    assert [path.nodes for path in outcome.paths] == [
        "first",
        "first > repair",
        "first > repair > upgrade",
        "first > repair > upgrade",
        "first > upgrade",
        "first > upgrade",
    ]


def test_a_deadline_met_to_the_digit_is_in_time() -> None:
    tenths = {
        "a": Node(cost_usd=0, time_s=0.1, branches=(Branch(probability=1, to="b"),)),
        "b": Node(cost_usd=0, time_s=0.2, branches=(Branch(probability=1, passes=True),)),
    }
    assert evaluate_retries(nodes=tenths, start="a", deadline_s=0.3, mode=Deadline.ENFORCE).timely_share == 1


def test_a_cycle_is_refused_and_its_nodes_are_named() -> None:
    again = (Branch(probability=0.5, passes=True), Branch(probability=0.5, to="first"))
    with pytest.raises(InvalidRequestError, match="cycle: first > repair > upgrade > first"):
        evaluate_retries(nodes={**CHAPTER, "upgrade": replace(CHAPTER["upgrade"], branches=again)}, start="first")
    with pytest.raises(InvalidRequestError, match="cycle: first > first"):
        evaluate_retries(nodes={"first": Node(cost_usd=0, time_s=1, branches=again)}, start="first")


def test_a_deadline_shorter_than_the_first_attempt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="deadline of 9 s is shorter than the first attempt"):
        evaluate_retries(nodes=CHAPTER, start="first", deadline_s=9)


@pytest.mark.parametrize(
    ("branches", "said"),
    [
        ((Branch(probability=0.5, passes=True), Branch(probability=0.4)), r"sum to 0\.9"),
        ((Branch(probability=1.5, passes=True), Branch(probability=-0.5)), r"is 1\.5"),
        ((Branch(probability=1, to="nowhere"),), "'nowhere', which is no node"),
        ((Branch(probability=1, to="repair", passes=True),), "passes and goes on"),
        ((), "no branches"),
        ((Branch(probability=1, passes=True),), "no branch leads to 'repair', 'upgrade'"),
    ],
)
def test_broken_branches_are_named(branches: tuple[Branch, ...], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        evaluate_retries(nodes={**CHAPTER, "first": replace(CHAPTER["first"], branches=branches)}, start="first")


def test_an_unknown_start_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="start 'last' is no node"):
        evaluate_retries(nodes=CHAPTER, start="last")


def test_more_paths_than_can_be_listed_are_counted_and_refused() -> None:
    both = 20
    nodes = {
        str(n): Node(
            cost_usd=0,
            time_s=1,
            branches=(
                Branch(probability=0.5, to=str(n + 1) if n < both else ""),
                Branch(probability=0.5, to=str(n + 1) if n < both else ""),
            ),
        )
        for n in range(both + 1)
    }
    with pytest.raises(InvalidRequestError, match=f"{2 ** (both + 1)} paths, more than {MAXIMUM_PATHS}"):
        evaluate_retries(nodes=nodes, start="0")


def test_a_long_chain_does_not_exhaust_the_stack() -> None:
    length = 3_000
    nodes = {
        str(n): Node(
            cost_usd=1,
            time_s=1,
            branches=(Branch(probability=1, to=str(n + 1)) if n < length else Branch(probability=1, passes=True),),
        )
        for n in range(length + 1)
    }
    assert evaluate_retries(nodes=nodes, start="0").cost_usd == length + 1
