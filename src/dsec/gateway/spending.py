"""What was used and spent, by call, episode, project or whatever an attempt belongs to: sums over the ledger.

Every attempt counts once, whatever became of it. Of what was spent, `estimated_usd` rests on estimates, and
`lost_usd` went into attempts that gave the caller no whole answer.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from dsec.gateway.ledger_record import Attempt, Outcome


class By(enum.Enum):
    """What sums are made for."""

    ATTEMPT = "attempt"
    CALL = "call"
    EPISODE = "episode"
    TASK = "task"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    BACKEND = "backend"


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What attempts used and cost.

    Attributes:
        name: whose they are; empty: of none.
        calls, attempts: how many.
        answered, refused, failed, cancelled, cut, unknown: attempts by their end.
        plain_input, cache_write, cache_read, thinking, visible: tokens.
        input_usd, cache_write_usd, cache_read_usd, thinking_usd, visible_usd, reserved_usd: money, by what is paid for.
        usd: all of it.
        estimated_usd: of attempts whose usage was estimated.
        lost_usd: of attempts that brought no whole answer.
        unpriced: attempts that used tokens which have no price, and so cost more than is said here.
    """

    name: str
    calls: int
    attempts: int
    answered: int
    refused: int
    failed: int
    cancelled: int
    cut: int
    unknown: int
    plain_input: int
    cache_write: int
    cache_read: int
    thinking: int
    visible: int
    input_usd: float
    cache_write_usd: float
    cache_read_usd: float
    thinking_usd: float
    visible_usd: float
    reserved_usd: float
    usd: float
    estimated_usd: float
    lost_usd: float
    unpriced: int


_OUTCOMES = tuple(outcome.value for outcome in Outcome)
_TOKENS = ("plain_input", "cache_write", "cache_read", "thinking", "visible")
_COSTS = ("input", "cache_write", "cache_read", "thinking", "visible", "reserved")


@dataclass(slots=True)
class _Sums:
    calls: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*_OUTCOMES, *_TOKENS, "unpriced"), 0))
    money: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            (*(f"{name}_usd" for name in _COSTS), "usd", "estimated_usd", "lost_usd"), 0.0
        )
    )

    def add(self, attempt: Attempt) -> None:
        ended, cost = attempt.ended, attempt.ended.cost
        self.calls.add(attempt.began.call)
        self.counts[ended.outcome.value] += 1
        self.counts["unpriced"] += bool(cost.missing)
        for name in _TOKENS:
            self.counts[name] += getattr(ended.usage, name).tokens
        for name in _COSTS:
            self.money[f"{name}_usd"] += getattr(cost, name)
        self.money["usd"] += cost.total
        if cost.estimated:
            self.money["estimated_usd"] += cost.total
        if ended.outcome is not Outcome.ANSWERED:
            self.money["lost_usd"] += cost.total

    def spent(self, name: str) -> Spent:
        attempts = sum(self.counts[outcome] for outcome in _OUTCOMES)
        plain = {"name": name, "calls": len(self.calls), "attempts": attempts, **self.counts, **self.money}
        return msgspec.convert(plain, Spent)


def spending(attempts: Iterable[Attempt], by: By) -> list[Spent]:
    """Return what attempts used and cost, the dearest first."""
    sums: dict[str, _Sums] = {}
    for attempt in attempts:
        name = str(getattr(attempt.began, by.value))
        sums.setdefault(name, _Sums()).add(attempt)
    return sorted((one.spent(name) for name, one in sums.items()), key=lambda spent: (-spent.usd, spent.name))


def total_spending(attempts: Iterable[Attempt]) -> Spent:
    """Return what all attempts together used and cost."""
    sums = _Sums()
    for attempt in attempts:
        sums.add(attempt)
    return sums.spent("total")
