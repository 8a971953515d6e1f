"""Means from rates and stays, against counting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.costs import capacity, littles_law
from dsec.costs.timeline import Residency, uniform_task_timeline

rates = st.floats(0.01, 1000)
amounts = st.floats(0, 1000)
streams = st.fixed_dictionaries(
    {
        "arrivals_per_s": rates,
        "rounds": st.floats(1, 10),
        "model_s": amounts,
        "tool_s": amounts,
        "task_s": amounts,
        "resident_s": amounts,
        "memory_gib": amounts,
        "creations_per_task": amounts,
        "tool_width_cores": amounts,
        "prepare_cpu_s": amounts,
    }
)


def counted_gib(*, residency: Residency, prepare_s: float) -> float:
    """Count the memory that is resident, moment by moment, on the platform of exercise 11-1 in its steady state.

    A task arrives every 125 ms; tasks of two and of four rounds alternate. The pattern repeats every 250 ms, so that
    the mean over one such period is the mean for ever.
    """
    tasks = [
        uniform_task_timeline(rounds=rounds, model_s=6, tool_s=1, residency=residency, prepare_s=prepare_s)
        for rounds in (2, 4)
    ]
    total_gib = 0.0
    moments = [60 + (step + 0.5) * 0.001 for step in range(250)]
    for moment_s in moments:
        for number in range(int(61 / 0.125)):
            age_s = moment_s - number * 0.125
            task = tasks[number % 2]
            spans = zip(task.resident_from_s, task.resident_until_s, strict=True)
            total_gib += 2 * sum(from_s <= age_s < until_s for from_s, until_s in spans)
    return total_gib / len(moments)


def test_memory_of_exercise_11_1_is_what_counting_gives_when_environments_are_kept() -> None:
    assert counted_gib(residency=Residency.KEPT, prepare_s=0) == pytest.approx(336)


def test_memory_of_exercise_11_1_is_what_counting_gives_when_they_are_made_anew() -> None:
    assert counted_gib(residency=Residency.REBUILT, prepare_s=2) == pytest.approx(144)


@given(stream=streams, more=st.floats(1, 5))
def test_more_arrivals_never_need_less(stream: dict[str, Any], more: float) -> None:
    little = littles_law.platform_demand(**stream)
    much = littles_law.platform_demand(**{**stream, "arrivals_per_s": stream["arrivals_per_s"] * more})
    for name in ("tasks", "environments", "memory_gib", "cores", "model_slots", "creations_per_s"):
        assert getattr(much, name) >= getattr(little, name)


@given(stream=streams)
def test_a_platforms_demand_is_each_mean_by_itself(stream: dict[str, Any]) -> None:
    seen = littles_law.platform_demand(**stream)
    rate = stream["arrivals_per_s"]
    assert seen.environments == littles_law.mean_in_system(arrivals_per_s=rate, stay_s=stream["resident_s"])
    assert seen.memory_gib == pytest.approx(
        littles_law.mean_memory_gib(arrivals_per_s=rate, task_gib_s=stream["resident_s"] * stream["memory_gib"])
    )
    work_cpu_s = stream["rounds"] * stream["tool_s"] * stream["tool_width_cores"]
    assert seen.tool_cores == pytest.approx(littles_law.mean_busy_cores(arrivals_per_s=rate, task_cpu_s=work_cpu_s))


@given(places=st.integers(1, 10_000), stay_s=st.floats(0.01, 1e4))
def test_a_sustained_rate_fills_the_places_exactly(places: int, stay_s: float) -> None:
    rate = littles_law.sustained_arrivals_per_s(places=places, stay_s=stay_s)
    assert littles_law.mean_in_system(arrivals_per_s=rate, stay_s=stay_s) == pytest.approx(places)


@given(capacity_gib=st.floats(0, 1e6), size_gib=st.floats(0.1, 1e4))
def test_places_hold_as_much_as_fits_and_no_more(capacity_gib: float, size_gib: float) -> None:
    places = capacity.places(capacity_gib=capacity_gib, size_gib=size_gib)
    assert places * size_gib <= capacity_gib * (1 + 1e-8)
    assert (places + 1) * size_gib > capacity_gib * (1 - 1e-8)


def test_a_decimal_host_holds_one_environment_less_than_its_rounded_size_says() -> None:
    assert capacity.places(capacity_gib=384e9 / 2**30, size_gib=2) == 178
    assert capacity.places(capacity_gib=358, size_gib=2) == 179


@given(demand=st.floats(0, 1e6), unit=st.floats(0.1, 1e4), units=st.integers(0, 100))
def test_units_to_add_close_the_gap_with_none_to_spare(demand: float, unit: float, units: int) -> None:
    added = capacity.units_to_add(demand=demand, units=units, unit_capacity=unit)
    assert (units + added) * unit >= demand * (1 - 1e-8)
    assert added == 0 or (units + added - 1) * unit < demand * (1 + 1e-8)


@pytest.mark.parametrize(("demand", "unit", "expected"), [(0.3, 0.1, 3), (180, 15, 12), (180.0001, 15, 13), (0, 5, 0)])
def test_units_count_quotients_that_are_whole_but_for_rounding(demand: float, unit: float, expected: int) -> None:
    assert capacity.units_for(demand=demand, unit_capacity=unit) == expected
