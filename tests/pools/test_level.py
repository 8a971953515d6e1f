"""The ready level follows rate, spread and hold time, never falls below its floor and never exceeds its caps."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dsec.model.pool import PoolPolicy
from dsec.pools.level import ready_level
from dsec.pools.rate import MeanOfLast, RateWindow


def level(policy: PoolPolicy = PoolPolicy(), **given: float | None) -> int:
    values = {
        "arrival_rate_per_s": 0.0,
        "dispersion": 0.0,
        "hold_time_s": None,
        "recycle_time_s": 0.0,
        "concurrency": 0,
        **given,
    }
    return ready_level(policy, **values)  # type: ignore[arg-type]


def test_the_floor_is_the_larger_of_twenty_and_a_share_of_what_is_in_use() -> None:
    assert level() == 20
    assert level(concurrency=100) == 20
    assert level(concurrency=800) == 120
    assert level(concurrency=801) == 121


def test_before_any_sandbox_came_back_ten_seconds_of_arrivals_are_kept() -> None:
    assert level(arrival_rate_per_s=45.0) == 450


def test_a_steady_pool_keeps_its_spreads_and_a_growing_one_its_growth() -> None:
    steady = level(arrival_rate_per_s=40.0, dispersion=16.0, hold_time_s=20.0, concurrency=800)
    assert steady == math.ceil(3 * math.sqrt(16 * 40 * 10))
    growing = level(arrival_rate_per_s=40.0, dispersion=0.0, hold_time_s=20.0, concurrency=300)
    assert growing == math.ceil(500 * (1 - math.exp(-0.5)))


def test_a_task_that_creates_and_drops_ten_a_second_adds_next_to_nothing() -> None:
    assert level(arrival_rate_per_s=10.0, dispersion=1.0, hold_time_s=0.1, recycle_time_s=0.02, concurrency=1) == 20
    assert level(PoolPolicy(floor=0), arrival_rate_per_s=10.0, dispersion=1.0, hold_time_s=0.1, concurrency=1) <= 3


def test_a_fixed_level_follows_nothing() -> None:
    assert level(PoolPolicy(fixed_level=7), arrival_rate_per_s=1000.0, concurrency=1000) == 7


_RATES = st.floats(0, 1e4)


@given(
    rate=_RATES,
    dispersion=st.floats(0, 1e3),
    hold=st.none() | st.floats(0, 1e5),
    concurrency=st.integers(0, 10_000),
    floor=st.integers(0, 100),
    maximum=st.none() | st.integers(1, 500),
    most_ready=st.none() | st.integers(0, 500),
)
def test_it_never_leaves_its_bounds(
    rate: float,
    dispersion: float,
    hold: float | None,
    concurrency: int,
    floor: int,
    maximum: int | None,
    most_ready: int | None,
) -> None:
    policy = PoolPolicy(floor=floor, maximum=maximum, maximum_ready=most_ready)
    found = level(policy, arrival_rate_per_s=rate, dispersion=dispersion, hold_time_s=hold, concurrency=concurrency)
    caps = [cap for cap in (maximum, most_ready) if cap is not None]
    assert found <= min(caps, default=found)
    assert found >= min([floor, *caps])
    assert found >= min([math.floor(0.15 * concurrency), *caps])


@given(rate=_RATES, more=_RATES, hold=st.floats(0.01, 1e4))
def test_more_arrivals_never_lower_it(rate: float, more: float, hold: float) -> None:
    shared = {"dispersion": 1.0, "hold_time_s": hold, "concurrency": 50}
    assert level(arrival_rate_per_s=rate + more, **shared) >= level(arrival_rate_per_s=rate, **shared)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 20)), min_size=1, max_size=60))
def test_the_rate_is_what_counting_again_gives(steps: list[tuple[float, int]]) -> None:
    window, now_s, seen = RateWindow(60.0, least_s=10.0), 0.0, []
    for delay_s, count in steps:
        now_s += delay_s
        window.add(now_s, count)
        seen.append((now_s, count))
    kept = [(int(at_s), count) for at_s, count in seen if int(at_s) > math.floor(now_s - 60.0)]
    length_s = min(60.0, max(now_s - seen[0][0], 10.0))
    total = sum(count for _, count in kept)
    assert window.per_s(now_s) == total / length_s
    seconds = {second: sum(c for s, c in kept if s == second) for second, _ in kept}
    mean = total / length_s
    variance = sum(c * c for c in seconds.values()) / length_s - mean * mean
    assert math.isclose(window.dispersion(now_s), max(0.0, variance / mean), rel_tol=1e-9, abs_tol=1e-9)


def test_arrivals_in_groups_are_told_from_single_ones() -> None:
    single, groups = RateWindow(60.0, least_s=10.0), RateWindow(60.0, least_s=10.0)
    for second in range(60):
        single.add(float(second), 4)
        if second % 16 == 0:
            groups.add(float(second), 64)
    assert single.dispersion(59.0) < 0.1
    assert groups.dispersion(59.0) > 50


def test_the_mean_forgets_what_is_old() -> None:
    mean = MeanOfLast(2)
    assert mean.mean() is None
    for value in (100.0, 1.0, 3.0):
        mean.add(value)
    assert mean.mean() == 2.0
