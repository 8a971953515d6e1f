"""Reserved capacity, pay by use, or a subscription: at which amount of work they cost the same.

A fixed price F with v for each further task, against c for each task by use, with successes s_f and s_u:

    (F + N v) / (N s_f) = N c / (N s_u)     =>     N = F / (c s_f / s_u - v)     if c s_f / s_u > v,

otherwise the pay-by-use price is lower at every amount. A subscription is a fixed price with v = 0 and a quota. The
capacity M of what is reserved ends its line: a break-even above M is never reached with one unit, and k units cost k
F.

For the same accelerators under both ways of payment, the utilisation at the break-even is the ratio of the two
prices, whatever the work. Assumes that both ways meet quality and deadline. Source: the chapter, section 11.4.4,
figure 11-42, exercise 11-8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_not_negative, check_positive, check_probability

_S_PER_H = 3600.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """A fixed price against a price by use.

    Attributes:
        break_even_tasks: amount from which the fixed price is the lower; infinite when it never is.
        is_reachable: whether one unit of the fixed capacity can do that amount.
        break_even_utilisation: that amount over the capacity; infinite when it never comes, 0 for no capacity limit.
        use_success_usd: cost of a success by use, at any amount.
        best_fixed_success_usd: cost of a success at full capacity: the lowest that the fixed price reaches; its running
            cost alone where there is no capacity limit.
        fixed_wins_at_capacity: whether the fixed price is the lower at full capacity.
        break_even_success: success of the fixed way from which it would win at full capacity, other things equal.
    """

    break_even_tasks: float
    is_reachable: bool
    break_even_utilisation: float
    use_success_usd: float
    best_fixed_success_usd: float
    fixed_wins_at_capacity: bool
    break_even_success: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseAt:
    """Both ways at one amount of work.

    Attributes:
        fixed_usd: total with the fixed price.
        use_usd: total by use.
        fixed_success_usd: cost of a success with the fixed price.
        use_success_usd: cost of a success by use.
        cheaper: "fixed", "use" or "equal", by the cost of a success.
        units: how many units of the fixed capacity the amount takes.
    """

    fixed_usd: float
    use_usd: float
    fixed_success_usd: float
    use_success_usd: float
    cheaper: str
    units: int


def reserved_usd(*, gpus: float, period_h: float, price_usd_per_gpu_h: float) -> float:
    """Return what accelerators cost that are reserved for a whole period.

    Raises:
        InvalidRequestError: a number is out of range.

    Formula:
        F = g · hours · price

    Source:
        the chapter, section 11.4.4
    """
    check_positive("gpus", gpus, "GPU")
    check_positive("period_h", period_h, "h")
    return gpus * period_h * check_positive("price_usd_per_gpu_h", price_usd_per_gpu_h, "USD/GPU/h")


def task_capacity(*, period_s: float, sessions: int, hold_s_per_task: float) -> float:
    """Return how many tasks reserved sessions do in a period when they are always busy.

    Raises:
        InvalidRequestError: a number is not above 0.

    Formula:
        M = k · period / time of a task in a session

    Source:
        the chapter, section 11.4.4
    """
    check_positive("period_s", period_s, "s")
    check_positive("sessions", sessions)
    return sessions * period_s / check_positive("hold_s_per_task", hold_s_per_task, "s")


def _check(fixed_usd: float, added_usd: float, use_usd: float, fixed_success: float, use_success: float) -> None:
    check_positive("fixed_usd", fixed_usd, "USD")
    check_not_negative("added_usd_per_task", added_usd, "USD")
    check_positive("use_usd_per_task", use_usd, "USD")
    for name, value in (("fixed_success", fixed_success), ("use_success", use_success)):
        check_positive(name, check_probability(name, value))


def purchase(
    *,
    fixed_usd: float,
    use_usd_per_task: float,
    added_usd_per_task: float = 0.0,
    fixed_success: float = 1.0,
    use_success: float = 1.0,
    capacity_tasks: float | None = None,
) -> Purchase:
    """Return from which amount of work a fixed price is lower than one by use.

    Args:
        fixed_usd: price of the reserved capacity or subscription for the period.
        use_usd_per_task: price of a task by use.
        added_usd_per_task: what a task adds to the fixed price.
        fixed_success: share of tasks that succeed on the fixed capacity.
        use_success: the same by use.
        capacity_tasks: tasks that the fixed capacity does in the period; absent: no limit.

    Raises:
        InvalidRequestError: a price is not above 0, or a share is not in 0..1.

    Formula:
        N = F / (c · s_f / s_u - v)

    Source:
        the chapter, section 11.4.4 and exercise 11-8
    """
    _check(fixed_usd, added_usd_per_task, use_usd_per_task, fixed_success, use_success)
    margin_usd = use_usd_per_task * fixed_success / use_success - added_usd_per_task
    even = fixed_usd / margin_usd if margin_usd > 0 else math.inf
    per_use_success = use_usd_per_task / use_success
    if capacity_tasks is None:
        best_usd, utilisation = added_usd_per_task, 0.0
    else:
        check_positive("capacity_tasks", capacity_tasks)
        best_usd, utilisation = added_usd_per_task + fixed_usd / capacity_tasks, even / capacity_tasks
    return Purchase(
        break_even_tasks=even,
        is_reachable=math.isfinite(even) and (capacity_tasks is None or even <= capacity_tasks),
        break_even_utilisation=utilisation,
        use_success_usd=per_use_success,
        best_fixed_success_usd=best_usd / fixed_success,
        fixed_wins_at_capacity=best_usd / fixed_success < per_use_success,
        break_even_success=best_usd / per_use_success,
    )


def purchase_at(
    *,
    tasks: float,
    fixed_usd: float,
    use_usd_per_task: float,
    added_usd_per_task: float = 0.0,
    fixed_success: float = 1.0,
    use_success: float = 1.0,
    capacity_tasks: float | None = None,
) -> PurchaseAt:
    """Return what both ways cost for `tasks` tasks in the period; arguments as for `purchase`.

    Where the amount exceeds the capacity of one unit, as many whole units are bought as it takes.

    Raises:
        InvalidRequestError: a price or the amount is not above 0, or a share is not in 0..1.

    Formula:
        fixed = k · F + N · v,   use = N · c,   each over N · s

    Source:
        the chapter, section 11.4.4 and exercise 11-8
    """
    _check(fixed_usd, added_usd_per_task, use_usd_per_task, fixed_success, use_success)
    check_positive("tasks", tasks)
    units = 1
    if capacity_tasks is not None:
        check_positive("capacity_tasks", capacity_tasks)
        units = max(1, math.ceil(tasks / capacity_tasks * (1 - _ROUNDING)))
    fixed_total = units * fixed_usd + tasks * added_usd_per_task
    use_total = tasks * use_usd_per_task
    fixed_each, use_each = fixed_total / (tasks * fixed_success), use_total / (tasks * use_success)
    cheaper = "equal" if fixed_each == use_each else "fixed" if fixed_each < use_each else "use"
    return PurchaseAt(
        fixed_usd=fixed_total,
        use_usd=use_total,
        fixed_success_usd=fixed_each,
        use_success_usd=use_each,
        cheaper=cheaper,
        units=units,
    )


def price_ratio_utilisation(*, reserved_usd_per_gpu_h: float, on_demand_usd_per_gpu_h: float) -> float:
    """Return the utilisation from which reserved accelerators are cheaper than the same ones by the second.

    Raises:
        InvalidRequestError: a price is not above 0, or the reserved one is the higher, so that no utilisation suffices.

    Formula:
        u = reserved price / on-demand price

    Source:
        the chapter, section 11.4.4
    """
    reserved = check_positive("reserved_usd_per_gpu_h", reserved_usd_per_gpu_h, "USD/GPU/h")
    on_demand = check_positive("on_demand_usd_per_gpu_h", on_demand_usd_per_gpu_h, "USD/GPU/h")
    if reserved > on_demand:
        raise InvalidRequestError(
            f"reserved accelerators cost {reserved:g} USD/GPU/h, more than {on_demand:g} on demand",
            resolution="take them on demand: no utilisation makes the reserved ones cheaper",
        )
    return reserved / on_demand
