"""Fitting a rollout's results."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.planner.fitting import fit_run
from dsec.planner.from_run import plan_from_run
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome, Verdict

_OFFERS = """
kind = "workload"
title = "Ours"
[run]
memory = "1 GiB"
[service.model]
billing = "tokens"
prices = { output = "10 USD/Mtoken" }
[host.small]
count = "1..1000"
cpus = "8 CPU"
memory = "32 GiB"
price = "1 USD/h"
[policy.kept]
kind = "kept"
prepare = "run"
"""


def _result(number: int, start_s: float, model_s: float, rounds: int, outcome: Outcome) -> AttemptResult:
    stages = {"create": 0.5, "decide": model_s * rounds, "tools": 2.0 * rounds, "verify": 1.0, "destroy": 0.25}
    return AttemptResult(
        task=f"task-{number}",
        attempt=1,
        verdict=Verdict(outcome=outcome, reason=""),
        rounds=rounds,
        started_at_s=start_s,
        duration_s=sum(stages.values()),
        totals_s=stages,
    )


@pytest.fixture(scope="module")
def results() -> list[AttemptResult]:
    """Two hundred attempts, one a second, of two or four rounds; exponential calls of 5 s; four of five pass."""
    generator = random.Random(7)
    return [
        _result(
            number,
            float(number),
            generator.expovariate(1 / 5),
            generator.choice((2, 4)),
            Outcome.PASSED if number % 5 else Outcome.FAILED,
        )
        for number in range(200)
    ]


def test_what_went_in_lies_within_the_intervals(results: Sequence[AttemptResult]) -> None:
    fit = fit_run(results)
    assert [group.rounds for group in fit.groups] == [2, 4]
    assert fit.rate.low < 1.0 < fit.rate.high
    for group in fit.groups:
        assert group.model.low < 5.0 < group.model.high
        assert group.tool.low == group.tool.high == pytest.approx(2.0)
        assert group.quality.low < 0.8 < group.quality.high
        assert group.commit.middle == pytest.approx(1.25)
        assert group.prepare.middle == pytest.approx(0.5)
        assert group.tool_variation == pytest.approx(0.0)
    assert sum(group.share for group in fit.groups) == pytest.approx(1.0)


def test_more_attempts_narrow_the_intervals(results: Sequence[AttemptResult]) -> None:
    few, many = fit_run(results[:20]), fit_run(results)

    def width(fit: object) -> float:
        return (fit.rate.high - fit.rate.low) / fit.rate.middle  # type: ignore[attr-defined]

    assert width(many) < width(few)


def test_many_numbers_of_rounds_become_a_few_classes() -> None:
    made = [_result(number, float(number), 1.0, 1 + number % 30, Outcome.PASSED) for number in range(120)]
    fit = fit_run(made)
    assert 2 <= len(fit.groups) <= 4
    assert fit.groups[0].rounds < fit.groups[-1].rounds


def test_broken_attempts_are_counted_and_left_out(results: Sequence[AttemptResult]) -> None:
    broken = [_result(900 + n, 3.0, 500.0, 9, Outcome.INFRASTRUCTURE_ERROR) for n in range(5)]
    fit = fit_run([*results, *broken])
    assert (fit.attempts, fit.left_out) == (200, 5)
    assert fit.groups == fit_run(results).groups


def test_too_few_results_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="nothing can be fitted"):
        fit_run([_result(1, 0.0, 1.0, 2, Outcome.PASSED)])


def test_ten_times_the_load_is_planned_with_the_intervals_ends(results: Sequence[AttemptResult]) -> None:
    found = plan_from_run(results, offers=_OFFERS, name="offers.toml", run="out", times=10.0)
    hopeful, middle, careful = found.cases
    assert hopeful.hosts <= middle.hosts <= careful.hosts
    assert hopeful.completion_s < middle.completion_s < careful.completion_s
    assert hopeful.share_in_time > middle.share_in_time > careful.share_in_time
    rate = found.plan.figure("arrivals.rate")
    assert rate.value == pytest.approx(10 * found.fit.rate.middle)
    assert "fitted to 199 attempts in out" in rate.source  # the first of the lane says nothing of the pace
    assert "95 % interval" in found.plan.figure("class.rounds_2_to_2.model").source


def test_without_offers_there_are_some_and_they_are_said(results: Sequence[AttemptResult]) -> None:
    found = plan_from_run(results, offers=None, name="", run="out", times=10.0)
    assert found.plan.decision is not None
    assert found.plan.decision.chosen is not None
    assert "16 cores and 64 GiB" in found.plan.heading.assumed


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[run]", '[arrivals]\nrate = "1 /s"\n[run]', "this comes from the run"),
        ('memory = "1 GiB"\n', "", "the memory of an environment is not said"),
        ('memory = "1 GiB"\n', 'memory = "1 GiB"\ncolour = 1\n', "'colour' is not known"),
    ],
)
def test_offers_that_do_not_fit_a_run_are_refused(
    results: Sequence[AttemptResult], old: str, new: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        plan_from_run(results, offers=_OFFERS.replace(old, new, 1), name="offers.toml", run="out", times=10.0)


def test_a_multiple_has_to_be_positive(results: Sequence[AttemptResult]) -> None:
    with pytest.raises(InvalidRequestError, match="times the load"):
        plan_from_run(results, offers=None, name="", run="out", times=0.0)
