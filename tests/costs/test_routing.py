"""Routes whose cache hits sometimes."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.routing import Route, hit_rate_for_cost, hit_rate_for_deadline, route_at, success_cost_usd

costs = st.floats(0.001, 1)
successes = st.floats(0.05, 1)
routes = st.builds(
    Route, hit_cost_usd=costs, miss_cost_usd=costs, hit_success=successes, miss_success=successes,
    hit_time_s=st.floats(0, 20), miss_time_s=st.floats(0, 20),
)  # fmt: skip
CORRELATED = Route(
    hit_cost_usd=0.0088, miss_cost_usd=0.0430, hit_success=0.99, miss_success=0.90, hit_time_s=4, miss_time_s=12
)
GRID = [step / 20 for step in range(21)]


def cheap_from(route: Route, target_usd: float) -> float:
    """Bisect for the least hit rate from which on the route is as cheap; the formula is not used."""
    if success_cost_usd(route=route, hit_rate=1) > target_usd:
        return math.inf
    low, high = 0.0, 1.0
    if success_cost_usd(route=route, hit_rate=0) <= target_usd:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if success_cost_usd(route=route, hit_rate=middle) <= target_usd else (middle, high)
    return high


@given(route=routes, target=costs)
def test_border_of_cost_is_where_bisection_finds_it(route: Route, target: float) -> None:
    searched, solved = cheap_from(route, target), hit_rate_for_cost(route=route, target_usd=target)
    # At the very border of 0 or 1, rounding decides on which side the target lies.
    at_ends = [abs(success_cost_usd(route=route, hit_rate=end) - target) < 1e-12 for end in (0, 1)]
    assert any(at_ends) or solved == pytest.approx(searched, abs=1e-6)


@given(route=routes, deadline=st.floats(0.1, 20), target=st.floats(0.01, 1))
def test_every_rate_above_the_border_is_timely_and_none_below(route: Route, deadline: float, target: float) -> None:
    border = hit_rate_for_deadline(route=route, deadline_s=deadline, target_share=target)
    for rate in GRID:
        timely = route_at(route=route, hit_rate=rate, deadline_s=deadline).timely_share
        if rate >= border + 1e-9:
            assert timely >= target - 1e-9
        if rate <= border - 1e-9:
            on_hit = route_at(route=route, hit_rate=1, deadline_s=deadline).timely_share
            assert timely < target + 1e-9 or on_hit < target


@given(route=routes, rate=st.floats(0, 1), deadline=st.floats(0.1, 20))
def test_a_deadline_takes_successes_away_and_never_adds_any(route: Route, rate: float, deadline: float) -> None:
    point = route_at(route=route, hit_rate=rate, deadline_s=deadline)
    assert point.timely_share <= point.success_share + 1e-12
    assert point.timely_success_cost_usd >= point.success_cost_usd * (1 - 1e-9)


def test_sampled_requests_agree_where_hits_succeed_more_often() -> None:
    rng = random.Random(5)
    spent = passed = timely = 0.0
    for _ in range(40_000):
        hit = rng.random() < 0.5
        spent += CORRELATED.hit_cost_usd if hit else CORRELATED.miss_cost_usd
        ok = rng.random() < (CORRELATED.hit_success if hit else CORRELATED.miss_success)
        passed += ok
        timely += ok and hit
    point = route_at(route=CORRELATED, hit_rate=0.5, deadline_s=6)
    assert spent / passed == pytest.approx(point.success_cost_usd, rel=0.02)
    assert timely / 40_000 == pytest.approx(point.timely_share, rel=0.02)


def test_a_better_hit_needs_fewer_hits_for_the_deadline() -> None:
    independent = Route(
        hit_cost_usd=0.0088, miss_cost_usd=0.0430, hit_success=0.98, miss_success=0.98, hit_time_s=4, miss_time_s=12
    )
    needed = hit_rate_for_deadline(route=CORRELATED, deadline_s=6, target_share=0.9)
    assert needed == pytest.approx(10 / 11)
    assert needed < hit_rate_for_deadline(route=independent, deadline_s=6, target_share=0.9)


def test_a_target_out_of_reach_is_infinite_and_one_that_misses_reach_is_zero() -> None:
    assert math.isinf(hit_rate_for_deadline(route=CORRELATED, deadline_s=6, target_share=0.995))
    assert hit_rate_for_deadline(route=CORRELATED, deadline_s=12, target_share=0.9) == 0
    assert math.isinf(hit_rate_for_cost(route=CORRELATED, target_usd=0.001))
    assert hit_rate_for_cost(route=CORRELATED, target_usd=1.0) == 0


def test_a_route_on_which_nothing_succeeds_has_no_cost_of_a_success() -> None:
    hopeless = Route(hit_cost_usd=1, miss_cost_usd=1, hit_success=0, miss_success=0)
    with pytest.raises(InvalidRequestError, match="no successful answer"):
        success_cost_usd(route=hopeless, hit_rate=0.5)


def test_a_probability_above_one_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"hit_rate is 1\.5"):
        success_cost_usd(route=CORRELATED, hit_rate=1.5)
