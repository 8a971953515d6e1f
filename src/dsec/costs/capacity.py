"""What fits into a capacity, what share of it a demand takes, and how much is missing.

    share of a capacity   demand / capacity             above 1: the queue of this resource grows without bound
    places                floor(capacity / size)        things are indivisible: half an environment runs nothing
    units to add          ceil(demand / capacity of one unit) - units there are, at least 0

A manufacturer's "384 GB" are 384 · 10⁹ bytes, which is 357.6 GiB, while environments are sized in GiB. The exact
figure goes into `places`: rounded up to 358 GiB the host would seem to hold one environment more than it does.

Source: the chapter, example 11-1 and figures 11-3 and 11-4.
"""

from __future__ import annotations

import math

from dsec.costs.checks import check_not_negative, check_positive

_ROUNDING = 1e-9
"""Relative slack with which a quotient counts as the whole number that it was meant to be: 0.3 / 0.1 is 3."""


def capacity_share(*, demand: float, capacity: float) -> float:
    """Return the share of a capacity that a demand in the same unit takes; above 1 it does not fit.

    Raises:
        InvalidRequestError: the demand is negative, or the capacity not above zero.

    Formula:
        share = demand / capacity

    Source:
        the chapter, example 11-1
    """
    return check_not_negative("demand", demand) / check_positive("capacity", capacity)


def places(*, capacity_gib: float, size_gib: float) -> int:
    """Return how many environments of one size fit into a memory.

    Raises:
        InvalidRequestError: the capacity is negative, or the size not above zero.

    Formula:
        places = floor(capacity / size)

    Source:
        the chapter, example 11-1
    """
    check_not_negative("capacity_gib", capacity_gib, "GiB")
    return math.floor(capacity_gib / check_positive("size_gib", size_gib, "GiB") * (1 + _ROUNDING))


def units_for(*, demand: float, unit_capacity: float) -> int:
    """Return the least number of units (hosts, replicas) that together hold a demand in the same unit.

    Raises:
        InvalidRequestError: the demand is negative, or the capacity not above zero.

    Formula:
        units = ceil(demand / capacity of one)

    Source:
        the chapter, section 11.4.3
    """
    check_not_negative("demand", demand)
    return math.ceil(demand / check_positive("unit_capacity", unit_capacity) * (1 - _ROUNDING))


def units_to_add(*, demand: float, units: int, unit_capacity: float) -> int:
    """Return how many units have to come to those there are; 0 where they suffice.

    Raises:
        InvalidRequestError: an input is negative, or the capacity not above zero.

    Formula:
        to add = max(ceil(demand / capacity of one) - units, 0)

    Source:
        the chapter, example 11-9
    """
    check_not_negative("units", units)
    return max(units_for(demand=demand, unit_capacity=unit_capacity) - units, 0)
