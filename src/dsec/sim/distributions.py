"""Distributions of durations and sizes, and streams of values drawn from them.

Every stream has a name. Its generator is seeded from the run's seed and that name, so that another draw in one place
of a scenario
changes nothing anywhere else: two cases of a scenario see the same arrivals and the same lifetimes (common random
numbers), and what
differs is the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Literal
from zlib import crc32

import numpy

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value

Draw = Callable[[], float]
Kind = Literal["constant", "exponential", "uniform", "lognormal", "pareto"]
_BLOCK = 4096
_Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


class Distribution(Value, frozen=True):
    """Non-negative values. Which fields count depends on the kind; all are in the same unit.

    Attributes:
        kind: constant (`mean`), exponential (`mean`), uniform (`low`, `high`), lognormal (`median`, `p99`), pareto
            (`low`, `shape`).
        mean: of constant and exponential.
        low: smallest value of uniform and pareto.
        high: largest value of uniform; a cut for the others (0: none).
        median: of lognormal.
        p99: of lognormal.
        shape: tail index of pareto, above 1.
    """

    kind: Kind
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    median: float = 0.0
    p99: float = 0.0
    shape: float = 2.0

    def __post_init__(self) -> None:
        problem = _PROBLEMS[self.kind](self)
        if problem:
            raise ValueError(f"{self.kind} {problem}")  # msgspec turns it into an error with the path of the value.

    def expected(self) -> float:
        """Return the mean (without regard to the cut at `high`)."""
        if self.kind in ("constant", "exponential"):
            return self.mean
        if self.kind == "uniform":
            return (self.low + self.high) / 2
        if self.kind == "pareto":
            return self.low * self.shape / (self.shape - 1)
        return self.median * math.exp(self.sigma() ** 2 / 2)

    def sigma(self) -> float:
        """Return the standard deviation of the logarithm of a lognormal."""
        return math.log(self.p99 / self.median) / _Z99

    def sample(self, generator: numpy.random.Generator, count: int) -> numpy.ndarray:
        """Draw `count` values."""
        values = _SAMPLES[self.kind](self, generator, count)
        return numpy.minimum(values, self.high) if self.high and self.kind != "uniform" else values


_PROBLEMS: dict[str, Callable[[Distribution], str]] = {
    "constant": lambda d: "" if d.mean >= 0 else "needs a `mean` of at least 0",
    "exponential": lambda d: "" if d.mean > 0 else "needs a positive `mean`",
    "uniform": lambda d: "" if 0 <= d.low <= d.high and d.high > 0 else "needs 0 <= `low` <= `high`",
    "lognormal": lambda d: "" if 0 < d.median < d.p99 else "needs 0 < `median` < `p99`",
    "pareto": lambda d: "" if d.low > 0 and d.shape > 1 else "needs a positive `low` and a `shape` above 1",
}
_SAMPLES: dict[str, Callable[[Distribution, numpy.random.Generator, int], numpy.ndarray]] = {
    "constant": lambda d, g, n: numpy.full(n, d.mean),
    "exponential": lambda d, g, n: g.exponential(d.mean, n),
    "uniform": lambda d, g, n: g.uniform(d.low, d.high, n),
    "lognormal": lambda d, g, n: g.lognormal(math.log(d.median), d.sigma(), n),
    "pareto": lambda d, g, n: d.low * (1.0 + g.pareto(d.shape, n)),
}


def constant(value: float) -> Distribution:
    """Return the distribution that always gives `value`."""
    return Distribution(kind="constant", mean=value)


def exponential(mean: float) -> Distribution:
    """Return the exponential distribution."""
    return Distribution(kind="exponential", mean=mean)


class Streams:
    """Named streams of random numbers under one seed."""

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise InvalidRequestError(f"seed {seed} is negative", resolution="give 0 or a positive whole number")
        self._seed = seed

    def integer(self, name: str) -> int:
        """Return a seed for a generator of another kind."""
        return int(self.generator(name).integers(1 << 62))

    def generator(self, name: str) -> numpy.random.Generator:
        """Return a new generator; the same name gives the same numbers."""
        return numpy.random.Generator(numpy.random.PCG64([self._seed, crc32(name.encode())]))

    def draws(self, name: str, distribution: Distribution) -> Draw:
        """Return a function that gives the next value of a stream.

        Values are drawn in blocks and handed out by iterators that run in C: about 40 ns each.
        """
        generator = self.generator(name)
        if distribution.kind == "constant":
            value = distribution.mean
            return lambda: value

        def blocks() -> Iterator[list[float]]:
            while True:
                yield distribution.sample(generator, _BLOCK).tolist()

        return chain.from_iterable(blocks()).__next__
