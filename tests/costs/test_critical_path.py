"""How long tasks take, in closed form and as timelines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs import critical_path
from dsec.costs.timeline import Activity, Residency, RoundTimes, task_spans, task_timeline, uniform_task_timeline

times = st.just(0.0) | st.floats(0.001, 100)
tasks = st.fixed_dictionaries(
    {
        "rounds": st.integers(1, 6),
        "model_s": times,
        "tool_s": times,
        "prepare_s": times,
        "queue_s": times,
        "commit_s": times,
    }
)
unequal = st.lists(st.builds(RoundTimes, model_s=times, tool_s=times), min_size=1, max_size=5)


@given(task=tasks)
def test_closed_forms_are_what_the_timeline_gives(task: dict[str, Any]) -> None:
    def end_s(residency: Residency, *, overlapped: bool = True) -> float:
        return uniform_task_timeline(**task, residency=residency, overlapped=overlapped).completion_s

    assert end_s(Residency.KEPT, overlapped=False) == pytest.approx(critical_path.serial_time_s(**task))
    assert end_s(Residency.KEPT) == pytest.approx(critical_path.overlapped_once_time_s(**task))
    assert end_s(Residency.REBUILT) == pytest.approx(critical_path.overlapped_each_round_time_s(**task))
    assert end_s(Residency.ON_DEMAND) == pytest.approx(critical_path.on_demand_time_s(**task))


@given(task=tasks)
def test_overlap_never_lengthens_a_task(task: dict[str, Any]) -> None:
    slack = 1 + 1e-12
    floor_s = critical_path.model_floor_s(rounds=task["rounds"], model_s=task["model_s"])
    assert floor_s <= critical_path.overlapped_once_time_s(**task) * slack
    assert critical_path.overlapped_once_time_s(**task) <= critical_path.serial_time_s(**task) * slack
    assert critical_path.overlapped_once_time_s(**task) <= critical_path.overlapped_each_round_time_s(**task) * slack
    assert critical_path.overlapped_each_round_time_s(**task) <= critical_path.on_demand_time_s(**task) * slack


@given(task=tasks, key=st.sampled_from(["model_s", "tool_s", "prepare_s", "queue_s", "commit_s"]), more=times)
def test_a_longer_phase_never_shortens_a_task(task: dict[str, Any], key: str, more: float) -> None:
    longer = {**task, key: task[key] + more}
    for path in (
        critical_path.serial_time_s,
        critical_path.overlapped_once_time_s,
        critical_path.overlapped_each_round_time_s,
        critical_path.on_demand_time_s,
    ):
        assert path(**longer) >= path(**task)


@given(rounds=unequal, prepare_s=times, residency=st.sampled_from(Residency), overlapped=st.booleans())
def test_rounds_follow_each_other_and_tools_wait_for_call_and_environment(
    rounds: list[RoundTimes], prepare_s: float, residency: Residency, overlapped: bool
) -> None:
    seen = task_timeline(rounds=rounds, residency=residency, prepare_s=prepare_s, overlapped=overlapped)
    for number in range(len(rounds)):
        assert seen.tool_starts_s[number] >= seen.model_ends_s[number]
        inside = [
            from_s <= seen.tool_starts_s[number] and seen.tool_ends_s[number] <= until_s
            for from_s, until_s in zip(seen.resident_from_s, seen.resident_until_s, strict=True)
        ]
        assert any(inside)
    assert seen.model_starts_s[1:] == seen.tool_ends_s[:-1]
    assert seen.completion_s == seen.tool_ends_s[-1]


@given(rounds=unequal, prepare_s=times)
def test_an_environment_that_hides_behind_the_model_is_resident_for_preparation_and_tool(
    rounds: list[RoundTimes], prepare_s: float
) -> None:
    seen = task_timeline(rounds=rounds, residency=Residency.REBUILT, prepare_s=prepare_s)
    assert seen.resident_s == pytest.approx(len(rounds) * prepare_s + sum(one.tool_s for one in rounds), abs=1e-6)
    assert seen.ready_total_s == 0


@given(rounds=unequal, prepare_s=times)
def test_making_anew_never_holds_memory_for_longer_than_keeping_on_demand(
    rounds: list[RoundTimes], prepare_s: float
) -> None:
    on_demand = task_timeline(rounds=rounds, residency=Residency.ON_DEMAND, prepare_s=prepare_s)
    rebuilt = task_timeline(rounds=rounds, residency=Residency.REBUILT, prepare_s=prepare_s)
    assert rebuilt.resident_s == pytest.approx(on_demand.resident_s, abs=1e-6)
    assert rebuilt.completion_s <= on_demand.completion_s + 1e-9


def test_spans_of_a_kept_environment_leave_no_gap() -> None:
    rounds = [RoundTimes(model_s=3, tool_s=1), RoundTimes(model_s=2, tool_s=2)]
    spans = task_spans(rounds=rounds, residency=Residency.KEPT, prepare_s=5, queue_s=1, commit_s=0.5)
    assert [(span.activity, span.start_s, span.end_s) for span in spans] == [
        (Activity.QUEUE, 0, 1),
        (Activity.PREPARE, 1, 6),
        (Activity.MODEL, 1, 4),
        (Activity.TOOL, 6, 7),
        (Activity.MODEL, 7, 9),
        (Activity.READY, 7, 9),
        (Activity.TOOL, 9, 11),
        (Activity.COMMIT, 11, 11.5),
    ]


def test_a_task_without_rounds_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="rounds"):
        task_timeline(rounds=(), residency=Residency.KEPT)


def test_a_negative_time_is_named_with_its_round() -> None:
    with pytest.raises(InvalidRequestError, match="model_s of round 2"):
        task_timeline(
            rounds=(RoundTimes(model_s=1, tool_s=1), RoundTimes(model_s=-1, tool_s=1)), residency=Residency.KEPT
        )


def test_a_preparation_shows_as_far_as_the_model_does_not_hide_it() -> None:
    assert critical_path.overlap_wait_s(model_s=6, prepare_s=2.7) == 0
    assert critical_path.overlap_wait_s(model_s=1, prepare_s=2.7) == pytest.approx(1.7)
