"""Gangs are placed whole, and two of them never wait for each other."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidStateError
from dsec.scheduling.amounts import fits, minus, plus
from dsec.scheduling.gangs import Ask, Phase, Release, Reservation, StartAll, TryAgain, place
from dsec.scheduling.job import Member, Node


def members(*cpus: int) -> list[Member]:
    return [Member(amounts={"cpu": amount}) for amount in cpus]


def nodes(*cpus: int) -> list[Node]:
    return [Node(node_id=f"n{index}", capacity={"cpu": amount}) for index, amount in enumerate(cpus)]


def free_of(all_nodes: list[Node]) -> dict[str, dict[str, int]]:
    return {node.node_id: dict(node.capacity) for node in all_nodes}


def test_a_step_back_finds_what_the_first_choice_missed():
    all_nodes = nodes(7, 6)
    assert place(members(4, 3, 3, 3), all_nodes, free_of(all_nodes)) is not None
    assert place(members(4, 3, 3, 3), all_nodes, free_of(all_nodes), steps_back=0) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_what_is_placed_fits_together(capacities, parts):
    all_nodes = nodes(*capacities)
    found = place(members(*parts), all_nodes, free_of(all_nodes))
    if found is None:
        return
    left = free_of(all_nodes)
    for part, node in zip(parts, found, strict=True):
        assert fits({"cpu": part}, left[node])
        left[node] = minus(left[node], {"cpu": part})


@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 20))
def test_members_that_are_alike_are_placed_whenever_they_fit(cpus, capacities, count):
    all_nodes = nodes(*capacities)
    possible = sum(capacity // cpus for capacity in capacities) >= count
    assert (place(members(*[cpus] * count), all_nodes, free_of(all_nodes)) is not None) == possible


def test_all_nodes_are_asked_in_the_order_of_their_ids_before_the_start():
    gang = Reservation({"b": {"cpu": 1}, "a": {"cpu": 1}}, now_s=0.0)
    assert gang.begin() == (Ask(node="a", amounts={"cpu": 1}, ttl_s=10.0),)
    assert gang.promised("a", now_s=1.0) == (Ask(node="b", amounts={"cpu": 1}, ttl_s=10.0),)
    assert gang.promised("b", now_s=2.0) == (StartAll(nodes=("a", "b")),)
    assert gang.phase is Phase.HELD


def test_a_refusal_gives_everything_back_before_the_next_try():
    gang = Reservation({"a": {"cpu": 1}, "b": {"cpu": 1}, "c": {"cpu": 1}}, now_s=0.0)
    gang.begin()
    gang.promised("a", now_s=1.0)
    assert gang.refused("b", "full") == (Release(node="a"), Release(node="b"))
    assert gang.released("a") == ()
    assert gang.released("b") == (TryAgain(refused_by="b", reason="full"),)


def test_a_promise_that_comes_too_late_is_given_back():
    gang = Reservation({"a": {"cpu": 1}, "b": {"cpu": 1}}, now_s=0.0, ttl_s=10.0)
    gang.begin()
    assert gang.promised("a", now_s=5.0) == (Release(node="a"),)
    assert gang.promised("a", now_s=6.0) == (Release(node="a"),), "answered twice"
    with pytest.raises(InvalidStateError):
        gang.refused("a", "again")


class Nodes:
    """Nodes that admit on their own, and gangs that talk to them in an order that a seed decides."""

    def __init__(self, capacity: dict[str, dict[str, int]]) -> None:
        self.free = {node: dict(amounts) for node, amounts in capacity.items()}
        self.promised: dict[tuple[int, str], dict[str, int]] = {}

    def ask(self, gang: int, action: Ask) -> bool:
        if not fits(action.amounts, self.free[action.node]):
            return False
        self.free[action.node] = minus(self.free[action.node], action.amounts)
        self.promised[gang, action.node] = dict(action.amounts)
        return True

    def release(self, gang: int, node: str) -> None:
        self.free[node] = plus(self.free[node], self.promised.pop((gang, node), {}))


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_gangs_that_want_each_others_nodes_all_start_in_turn_and_none_in_part(seed, count):
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    world = Nodes({name: {"cpu": 4} for name in names})
    wishes = {g: {n: {"cpu": rng.randint(2, 4)} for n in rng.sample(names, rng.randint(1, 3))} for g in range(count)}
    gangs = {g: Reservation(wish, now_s=0.0) for g, wish in wishes.items()}
    inbox = [(g, action) for g, gang in gangs.items() for action in gang.begin()]
    started: set[int] = set()
    for _ in range(2000):
        if not inbox:
            break
        g, action = inbox.pop(rng.randrange(len(inbox)))
        match action:
            case Ask(node=node):
                answer = world.ask(g, action)
                following = gangs[g].promised(node, now_s=0.0) if answer else gangs[g].refused(node, "full")
            case Release(node=node):
                world.release(g, node)
                following = gangs[g].released(node)
            case StartAll(nodes=held):
                assert all((g, node) in world.promised for node in wishes[g])
                started.add(g)
                for node in held:
                    world.release(g, node)  # It ran and ended.
                following = ()
            case TryAgain():
                assert not any(owner == g for owner, _ in world.promised), "none holds while it waits"
                gangs[g] = Reservation(wishes[g], now_s=0.0)
                following = gangs[g].begin()
        inbox.extend((g, each) for each in following)
    assert started == set(range(count))
    assert world.promised == {}
