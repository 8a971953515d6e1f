"""Model services on replicas of one's own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.model_service import call_gpu_s, call_usd, model_service, output_usd_per_mtoken


@given(calls=st.floats(0, 1000), call=st.floats(0, 100), sessions=st.integers(1, 64), replicas=st.integers(0, 500))
def test_the_needed_replicas_are_the_fewest_that_hold_the_calls(
    calls: float, call: float, sessions: int, replicas: int
) -> None:
    service = model_service(calls_per_s=calls, call_s=call, replicas=replicas, sessions=sessions, gpus_per_replica=4)
    demand = calls * call
    assert service.needed_slots >= demand * (1 - 1e-8) - 1e-300
    assert (service.replicas_needed - 1) * sessions < demand or service.replicas_needed == 0
    assert service.is_enough == (service.added_replicas == 0)


@given(calls=st.floats(0, 1000), more=st.floats(0, 100), call=st.floats(0, 100))
def test_more_load_never_needs_less(calls: float, more: float, call: float) -> None:
    def needed(rate: float) -> int:
        return model_service(calls_per_s=rate, call_s=call, replicas=1, sessions=16, gpus_per_replica=4).replicas_needed

    assert needed(calls) <= needed(calls + more)


def test_concurrency_is_what_counting_calls_in_progress_gives() -> None:
    rng = random.Random(11)
    now, starts = 0.0, []
    while now < 3_000:
        now += rng.expovariate(30)
        starts.append(now)
    observed = sum(9.0 for start in starts if 100 <= start < 2_900) / 2_800
    service = model_service(calls_per_s=30, call_s=9, replicas=10, sessions=32, gpus_per_replica=4)
    assert service.concurrency == pytest.approx(observed, rel=0.02)


def test_a_replica_that_is_full_shares_its_time_among_its_sessions() -> None:
    assert 32 * call_gpu_s(call_s=9, gpus_per_replica=4, sessions=32) == 4 * 9


@given(pace=st.floats(0.001, 1), sessions=st.integers(1, 64), price=st.floats(0.1, 50))
def test_a_million_tokens_cost_the_replica_hours_that_they_take(pace: float, sessions: int, price: float) -> None:
    per_hour = sessions * 3600 / pace
    cost = output_usd_per_mtoken(
        pace_s_per_token=pace, gpus_per_replica=4, sessions=sessions, price_usd_per_gpu_h=price
    )
    assert cost == pytest.approx(4 * price * 1e6 / per_hour)


def test_impossible_services_are_named() -> None:
    with pytest.raises(InvalidRequestError, match="sessions"):
        call_gpu_s(call_s=1, gpus_per_replica=4, sessions=0)
    with pytest.raises(InvalidRequestError, match="price_usd_per_gpu_h"):
        call_usd(call_gpu_s=1, price_usd_per_gpu_h=-1)
    with pytest.raises(InvalidRequestError, match="calls_per_s"):
        model_service(calls_per_s=-1, call_s=1, replicas=1, sessions=1, gpus_per_replica=1)
