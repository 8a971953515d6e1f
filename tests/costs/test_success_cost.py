"""Costs of successes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.success_cost import success_cost


@given(costs=st.lists(st.floats(0, 10), min_size=1, max_size=20), data=st.data())
def test_failed_attempts_are_paid_for_by_those_that_passed(costs: list[float], data: st.DataObject) -> None:
    passed = data.draw(st.integers(1, len(costs)))
    timely = data.draw(st.integers(0, passed))
    cost = success_cost(spent_usd=sum(costs), submitted=len(costs), successes=passed, timely_successes=timely)
    assert cost.success_usd * passed == pytest.approx(sum(costs))
    assert cost.submitted_usd <= cost.success_usd <= cost.timely_success_usd
    assert math.isinf(cost.timely_success_usd) == (timely == 0)


@pytest.mark.parametrize(("successes", "timely"), [(11, 5), (5, 6), (-1, None)])
def test_tasks_that_cannot_be_counted_so_are_refused(successes: int, timely: int | None) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be"):
        success_cost(spent_usd=1, submitted=10, successes=successes, timely_successes=timely)
