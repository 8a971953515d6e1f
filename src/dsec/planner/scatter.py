"""Times that vary: a task's time as a handful of equally probable values.

The sum of a task's varying times is taken as Gamma distributed with their mean and variance: exact for exponential
times of one kind, close for sums of several (the central limit theorem works for it, and it is never negative). It is
cut into parts of equal probability, each standing for its middle.
"""

from __future__ import annotations

LEAST_VARIATION, MOST_VARIATION = 1e-6, 100.0
"""Beyond, a Gamma distribution can no longer be told from a constant, or is zero nearly always."""
_PARTS = 100
"""Each is 1 %: shares in time are then off by half of that at most."""


def gamma_atoms(mean: float, variance: float, fixed: float) -> tuple[tuple[float, float], ...]:
    """Return probabilities and values that stand for a fixed part and a Gamma distributed one; the mean is exact."""
    import numpy
    from scipy.special import gammaincinv

    shape = mean**2 / variance
    values = gammaincinv(shape, (numpy.arange(_PARTS) + 0.5) / _PARTS)
    values = fixed + values * (mean / float(values.mean()))
    return tuple((1 / _PARTS, value) for value in values.tolist())


def larger(mean: float, variation: float, other: float) -> tuple[float, float]:
    """Return mean and variance of the larger of a Gamma distributed value and a fixed one.

    Args:
        mean: of the varying value.
        variation: its squared coefficient of variation.
        other: the fixed one.
    """
    from scipy.special import gammainc

    if mean == 0:
        return other, 0.0
    shape = 1 / variation
    scaled = other * shape / mean
    first = other * gammainc(shape, scaled) + mean * (1 - gammainc(shape + 1, scaled))
    square = other**2 * gammainc(shape, scaled) + mean**2 * (1 + variation) * (1 - gammainc(shape + 2, scaled))
    return float(first), float(square - first**2)
