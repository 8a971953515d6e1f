"""Amounts of named resources, and arithmetic on them.

Amounts are whole numbers (``cpu_millis``, ``memory_bytes``, ``gpu:h100``), so that taking and giving back a million
times ends where it began. A name that is absent counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsec.base.errors import InvalidRequestError

Amounts = Mapping[str, int]


def require_amounts(amounts: Amounts, what: str) -> None:
    """Refuse amounts that are negative or not whole.

    Raises:
        InvalidRequestError: names the resource and its value.
    """
    for name, amount in amounts.items():
        if not isinstance(amount, int) or isinstance(amount, bool) or amount < 0:
            raise InvalidRequestError(
                f"{what}: {name} is {amount!r}", resolution="give a whole number that is not negative"
            )


def fits(demand: Amounts, free: Amounts) -> bool:
    """Tell whether all that is demanded is free."""
    return all(amount <= free.get(name, 0) for name, amount in demand.items())


def shortfall(demand: Amounts, free: Amounts) -> dict[str, int]:
    """Return what is missing, by resource; empty when it fits."""
    return {name: amount - free.get(name, 0) for name, amount in demand.items() if amount > free.get(name, 0)}


def plus(left: Amounts, right: Amounts) -> dict[str, int]:
    """Add two amounts."""
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


def minus(left: Amounts, right: Amounts) -> dict[str, int]:
    """Take `right` away from `left`; the result may be negative where more is used than there is."""
    return {name: left.get(name, 0) - right.get(name, 0) for name in {**left, **right}}


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """Add any number of amounts."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def bounded(amounts: Mapping[str, Amounts], at_most: Mapping[str, Amounts]) -> Mapping[str, Amounts]:
    """Bound the amounts of those nodes that have a bound; the others stay as they are."""
    if not at_most:
        return amounts
    result = dict(amounts)
    for node, bound in at_most.items():
        result[node] = {name: min(amount, bound.get(name, 0)) for name, amount in result.get(node, {}).items()}
    return result


def dominant_share(amounts: Mapping[str, float], capacity: Amounts) -> float:
    """Return the largest of the shares of the whole; what the whole does not have counts as nothing."""
    return max((amount / capacity[name] for name, amount in amounts.items() if capacity.get(name)), default=0.0)


def describe(amounts: Amounts) -> str:
    """Write amounts for a reason that a person reads."""
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()) if amount) or "nothing"
