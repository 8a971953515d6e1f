"""Creations are tried again where and when it helps, and never where it harms."""

from __future__ import annotations

import random

import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    DsecError,
    Fault,
    HostDiskFullError,
    InvalidRequestError,
    InvalidStateError,
    NodeUnavailableError,
    SandboxOutOfMemoryError,
    StateCorruptedError,
    UnknownOutcomeError,
    error_types,
)
from dsec.model.retry import Report, Retry, RetryPolicy, Where, code_may_be_repeated, may_not_repeat
from dsec.placement.creation import Creation, Done, GiveUp, Pause, Send, Step
from dsec.placement.engine import PlacementEngine
from dsec.placement.request import PlacementRequest, Shape
from dsec.placement.view import Capacity, NodeView

BROKEN = HostDiskFullError("the host has no disk left")


def creation(nodes: int = 5, *, retry: RetryPolicy | None = None, sandboxes: int = 10, **shape: int) -> Creation:
    engine = PlacementEngine(random.Random(1).getrandbits)
    capacity = Capacity(cpu_millis=10_000, memory_bytes=1 << 40, disk_bytes=1 << 40, sandboxes=sandboxes, creations=99)
    for number in range(nodes):
        engine.observe(NodeView(node=f"node-{number}", capacity=capacity), 0.0)
    return Creation(PlacementRequest(sandbox_id="sbx-1", shape=Shape(**shape)), engine, retry)


def sent(step: Step) -> Send:
    assert isinstance(step, Send)
    return step


def test_the_ladder_is_at_once_then_another_node_then_a_report() -> None:
    policy = RetryPolicy()
    first, second, third = (policy.after(failures, BROKEN) for failures in (1, 2, 3))
    assert isinstance(first, Retry)
    assert (first.where, first.delay_s) == (Where.SAME_NODE, 0.0)
    assert isinstance(second, Retry)
    assert (second.where, second.delay_s) == (Where.ANOTHER_NODE, 0.0)
    assert isinstance(third, Report)
    assert "3 times" in third.reason


def test_ladders_are_climbed_again_after_one_three_and_nine_seconds() -> None:
    assert [RetryPolicy().pause_s(ladders) for ladders in (1, 2, 3, 4)] == [1.0, 3.0, 9.0, None]


def test_the_pauses_can_stand_between_the_tries_instead() -> None:
    policy = RetryPolicy(spaced=True)
    delays = [decision.delay_s for n in (1, 2) if isinstance(decision := policy.after(n, BROKEN), Retry)]
    assert delays == [1.0, 3.0]
    assert policy.pause_s(1) is None


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("x"),
        AlreadyExistsError("x"),
        SandboxOutOfMemoryError("x"),
        StateCorruptedError("x"),
        UnknownOutcomeError("x"),
    ],
)
def test_what_would_fail_again_or_do_harm_is_reported_at_once(error: DsecError) -> None:
    assert isinstance(RetryPolicy().after(1, error), Report)


def test_every_error_there_is_has_a_verdict_that_follows_from_its_class() -> None:
    for kind in error_types().values():
        error = kind("x")
        assert (may_not_repeat(error) == "") == error.retryable
        if error.fault is not Fault.PLATFORM and not isinstance(error, DeadlineExceededError):
            assert may_not_repeat(error)


@pytest.mark.parametrize(
    "settings",
    [{"create_timeout_s": 0.0}, {"backoff_s": (1.0, -1.0)}, {"spaced": True, "backoff_s": (1.0,)}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        RetryPolicy(**settings)  # type: ignore[arg-type]
    assert caught.value.resolution


def test_a_creation_that_keeps_failing_tries_three_times_then_pauses() -> None:
    one = creation()
    first = sent(one.begin(0.0))
    assert first.deadline_s == 30.0
    second = sent(one.failed(first.node, BROKEN, 1.0))
    third = sent(one.failed(second.node, BROKEN, 2.0))
    assert second.node == first.node
    assert third.node != first.node
    pause = one.failed(third.node, BROKEN, 3.0)
    assert pause == Pause(until_s=4.0, reason=pause.reason) if isinstance(pause, Pause) else False
    assert one.tries == 3


def test_in_all_twelve_tries_are_made_and_then_the_last_error_is_told() -> None:
    one, now_s = creation(nodes=40), 0.0
    step = one.begin(now_s)
    while not isinstance(step, GiveUp):
        if isinstance(step, Pause):
            now_s = step.until_s
            step = one.resume(now_s)
        else:
            step = one.failed(sent(step).node, BROKEN, now_s)
    assert one.tries == 12
    assert step.error is BROKEN
    assert now_s == 13.0


def test_silence_until_the_deadline_is_a_failure_that_names_the_node() -> None:
    one = creation(retry=RetryPolicy(ladder=(), backoff_s=()))
    first = sent(one.begin(0.0))
    step = one.timed_out(first.node, 30.0)
    assert isinstance(step, GiveUp)
    assert isinstance(step.error, NodeUnavailableError)
    assert first.node in step.error.brief
    assert "30 s" in step.error.detail


def test_rejections_cost_no_rung_of_the_ladder() -> None:
    one = creation()
    step = one.begin(0.0)
    for _ in range(3):
        step = one.rejected(sent(step).node, 0.0)
    again = sent(one.failed(sent(step).node, BROKEN, 0.0))
    assert again.node == sent(step).node


def test_an_answer_that_is_not_awaited_changes_nothing() -> None:
    one = creation()
    first = sent(one.begin(0.0))
    other = next(f"node-{number}" for number in range(5) if f"node-{number}" != first.node)
    assert one.rejected(other, 0.0) is first
    assert one.failed(other, BROKEN, 0.0) is first
    assert one.created(other, 0.0) == (first, None)
    done, orphan = one.created(first.node, 0.5, ticket=1)
    assert (done, orphan) == (Done(node=first.node), None)
    assert one.rejected(first.node, 1.0) is done


def test_a_request_that_no_node_could_hold_is_given_up_at_once_with_the_nearest_named() -> None:
    step = creation(memory_bytes=2 << 40).begin(0.0)
    assert isinstance(step, GiveUp)
    assert "lacks 1.0 TiB of memory" in step.error.brief
    assert not step.error.retryable


def test_a_full_fleet_is_waited_for_and_then_reported() -> None:
    one, now_s = creation(nodes=0), 0.0
    step = one.begin(now_s)
    waited = []
    while isinstance(step, Pause):
        waited.append(step.until_s - now_s)
        now_s = step.until_s
        step = one.resume(now_s)
    assert waited == [1.0, 3.0, 9.0]
    assert isinstance(step, GiveUp)
    assert step.error.retryable


def test_steps_in_the_wrong_order_are_refused() -> None:
    one = creation()
    with pytest.raises(InvalidStateError):
        one.failed("node-0", BROKEN, 0.0)
    one.begin(0.0)
    with pytest.raises(InvalidStateError):
        one.resume(1.0)


def test_one_that_never_gives_up_waits_one_three_and_nine_seconds_and_stays_there() -> None:
    assert [RetryPolicy().steady_pause_s(failures) for failures in range(7)] == [0.0, 0.0, 1.0, 3.0, 9.0, 9.0, 9.0]


def test_every_registered_error_has_an_answer() -> None:
    for code, kind in error_types().items():
        assert kind.retryable or not code_may_be_repeated(code)
    assert code_may_be_repeated("host_disk_full")
    assert code_may_be_repeated("a_code_of_a_newer_version")
    assert not code_may_be_repeated("unknown_outcome")
    assert not code_may_be_repeated("sandbox_out_of_memory")
