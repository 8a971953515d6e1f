"""Whatever fails, a sandbox that was promised exists once, nothing else is left, and every refusal says why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dsec.placement.creation import Done, GiveUp
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Capacity
from dsec.testing.placement_cluster import Faults, PlacementCluster

SMALL = Shape(cpu_millis=100, memory_bytes=100, disk_bytes=1)


def cluster(seed: int, faults: Faults, *, requests: int, over_s: float = 20.0, **settings: Any) -> PlacementCluster:
    room = settings.pop("room", 40)
    capacity = Capacity(cpu_millis=10**6, memory_bytes=10**6, disk_bytes=10**6, sandboxes=room, creations=10)
    made = PlacementCluster(seed, nodes=8, schedulers=3, capacity=capacity, faults=faults, **settings)
    made.run(2.0)
    for number in range(requests):
        one = PlacementRequest(sandbox_id=f"sbx-{number}", shape=SMALL, task_id=f"task-{number % 5}")
        made.after(made.random.uniform(0.0, over_s), lambda one=one: made.request(one))  # type: ignore[misc]
    return made


def check(made: PlacementCluster, *, crashed: bool = False) -> None:
    """What must hold at the end of any history."""
    where = made.where()
    promised = {sandbox_id for (_, sandbox_id), step in made.outcomes.items() if isinstance(step, Done)}
    for node in made.nodes.values():
        assert node.most_held <= node.capacity.sandboxes
        assert node.most_creating <= node.capacity.creations
    assert all(len(nodes) == 1 for nodes in where.values())
    if not crashed:
        assert set(where) == promised
    for error in made.errors:
        assert error.brief
        assert error.resolution


@pytest.mark.parametrize("seed", range(3))
def test_without_faults_everything_is_placed_and_the_load_is_even(seed: int) -> None:
    made = cluster(seed, Faults(), requests=160)
    made.run(60.0)
    made.settle(5.0)
    check(made)
    assert len(made.where()) == 160
    held = [len(node.ledger) for node in made.nodes.values()]
    assert max(held) - min(held) <= 10


@pytest.mark.slow
@settings(max_examples=25, phases=[Phase.explicit, Phase.generate])
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 2),
)
def test_lost_and_late_messages_liars_and_duplicates_leave_one_of_each(
    seed: int, lost: float, late: float, twice: float, liars: int
) -> None:
    made = cluster(seed, Faults(lost=lost, late=late, twice=twice, liars=liars), requests=60)
    made.run(30.0)
    made.settle(300.0)
    check(made)
    assert not made.engines[0].statistics().open


@pytest.mark.slow
@settings(max_examples=15, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**32))
def test_nodes_that_crash_and_come_back_with_old_sandboxes_hold_no_duplicates(seed: int) -> None:
    made = cluster(seed, Faults(crash_every_s=20.0, down_s=15.0, lost=0.02), requests=80)
    made.run(60.0)
    made.settle(300.0)
    check(made, crashed=True)
    assert any("came back" in line for line in made.trace)


def test_a_fleet_that_is_too_small_is_filled_to_the_last_place_and_the_rest_is_told_why() -> None:
    made = cluster(1, Faults(), requests=150, room=12)
    made.run(120.0)
    made.settle(5.0)
    check(made)
    assert [len(node.ledger) for node in made.nodes.values()] == [12] * 8
    assert len(made.errors) == 150 - 96
    assert all(error.retryable for error in made.errors)
    assert any("full" in error.brief or "tried" in error.brief for error in made.errors)


def test_a_watcher_that_is_silent_for_two_minutes_stops_nothing() -> None:
    made = cluster(2, Faults(silent=(5.0, 125.0)), requests=200, over_s=110.0)
    made.run(140.0)
    assert sum(isinstance(step, Done) for step in made.outcomes.values()) == 200
    assert not made.errors
    held = [len(node.ledger) for node in made.nodes.values()]
    assert max(held) - min(held) <= 12


def test_a_liar_gets_less_than_its_share_and_rejects_little() -> None:
    made = cluster(3, Faults(liars=1), requests=300, room=50)
    liar = made.nodes["node-0"]
    liar.capacity = Capacity(cpu_millis=10**6, memory_bytes=10**6, disk_bytes=10**6, sandboxes=50, creations=10)
    made.run(60.0)
    assert sum(isinstance(step, Done) for step in made.outcomes.values()) == 300
    assert not made.errors
    assert sum(engine.statistics().rejected for engine in made.engines) < 60


def test_the_same_seed_gives_the_same_history() -> None:
    faults = Faults(lost=0.1, late=0.1, crash_every_s=15.0, twice=0.2, liars=1)

    def history(seed: int) -> list[str]:
        made = cluster(seed, faults, requests=60)
        made.run(60.0)
        return made.trace

    assert history(5) == history(5)
    assert history(5) != history(6)


def test_a_task_keeps_together_until_its_node_is_loaded() -> None:
    from dsec.placement.affinity import AffinityPolicy

    made = cluster(4, Faults(), requests=100, affinity=AffinityPolicy())
    made.run(60.0)
    where = made.where()
    for task in range(5):
        nodes = [where[f"sbx-{number}"][0] for number in range(100) if number % 5 == task]
        # Three schedulers that do not share tasks here, each with homes of its own.
        assert len(set(nodes)) <= 3 + 0.2 * len(nodes)


def test_giving_up_is_final_and_leaves_nothing_behind() -> None:
    made = cluster(6, Faults(lost=0.9), requests=30)
    made.run(600.0)
    made.settle(300.0)
    given_up = {sandbox_id for (_, sandbox_id), step in made.outcomes.items() if isinstance(step, GiveUp)}
    assert given_up
    assert not given_up & set(made.where())
