"""A faster part of a whole."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.amdahl import accelerate_part, overall_speedup, speedup_limit

shares = st.floats(0, 1)
speedups = st.floats(0.1, 1e6)


@given(share=shares, speedup=speedups)
def test_whole_never_gains_more_than_the_limit_nor_than_the_part(share: float, speedup: float) -> None:
    gain = overall_speedup(part_share=share, part_speedup=speedup)
    assert gain <= speedup_limit(part_share=share) * (1 + 1e-9)
    assert min(1.0, speedup) * (1 - 1e-9) <= gain <= max(1.0, speedup) * (1 + 1e-9)


@given(share=shares, low=speedups, high=speedups)
def test_a_faster_part_never_slows_the_whole(share: float, low: float, high: float) -> None:
    low, high = sorted((low, high))
    slower = overall_speedup(part_share=share, part_speedup=low)
    assert slower <= overall_speedup(part_share=share, part_speedup=high) * (1 + 1e-9)


@given(part_s=st.floats(0.01, 1e4), rest_s=st.floats(0, 1e4), speedup=speedups)
def test_times_and_shares_tell_the_same(part_s: float, rest_s: float, speedup: float) -> None:
    by_time = accelerate_part(part_s=part_s, rest_s=rest_s, part_speedup=speedup)
    by_share = overall_speedup(part_share=by_time.part_share, part_speedup=speedup)
    assert by_time.overall_speedup == pytest.approx(by_share)
    assert by_time.part_share + by_time.rest_share == pytest.approx(1)


def test_a_part_that_is_all_has_no_limit() -> None:
    assert math.isinf(speedup_limit(part_share=1.0))
    assert math.isinf(accelerate_part(part_s=3, rest_s=0, part_speedup=2).speedup_limit)


@pytest.mark.parametrize(
    ("part_s", "rest_s", "speedup", "named"),
    [(-1, 1, 2, "part_s"), (1, -1, 2, "rest_s"), (0, 0, 2, "part_s"), (1, 1, 0, "part_speedup")],
)
def test_impossible_times_are_named(part_s: float, rest_s: float, speedup: float, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        accelerate_part(part_s=part_s, rest_s=rest_s, part_speedup=speedup)
