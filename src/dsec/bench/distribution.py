"""Distributions of measured values. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value


class Distribution(Value, frozen=True):
    """What is reported of a sample.

    Attributes:
        p50, p95, p99: percentiles, in the benchmark's unit.
        n: number of values.
    """

    p50: float
    p95: float
    p99: float
    n: int


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the sorted values lie: the nearest rank, a value that was seen.

    Raises:
        InvalidRequestError: there are no values.
    """
    if not ordered:
        raise InvalidRequestError("there is nothing to summarise", resolution="measure at least once")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def distribution(values: Sequence[float], *, scale: float = 1.0) -> Distribution:
    """Summarise values, each multiplied by `scale` (1e3 for seconds to milliseconds)."""
    ordered = sorted(value * scale for value in values)
    p50, p95, p99 = (_rounded(percentile(ordered, share)) for share in (0.50, 0.95, 0.99))
    return Distribution(p50=p50, p95=p95, p99=p99, n=len(ordered))


def ratio(ours: float, reference: float) -> float:
    """Return how many references ours is."""
    return _rounded(ours / reference)


def _rounded(value: float) -> float:
    """Keep four significant digits: more would be noise."""
    return float(f"{value:.4g}")
