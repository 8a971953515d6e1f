"""Peaks of evenly spaced tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.planner.folding import Hold, folded_peak, poisson_peak

spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 5)).map(
        lambda item: Hold(float(item[0]), float(item[0] + item[1]), float(item[2]))
    ),
    min_size=1,
    max_size=5,
)


def _played(holds: list[Hold], period: int, group: int) -> float:
    """Lay task over task and look at every whole second of a late period; ends are open."""
    horizon = 400
    level = [0.0] * horizon
    for start in range(0, horizon, period):
        for hold in holds:
            for second in range(start + int(hold.start_s), min(horizon, start + int(hold.end_s))):
                level[second] += hold.amount * group
    return max(level[200 : 200 + period])


@given(holds=spans, period=st.integers(1, 30), group=st.integers(1, 7))
def test_the_folded_peak_is_what_playing_every_task_shows(holds: list[Hold], period: int, group: int) -> None:
    assert folded_peak(holds, period_s=float(period), group=group) == pytest.approx(_played(holds, period, group))


def test_one_that_ends_as_another_begins_is_never_counted_with_it() -> None:
    assert folded_peak([Hold(7.0, 44.0, 1.0), Hold(14.0, 15.0, 1.0)], period_s=15.0) == pytest.approx(3)


def test_rounding_makes_no_extra_task() -> None:
    rounds = [Hold(start, start + 3, 2.0) for start in (4, 11, 18)]
    assert folded_peak(rounds, period_s=0.1) == pytest.approx(180)
    assert folded_peak([Hold(0, 30, 2.0)], period_s=0.1) == pytest.approx(600)


@given(holds=spans, rate=st.floats(0.1, 50))
def test_the_mean_does_not_depend_on_the_pattern(holds: list[Hold], rate: float) -> None:
    mean, variance = poisson_peak(holds, rate_per_s=rate)
    assert mean == pytest.approx(rate * sum((hold.end_s - hold.start_s) * hold.amount for hold in holds))
    assert variance >= mean
    assert folded_peak(holds, period_s=1 / rate) >= mean * (1 - 1e-6)
