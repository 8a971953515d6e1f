"""Where an environment is while the model thinks, against the break-even formulas; when a preparation begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.prediction import expected_wait_s
from dsec.costs.rebuild import break_even_gap_s, by_rebuilding
from dsec.episode.environment_choice import (
    MODES,
    EnvironmentChoice,
    EnvironmentPrices,
    choose_environment,
    gap_costs,
)
from dsec.episode.environment_lead import lead, ready_at_s, wait_after_hearing_s
from dsec.episode.environment_times import EnvironmentTimes, Estimate
from dsec.episode.spec import EnvironmentMode

RESIDENT, REBUILT, PAUSED = MODES
PATIENT = EnvironmentPrices(tolerated_delay_s=1e9, margin_share=0.0)
seconds = st.floats(0.001, 1000)
sizes = st.floats(0.01, 100)
measured = st.builds(
    lambda gap, memory, prepare, work, save, pausing, resume: EnvironmentTimes(
        thinking_s=Estimate(value=gap, count=9),
        memory_gib=Estimate(value=memory, count=9),
        prepare_s=Estimate(value=prepare, count=9),
        prepare_cpu_s=Estimate(value=work, count=9),
        save_s=Estimate(value=save, count=9),
        pause_s_per_gib=Estimate(value=pausing, count=9),
        resume_s=Estimate(value=resume, count=9),
    ),
    *(seconds, sizes, seconds, seconds, seconds, seconds, seconds),
)


def chapter(*, gap_s: float = 9.0, pause_s_per_gib: float = 4.0) -> EnvironmentTimes:
    """The chapter's task: 2 GiB, 9 s of thinking, a preparation of 2 s and 0.1 CPU seconds."""
    return EnvironmentTimes(
        thinking_s=Estimate(value=gap_s, count=3),
        memory_gib=Estimate(value=2.0, count=3),
        prepare_s=Estimate(value=2.0, count=3),
        prepare_cpu_s=Estimate(value=0.1, count=3),
        save_s=Estimate(value=0.0, count=3),
        pause_s_per_gib=Estimate(value=pause_s_per_gib, count=3),
        resume_s=Estimate(value=2.0, count=3),
    )


def chosen(times: EnvironmentTimes, current: EnvironmentMode = RESIDENT) -> EnvironmentChoice:
    return choose_environment(times, current=current, prices=PATIENT)


def test_the_chapters_task_is_rebuilt_and_takes_18_instead_of_60_gib_s() -> None:
    choice = choose_environment(chapter(), current=RESIDENT)
    by_mode = {cost.mode: cost for cost in choice.costs}
    tool_s, rounds = 1.0, 3
    kept, rebuilt = (
        rounds * (by_mode[mode].memory_gib_s + 2.0 * tool_s) for mode in (EnvironmentMode.RESIDENT, REBUILT)
    )
    assert choice.mode is REBUILT
    assert (kept, rebuilt) == pytest.approx((60.0, 18.0))
    assert choice.reason == "rebuilt costs least: 4 GiB·s of memory in a gap, against resident 18 GiB·s"


def test_a_pause_suits_gaps_of_hours_and_not_of_seconds() -> None:
    def leaving_processes(gap_s: float) -> EnvironmentTimes:
        times = chapter(gap_s=gap_s)
        return EnvironmentTimes(
            thinking_s=times.thinking_s,
            memory_gib=times.memory_gib,
            pause_s_per_gib=times.pause_s_per_gib,
            resume_s=times.resume_s,
            leaves_processes=True,
        )

    assert choose_environment(leaving_processes(9.0), current=RESIDENT).mode is RESIDENT
    assert choose_environment(leaving_processes(3600.0), current=RESIDENT).mode is PAUSED


@given(times=measured)
def test_the_cheapest_is_chosen_by_the_formulas(times: EnvironmentTimes) -> None:
    costs = {cost.mode: cost.cost_usd for cost in gap_costs(times, PATIENT, impossible={})}
    assert costs[chosen(times).mode] == min(costs.values())


@given(memory_gib=sizes, prepare_s=seconds, work_cpu_s=seconds, beyond=st.floats(1.001, 10))
def test_rebuilding_is_chosen_exactly_beyond_the_break_even_gap(
    memory_gib: float, prepare_s: float, work_cpu_s: float, beyond: float
) -> None:
    even_s = break_even_gap_s(
        memory_gib=memory_gib,
        prepare_s=prepare_s,
        work_cpu_s=work_cpu_s,
        memory_price_usd_per_gib_s=PATIENT.memory_usd_per_gib_s,
        cpu_price_usd_per_cpu_s=PATIENT.cpu_usd_per_cpu_s,
    )

    def mode_at(gap_s: float) -> EnvironmentMode:
        times = EnvironmentTimes(
            thinking_s=Estimate(value=gap_s, count=9),
            memory_gib=Estimate(value=memory_gib, count=9),
            prepare_s=Estimate(value=prepare_s, count=9),
            prepare_cpu_s=Estimate(value=work_cpu_s, count=9),
            save_s=Estimate(count=9),
        )
        impossible = {PAUSED: "this test compares two"}
        return choose_environment(times, current=RESIDENT, prices=PATIENT, impossible=impossible).mode

    assert mode_at(even_s * beyond) is REBUILT
    assert mode_at(even_s / beyond) is RESIDENT


@given(times=measured, current=st.sampled_from(MODES))
def test_what_was_chosen_stays_chosen_while_nothing_changes(times: EnvironmentTimes, current: EnvironmentMode) -> None:
    first = choose_environment(times, current=current).mode
    assert choose_environment(times, current=first).mode is first


@given(times=measured)
def test_nothing_that_holds_tools_up_longer_than_tolerated_is_chosen(times: EnvironmentTimes) -> None:
    prices = EnvironmentPrices()
    choice = choose_environment(times, current=RESIDENT, prices=prices)
    delays_s = {cost.mode: cost.delay_s for cost in choice.costs}
    tolerated_s = max(prices.tolerated_delay_s, prices.tolerated_delay_share * times.thinking_s.value)
    assert delays_s[choice.mode] <= tolerated_s


@given(times=measured)
def test_processes_that_outlive_their_tools_are_not_rebuilt(times: EnvironmentTimes) -> None:
    held = EnvironmentTimes(
        thinking_s=times.thinking_s, memory_gib=times.memory_gib, prepare_s=times.prepare_s, leaves_processes=True
    )
    choice = choose_environment(held, current=REBUILT, prices=PATIENT)
    assert choice.mode is not REBUILT
    assert choice.reason.startswith("rebuilt is out: processes outlived the tools")


def test_little_evidence_and_a_small_gain_change_nothing() -> None:
    once = EnvironmentTimes().seen(thinking_s=9.0, memory_gib=2.0)
    assert choose_environment(once, current=PAUSED).mode is PAUSED
    times = chapter(gap_s=2.4)  # Rebuilding saves a tenth and a little less than the margin.
    choice = choose_environment(times, current=RESIDENT, prices=EnvironmentPrices(margin_share=0.3))
    assert choice.mode is RESIDENT
    assert "would save less than 30% of what resident costs" in choice.reason


def test_a_mode_that_fails_is_left() -> None:
    choice = choose_environment(chapter(), current=REBUILT, impossible={REBUILT: "no checkpoints here"})
    assert choice.mode is not REBUILT
    assert "no checkpoints here" in choice.reason


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_an_estimate_lies_among_what_was_seen_and_forgets_what_was_expected(values: list[float]) -> None:
    estimate = Estimate(value=1e9)
    for value in values:
        estimate = estimate.seen(value)
    assert min(values) - 1e-6 <= estimate.value <= max(values) + 1e-6
    assert estimate.count == len(values)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_what_no_clock_measures_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="a measured value is"):
        EnvironmentTimes().seen(thinking_s=value)


# -- when to begin ---------------------------------------------------------------------------------------------------


@given(gap_s=seconds, prepare_s=seconds, count=st.integers(1, 40))
def test_with_a_known_gap_a_preparation_begins_when_the_formula_says(
    gap_s: float, prepare_s: float, count: int
) -> None:
    begun = lead([gap_s] * count, prepare_s=prepare_s, memory_gib=2.0)
    course = by_rebuilding(model_s=gap_s, tool_s=1.0, prepare_s=prepare_s, memory_gib=2.0)
    assert begun is not None
    assert begun.begin_s == pytest.approx(course.begin_s)


@given(gaps_s=st.lists(seconds, min_size=1, max_size=40), weight=st.floats(0, 100), more=st.floats(0, 100))
def test_the_dearer_waiting_is_the_earlier_an_environment_is_ready(
    gaps_s: list[float], weight: float, more: float
) -> None:
    ready_s = ready_at_s(gaps_s, wait_weight=weight)
    assert min(gaps_s) <= ready_at_s(gaps_s, wait_weight=weight + more) <= ready_s <= max(gaps_s)


def test_the_moment_balances_idling_and_waiting() -> None:
    gaps_s = [float(second) for second in range(1, 11)]

    def expected(ready_s: float, weight: float) -> float:
        return sum(max(ready_s - gap, 0) * weight + max(gap - ready_s, 0) for gap in gaps_s)

    for weight in (0.5, 4.0, 20.0):
        ready_s = ready_at_s(gaps_s, wait_weight=weight)
        assert expected(ready_s, weight) == pytest.approx(min(expected(other, weight) for other in gaps_s))


def test_what_the_model_writes_moves_the_moment() -> None:
    assert lead([], prepare_s=2.0, memory_gib=2.0) is None  # Nothing is known: it waits for what the model writes.
    assert wait_after_hearing_s([], prepare_s=2.0, left_s=-1.0) == 0.0
    assert wait_after_hearing_s([], prepare_s=2.0, left_s=3.0) == 3.0
    assert wait_after_hearing_s([6.0, 6.0], prepare_s=2.0, left_s=0.0) == 4.0  # Six seconds of arguments are to come.
    assert wait_after_hearing_s([0.5], prepare_s=2.0, left_s=3.0) == 0.0


def test_an_improbable_need_is_waited_for() -> None:
    assert lead([9.0], prepare_s=2.0, memory_gib=2.0, needed=0.1) is None
    begun = lead([9.0], prepare_s=2.0, memory_gib=2.0, needed=0.75)
    assert begun is not None
    assert begun.begin_s == 7.0
    assert expected_wait_s(prepare_s=2.0, lead_s=9.0 - begun.begin_s, hit_probability=0.75) == 0.5  # The chapter's.
