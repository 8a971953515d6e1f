"""Inputs of a workload from the results of a rollout: means with intervals, not points.

What is fitted of each group of attempts with about as many rounds:

    model call    seconds in which the policy decided, by round
    tool          seconds in which its calls were carried out, by round
    commit        verification, recording and clearing away
    prepare       making the sandbox
    quality       share of the verdicts that passed

Means have bootstrap intervals (percentiles of resampled means, 1,000 resamples, a fixed seed), shares those of
Wilson, and the rate the exact one of a Poisson count. All are at 95 %. What a task waited for a lane or an image is
left out: it is what a plan computes. Attempts that broke without a verdict are counted and left out, since they say
nothing about the tasks.

Sources: B. Efron, "Bootstrap methods", Annals of Statistics 7(1), 1979. E. B. Wilson, JASA 22, 1927. F. Garwood,
Biometrika 28, 1936.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dsec.base.errors import InvalidRequestError
from dsec.planner.outer import numeric
from dsec.planner.scatter import LEAST_VARIATION, MOST_VARIATION
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.verification.stages import Stage

RESAMPLES = 1_000
MOST_GROUPS = 4
_Z = 1.959963984540054
_SEED = 20_260_101
_TAIL = (Stage.VERIFY, Stage.RECORD, Stage.DESTROY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A fitted value with its 95 % interval.

    Attributes:
        name: of the input.
        middle, low, high: in `unit`.
        unit: `s`, `/s` or empty.
        count: values that it was fitted from.
        how: which interval.
    """

    name: str
    middle: float
    low: float
    high: float
    unit: str
    count: int
    how: str

    def at(self, which: str) -> float:
        """Return `low`, `middle` or `high`."""
        return {"low": self.low, "middle": self.middle, "high": self.high}[which]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFit:
    """Attempts with about as many rounds.

    Attributes:
        name: of the class that they become.
        rounds: of one of them.
        share: of all attempts.
        model, tool, commit, prepare, quality: see the module.
        model_variation, tool_variation: squared coefficient of variation from one call to another.
    """

    name: str
    rounds: int
    share: float
    model: Interval
    tool: Interval
    commit: Interval
    prepare: Interval
    quality: Interval
    model_variation: float
    tool_variation: float

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """All of them."""
        return self.model, self.tool, self.commit, self.prepare, self.quality


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFit:
    """A rollout in numbers.

    Attributes:
        attempts: that were used.
        left_out: attempts without a verdict or without a round.
        span_s: from the first start to the last end.
        rate: attempts in a second.
        in_flight: attempts at the same time, on average.
        attempt_p95_s: time within which 95 % of the attempts ended, what they waited for left out.
        groups: by number of rounds.
    """

    attempts: int
    left_out: int
    span_s: float
    rate: Interval
    in_flight: float
    attempt_p95_s: float
    groups: tuple[GroupFit, ...]


def fit_run(results: Iterable[AttemptResult]) -> RunFit:
    """Fit the inputs of a workload to the results of a rollout.

    Raises:
        InvalidRequestError: fewer than two attempts have a verdict and a round.
    """
    every = list(results)
    used = [result for result in every if result.outcome.is_verdict and result.rounds > 0]
    if len(used) < 2:
        raise InvalidRequestError(
            f"{len(used)} of {len(every)} attempts have a verdict and a round: nothing can be fitted",
            resolution="name the output directory of a rollout with at least two finished attempts",
        )
    begin_s = min(result.started_at_s for result in used)
    span_s = max(result.started_at_s + result.duration_s for result in used) - begin_s
    return RunFit(
        attempts=len(used),
        left_out=len(every) - len(used),
        span_s=span_s,
        rate=_rate(used),
        in_flight=sum(result.duration_s for result in used) / span_s,
        attempt_p95_s=_percentile([result.duration_s - _stage_s(result, Stage.WAIT) for result in used]),
        groups=tuple(_group(name, group, len(used)) for name, group in _groups(used)),
    )


def _percentile(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def _rate(results: Sequence[AttemptResult]) -> Interval:
    """Return how often an attempt begins.

    The first of each lane is left out: they all begin with the run, and say nothing about its pace.
    """
    numeric()
    from scipy.special import gammaincinv

    starts = [result.started_at_s for result in results]
    count, span_s = len(results) - len({result.lane for result in results}), max(starts) - min(starts)
    if count < 1 or span_s <= 0:
        count, span_s = len(results), max(result.started_at_s + result.duration_s for result in results) - min(starts)
    low, high = gammaincinv(count, 0.025), gammaincinv(count + 1, 0.975)
    return Interval(
        name="arrivals.rate", middle=count / span_s, low=float(low) / span_s, high=float(high) / span_s, unit="/s",
        count=count, how="Poisson count",
    )  # fmt: skip


def _groups(results: Sequence[AttemptResult]) -> list[tuple[str, list[AttemptResult]]]:
    """Return groups by number of rounds: one for each number, or about equal parts where there are many."""
    in_order = sorted(results, key=lambda result: (result.rounds, result.key))
    numbers = sorted({result.rounds for result in results})
    if len(numbers) <= MOST_GROUPS:
        parts = [[result for result in in_order if result.rounds == number] for number in numbers]
    else:
        edges = [round(len(in_order) * index / MOST_GROUPS) for index in range(MOST_GROUPS + 1)]
        parts = [in_order[a:b] for a, b in pairwise(edges) if b > a]
    return [(f"rounds_{part[0].rounds}_to_{part[-1].rounds}", part) for part in parts]


def _group(name: str, results: Sequence[AttemptResult], total: int) -> GroupFit:
    rounds = max(1, round(sum(result.rounds for result in results) / len(results)))

    def mean(key: str, of: Callable[[AttemptResult], float]) -> Interval:
        return _mean(f"class.{name}.{key}", [of(result) for result in results])

    calls = [_stage_s(result, Stage.DECIDE) / result.rounds for result in results]
    tools = [_stage_s(result, Stage.TOOLS) / result.rounds for result in results]
    return GroupFit(
        name=name,
        rounds=rounds,
        share=len(results) / total,
        model=_mean(f"class.{name}.model", calls),
        tool=_mean(f"class.{name}.tool", tools),
        commit=mean("commit", lambda result: sum(_stage_s(result, stage) for stage in _TAIL)),
        prepare=mean("prepare", lambda result: _stage_s(result, Stage.CREATE)),
        quality=_share(f"class.{name}.quality", [result.outcome is Outcome.PASSED for result in results]),
        model_variation=_variation(calls) * rounds,
        tool_variation=_variation(tools) * rounds,
    )


def _stage_s(result: AttemptResult, stage: Stage) -> float:
    return result.totals_s.get(stage.value, 0.0)


def _variation(values: Sequence[float]) -> float:
    """Return the squared coefficient of variation; a mean over rounds has that of one round, over their number."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2 or mean == 0:
        return 0.0
    found = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / mean**2
    return min(found, MOST_VARIATION) if found >= LEAST_VARIATION else 0.0


def _mean(name: str, values: Sequence[float]) -> Interval:
    numpy = numeric()
    array = numpy.array(values)
    middle = float(array.mean())
    if len(array) < 2:
        return Interval(
            name=name, middle=middle, low=middle, high=middle, unit="s", count=1, how="one value: no interval"
        )
    generator = numpy.random.default_rng(_SEED)
    means = array[generator.integers(0, len(array), (RESAMPLES, len(array)))].mean(axis=1)
    low, high = numpy.percentile(means, [2.5, 97.5]).tolist()
    return Interval(name=name, middle=middle, low=low, high=high, unit="s", count=len(array), how="bootstrap")


def _share(name: str, passed: Sequence[bool]) -> Interval:
    """Return a share with Wilson's interval, which stays within 0..1 and never has no width."""
    count, share = len(passed), sum(passed) / len(passed)
    scale = 1 + _Z**2 / count
    centre = (share + _Z**2 / (2 * count)) / scale
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / scale
    return Interval(
        name=name, middle=share, low=max(0.0, centre - half), high=min(1.0, centre + half), unit="", count=count,
        how="Wilson",
    )  # fmt: skip
