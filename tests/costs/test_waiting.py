"""Queues with random arrivals, against the textbook's formulas and against playing them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsec.costs.burst import queue_run
from dsec.costs.waiting import (
    OverloadedError,
    probability_of_waiting,
    probability_of_waiting_longer,
    queue_growth_per_s,
    servers_for_wait,
    utilisation,
    waiting,
)

shares = st.floats(0.01, 0.99)
servers = st.integers(1, 60)
services = st.floats(0.01, 100)


def textbook_probability_of_waiting(offered: float, count: int) -> float:
    """Return Erlang's C by its sums of factorials."""
    last = offered**count / math.factorial(count) * count / (count - offered)
    return last / (math.fsum(offered**k / math.factorial(k) for k in range(count)) + last)


@given(share=shares, count=servers, service_s=services)
def test_the_recursion_is_what_the_textbooks_sums_give(share: float, count: int, service_s: float) -> None:
    rate = share * count / service_s
    seen = probability_of_waiting(arrivals_per_s=rate, servers=count, service_s=service_s)
    assert seen == pytest.approx(textbook_probability_of_waiting(rate * service_s, count), rel=1e-6)


def test_thousands_of_servers_neither_overflow_nor_cancel() -> None:
    assert 0 < probability_of_waiting(arrivals_per_s=9_900, servers=10_000, service_s=1) < 1


@given(share=shares, service_s=services)
def test_one_server_waits_as_pollaczek_and_khinchine_say(share: float, service_s: float) -> None:
    rate = share / service_s
    for variation in (0.0, 1.0, 2.5):
        seen = waiting(arrivals_per_s=rate, servers=1, service_s=service_s, service_variation=variation)
        expected_s = (1 + variation) / 2 * share * service_s / (1 - share)
        assert seen.mean_wait_s == pytest.approx(expected_s)


@given(share=shares, count=servers, service_s=services)
def test_fewer_servers_and_more_load_wait_longer(share: float, count: int, service_s: float) -> None:
    rate = share * count / service_s
    seen = waiting(arrivals_per_s=rate, servers=count, service_s=service_s)
    assert waiting(arrivals_per_s=rate, servers=count + 1, service_s=service_s).mean_wait_s <= seen.mean_wait_s
    assert waiting(arrivals_per_s=rate * 0.9, servers=count, service_s=service_s).mean_wait_s <= seen.mean_wait_s
    assert seen.mean_wait_s >= 0
    assert seen.mean_response_s == pytest.approx(seen.mean_wait_s + service_s)


@given(share=shares, count=servers, service_s=services)
def test_the_tail_starts_at_the_probability_of_waiting_and_integrates_to_the_mean_wait(
    share: float, count: int, service_s: float
) -> None:
    rate = share * count / service_s
    seen = waiting(arrivals_per_s=rate, servers=count, service_s=service_s)

    def tail(than_s: float) -> float:
        return probability_of_waiting_longer(arrivals_per_s=rate, servers=count, service_s=service_s, than_s=than_s)

    assert tail(0) == pytest.approx(seen.waits)
    assume(seen.waits > 1e-9)
    mean_of_those_that_wait_s = seen.mean_wait_s / seen.waits
    assert tail(mean_of_those_that_wait_s) == pytest.approx(seen.waits / math.e)


@given(rate=st.floats(0.1, 500), service_s=st.floats(0.01, 5), share=st.floats(0.001, 2))
def test_the_least_number_of_servers_keeps_the_wait_and_one_less_does_not(
    rate: float, service_s: float, share: float
) -> None:
    wait_s = share * service_s
    count = servers_for_wait(arrivals_per_s=rate, service_s=service_s, wait_s=wait_s)
    assert waiting(arrivals_per_s=rate, servers=count, service_s=service_s).mean_wait_s <= wait_s
    if count > 1 and utilisation(arrivals_per_s=rate, servers=count - 1, service_s=service_s) < 1:
        assert waiting(arrivals_per_s=rate, servers=count - 1, service_s=service_s).mean_wait_s > wait_s


@given(count=servers, service_s=services, above=st.floats(1, 10))
def test_overload_is_an_error_that_says_how_fast_the_queue_grows(count: int, service_s: float, above: float) -> None:
    rate = above * count / service_s
    assume(utilisation(arrivals_per_s=rate, servers=count, service_s=service_s) >= 1)
    growth = queue_growth_per_s(arrivals_per_s=rate, servers=count, service_s=service_s)
    with pytest.raises(OverloadedError, match="grows by") as caught:
        waiting(arrivals_per_s=rate, servers=count, service_s=service_s)
    assert f"{growth:.4g} pieces a second" in caught.value.brief or growth < 1e-9


def test_overload_says_what_would_suffice() -> None:
    with pytest.raises(OverloadedError) as caught:
        waiting(arrivals_per_s=30, servers=320, service_s=12)
    assert caught.value.brief == "utilisation is 1.125: the queue grows by 3.333 pieces a second and never empties"
    assert "at least 361 servers" in caught.value.resolution
    assert caught.value.code == "overloaded"


def test_below_overload_no_queue_grows() -> None:
    assert queue_growth_per_s(arrivals_per_s=30, servers=48, service_s=1) == 0


def played_wait_s(count: int, share: float, *, constant: bool) -> float:
    """Play 60,000 pieces with Poisson arrivals; return the mean wait once the queue has filled."""
    source = random.Random(104)
    arrivals_s, now_s = [], 0.0
    for _ in range(60_000):
        now_s += source.expovariate(share * count)
        arrivals_s.append(now_s)
    services_s = [1.0 if constant else source.expovariate(1) for _ in arrivals_s]
    waits_s = queue_run(arrivals_s=arrivals_s, services_s=services_s, servers=count).waits_s[10_000:]
    return sum(waits_s) / len(waits_s)


# Waits of one run hang together: a mean over 50,000 of them is off by 4% at one server, by 12% at 16 busy ones.
PLAYED = [(1, 0.7, 0.1), (4, 0.8, 0.15), (16, 0.8, 0.3)]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "share", "within"), PLAYED)
def test_markov_queues_wait_as_long_as_when_they_are_played(count: int, share: float, within: float) -> None:
    seen = waiting(arrivals_per_s=share * count, servers=count, service_s=1)
    assert played_wait_s(count, share, constant=False) == pytest.approx(seen.mean_wait_s, rel=within)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "share", "within"), PLAYED)
def test_constant_service_waits_about_as_long_as_when_it_is_played(count: int, share: float, within: float) -> None:
    seen = waiting(arrivals_per_s=share * count, servers=count, service_s=1, service_variation=0)
    assert played_wait_s(count, share, constant=True) == pytest.approx(seen.mean_wait_s, rel=within)
