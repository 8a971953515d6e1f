"""The steps of an episode, read from its log: what was tried after which failure, and what it came to.

A step begins with the episode, with a repair (a word of the recovery to the model, `steering_by`), with another model
(`change_reason`), or with a call that came to nothing and is tried again. It ends where the next begins, having failed
in the way that made it necessary, or with the episode. One that nobody judged teaches nothing, nor does a step in which
somebody else steered or changed the model: the probabilities are those of what a policy does by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from dsec.episode.failure_kinds import FailureKind, failure_of_end
from dsec.episode.identity import ModelIdentity
from dsec.episode.ledger import model_name, model_use
from dsec.episode.log_events import (
    EpisodeBegan,
    EpisodeEnded,
    EpisodeSteered,
    LogEvent,
    ModelChanged,
    ModelFailed,
    RoundCommitted,
    StateSaved,
)
from dsec.episode.operations import TokenUsage
from dsec.episode.prices import Prices, whole_cost_usd
from dsec.episode.recovery_experience import Step, StepTaken

_BY = "recovery:"


def steering_by(kind: FailureKind) -> str:
    """Return who a repair's word to the model is from: the recovery, after a kind of failure."""
    return _BY + kind.value


def change_reason(kind: FailureKind, words: str) -> str:
    """Return the reason of a change of models, so that it can be read back."""
    return f"{kind.value}: {words}"


def repaired_after(by: str) -> FailureKind | None:
    """Return the failure that a steering was a repair of; None: it was none of the recovery's."""
    return _kind(by.removeprefix(_BY)) if by.startswith(_BY) else None


def escalated_after(reason: str) -> FailureKind | None:
    """Return the failure that a change of models was for; None: a person changed it."""
    return _kind(reason.partition(":")[0])


def _kind(value: str) -> FailureKind | None:
    try:
        return FailureKind(value)
    except ValueError:
        return None


@dataclass(slots=True)
class _Open:
    step: Step
    model: str
    after: FailureKind | None
    is_ours: bool = True
    is_fresh: bool = True
    times_s: list[float] = field(default_factory=list)
    costs_usd: list[float | None] = field(default_factory=list)

    def closed(self, failed: FailureKind | None) -> StepTaken | None:
        if not self.is_ours:
            return None
        known = [cost for cost in self.costs_usd if cost is not None]
        return StepTaken(
            step=self.step,
            model=self.model,
            after=self.after,
            failed=failed,
            time_s=math.fsum(self.times_s),
            cost_usd=math.fsum(known) if len(known) == len(self.costs_usd) else None,
        )


def steps_taken(
    events: Iterable[LogEvent], *, passed: bool | None, checked: bool = False, prices: Prices
) -> list[StepTaken]:
    """Return the steps of an episode that ended.

    Args:
        events: of its log.
        passed: what its grade says; None: it was not graded.
        checked: whether its submissions were checked, so that one that was accepted passed.
        prices: of its models; those of one without a name are every other's.
    """
    reader = _Reader(prices)
    for event in events:
        reader.add(event, passed=passed, checked=checked)
    return reader.steps


class _Reader:
    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._open: _Open | None = None
        self.steps: list[StepTaken] = []

    def add(self, event: LogEvent, *, passed: bool | None, checked: bool) -> None:
        match event:
            case EpisodeBegan():
                self._open = _Open(Step.FIRST, model_name(event.identity.model), None)
            case StateSaved() if self._open is None:
                # What came before is dropped: the step that is under way began there, and is not known as a whole.
                self._open = _Open(Step.FIRST, model_name(event.identity.model), None, is_ours=False)
            case RoundCommitted():
                record = event.record
                self._paid(record.decision.model, record.decision.usage, record.decide_s + record.tools_s)
            case ModelFailed():
                self._paid(event.model, event.usage, event.duration_s)
                self._next(FailureKind.MODEL_FAILED, Step.REPAIR, model_name(event.model))
            case EpisodeSteered() if (kind := repaired_after(event.by)) is not None:
                self._next(kind, Step.REPAIR, self._open.model if self._open is not None else "")
            case EpisodeSteered() if self._open is not None:
                self._open.is_ours = False
            case ModelChanged():
                self._change(event)
            case EpisodeEnded():
                self._end(event, passed=passed, checked=checked)
            case _:
                pass

    def _paid(self, model: ModelIdentity, usage: TokenUsage, time_s: float) -> None:
        if self._open is None:
            return
        self._open.is_fresh = False
        self._open.model = self._open.model or model_name(model)
        self._open.times_s.append(max(0.0, time_s))
        if usage.calls or usage.input_tokens or usage.output_tokens:
            use, known = model_use(model, usage), self._prices.models
            self._open.costs_usd.append(whole_cost_usd(use, known.get(use.model, known.get(""))))

    def _next(self, failed: FailureKind, step: Step, model: str, *, is_ours: bool = True) -> None:
        self._close(failed)
        self._open = _Open(step, model, failed, is_ours=is_ours)

    def _change(self, event: ModelChanged) -> None:
        kind = escalated_after(event.reason)
        if kind is None:
            self._open = _Open(Step.ESCALATE, model_name(event.model), None, is_ours=False)
        elif self._open is not None and self._open.is_fresh and self._open.step is Step.REPAIR:
            # A call that came to nothing was not tried again: another model goes on.
            self._open = _Open(Step.ESCALATE, model_name(event.model), kind, is_ours=self._open.is_ours)
        else:
            self._next(kind, Step.ESCALATE, model_name(event.model))

    def _end(self, event: EpisodeEnded, *, passed: bool | None, checked: bool) -> None:
        if passed is None and checked and not event.error_code and event.reason == "submitted":
            passed = True
        failed = failure_of_end(event.error_code, passed=passed)
        if passed or failed is not None:
            self._close(failed)
        else:
            # Its failures alone would teach that nothing ever helps.
            self.steps.clear()
        self._open = None

    def _close(self, failed: FailureKind | None) -> None:
        if self._open is not None and (taken := self._open.closed(failed)) is not None:
            self.steps.append(taken)
