"""Waits on arrays beside the scalar formulas."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.costs.burst import burst
from dsec.costs.waiting import probability_of_waiting, waiting
from dsec.planner.scatter import gamma_atoms, larger
from dsec.planner.waits import burst_share_within, burst_waits_s, erlang_c, mean_wait_s, share_within


@given(load=st.floats(0.01, 0.999), servers=st.integers(1, 3000))
def test_waits_are_those_of_the_scalar_formula(load: float, servers: int) -> None:
    offered = load * servers
    chance = probability_of_waiting(arrivals_per_s=offered, servers=servers, service_s=1.0)
    assert erlang_c(numpy.array([offered]), numpy.array([float(servers)]))[0] == pytest.approx(
        chance, rel=1e-6, abs=1e-12
    )
    seen = waiting(arrivals_per_s=offered, servers=servers, service_s=1.0, service_variation=0.0)
    waits, each_s = mean_wait_s(*(numpy.array([value]) for value in (offered, float(servers), 1.0, 0.5)))
    assert waits[0] * each_s[0] == pytest.approx(seen.mean_wait_s, rel=1e-6, abs=1e-12)


@given(pieces=st.integers(1, 500), servers=st.integers(1, 500), slack=st.floats(0, 50))
def test_bursts_are_those_of_the_scalar_formula(pieces: int, servers: int, slack: float) -> None:
    seen = burst(pieces=pieces, servers=servers, service_s=2.0)
    count, wave = numpy.array([float(servers)]), numpy.array([2.0])
    assert burst_waits_s(pieces, count, wave)[0] == pytest.approx(seen.mean_wait_s)
    in_time = sum(2.0 * (index // servers) <= slack + 1e-9 for index in range(pieces)) / pieces
    none = (numpy.array([float(pieces)]), numpy.array([0.0]))
    found = burst_share_within(numpy.array([slack]), pieces, (count, none[0]), (wave, none[1]))
    assert found[0] == pytest.approx(in_time)


@given(chances=st.tuples(st.floats(0, 1), st.floats(0, 1)), mean=st.floats(0.01, 10), slack=st.floats(0, 20))
def test_the_share_within_a_slack_is_that_of_a_sample(chances: tuple[float, float], mean: float, slack: float) -> None:
    waits = (numpy.array([chances[0]]), numpy.array([chances[1]]))
    found = share_within(numpy.array([slack]), waits, (numpy.array([mean]), numpy.array([mean])))[0]
    generator = numpy.random.default_rng(1)
    sample = sum((generator.random(20_000) < chance) * generator.exponential(mean, 20_000) for chance in chances)
    assert found == pytest.approx(float((sample <= slack).mean()), abs=0.02)


def test_a_growing_queue_has_no_wait_and_no_negative_one() -> None:
    waits, each_s = mean_wait_s(*(numpy.array([value]) for value in (12.0, 12.0, 1.0, 1.0)))
    assert waits[0] == 1.0
    assert math.isinf(each_s[0])


@given(mean=st.floats(0.1, 100), variation=st.floats(0.05, 4), other=st.floats(0.01, 200))
def test_the_larger_of_two_times_is_that_of_a_sample(mean: float, variation: float, other: float) -> None:
    first, variance = larger(mean, variation, other)
    sample = numpy.maximum(numpy.random.default_rng(2).gamma(1 / variation, mean * variation, 40_000), other)
    assert first == pytest.approx(float(sample.mean()), rel=0.05)
    assert variance == pytest.approx(float(sample.var()), rel=0.35, abs=0.02 * mean**2)


@given(mean=st.floats(0.1, 100), spread=st.floats(0.01, 2), fixed=st.floats(0, 50))
def test_atoms_keep_the_mean(mean: float, spread: float, fixed: float) -> None:
    atoms = gamma_atoms(mean, spread * mean**2, fixed)
    assert sum(chance for chance, _ in atoms) == pytest.approx(1)
    assert sum(chance * value for chance, value in atoms) == pytest.approx(mean + fixed)
