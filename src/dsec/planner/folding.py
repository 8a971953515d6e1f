"""The most that is in use at one moment, when tasks come in equal distances.

Theory. If a task that arrives at 0 holds an amount w over [a, b), and tasks arrive every p seconds in groups of n, then
at the phase t of the period there hold it as many groups as there are k with a <= t + k p < b. The timeline of one task
is *folded* into one period: a span of length L counts floor(L / p) times throughout, and once more over what is left of
it, wrapped around. The highest point of the sum, times n, is the peak of the steady state. Exact for evenly spaced
arrivals without queues; for several classes the sum of their peaks is an upper bound.

For independent (Poisson) arrivals the amount in use has mean λ ∫ w dt and variance λ ∫ w² dt, whatever the lengths are
(M/G/∞); its 99.9 % point is taken from the normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_SLIVER = 1e-9
"""Of a period: floating-point rests below it are rounding."""
QUANTILE = 3.0902
"""Standard deviations up to which 99.9 % of a normal distribution lie."""


@dataclass(frozen=True, slots=True)
class Hold:
    """An amount that a task holds from one moment to another, in seconds since its arrival."""

    start_s: float
    end_s: float
    amount: float


def folded_peak(holds: Iterable[Hold], *, period_s: float, group: float = 1.0) -> float:
    """Return the most that is held at one moment when `group` tasks arrive every `period_s` seconds."""
    always = 0.0
    edges: list[tuple[float, float]] = []
    for hold in holds:
        periods = (hold.end_s - hold.start_s) / period_s
        whole = math.floor(periods + _SLIVER)
        rest = periods - whole
        always += whole * hold.amount
        if rest > _SLIVER:
            first = _phase(hold.start_s / period_s)
            last = _phase(hold.end_s / period_s)  # From the end itself: a sum would not meet another's start exactly.
            edges += [(first, hold.amount), (last, -hold.amount)]
            if last < first:
                always += hold.amount
    return group * (always + _highest(edges))


def _phase(periods: float) -> float:
    phase = periods - math.floor(periods + _SLIVER)
    return round(max(phase, 0.0), 9)


def _highest(edges: list[tuple[float, float]]) -> float:
    """Return the highest sum over a period that starts at 0; what ends goes before what begins."""
    edges.sort()
    level = highest = 0.0
    at = None
    for phase, change in edges:
        if phase != at:
            highest, at = max(highest, level), phase
        level += change
    return max(highest, level)


def poisson_peak(holds: Iterable[Hold], *, rate_per_s: float) -> tuple[float, float]:
    """Return mean and variance of what is held when tasks arrive independently."""
    listed = list(holds)
    mean = rate_per_s * sum((hold.end_s - hold.start_s) * hold.amount for hold in listed)
    variance = rate_per_s * sum((hold.end_s - hold.start_s) * hold.amount**2 for hold in listed)
    return mean, variance
