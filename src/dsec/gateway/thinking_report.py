"""What budgets of thinking saved, and what the calls cost that were made again because of them.

A limited call is compared with the calls of the same model that were not limited; where there are none, nothing can be
said of savings. A call that repeats one which was cut, in the same episode and with the same prompt, is charged to the
budget. Formula: `dsec.costs.thinking_budget`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from dsec.costs.thinking_budget import ThinkingBudget, thinking_budget
from dsec.gateway.ledger_record import Attempt, Cut


class ThinkingEffect(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of budgets on one model's calls.

    Attributes:
        model: its name.
        limited_calls, free_calls: attempts with a budget and without.
        cut_calls: attempts that were cut for it.
        repeated_calls: calls made again because of a cut.
        limited_thinking_tokens, free_thinking_tokens: mean thinking of either.
        saved_usd_per_call: what a limited call costs less; None: there is nothing to compare with.
        repeat_usd: mean cost of a call made again.
        balance: of both; None: nothing can be said, or the budgets saved nothing.
    """

    model: str
    limited_calls: int
    free_calls: int
    cut_calls: int
    repeated_calls: int
    limited_thinking_tokens: float
    free_thinking_tokens: float
    saved_usd_per_call: float | None
    repeat_usd: float
    balance: ThinkingBudget | None


@dataclass(slots=True)
class _Kind:
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0

    def add(self, attempt: Attempt) -> None:
        self.calls += 1
        self.tokens += attempt.ended.usage.thinking.tokens
        self.usd += attempt.ended.cost.thinking

    @property
    def mean_tokens(self) -> float:
        return self.tokens / self.calls if self.calls else 0.0

    @property
    def mean_usd(self) -> float:
        return self.usd / self.calls if self.calls else 0.0


@dataclass(slots=True)
class _Sums:
    limited: _Kind = field(default_factory=_Kind)
    free: _Kind = field(default_factory=_Kind)
    cut: int = 0
    repeats: set[str] = field(default_factory=set)
    repeats_usd: float = 0.0

    def add(self, attempt: Attempt) -> None:
        began, ended = attempt.began, attempt.ended
        if began.repeats:
            self.repeats.add(began.call)
            self.repeats_usd += ended.cost.total
        if ended.first_byte_s is None:
            return
        (self.free if began.thinking_allowed is None else self.limited).add(attempt)
        self.cut += ended.cut is Cut.THINKING

    def effect(self, model: str) -> ThinkingEffect:
        comparable = self.limited.calls and self.free.calls
        saved = self.free.mean_usd - self.limited.mean_usd if comparable else None
        repeat = self.repeats_usd / len(self.repeats) if self.repeats else 0.0
        balance = None
        if saved is not None and saved >= 0:
            balance = thinking_budget(
                calls=self.limited.calls, saved_usd_per_call=saved, retries=len(self.repeats), retry_usd=repeat
            )
        return ThinkingEffect(
            model=model,
            limited_calls=self.limited.calls,
            free_calls=self.free.calls,
            cut_calls=self.cut,
            repeated_calls=len(self.repeats),
            limited_thinking_tokens=self.limited.mean_tokens,
            free_thinking_tokens=self.free.mean_tokens,
            saved_usd_per_call=saved,
            repeat_usd=repeat,
            balance=balance,
        )


def thinking_effects(attempts: Iterable[Attempt]) -> list[ThinkingEffect]:
    """Return the effect of budgets on each model's calls, by name."""
    sums: dict[str, _Sums] = {}
    for attempt in attempts:
        sums.setdefault(attempt.began.model, _Sums()).add(attempt)
    return [sums[model].effect(model) for model in sorted(sums)]
