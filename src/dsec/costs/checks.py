"""What every formula asks of its inputs, and the one way in which a bad one is named.

A formula that is fed a negative rate returns a plausible number with the wrong sign, so each checks its inputs first.
An error names the quantity, the value seen and the unit in which it was expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dsec.base.errors import InvalidRequestError

_SUM_TOLERANCE = 1e-9
"""Probabilities that people write sum to one within rounding, never by more."""


def _refuse(name: str, value: float, unit: str, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} is {value:g}, which is not {wanted}",
        detail=f"expected: {wanted}, in {unit}" if unit else f"expected: {wanted}",
        resolution=f"give {name} as {wanted}" + (f" in {unit}" if unit else ""),
    )


def check_positive(name: str, value: float, unit: str = "") -> float:
    """Return `value` if it is a finite number above zero.

    Args:
        name: what the value is called where the caller wrote it.
        value: the number to look at.
        unit: the unit in which it was expected; empty for a plain number.

    Raises:
        InvalidRequestError: it is zero, negative, infinite or not a number.
    """
    if not (math.isfinite(value) and value > 0):
        raise _refuse(name, value, unit, "a finite number above 0")
    return value


def check_not_negative(name: str, value: float, unit: str = "") -> float:
    """Return `value` if it is a finite number of at least zero; otherwise raise as `check_positive` does."""
    if not (math.isfinite(value) and value >= 0):
        raise _refuse(name, value, unit, "a finite number of at least 0")
    return value


def check_count(name: str, value: int, *, minimum: int = 1) -> int:
    """Return `value` if it is a whole number of at least `minimum`; otherwise raise as `check_positive` does."""
    if not math.isfinite(value) or value != int(value) or value < minimum:
        raise _refuse(name, value, "", f"a whole number of at least {minimum}")
    return value


def check_probability(name: str, value: float) -> float:
    """Return `value` if it lies in 0..1; otherwise raise as `check_positive` does."""
    if not 0 <= value <= 1:
        raise _refuse(name, value, "", "a probability between 0 and 1")
    return value


def check_distribution(name: str, values: Iterable[float]) -> None:
    """Check that `values` are probabilities that sum to one.

    Raises:
        InvalidRequestError: one lies outside 0..1, or the sum is not 1 within rounding.
    """
    listed = [check_probability(name, value) for value in values]
    total = math.fsum(listed)
    if abs(total - 1) > _SUM_TOLERANCE:
        raise InvalidRequestError(
            f"{name} sum to {total:.10g}, not to 1",
            detail=f"seen: {', '.join(f'{value:g}' for value in listed)}",
            resolution="make the probabilities of all branches of one node sum to 1",
        )


def check_not_empty(name: str, values: Sequence[object]) -> None:
    """Check that there is at least one value.

    Raises:
        InvalidRequestError: there is none.
    """
    if not values:
        raise InvalidRequestError(f"there are no {name}", resolution=f"give at least one of {name}")
