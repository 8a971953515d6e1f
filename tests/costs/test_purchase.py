"""Reserved capacity against pay by use."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.purchase import price_ratio_utilisation, purchase, purchase_at, reserved_usd, task_capacity

prices = st.floats(0.01, 1e4)
successes = st.floats(0.1, 1)


@given(fixed=prices, use=prices, added=st.floats(0, 1e3), own=successes, other=successes)
def test_the_cheaper_way_changes_at_the_break_even(
    fixed: float, use: float, added: float, own: float, other: float
) -> None:
    arguments = {
        "fixed_usd": fixed, "use_usd_per_task": use, "added_usd_per_task": added,
        "fixed_success": own, "use_success": other,
    }  # fmt: skip
    even = purchase(**arguments).break_even_tasks
    if math.isinf(even):
        assert purchase_at(tasks=1e9, **arguments).cheaper == "use"
        return
    assume(even < 1e12)
    assert purchase_at(tasks=even * 1.01, **arguments).cheaper == "fixed"
    assert purchase_at(tasks=even * 0.99, **arguments).cheaper == "use"


@given(reserved=st.floats(0.1, 10), premium=st.floats(1.01, 3), gpu_s=st.floats(0.1, 100), gpus=st.integers(1, 64))
def test_for_the_same_accelerators_the_break_even_utilisation_is_the_ratio_of_prices(
    reserved: float, premium: float, gpu_s: float, gpus: int
) -> None:
    fixed = reserved_usd(gpus=gpus, period_h=720, price_usd_per_gpu_h=reserved)
    capacity = gpus * 720 * 3600 / gpu_s
    choice = purchase(fixed_usd=fixed, use_usd_per_task=gpu_s * reserved * premium / 3600, capacity_tasks=capacity)
    ratio = price_ratio_utilisation(reserved_usd_per_gpu_h=reserved, on_demand_usd_per_gpu_h=reserved * premium)
    assert choice.break_even_utilisation == pytest.approx(ratio)


def test_counting_tasks_finds_the_crossing_of_unequal_successes() -> None:
    fixed, use = 19_555.2, 0.0264
    counted = next(n for n in range(800_000, 820_000) if fixed / (0.90 * n) < use * n / (0.98 * n))
    choice = purchase(fixed_usd=fixed, use_usd_per_task=use, fixed_success=0.90, use_success=0.98)
    assert counted == math.ceil(choice.break_even_tasks)


def test_a_ceiling_below_the_crossing_leaves_use_cheaper_at_every_amount() -> None:
    arguments = {
        "fixed_usd": 19_555.2, "use_usd_per_task": 0.0264, "fixed_success": 0.90, "use_success": 0.98,
        "capacity_tasks": 500_000.0,
    }  # fmt: skip
    assert not purchase(**arguments).is_reachable
    assert all(purchase_at(tasks=n, **arguments).cheaper == "use" for n in range(10_000, 3_000_000, 10_000))


@given(tasks=st.integers(1, 10_000_000), capacity=st.integers(1000, 1_000_000))
def test_whole_units_are_bought_and_no_more_than_needed(tasks: int, capacity: int) -> None:
    units = purchase_at(tasks=tasks, fixed_usd=1, use_usd_per_task=1, capacity_tasks=capacity).units
    assert (units - 1) * capacity < tasks <= units * capacity


def test_capacity_is_sessions_times_period_over_stay() -> None:
    assert task_capacity(period_s=2_592_000, sessions=32, hold_s_per_task=27) == 3_072_000


def test_impossible_prices_are_named() -> None:
    with pytest.raises(InvalidRequestError, match="use_usd_per_task is 0"):
        purchase(fixed_usd=1, use_usd_per_task=0)
    with pytest.raises(InvalidRequestError, match="fixed_success is 0"):
        purchase(fixed_usd=1, use_usd_per_task=1, fixed_success=0)
    with pytest.raises(InvalidRequestError, match="more than 6"):
        price_ratio_utilisation(reserved_usd_per_gpu_h=7, on_demand_usd_per_gpu_h=6)
