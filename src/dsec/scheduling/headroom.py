"""How much to keep free for work that may not wait for a preemption.

Lent capacity comes back only when its borrower has been saved. If saving takes longer than the urgent work may wait,
that capacity cannot serve it, however willingly it is given back: a checkpoint of 30 s cannot serve a deadline of 2 s.
What arrives while the first preemption runs must therefore find free capacity. Arrivals are taken as Poisson, so that

    headroom = amount of one x q,    q = the least n with P(N <= n) >= confidence,  N ~ Poisson(rate x save time)

and nothing is needed when the save time is within the deadline, because then every lent unit is called back in time.

Source: the chapter, section 11.3.2; Little's law for the mean of N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.scheduling.amounts import Amounts

_NORMAL_FROM = 700.0
"""Above this mean, exp(-mean) is too close to the smallest float; the normal approximation is then exact to 0.1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentWork:
    """The stream of work that may preempt.

    Attributes:
        deadline_s: how long one may wait for its resources.
        rate_per_s: mean arrivals.
        amounts: what each needs.
        burst: how many can arrive at once, which must always find room.
    """

    deadline_s: float
    rate_per_s: float
    amounts: Amounts
    burst: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What to keep free.

    Attributes:
        amounts: never lent.
        units: for how many urgent arrivals that is.
        reason: in words, with the numbers.
    """

    amounts: Amounts
    units: int
    reason: str


def headroom(work: UrgentWork, *, save_s: float, confidence: float = 0.99) -> Headroom:
    """Size the reserve.

    Args:
        work: the urgent stream.
        save_s: seconds until a lent unit is given back: its checkpoint and its end.
        confidence: share of arrivals that must find room at once, in (0, 1).

    Raises:
        InvalidRequestError: a rate or time is negative, or the confidence is not inside (0, 1).
    """
    if min(work.deadline_s, work.rate_per_s, save_s, work.burst) < 0 or not 0 < confidence < 1:
        raise InvalidRequestError(
            "headroom needs times and rates that are not negative and a confidence between 0 and 1",
            detail=f"deadline {work.deadline_s} s, rate {work.rate_per_s} /s, save {save_s} s, confidence {confidence}",
        )
    if save_s <= work.deadline_s:
        return Headroom(
            amounts={},
            units=0,
            reason=f"lent capacity is back in {save_s:g} s, within {work.deadline_s:g} s: lend it all",
        )
    units = max(poisson_quantile(work.rate_per_s * save_s, confidence), work.burst)
    return Headroom(
        amounts={name: amount * units for name, amount in work.amounts.items()},
        units=units,
        reason=(
            f"lent capacity is back only in {save_s:g} s but may take {work.deadline_s:g} s: "
            f"{units} arrivals of that time must find room"
        ),
    )


def poisson_quantile(mean: float, confidence: float) -> int:
    """Return the least n for which a Poisson variable of this mean is at most n with this probability."""
    if mean <= 0:
        return 0
    if mean > _NORMAL_FROM:
        return math.ceil(mean + _normal_quantile(confidence) * math.sqrt(mean))
    term = cumulated = math.exp(-mean)
    n = 0
    while cumulated < confidence and term > 0:
        n += 1
        term *= mean / n
        cumulated += term
    return n


def _normal_quantile(confidence: float) -> float:
    low, high = -9.0, 9.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * math.erfc(-middle / math.sqrt(2)) < confidence else (low, middle)
    return high
