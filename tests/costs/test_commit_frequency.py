"""How often to commit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.commit_frequency import best_requests_per_commit, commit_cost


@given(requests=st.integers(1, 300), size=st.integers(1, 50))
def test_playing_the_requests_through_takes_as_long(requests: int, size: int) -> None:
    now_s, uncommitted, at_risk, commits = 0.0, 0, 0, 0
    for number in range(1, requests + 1):
        now_s += 0.2
        uncommitted += 1
        at_risk = max(at_risk, uncommitted)
        if uncommitted == size or number == requests:
            now_s += 0.008 + 0.002 * uncommitted
            uncommitted, commits = 0, commits + 1
    cost = commit_cost(requests=requests, request_s=0.2, requests_per_commit=size, fixed_s=0.008, record_s=0.002)
    assert cost.total_s == pytest.approx(now_s)
    assert (cost.commits, cost.at_risk_requests) == (commits, at_risk)


@given(requests=st.integers(1, 300), small=st.integers(1, 50), large=st.integers(1, 50))
def test_larger_groups_cost_no_more_and_risk_no_less(requests: int, small: int, large: int) -> None:
    small, large = sorted((small, large))

    def cost(size: int) -> tuple[float, float]:
        result = commit_cost(requests=requests, request_s=0.2, requests_per_commit=size, fixed_s=0.008, record_s=0.002)
        return result.commit_s, result.at_risk_s

    assert cost(large)[0] <= cost(small)[0]
    assert cost(large)[1] >= cost(small)[1]


def test_best_size_is_what_trying_all_sizes_finds() -> None:
    def added_s(size: int) -> float:
        return 0.008 / size + (1 / 3600) * size * 0.2**2 / 2

    best = best_requests_per_commit(request_s=0.2, fixed_s=0.008, failures_per_s=1 / 3600)
    assert best == min(range(1, 1000), key=added_s)


def test_simulated_failures_cost_half_a_group_on_average() -> None:
    rng = random.Random(2)
    lost = [rng.uniform(0, 10 * 0.2) for _ in range(20_000)]
    assert sum(lost) / len(lost) == pytest.approx(10 * 0.2 / 2, rel=0.02)


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="requests_per_commit is 0"):
        commit_cost(requests=1, request_s=1, requests_per_commit=0, fixed_s=1, record_s=1)
