"""Time left of work that still runs."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.remaining_time import remaining_time

durations = st.lists(st.floats(0.1, 1e3), min_size=1, max_size=20)


@given(measured=durations, elapsed=st.floats(0, 1e3))
def test_what_is_left_is_the_mean_over_those_that_would_still_run(measured: list[float], elapsed: float) -> None:
    assume(max(measured) > elapsed)
    left = remaining_time(durations_s=measured, elapsed_s=elapsed)
    assert left.remaining_s == pytest.approx(statistics.fmean(d - elapsed for d in measured if d > elapsed))
    assert left.remaining_s > 0
    assert left.remaining_s >= left.naive_s - 1e-9


def test_sampling_agrees_with_the_conditional_mean() -> None:
    rng = random.Random(7)
    drawn = [1.0 if rng.random() < 0.9 else 100.0 for _ in range(20_000)]
    still = [duration - 10 for duration in drawn if duration > 10]
    left = remaining_time(durations_s=[1, 100], counts=[9, 1], elapsed_s=10)
    assert statistics.fmean(still) == pytest.approx(left.remaining_s)
    assert statistics.fmean(drawn) == pytest.approx(left.mean_s, rel=0.05)


def test_counts_are_repetitions() -> None:
    assert remaining_time(durations_s=[1, 5], counts=[2, 3], elapsed_s=0) == remaining_time(
        durations_s=[1, 1, 5, 5, 5], elapsed_s=0
    )


def test_work_longer_than_anything_measured_is_an_error_not_a_negative_time() -> None:
    with pytest.raises(InvalidRequestError, match="longer than the 11 s"):
        remaining_time(durations_s=[1, 10], elapsed_s=11)


def test_every_duration_needs_its_count() -> None:
    with pytest.raises(InvalidRequestError, match="2 durations but 1 counts"):
        remaining_time(durations_s=[1, 2], counts=[1], elapsed_s=0)
