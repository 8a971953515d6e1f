"""Bad inputs of formulas are named with their unit."""

from __future__ import annotations

import math

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import (
    check_count,
    check_distribution,
    check_not_empty,
    check_not_negative,
    check_positive,
    check_probability,
)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_must_be_a_finite_number_above_zero(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="rate_per_s is") as caught:
        check_positive("rate_per_s", value, "tasks/s")
    assert "tasks/s" in caught.value.detail
    assert "tasks/s" in caught.value.resolution


def test_zero_is_a_time_but_not_a_rate() -> None:
    assert check_not_negative("queue_s", 0.0, "s") == 0.0
    with pytest.raises(InvalidRequestError, match="queue_s is -1"):
        check_not_negative("queue_s", -1.0, "s")


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_a_probability_lies_between_zero_and_one(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="hit_rate"):
        check_probability("hit_rate", value)


def test_branches_must_sum_to_one_and_the_error_shows_them() -> None:
    check_distribution("branches of 'first'", [0.8, 0.12, 0.08])
    with pytest.raises(InvalidRequestError, match=r"sum to 0\.9, not to 1") as caught:
        check_distribution("branches of 'first'", [0.8, 0.1])
    assert "0.8, 0.1" in caught.value.detail


def test_counts_are_whole_and_lists_are_not_empty() -> None:
    assert check_count("rounds", 3) == 3
    with pytest.raises(InvalidRequestError, match="rounds is 0"):
        check_count("rounds", 0)
    with pytest.raises(InvalidRequestError, match="there are no samples"):
        check_not_empty("samples", [])
