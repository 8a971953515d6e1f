"""When added instances pay: throughput has to grow by more than the price.

A fleet costs P an hour, n added instances q each, and the throughput grows by the factor s:

    cost of a unit of work, new / old  =  ((P + n q) / P) / s,      break-even at s = (P + n q) / P.

Assumes that all instances are paid for the whole time and the work is the same. Source: the chapter, section 11.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedInstances:
    """Price against throughput of a grown fleet.

    Attributes:
        total_price_usd_per_h: price of the grown fleet.
        price_ratio: grown over base; also the throughput ratio from which a unit of work gets cheaper.
        unit_cost_ratio: cost of a unit of work, grown over base.
        time_ratio: time for the same work, grown over base.
        is_cheaper: whether a unit of work costs less than before.
    """

    total_price_usd_per_h: float
    price_ratio: float
    unit_cost_ratio: float
    time_ratio: float
    is_cheaper: bool


def added_instances(
    *, base_price_usd_per_h: float, added_count: int, added_price_usd_per_h: float, throughput_ratio: float
) -> AddedInstances:
    """Return what `added_count` instances at `added_price_usd_per_h` each do to the cost of a unit of work.

    Args:
        base_price_usd_per_h: price of the fleet before.
        added_count: how many instances are added.
        added_price_usd_per_h: price of each.
        throughput_ratio: throughput of the grown fleet over that of the base.

    Raises:
        InvalidRequestError: the base price or the ratio is not above 0, or another input is negative.

    Formula:
        price ratio = (P + n · q) / P,   unit cost ratio = price ratio / s

    Source:
        the chapter, section 11.3.3
    """
    check_positive("base_price_usd_per_h", base_price_usd_per_h, "USD/h")
    check_count("added_count", added_count, minimum=0)
    check_not_negative("added_price_usd_per_h", added_price_usd_per_h, "USD/h")
    check_positive("throughput_ratio", throughput_ratio)
    total = base_price_usd_per_h + added_count * added_price_usd_per_h
    ratio = total / base_price_usd_per_h
    return AddedInstances(
        total_price_usd_per_h=total,
        price_ratio=ratio,
        unit_cost_ratio=ratio / throughput_ratio,
        time_ratio=1 / throughput_ratio,
        is_cheaper=ratio < throughput_ratio,
    )
