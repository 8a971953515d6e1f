"""Traces of the engine: what it is told, and what it decides."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import (
    CapabilityMissingError,
    DsecError,
    ImageNotFoundError,
    InvalidRequestError,
    InvalidStateError,
    NodeUnavailableError,
)
from dsec.base.units import GIB
from dsec.placement.creation import Creation, GiveUp
from dsec.placement.decision import Placement, Reason, Refusal, Why
from dsec.placement.duplicates import Holder
from dsec.placement.engine import PlacementEngine
from dsec.placement.policy import Ageing, Expectation, PlacementPolicy, TrustPolicy
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Health, NodeView, Usage

MakeView = Callable[..., NodeView]
MakeEngine = Callable[..., PlacementEngine]
MakeRequest = Callable[..., PlacementRequest]


def placed(outcome: Placement | Refusal) -> Placement:
    assert isinstance(outcome, Placement)
    return outcome


def refused(outcome: Placement | Refusal) -> Refusal:
    assert isinstance(outcome, Refusal)
    return outcome


# Choice.


def test_the_less_loaded_of_two_is_taken(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(views=(make_view("busy", holds=2000), make_view("idle", holds=10)))
    assert {placed(engine.place(make_request(), 0.0)).node for _ in range(50)} == {"idle"}


def test_a_small_empty_node_is_not_taken_for_emptier_than_a_large_one(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    small = make_view("small", memory=4 * GIB)
    large = make_view("large", memory_bytes=5 * GIB)
    engine = make_engine(views=(small, large))
    assert placed(engine.place(make_request(memory_bytes=4 * GIB), 0.0)).node == "large"


def test_the_fullest_resource_counts(make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest) -> None:
    idle_but_full = make_view("idle-but-full", memory_bytes=500 * GIB)
    busy_with_room = make_view("busy-with-room", cpu_millis=150_000)
    engine = make_engine(views=(idle_but_full, busy_with_room))
    assert placed(engine.place(make_request(), 0.0)).node == "busy-with-room"


def test_creations_in_flight_count(make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest) -> None:
    engine = make_engine(views=(make_view("starting", creating=300, creations=400), make_view("calm", holds=1000)))
    assert placed(engine.place(make_request(), 0.0)).node == "calm"


def test_the_last_free_place_of_a_fleet_is_found(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    views = [make_view(f"n{number}", sandboxes=1, holds=1) for number in range(200)]
    views[137] = make_view("n137", sandboxes=1)
    engine = make_engine(views=tuple(views))
    found = placed(engine.place(make_request(), 0.0))
    assert (found.node, found.reason) == ("n137", Reason.SCAN)
    assert refused(engine.place(make_request(), 0.0)).why is Why.FULL
    assert engine.statistics().scanned == 1


# Overlay.


def test_own_placements_count_until_a_view_shows_them(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(views=(make_view(sandboxes=2),))
    first, second = make_request(), make_request()
    placed(engine.place(first, 0.0))
    placed(engine.place(second, 0.0))
    assert refused(engine.place(make_request(), 0.1)).why is Why.FULL
    engine.created(first.sandbox_id, "node-0", 0.5, ticket=1)
    engine.created(second.sandbox_id, "node-0", 0.5, ticket=2)
    # This view has seen the first and not the second, so that together they are two.
    engine.observe(make_view(sandboxes=2, version=2, holds=1, creations_seen=1), 1.0)
    assert refused(engine.place(make_request(), 1.0)).why is Why.FULL
    # Both are in this view, and one has ended.
    engine.observe(make_view(sandboxes=2, version=3, holds=1, creations_seen=2), 2.0)
    placed(engine.place(make_request(), 2.0))


def test_a_view_that_came_before_the_answer_is_recognised_by_the_ticket(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(views=(make_view(sandboxes=2),))
    request = make_request()
    engine.place(request, 0.0)
    engine.observe(make_view(sandboxes=2, version=2, holds=1, creations_seen=1), 1.0)
    assert refused(engine.place(make_request(), 1.0)).why is Why.FULL
    engine.admitted(request.sandbox_id, "node-0", 1, 1.1)
    placed(engine.place(make_request(), 1.1))


def test_a_node_that_numbers_nothing_is_believed_when_asked_after_its_answer(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(views=(make_view(sandboxes=2),))
    request = make_request()
    engine.place(request, 0.0)
    engine.created(request.sandbox_id, "node-0", 1.0)
    engine.observe(make_view(sandboxes=2, version=2, holds=1), 1.5, age_s=1.0)  # Asked for at 0.5.
    assert len(state(engine, "node-0").recent) == 1
    engine.observe(make_view(sandboxes=2, version=3, holds=1), 2.5, age_s=0.5)
    assert state(engine, "node-0").recent == {}


def state(engine: PlacementEngine, node: str) -> Any:
    known = engine.fleet.get(node)
    assert known is not None
    return known


def test_an_older_view_changes_nothing(make_engine: MakeEngine, make_view: MakeView) -> None:
    engine = make_engine(views=(make_view(version=5, incarnation=2, holds=7),))
    assert not engine.observe(make_view(version=4, incarnation=2), 1.0)
    assert not engine.observe(make_view(version=5, incarnation=2), 1.0)
    assert not engine.observe(make_view(version=900, incarnation=1), 1.0)
    assert state(engine, "node-0").sandboxes == 7


def test_a_new_life_of_a_node_forgets_what_was_placed_in_the_old_one(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(views=(make_view(creations_seen=50),))
    request = make_request()
    engine.place(request, 0.0)
    engine.created(request.sandbox_id, "node-0", 0.1, ticket=51)
    # It counts from nothing again, so that its number is below the ticket.
    engine.observe(make_view(incarnation=2, creations_seen=0, holds=3), 1.0)
    assert (state(engine, "node-0").recent, state(engine, "node-0").sandboxes) == ({}, 3)


# Idempotency.


def test_a_repeated_request_gets_the_same_answer_and_counts_once(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=20)
    request = make_request()
    first = placed(engine.place(request, 0.0))
    again = placed(engine.place(request, 1.0))
    assert again == msgspec.structs.replace(first, repeated=True)
    engine.created(request.sandbox_id, first.node, 1.0, ticket=1)
    assert placed(engine.place(request, 2.0)).node == first.node
    assert engine.statistics().placed == 1


def test_an_id_may_be_used_again_after_its_sandbox_ended(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(nodes=3)
    request = make_request()
    engine.place(request, 0.0)
    engine.ended(request.sandbox_id)
    assert not placed(engine.place(request, 1.0)).repeated


def test_finished_placements_are_remembered_up_to_a_limit(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(nodes=3, policy=PlacementPolicy(remembered=2))
    requests = [make_request() for _ in range(3)]
    for number, request in enumerate(requests, 1):
        engine.created(request.sandbox_id, placed(engine.place(request, 0.0)).node, 0.0, ticket=number)
    assert [placed(engine.place(request, 0.0)).repeated for request in reversed(requests)] == [True, True, False]


# Rejection and failure.


def test_a_rejected_sandbox_never_goes_to_the_same_node_twice(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=4, policy=PlacementPolicy(rejections=10))
    request = make_request()
    outcome = engine.place(request, 0.0)
    asked = []
    while isinstance(outcome, Placement):
        asked.append(outcome.node)
        outcome = engine.rejected(request.sandbox_id, outcome.node, 0.0)
    assert sorted(asked) == ["node-0", "node-1", "node-2", "node-3"]
    assert outcome.why is Why.REJECTED
    assert outcome.tried == tuple(asked)


def test_after_so_many_rejections_the_refusal_is_reported(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(nodes=50, policy=PlacementPolicy(rejections=3))
    request = make_request()
    outcome = engine.place(request, 0.0)
    for _ in range(3):
        outcome = engine.rejected(request.sandbox_id, placed(outcome).node, 0.0)
    refusal = refused(outcome)
    assert "3 nodes were tried" in refusal.brief
    assert isinstance(refusal.error(), NodeUnavailableError)


def test_an_answer_of_a_node_that_was_not_asked_is_an_error(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(nodes=3)
    request = make_request()
    node = placed(engine.place(request, 0.0)).node
    other = next(name for name in ("node-0", "node-1") if name != node)
    with pytest.raises(InvalidStateError):
        engine.rejected(request.sandbox_id, other, 0.0)
    engine.created(request.sandbox_id, node, 0.0, ticket=1)
    with pytest.raises(InvalidStateError):
        engine.failed(request.sandbox_id, node, 0.0)


def test_a_late_answer_of_a_node_that_was_given_up_is_an_orphan(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=3)
    request = make_request()
    slow = placed(engine.place(request, 0.0)).node
    quick = placed(engine.failed(request.sandbox_id, slow, 30.0)).node
    assert quick != slow
    assert engine.created(request.sandbox_id, quick, 30.5, ticket=1) is None
    orphan = engine.created(request.sandbox_id, slow, 45.0, ticket=9)
    assert orphan is not None
    assert (orphan.node, orphan.sandbox_id) == (slow, request.sandbox_id)
    assert "not answered" in orphan.reason


def test_a_node_that_accepts_and_dies_is_cleared_when_it_comes_back(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=3)
    request = make_request()
    dead = placed(engine.place(request, 0.0)).node
    engine.admitted(request.sandbox_id, dead, 1, 0.1)
    placed(engine.failed(request.sandbox_id, dead, 30.0))
    assert engine.reconcile(dead, frozenset(), 40.0) == ()
    (orphan,) = engine.reconcile(dead, frozenset({request.sandbox_id, "sbx-of-another"}), 50.0)
    assert orphan.sandbox_id == request.sandbox_id


def test_an_engine_that_was_started_anew_removes_nothing_that_it_does_not_know(make_engine: MakeEngine) -> None:
    engine = make_engine(nodes=3)
    assert engine.reconcile("node-0", frozenset({"sbx-a", "sbx-b"}), 0.0) == ()


def test_of_duplicates_the_one_that_the_caller_was_told_of_is_kept(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=3)
    request = make_request()
    node = placed(engine.place(request, 0.0)).node
    engine.created(request.sandbox_id, node, 0.1, ticket=1)
    holders = [Holder(node=f"node-{number}", ready=True) for number in range(3)]
    orphans = engine.rule_on(request.sandbox_id, holders)
    assert {orphan.node for orphan in orphans} == {"node-0", "node-1", "node-2"} - {node}


def test_a_withdrawn_request_leaves_no_load_behind(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(nodes=1)
    request = make_request()
    engine.place(request, 0.0)
    orphan = engine.withdraw(request.sandbox_id, 1.0)
    assert orphan is not None
    assert state(engine, "node-0").sandboxes == 0
    assert engine.withdraw(request.sandbox_id, 1.0) is None


# Nodes that lie, fail, fall silent.


def test_a_node_that_claims_room_and_rejects_loses_trust_until_it_is_left_alone(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    honest = [make_view(f"honest-{number}", holds=1000) for number in range(4)]
    engine = make_engine(views=(make_view("liar"), *honest))
    rejections = 0
    for second in range(60):
        outcome = placed(engine.place(request := make_request(), float(second)))
        if outcome.node == "liar":
            rejections += 1
            outcome = placed(engine.rejected(request.sandbox_id, "liar", float(second)))
        engine.created(request.sandbox_id, outcome.node, second + 0.1, ticket=second)
        for view in (make_view("liar", version=second + 2), *honest):
            renewed = msgspec.structs.replace(view, version=second + 2, creations_seen=second + 1)
            engine.observe(renewed, second + 0.5)
    assert 1 <= rejections <= 10
    assert state(engine, "liar").trust.score < 0.7


def test_a_rejection_by_a_node_that_said_it_was_nearly_full_costs_no_trust(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(views=(make_view("n0", holds=3100), make_view("n1", holds=3100)))
    request = make_request()
    node = placed(engine.place(request, 0.0)).node
    engine.rejected(request.sandbox_id, node, 0.0)
    assert state(engine, node).trust.score == 1.0


def test_a_node_that_answers_late_is_avoided(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=4)
    asked = []
    for second in range(200):
        request = make_request()
        node = placed(engine.place(request, second)).node
        asked.append(node)
        engine.created(request.sandbox_id, node, second + (5.0 if node == "node-2" else 0.2), ticket=second)
        engine.observe(make_view(node, version=second + 2, creations_seen=second), second)
    assert 1 <= asked.count("node-2") <= 20
    assert min(asked.count(f"node-{number}") for number in (0, 1, 3)) >= 40


def test_three_failures_in_a_row_suspend_a_node_and_time_brings_it_back(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=1)
    for _ in range(3):
        request = make_request()
        engine.place(request, 0.0)
        engine.failed(request.sandbox_id, "node-0", 0.0)
    refusal = refused(engine.place(make_request(), 1.0))
    assert refusal.why is Why.UNOFFERED
    assert "1 suspended" in refusal.brief
    placed(engine.place(make_request(), 12.0))


def test_what_the_caller_did_wrong_is_not_held_against_a_node(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=1)
    for _ in range(5):
        creation = Creation(make_request(), engine)
        creation.begin(0.0)
        assert isinstance(creation.failed("node-0", ImageNotFoundError("there is no image 'pyhton'"), 0.0), GiveUp)
    assert state(engine, "node-0").trust.score == 1.0
    placed(engine.place(make_request(), 1.0))


def test_an_id_that_is_used_again_is_not_forgotten_with_its_former_sandbox(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=3, policy=PlacementPolicy(remembered=1))
    again, other = make_request(), make_request()
    engine.created(again.sandbox_id, placed(engine.place(again, 0.0)).node, 0.1, ticket=1)
    engine.ended(again.sandbox_id)
    engine.place(again, 1.0)
    engine.created(other.sandbox_id, placed(engine.place(other, 1.0)).node, 1.1, ticket=2)
    assert placed(engine.place(again, 2.0)).repeated


def test_a_node_that_stopped_taking_sandboxes_is_not_tried_a_second_time(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=2)
    request = make_request()
    node = placed(engine.place(request, 0.0)).node
    engine.observe(make_view(node, version=2, health=Health.DRAINING), 0.5)
    assert placed(engine.failed(request.sandbox_id, node, 1.0, elsewhere=False)).node != node


def test_a_node_that_nobody_hears_of_is_left_out_while_the_others_are_heard_of(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=10)
    for number in range(1, 10):
        engine.observe(make_view(f"node-{number}", version=2, holds=2000), 70.0)
    assert "node-0" not in {placed(engine.place(make_request(), 70.0)).node for _ in range(100)}
    engine.observe(make_view("node-0", version=2), 71.0)
    assert "node-0" in {placed(engine.place(make_request(), 72.0)).node for _ in range(100)}


def test_when_the_watcher_is_silent_nobody_is_left_out(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(nodes=10)
    nodes = [placed(engine.place(make_request(), 3600.0)).node for _ in range(100)]
    assert {nodes.count(f"node-{number}") for number in range(10)} <= set(range(7, 14))
    assert engine.fleet.panic


def test_an_answer_keeps_a_node_alive_and_can_carry_a_view(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(nodes=2)
    request = make_request()
    node = placed(engine.place(request, 50.0)).node
    fresh = make_view(node, version=2, holds=17, creations_seen=1)
    engine.created(request.sandbox_id, node, 59.0, ticket=1, view=fresh)
    engine.tick(65.0)
    assert state(engine, node).sandboxes == 17
    assert state(engine, node).offered


def test_an_old_view_counts_less_and_own_placements_count_in_full(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    fresh = [make_view(f"fresh-{number}", holds=1600) for number in range(3)]
    engine = make_engine(views=(make_view("old", holds=0), *fresh))
    for view in fresh:
        engine.observe(msgspec.structs.replace(view, version=2), 40.0)
    engine.tick(40.0)
    # 35 of 55 s on the way from fresh to lost: its empty view counts 20 / 55, and half full is what the others are.
    assert state(engine, "old").sandboxes == round(1600 * 35 / 55)
    engine.fleet.index(Shape())
    before = state(engine, "old").sandboxes
    while placed(engine.place(make_request(), 40.0)).node != "old":
        pass
    assert state(engine, "old").sandboxes == before + 1


def test_clocks_that_are_hours_apart_give_the_same_decisions(make_request: MakeRequest, make_view: MakeView) -> None:
    def decisions(offset_s: float) -> list[str]:
        engine = PlacementEngine(random.Random(3).getrandbits)
        for number in range(20):
            engine.observe(make_view(f"node-{number}", holds=100 * number), offset_s, age_s=float(number))
        # A whole number of seconds, so that the sums with the offset are exact.
        requests = [PlacementRequest(sandbox_id=f"sbx-{number}") for number in range(50)]
        return [placed(engine.place(request, offset_s + number)).node for number, request in enumerate(requests)]

    assert decisions(0.0) == decisions(3600.0) == decisions(-3600.0)


# Refusals.


def test_the_closest_miss_is_named(make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest) -> None:
    gpu = frozenset({"gpu"})
    views = [make_view(f"node-{number}", memory=128 * GIB) for number in range(1021)]
    views += [make_view(f"gpu-{number}", memory=(30 + number) * GIB, features=gpu) for number in range(3)]
    refusal = refused(make_engine(views=tuple(views)).place(make_request(needs=gpu, memory_bytes=34 * GIB), 0.0))
    assert refusal.brief == "3 of 1,024 nodes have gpu; the nearest, gpu-2, lacks 2.0 GiB of memory"
    assert "34.0 GiB of memory: 1,021 of 1,024 nodes" in refusal.detail
    assert refusal.why is Why.INCAPABLE
    assert not refusal.retryable
    assert isinstance(refusal.error(), CapabilityMissingError)


def test_a_feature_that_nobody_has_is_named(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    refusal = refused(make_engine(nodes=4).place(make_request(needs=frozenset({"gqu"})), 0.0))
    assert refusal.brief == "no node has gqu; the nearest, node-0, lacks gqu"


@pytest.mark.parametrize(
    ("views", "why", "words"),
    [
        ([], Why.EMPTY, "no node is known"),
        ([{"health": Health.DRAINING}, {"health": Health.FAILED}], Why.UNOFFERED, "1 draining, 1 failed"),
        ([{"health": Health.CLOSED, "note": "disk"}], Why.UNOFFERED, "1 closed"),
        ([{"sandboxes": 10, "holds": 10}], Why.FULL, "because of sandboxes"),
        ([{"memory_bytes": 512 * GIB}], Why.FULL, "because of memory"),
        ([{"cores_millis": 800, "cpu_millis": 0}], Why.INCAPABLE, "lacks 0.2 cores of processor"),
        ([{"disk": GIB}], Why.INCAPABLE, "lacks 1.0 GiB of disk"),
    ],
)
def test_every_refusal_says_why(
    views: list[dict[str, Any]],
    why: Why,
    words: str,
    make_engine: MakeEngine,
    make_view: MakeView,
    make_request: MakeRequest,
) -> None:
    engine = make_engine(views=tuple(make_view(f"node-{number}", **view) for number, view in enumerate(views)))
    for _ in range(2):  # The second is answered from memory.
        refusal = refused(engine.place(make_request(), 0.0))
        assert refusal.why is why
        assert words in refusal.brief
        error = refusal.error()
        assert isinstance(error, DsecError)
        assert error.resolution
        assert error.retryable == (why is not Why.INCAPABLE)


def test_a_refusal_is_taken_back_when_room_appears(
    make_engine: MakeEngine, make_view: MakeView, make_request: MakeRequest
) -> None:
    engine = make_engine(views=(make_view(sandboxes=1, holds=1),))
    refused(engine.place(make_request(), 0.0))
    engine.observe(make_view(sandboxes=1, holds=0, version=2), 0.5)
    placed(engine.place(make_request(), 0.5))


def test_shapes_that_callers_invent_do_not_pile_up(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(nodes=3)
    for number in range(2000):
        engine.place(make_request(memory_bytes=number), 0.0)
    assert len(engine.fleet._indexes) <= 512


# Properties.


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(2, 40))
def test_the_seed_determines_every_decision(seed: int, choices: int, nodes: int) -> None:
    def decisions() -> list[Placement | Refusal]:
        capacity = {"cpu_millis": 10**6, "memory_bytes": 1 << 40, "disk_bytes": 1 << 40, "creations": 50}
        engine = PlacementEngine(random.Random(seed).getrandbits, policy=PlacementPolicy(choices=choices))
        for number in range(nodes):
            view = msgspec.convert({"node": f"n{number}", "capacity": {**capacity, "sandboxes": 3}}, NodeView)
            engine.observe(view, 0.0)
        return [engine.place(PlacementRequest(sandbox_id=f"s{number}"), 0.0) for number in range(4 * nodes)]

    one = decisions()
    assert one == decisions()
    # Room for three on each: no more are placed, none is refused before, and each node gets its three.
    assert [isinstance(outcome, Placement) for outcome in one] == [True] * (3 * nodes) + [False] * nodes


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Ageing, "fresh_s", 100.0),
        (Ageing, "floor", float("nan")),
        (TrustPolicy, "half_life_s", 0.0),
        (TrustPolicy, "after_failure", 2.0),
        (Expectation, "cpu_share", -0.1),
        (PlacementPolicy, "choices", 0),
        (PlacementPolicy, "tick_s", 0.0),
        (Shape, "memory_bytes", -1),
        (Usage, "sandboxes", -1),
        (Usage, "memory_bytes", 1 << 60),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(kind: type[Any], field: str, value: float) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        kind(**{field: value})
    assert field in caught.value.brief
    assert caught.value.resolution


def test_a_view_that_reports_absurd_things_is_refused(make_view: MakeView) -> None:
    for absurd in ({"node": ""}, {"node": "x" * 200}, {"note": "x" * 900}, {"version": -1}):
        with pytest.raises(InvalidRequestError):
            make_view(**absurd)
    with pytest.raises(InvalidRequestError):
        make_view(features=frozenset(str(number) for number in range(1000)))
    with pytest.raises(InvalidRequestError):
        make_view(sandboxes=0)
