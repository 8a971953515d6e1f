"""Percentiles are values that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.bench.distribution import distribution, percentile, ratio

VALUES = st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=200)


def test_percentiles_of_one_to_a_hundred_are_the_ranks() -> None:
    found = distribution([float(number) for number in range(100, 0, -1)])
    assert (found.p50, found.p95, found.p99, found.n) == (50.0, 95.0, 99.0, 100)


def test_a_single_value_is_every_percentile() -> None:
    found = distribution([0.25], scale=1e3)
    assert (found.p50, found.p95, found.p99, found.n) == (250.0, 250.0, 250.0, 1)


def test_the_largest_of_few_values_is_their_tail() -> None:
    found = distribution([3.0, 1.0, 2.0])
    assert (found.p50, found.p95, found.p99) == (2.0, 3.0, 3.0)


def test_nothing_cannot_be_summarised() -> None:
    with pytest.raises(InvalidRequestError):
        distribution([])


@given(VALUES)
def test_percentiles_are_ordered_values_of_the_sample(values: list[float]) -> None:
    ordered = sorted(values)
    p50, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.95, 0.99))
    assert p50 <= p95 <= p99
    assert {p50, p95, p99} <= set(values)


@given(VALUES)
def test_at_least_the_share_lies_at_or_below_the_percentile(values: list[float]) -> None:
    ordered = sorted(values)
    for share in (0.5, 0.95, 0.99):
        below = sum(value <= percentile(ordered, share) for value in values)
        assert below >= share * len(values)


def test_a_ratio_keeps_four_significant_digits() -> None:
    assert ratio(1.0, 3.0) == 0.3333
