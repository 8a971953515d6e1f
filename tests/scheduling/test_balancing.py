"""Load moves sandboxes only where that beats waiting, and never back and forth."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.lifecycle.precopy import predict
from dsec.placement.load import load_of
from dsec.placement.view import Capacity, Health, NodeView, Usage
from dsec.scheduling.balancing import BalancePolicy, Balancer, Look, Movable

CAPACITY = Capacity(cpu_millis=10_000, memory_bytes=1000, disk_bytes=1, sandboxes=1000, creations=10)
NOW = BalancePolicy(looks=1, cooldown_s=0)


def view(node: str, memory: int, *, health: Health = Health.ACCEPTING) -> NodeView:
    return NodeView(node=node, capacity=CAPACITY, used=Usage(memory_bytes=memory), health=health)


def boxes(count: int = 10, memory: int = 50, **fields: float) -> list[Movable]:
    return [Movable(sandbox_id=f"sbx-{number}", memory_bytes=memory, **fields) for number in range(count)]  # type: ignore[arg-type]


def look(balancer: Balancer, here: int, *peers: int, now_s: float = 0.0, movable: list[Movable] | None = None) -> Look:
    views = [view(f"peer{number}", memory) for number, memory in enumerate(peers)]
    return balancer.look(now_s, view("here0", here), views, boxes() if movable is None else movable)


def test_nothing_moves_up_to_one_and_a_half_of_the_mean() -> None:
    assert not look(Balancer(NOW), 600, 200, 400).moves  # The mean is 400, and 1.5 of it 600.
    assert look(Balancer(NOW), 601, 200, 399).moves


def test_a_node_that_is_hardly_used_moves_nothing_whatever_the_others_have() -> None:
    assert not look(Balancer(NOW), 400, 0, 0).moves


def test_a_node_alone_moves_nothing() -> None:
    assert not look(Balancer(NOW), 900).moves


def test_moves_stop_at_the_goal_and_go_to_the_emptiest() -> None:
    found = look(Balancer(NOW), 800, 100, 150)  # The mean is 350, the goal 420.
    assert len(found.moves) == NOW.at_once
    assert [move.node for move in found.moves] == ["peer0", "peer0", "peer1", "peer0"]
    small = look(Balancer(BalancePolicy(looks=1, at_once=100)), 800, 100, 150)
    assert len(small.moves) == 8  # 800 - 8 x 50 = 400; after seven it is 450.


def test_no_target_is_filled_beyond_the_goal() -> None:
    policy = BalancePolicy(looks=1, at_once=100)
    found = look(Balancer(policy), 900, 100, movable=boxes(count=1, memory=600))
    assert not found.moves
    assert found.reason == "no move is worth it"


def test_nodes_that_take_nothing_get_nothing() -> None:
    views = [view("peer0", 100, health=Health.DRAINING), view("peer1", 100, health=Health.CLOSED)]
    assert not Balancer(NOW).look(0.0, view("here0", 900), views, boxes()).moves


def test_several_looks_in_a_row_have_to_agree() -> None:
    balancer = Balancer(BalancePolicy())
    assert not look(balancer, 800, 100, now_s=0).moves
    assert not look(balancer, 800, 100, now_s=10).moves
    assert not look(balancer, 300, 100, now_s=20).moves
    assert not look(balancer, 800, 100, now_s=30).moves
    assert not look(balancer, 800, 100, now_s=40).moves
    assert look(balancer, 800, 100, now_s=50).moves


def test_after_moves_the_views_get_time_to_show_them() -> None:
    balancer = Balancer(BalancePolicy(looks=1, cooldown_s=60))
    assert look(balancer, 800, 100, now_s=0).moves
    assert not look(balancer, 800, 100, now_s=59).moves
    assert look(balancer, 800, 100, now_s=60).moves


def test_what_has_just_come_stays() -> None:
    assert not look(Balancer(NOW), 800, 100, movable=boxes(here_s=599.0)).moves
    assert look(Balancer(NOW), 800, 100, movable=boxes(here_s=600.0)).moves


def test_a_load_that_falls_by_itself_is_waited_for() -> None:
    def falling(per_look: int) -> Look:
        balancer = Balancer(BalancePolicy(looks=3, cooldown_s=0, copying_bytes_per_s=1e6))
        movable = boxes(written_bytes=100_000_000)  # A move takes 100 s and more.
        for number in range(3):
            found = look(balancer, 900 - per_look * number, 100, now_s=10.0 * number, movable=movable)
        return found

    assert falling(0).wait_s == 600.0
    assert falling(0).moves
    assert falling(1).moves  # 0.15 above the trigger at 0.0001 a second.
    fast = falling(50)
    assert fast.wait_s == pytest.approx((0.8 - 0.675) / 0.005)
    assert not fast.moves


def test_what_would_lose_more_than_waiting_costs_stays() -> None:
    mixed = [*boxes(count=3, lost_s=1e5), Movable(sandbox_id="sbx-idle", memory_bytes=50)]
    assert [move.sandbox_id for move in look(Balancer(NOW), 800, 100, movable=mixed).moves] == ["sbx-idle"]


def test_the_cheapest_relief_goes_first() -> None:
    mixed = [
        Movable(sandbox_id="sbx-dear", memory_bytes=50, written_bytes=10_000_000_000),
        Movable(sandbox_id="sbx-cheap", memory_bytes=50, written_bytes=1_000),
        Movable(sandbox_id="sbx-useless", memory_bytes=0),
    ]
    assert [move.sandbox_id for move in look(Balancer(NOW), 800, 100, movable=mixed).moves] == ["sbx-cheap", "sbx-dear"]


@pytest.mark.parametrize("bad", [{"goal": 1.5}, {"goal": 0.9}, {"looks": 0}, {"ceiling": 0.0}, {"stay_s": -1.0}])
def test_a_policy_without_hysteresis_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError):
        BalancePolicy(**bad)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(1, 200), max_size=30), min_size=2, max_size=6),
    at_once=st.integers(1, 8),
)
def test_nodes_that_all_judge_for_themselves_come_to_rest(sizes: list[list[int]], at_once: int) -> None:
    """Whatever lies where, in the end nobody moves anything any more, nothing went round, and no node is fuller than
    the fullest was."""
    policy = BalancePolicy(looks=2, at_once=at_once, cooldown_s=20, stay_s=100, horizon_s=600)
    where = {f"sbx-{node}-{n}": (node, size, -math.inf) for node, row in enumerate(sizes) for n, size in enumerate(row)}
    balancers = [Balancer(policy) for _ in sizes]
    before = loads(where, len(sizes))
    moved: Counter[str] = Counter()
    last_s = 0.0
    for tick in range(400):
        now_s = 10.0 * tick
        views = [view(f"node{node}", memory) for node, memory in enumerate(totals(where, len(sizes)))]
        for node, balancer in enumerate(balancers):  # All look at the same views, as at the same time.
            here = [
                Movable(sandbox_id=name, memory_bytes=size, here_s=now_s - since)
                for name, (at, size, since) in where.items()
                if at == node
            ]
            others = [each for number, each in enumerate(views) if number != node]
            for move in balancer.look(now_s, views[node], others, here).moves:
                where[move.sandbox_id] = (int(move.node[4:]), where[move.sandbox_id][1], now_s)
                moved[move.sandbox_id] += 1
                last_s = now_s
    assert last_s < 3000.0
    assert max(moved.values(), default=0) <= 2
    assert max(loads(where, len(sizes))) <= max(before) + 1e-9


def totals(where: dict[str, tuple[int, int, float]], count: int) -> list[int]:
    sums = [0] * count
    for node, size, _ in where.values():
        sums[node] += size
    return sums


def loads(where: dict[str, tuple[int, int, float]], count: int) -> list[float]:
    return [load_of(Usage(memory_bytes=total), CAPACITY) for total in totals(where, count)]


def test_a_move_is_predicted_from_its_rounds() -> None:
    idle = predict(written_bytes=1000, writing_bytes_per_s=0, copying_bytes_per_s=100, fixed_s=0.01)
    assert (idle.copied_bytes, idle.rounds) == (1000, 3)
    assert idle.downtime_s == pytest.approx(0.02)
    busy = predict(written_bytes=1000, writing_bytes_per_s=10, copying_bytes_per_s=100, fixed_s=0.01)
    assert idle.move_s < busy.move_s < 1.2 * idle.move_s
    flat_out = predict(written_bytes=1000, writing_bytes_per_s=1000, copying_bytes_per_s=100, fixed_s=0.01)
    assert flat_out.downtime_s == pytest.approx(10.02)  # All of it, and no more than that.
    assert flat_out.rounds <= 6


@pytest.mark.parametrize(
    "bad",
    [{"written_bytes": -1}, {"copying_bytes_per_s": 0.0}, {"fixed_s": -0.1}, {"copying_bytes_per_s": math.nan}],
)
def test_figures_out_of_range_predict_nothing(bad: dict[str, float]) -> None:
    good = {"written_bytes": 1, "writing_bytes_per_s": 0.0, "copying_bytes_per_s": 1.0, "fixed_s": 0.0}
    with pytest.raises(InvalidRequestError):
        predict(**{**good, **bad})  # type: ignore[arg-type]
