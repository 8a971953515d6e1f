"""What steps came to, by how it had failed before: the probabilities, times and costs of a recovery tree, measured.

A step is tried after a failure of some kind, with some model; it passes, or fails in some way. Of n such tries, k
passed. The share that will pass is estimated as

    p = (k + w p0) / (n + w)

which is the mean of a Beta distribution that begins at p0 with the weight of w tries, and forgets it as tries come in.
p0 is not a constant: it is the same estimate for the step with any model, and that one's p0 is the assumption in
`ASSUMED`. So a model that is new borrows from the others. Of times the quantile that was asked for is told, as
measured. Sources: the chapter, section 11.5.2 (all probabilities are conditional on how a task came to the node);
Gelman et al., Bayesian Data Analysis, section 2.4.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dsec.episode.failure_kinds import FailureKind
from dsec.model.value import Value

PRIOR_WEIGHT = 4.0
"""An assumption weighs as much as so many tries."""


class Step(enum.Enum):
    """What can be done.

    FIRST: the beginning, before anything failed.
    REPAIR: the same model goes on from the last committed round and is told what is wrong; of a service that
        failed: it is asked again after a while.
    ESCALATE: the next stronger model goes on from the last committed round.
    STOP: nothing more is tried.
    """

    FIRST = "first"
    REPAIR = "repair"
    ESCALATE = "escalate"
    STOP = "stop"


ASSUMED: Mapping[tuple[Step, FailureKind | None], float] = {
    (Step.FIRST, None): 0.5,
    (Step.REPAIR, FailureKind.CHECK_FAILED): 0.5,
    (Step.REPAIR, FailureKind.USELESS): 0.3,
    (Step.REPAIR, FailureKind.STUCK): 0.3,
    (Step.REPAIR, FailureKind.TOOLS_FAILED): 0.4,
    (Step.REPAIR, FailureKind.MODEL_FAILED): 0.6,
    (Step.ESCALATE, FailureKind.CHECK_FAILED): 0.6,
    (Step.ESCALATE, FailureKind.USELESS): 0.6,
    (Step.ESCALATE, FailureKind.STUCK): 0.5,
    (Step.ESCALATE, FailureKind.TOOLS_FAILED): 0.5,
    (Step.ESCALATE, FailureKind.MODEL_FAILED): 0.6,
}
"""Shares of tries that pass, where nothing was measured: guesses, which some tries outweigh (docs/recovery-tree.md)."""


class StepTaken(Value, frozen=True, omit_defaults=True):
    """One step of one episode, and what it came to.

    Attributes:
        step: what was done.
        model: who decided.
        after: how it had failed before; None: it was the beginning.
        failed: how it failed; None: the task passed.
        time_s: how long the step took.
        cost_usd: what it cost; None: nobody knows.
    """

    step: Step
    model: str
    after: FailureKind | None = None
    failed: FailureKind | None = None
    time_s: float = 0.0
    cost_usd: float | None = None


@dataclass(slots=True)
class _Tally:
    passed: int = 0
    failed: dict[FailureKind, int] = field(default_factory=dict)
    times_s: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    @property
    def tries(self) -> int:
        return self.passed + sum(self.failed.values())

    def add(self, taken: StepTaken) -> None:
        if taken.failed is None:
            self.passed += 1
        else:
            self.failed[taken.failed] = self.failed.get(taken.failed, 0) + 1
        self.times_s.append(taken.time_s)
        if taken.cost_usd is not None:
            self.costs.append(taken.cost_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a step is expected to come to.

    Attributes:
        tries: of just this step, after this failure, with this model; 0: all is borrowed.
        passes: probability that the task passes by it.
        fails: probabilities of failing in each way; with `passes` they sum to 1.
        time_s: within which it was over in a given share of tries; None: none was measured.
        cost_usd: its mean; None: none is known.
    """

    tries: int
    passes: float
    fails: Mapping[FailureKind, float]
    time_s: float | None
    cost_usd: float | None


class Experience:
    """What steps came to, over all episodes that were learned from. The order of learning makes no difference.

    Args:
        taken: steps to learn from.
        prior_weight: of assumptions, in tries.
    """

    def __init__(self, taken: Iterable[StepTaken] = (), *, prior_weight: float = PRIOR_WEIGHT) -> None:
        self._prior_weight = prior_weight
        self._exact: dict[tuple[Step, FailureKind | None, str], _Tally] = {}
        self._any_model: dict[tuple[Step, FailureKind | None], _Tally] = {}
        self._estimates: dict[tuple[Step, FailureKind | None, str, float], Estimate] = {}
        self.learn(taken)

    def learn(self, taken: Iterable[StepTaken]) -> None:
        """Take steps in."""
        self._estimates.clear()
        for one in taken:
            self._exact.setdefault((one.step, one.after, one.model), _Tally()).add(one)
            self._any_model.setdefault((one.step, one.after), _Tally()).add(one)

    def known(self) -> list[tuple[Step, FailureKind | None, str]]:
        """Return what was tried, after what, with which model."""
        return sorted(self._exact, key=lambda key: (key[0].value, key[1].value if key[1] else "", key[2]))

    def tries(self, step: Step, after: FailureKind | None) -> int:
        """Return how often a step was tried after a failure, with any model."""
        tally = self._any_model.get((step, after))
        return tally.tries if tally is not None else 0

    def estimate(self, step: Step, after: FailureKind | None, model: str, *, quantile: float = 0.9) -> Estimate:
        """Return what a step is expected to come to.

        Args:
            step: what is to be done.
            after: how it failed before.
            model: who decides in that step.
            quantile: share of tries that were over within the time that is returned.
        """
        key = (step, after, model, quantile)
        if key not in self._estimates:
            self._estimates[key] = self._estimate(*key)
        return self._estimates[key]

    def _estimate(self, step: Step, after: FailureKind | None, model: str, quantile: float) -> Estimate:
        exact = self._exact.get((step, after, model), _Tally())
        wide = self._any_model.get((step, after), _Tally())
        assumed = ASSUMED.get((step, after), 0.0)
        passes = self._smoothed(exact, self._smoothed(wide, assumed))
        measured = next((tally for tally in (exact, wide) if tally.tries), None)
        priced = next((tally.costs for tally in (exact, wide) if tally.costs), None)
        return Estimate(
            tries=exact.tries,
            passes=passes,
            fails=_fails(exact if exact.failed else wide, 1.0 - passes, after),
            time_s=None if measured is None else _quantile(measured.times_s, quantile),
            cost_usd=None if priced is None else math.fsum(priced) / len(priced),
        )

    def _smoothed(self, tally: _Tally, before: float) -> float:
        weight = tally.tries + self._prior_weight
        return (tally.passed + self._prior_weight * before) / weight if weight else before


def _fails(tally: _Tally, share: float, after: FailureKind | None) -> Mapping[FailureKind, float]:
    """Divide the share that fails as it was seen to; of what was never seen to fail, as it failed before."""
    seen = sum(tally.failed.values())
    if share <= 0:
        return {}
    if not seen:
        return {after or FailureKind.CHECK_FAILED: share}
    return {kind: share * tally.failed[kind] / seen for kind in FailureKind if kind in tally.failed}


def _quantile(times_s: Sequence[float], share: float) -> float:
    """Return the shortest of times within which such a share of them lies."""
    return sorted(times_s)[min(len(times_s), max(1, math.ceil(share * len(times_s) - 1e-9))) - 1]
