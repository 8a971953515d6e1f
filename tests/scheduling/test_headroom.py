"""What is kept free for urgent work."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.scheduling.headroom import UrgentWork, headroom, poisson_quantile


def test_a_checkpoint_of_30_s_cannot_serve_a_deadline_of_2_s():
    work = UrgentWork(deadline_s=2.0, rate_per_s=0.1, amounts={"cpu": 4})
    kept = headroom(work, save_s=30.0)
    assert kept.units == 8, "P(N <= 8) of a mean of 3 is the first above 0.99"
    assert kept.amounts == {"cpu": 32}
    assert "only in 30 s but may take 2 s" in kept.reason


def test_all_is_lent_when_it_comes_back_in_time():
    assert headroom(UrgentWork(deadline_s=2.0, rate_per_s=9.0, amounts={"cpu": 4}), save_s=2.0).amounts == {}


def test_a_burst_finds_room_however_rare_arrivals_are():
    work = UrgentWork(deadline_s=2.0, rate_per_s=0.001, amounts={"cpu": 1}, burst=5)
    assert headroom(work, save_s=30.0).units == 5


@pytest.mark.parametrize("mean", [0.1, 3.0, 50.0, 500.0])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.999])
def test_the_quantile_is_the_least_that_suffices(mean, confidence):
    def cumulated(n: int) -> float:
        return sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(n + 1))

    n = poisson_quantile(mean, confidence)
    assert cumulated(n) >= confidence - 1e-9
    assert n == 0 or cumulated(n - 1) < confidence + 1e-9


def test_the_approximation_for_large_means_joins_the_exact_sum():
    exact, approximate = poisson_quantile(699.9, 0.99), poisson_quantile(700.1, 0.99)
    assert abs(approximate - exact) <= 2


@given(st.floats(0, 50), st.floats(0, 50), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_more_arrivals_or_more_confidence_never_need_less(low, more, one, other):
    assert poisson_quantile(low, min(one, other)) <= poisson_quantile(low + more, max(one, other))


@pytest.mark.parametrize("change", [{"save_s": -1.0}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_impossible_values_are_refused(change):
    with pytest.raises(InvalidRequestError):
        headroom(UrgentWork(deadline_s=2.0, rate_per_s=1.0, amounts={}), **{"save_s": 30.0, **change})
