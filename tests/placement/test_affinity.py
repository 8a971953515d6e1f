"""Tasks keep together as long as it costs nobody much, and never more than the share leaves them."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dsec.placement.affinity import AffinityMode, AffinityPolicy, Group, GroupBy, Groups
from dsec.placement.decision import Placement, Reason
from dsec.placement.engine import PlacementEngine
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Capacity, NodeView

NOTHING = Shape(cpu_millis=0, memory_bytes=0, disk_bytes=0)


def engine(nodes: int, room: int, affinity: AffinityPolicy, seed: int = 1) -> PlacementEngine:
    made = PlacementEngine(random.Random(seed).getrandbits, affinity=affinity)
    capacity = Capacity(cpu_millis=1000, memory_bytes=1000, disk_bytes=1000, sandboxes=room, creations=room)
    for number in range(nodes):
        made.observe(NodeView(node=f"node-{number}", capacity=capacity), 0.0)
    return made


def place(made: PlacementEngine, count: int, *, task_id: str = "task", job_id: str = "") -> list[Placement]:
    placements = []
    for number in range(count):
        request = PlacementRequest(
            sandbox_id=f"{task_id}{job_id}-{number}", shape=NOTHING, task_id=task_id, job_id=job_id
        )
        outcome = made.place(request, 0.0)
        assert isinstance(outcome, Placement)
        placements.append(outcome)
    return placements


def test_a_task_stays_on_one_node_up_to_the_threshold() -> None:
    placements = place(engine(10, 100, AffinityPolicy()), 85)
    assert len({placement.node for placement in placements}) == 1
    assert [placement.reason for placement in placements] == [Reason.CHOICE] + [Reason.HOME] * 84


def test_above_the_threshold_at_most_the_share_leaves_and_the_rest_stays() -> None:
    made = engine(10, 100, AffinityPolicy())
    reasons = Counter(placement.reason for placement in place(made, 110))
    assert reasons == {Reason.CHOICE: 1, Reason.HOME: 87, Reason.SPILL: 22}


def test_a_full_home_gets_a_second_one() -> None:
    placements = place(engine(10, 10, AffinityPolicy(spillover_enabled=False)), 25)
    assert sorted(Counter(placement.node for placement in placements).values()) == [5, 10, 10]


def test_without_spill_over_nobody_leaves_a_home_that_has_room() -> None:
    placements = place(engine(10, 100, AffinityPolicy(spillover_enabled=False)), 100)
    assert len({placement.node for placement in placements}) == 1


def test_no_affinity_spreads_a_task() -> None:
    placements = place(engine(10, 100, AffinityPolicy(mode=AffinityMode.OFF)), 85)
    assert len({placement.node for placement in placements}) == 10


def test_a_home_that_rejects_is_left_for_that_sandbox_only() -> None:
    made = engine(5, 100, AffinityPolicy())
    home = place(made, 3)[0].node
    request = PlacementRequest(sandbox_id="other", shape=NOTHING, task_id="task")
    made.place(request, 0.0)
    elsewhere = made.rejected("other", home, 0.0)
    assert isinstance(elsewhere, Placement)
    assert elsewhere.node != home


def test_placements_that_came_to_nothing_give_no_share_to_leave() -> None:
    made = engine(5, 10, AffinityPolicy(max_load_threshold=0.0))
    request = PlacementRequest(sandbox_id="again", shape=NOTHING, task_id="task")
    for _ in range(50):
        first = made.place(request, 0.0)
        assert isinstance(first, Placement)
        made.withdraw("again", 0.0)
    assert [placement.reason for placement in place(made, 4)].count(Reason.SPILL) == 0


def test_groups_can_be_jobs() -> None:
    made = engine(20, 100, AffinityPolicy(group_by=GroupBy.JOB_ID))
    nodes = {place(made, 1, task_id=f"task-{number}", job_id="job")[0].node for number in range(20)}
    assert len(nodes) == 1


@given(
    st.integers(0, 2**32), st.integers(1, 6), st.integers(2, 30), st.floats(0, 1), st.floats(0, 1), st.integers(1, 4)
)
def test_the_share_that_leaves_is_never_exceeded_and_nothing_is_refused_while_there_is_room(
    seed: int, nodes: int, room: int, threshold: float, ratio: float, tasks: int
) -> None:
    policy = AffinityPolicy(max_load_threshold=threshold, spillover_ratio=ratio)
    made = engine(nodes, room, policy, seed)
    placed: Counter[str] = Counter()
    spilled: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for number in range(nodes * room):
        task = f"task-{number % tasks}"
        outcome = made.place(PlacementRequest(sandbox_id=f"s{number}", shape=NOTHING, task_id=task), 0.0)
        assert isinstance(outcome, Placement)
        placed[task] += 1
        held[outcome.node] += 1
        spilled[task] += outcome.reason is Reason.SPILL
        assert spilled[task] <= ratio * placed[task]
    assert set(held.values()) == {room}


def test_the_memory_of_groups_is_bounded_and_the_least_used_goes() -> None:
    groups = Groups(limit=2)
    first = groups.get("a")
    groups.get("b")
    assert groups.get("a") is first
    groups.get("c")
    assert groups.get("a") is first
    assert len(groups) == 2


def test_a_share_of_nothing_lets_nobody_leave() -> None:
    assert not Group().may_spill(AffinityPolicy(spillover_ratio=0.0))
    assert Group().may_spill(AffinityPolicy(spillover_ratio=1.0))
