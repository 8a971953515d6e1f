"""What a run measures: levels over time, samples with percentiles, and series for pictures."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy

from dsec.model.value import Value

MAXIMUM_POINTS = 720
"""Points that a series keeps: more than a picture can show."""


class Figure(Value, frozen=True):
    """A distribution, summed up. Percentiles are values that were seen (nearest rank).

    Attributes:
        count: how many values; 0: all others are 0.
    """

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    maximum: float = 0.0


class Series(Value, frozen=True):
    """A value over time: at `times_s[i]` it was `values[i]`."""

    unit: str
    times_s: list[float]
    values: list[float]


class Samples:
    """Values, kept in a packed array: eight bytes each."""

    __slots__ = ("add", "values")

    def __init__(self) -> None:
        self.values = array("d")
        self.add = self.values.append

    def figure(self) -> Figure:
        """Sum up."""
        return figure(self.values)


def figure(values: Sequence[float] | array[float]) -> Figure:
    """Sum up values."""
    count = len(values)
    if not count:
        return Figure()
    ordered = numpy.sort(numpy.asarray(values, dtype=float))
    p50, p95, p99 = (float(ordered[min(count - 1, max(0, int(numpy.ceil(q * count)) - 1))]) for q in (0.5, 0.95, 0.99))
    return Figure(count=count, mean=float(ordered.mean()), p50=p50, p95=p95, p99=p99, maximum=float(ordered[-1]))


class Level:
    """A quantity that goes up and down; its mean is over time."""

    __slots__ = ("_area", "_changed_s", "_started_s", "maximum", "value")

    def __init__(self, value: float = 0.0, start_s: float = 0.0) -> None:
        self.value = value
        self.maximum = value
        self._area = 0.0
        self._changed_s = start_s
        self._started_s = start_s

    def add(self, now_s: float, amount: float) -> None:
        """Change by `amount` at `now_s`."""
        self._area += self.value * (now_s - self._changed_s)
        self._changed_s = now_s
        self.value += amount
        if self.value > self.maximum:
            self.maximum = self.value

    def restart(self, now_s: float) -> None:
        """Forget what was before `now_s`: the warm-up is over."""
        self._area, self._changed_s, self._started_s, self.maximum = 0.0, now_s, now_s, self.value

    def mean(self, now_s: float) -> float:
        """Return the mean over time up to `now_s`."""
        span_s = now_s - self._started_s
        return (self._area + self.value * (now_s - self._changed_s)) / span_s if span_s > 0 else self.value

    def integral(self, now_s: float) -> float:
        """Return the area under the level up to `now_s`."""
        return self._area + self.value * (now_s - self._changed_s)


def thinned(unit: str, times_s: Sequence[float], values: Sequence[float]) -> Series:
    """Return a series of at most `MAXIMUM_POINTS` points, each the largest of its stretch, so that no peak is lost."""
    step = -(-len(times_s) // MAXIMUM_POINTS) or 1
    picked = [max(range(at, min(at + step, len(values))), key=values.__getitem__) for at in range(0, len(values), step)]
    return Series(
        unit=unit, times_s=[round(times_s[at], 6) for at in picked], values=[round(values[at], 6) for at in picked]
    )
