"""Arrivals come when they should."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.sim.arrivals import Arrivals, plan_arrivals
from dsec.sim.distributions import Distribution, Streams, constant
from dsec.sim.fleet.scenario import FleetScenario
from dsec.sim.running import run
from dsec.sim.scenario_file import parse_scenario


def times(arrivals: Arrivals, horizon_s: float = 100.0) -> numpy.ndarray:
    return plan_arrivals(arrivals, horizon_s, Streams(1).generator("a")).times_s


def test_even_arrivals_are_even() -> None:
    assert times(Arrivals(kind="uniform", rate_per_s=2), 3.0).tolist() == [0, 0.5, 1, 1.5, 2, 2.5]


def test_bursts_come_as_groups_whose_members_follow_each_other() -> None:
    bursts = Arrivals(kind="bursts", every_s=10, first_s=5, group=constant(3), group_rate_per_s=2)
    assert times(bursts, 20.0).tolist() == [5, 5.5, 6, 15, 15.5, 16]


def test_random_arrivals_have_their_rate_and_follow_their_profile() -> None:
    found = times(Arrivals(kind="poisson", rate_per_s=100, profile=(1, 0, 3)), 300.0)
    assert len(found) == pytest.approx(30_000, rel=0.03)
    assert numpy.histogram(found, bins=[0, 100, 200, 300])[0].tolist() == pytest.approx([7500, 0, 22500], rel=0.05)


def test_a_lognormal_has_the_median_and_the_percentile_it_was_given() -> None:
    lifetime = Distribution(kind="lognormal", median=1044, p99=10_800)
    drawn = lifetime.sample(Streams(1).generator("x"), 200_000)
    assert float(numpy.median(drawn)) == pytest.approx(1044, rel=0.02)
    assert float(numpy.quantile(drawn, 0.99)) == pytest.approx(10_800, rel=0.05)
    assert float(drawn.mean()) == pytest.approx(lifetime.expected(), rel=0.02)


def test_too_many_arrivals_are_refused_before_they_are_made() -> None:
    with pytest.raises(InvalidRequestError, match="more than"):
        times(Arrivals(kind="poisson", rate_per_s=1e9))


def _trace(path: Path) -> None:
    lines = [
        {
            "version": 1,
            "task": "b",
            "attempt": 1,
            "verdict": {},
            "started_at_s": 1010.0,
            "duration_s": 4.0,
            "crc32": "0",
        },
        {"task": "a", "attempt": 1, "verdict": {}, "started_at_s": 1000.0, "duration_s": 8.0},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_rollouts_results_are_a_trace_of_arrivals_and_durations(tmp_path: Path) -> None:
    _trace(tmp_path / "results.jsonl")
    plan = plan_arrivals(
        Arrivals(kind="trace", file="results.jsonl"), 100.0, Streams(1).generator("a"), directory=tmp_path
    )
    assert plan.times_s.tolist() == [0.0, 10.0]
    assert plan.durations_s is not None
    assert plan.durations_s.tolist() == [8.0, 4.0]


def test_traced_sandboxes_live_as_long_as_they_did(tmp_path: Path) -> None:
    _trace(tmp_path / "results.jsonl")
    text = """
model = "fleet"
duration = "60 s"
nodes = [{ count = 1, create = "0 s" }]
[[workloads]]
arrivals = { kind = "trace", file = "results.jsonl" }
"""
    file = parse_scenario("traced", text)
    assert isinstance(file.base, FleetScenario)
    result = run(file.base, directory=tmp_path)
    assert result.figures["trajectory_s"].maximum == pytest.approx(8.0)
    assert result.counts["ended"] == 2


def test_a_trace_that_is_missing_or_none_is_an_error_with_its_line(tmp_path: Path) -> None:
    arrivals = Arrivals(kind="trace", file="results.jsonl")
    with pytest.raises(NotFoundError, match="cannot be read"):
        plan_arrivals(arrivals, 1.0, Streams(1).generator("a"), directory=tmp_path)
    (tmp_path / "results.jsonl").write_text('{"task": "a", "started_at_s": 1, "duration_s": 1}\nnonsense\n')
    with pytest.raises(InvalidRequestError, match=r"results\.jsonl:2"):
        plan_arrivals(arrivals, 1.0, Streams(1).generator("a"), directory=tmp_path)
