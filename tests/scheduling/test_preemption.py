"""Prices of victims, and the cheapest set of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.scheduling.gangs import place
from dsec.scheduling.job import Job, Member, Node, Running
from dsec.scheduling.preemption import Manner, appraise, choose_victims

NODES = (Node(node_id="a", capacity={"cpu": 8}), Node(node_id="b", capacity={"cpu": 8}))


def running(job_id: str, cpus: int, node: str = "a", *, started_s: float = 0.0, **more: object) -> Running:
    priority = more.pop("priority", 0)
    job = Job(job_id=job_id, project="p", members=(Member(amounts={"cpu": cpus}),), arrived_s=0.0, priority=priority)  # type: ignore[arg-type]
    return Running(job=job, nodes=(node,), started_s=started_s, **more)  # type: ignore[arg-type]


def wants(cpus: int, members: int = 1, priority: int = 5) -> Job:
    parts = (Member(amounts={"cpu": cpus}),) * members
    return Job(job_id="new", project="p", members=parts, arrived_s=0.0, priority=priority)


def free_beside(all_running: list[Running]) -> dict[str, dict[str, int]]:
    used = {node.node_id: sum(each.amounts_on(node.node_id).get("cpu", 0) for each in all_running) for node in NODES}
    return {node.node_id: {"cpu": node.capacity["cpu"] - used[node.node_id]} for node in NODES}


@pytest.mark.parametrize(
    ("saved_s", "save_s", "within_s", "manner", "loses_s"),
    [
        (None, None, 60.0, Manner.KILL, 20.0),  # All 20 s are done again.
        (15.0, None, 60.0, Manner.KILL, 7.0),  # 5 s since the save, and 2 s to restore.
        (None, 3.0, 60.0, Manner.SAVE, 5.0),  # 3 s to save, and 2 s to restore.
        (None, 30.0, 2.0, Manner.KILL, 20.0),  # A save of 30 s cannot serve a deadline of 2 s.
    ],
)
def test_a_victim_gives_way_in_the_cheaper_manner_that_is_in_time(saved_s, save_s, within_s, manner, loses_s):
    job = running("old", 4, saved_s=saved_s, save_s=save_s, restore_s=2.0)
    victim = appraise(job, now_s=20.0, within_s=within_s, capacity={"cpu": 16})
    assert (victim.manner, victim.loses_s) == (manner, loses_s)
    assert victim.price_s == loses_s * 4 / 16


def test_the_work_of_the_chapter_is_lost_only_without_a_checkpoint():
    """20 s of work and 2 s to restore: a checkpoint 5 s old saves 13 s."""
    kept = appraise(running("a", 1, saved_s=15.0, restore_s=2.0), now_s=20.0, within_s=0.0, capacity={"cpu": 1})
    lost = appraise(running("a", 1, restore_s=2.0), now_s=20.0, within_s=0.0, capacity={"cpu": 1})
    assert lost.loses_s - kept.loses_s == 13.0


def test_neither_equal_priorities_nor_protected_jobs_are_preempted():
    jobs = [running("equal", 8, priority=5), running("protected", 8, "b", protected=True)]
    found = choose_victims(wants(8), jobs, NODES, free_beside(jobs), now_s=9.0, within_s=9.0, gains_s=None)
    assert found is None


@given(
    cpus=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    starts=st.lists(st.integers(0, 99), min_size=8, max_size=8),
    wanted=st.integers(1, 8),
    members=st.integers(1, 2),
)
def test_no_other_set_of_victims_is_cheaper(cpus, starts, wanted, members):
    jobs: list[Running] = []
    for index, (amount, start) in enumerate(zip(cpus, starts, strict=False)):
        node = "a" if free_beside(jobs)["a"]["cpu"] >= amount else "b"
        if free_beside(jobs)[node]["cpu"] >= amount:
            jobs.append(running(f"j{index}", amount, node, started_s=float(start)))
    new, free = wants(wanted, members), free_beside(jobs)
    if place(new.members, NODES, free) is not None:
        return
    found = choose_victims(new, jobs, NODES, free, now_s=100.0, within_s=0.0, gains_s=None)
    prices = []
    for size in range(1, len(jobs) + 1):
        for chosen in itertools.combinations(jobs, size):
            left = free_beside([each for each in jobs if each not in chosen])
            if place(new.members, NODES, left) is not None:
                capacity = {"cpu": 16}
                prices.append(sum(appraise(c, now_s=100.0, within_s=0.0, capacity=capacity).price_s for c in chosen))
    assert (found is None) == (not prices)
    if found is not None:
        assert found.price_s == pytest.approx(min(prices))


def test_many_victims_are_found_greedily_and_it_is_said():
    nodes = (Node(node_id="a", capacity={"cpu": 400}),)
    jobs = [running(f"j{index:03}", 1, started_s=float(index)) for index in range(400)]
    found = choose_victims(wants(300), jobs, nodes, {"a": {"cpu": 0}}, now_s=400.0, within_s=0.0, gains_s=None)
    assert found is not None
    assert len(found.victims) == 300
    assert "not proved to be the cheapest" in found.reason
    assert min(victim.running.started_s for victim in found.victims) == 100.0, "the youngest lose least"
