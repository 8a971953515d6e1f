"""When a smaller thinking budget saves money although some calls have to be made again.

n calls save d each; r of them are cut short and made again at the cost c:

    net = n d - r c,      break-even at r / n = d / c.

Assumes that a call made again succeeds, and that its price is known. Source: the chapter, section 11.4.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """Savings of shorter thinking against calls made again.

    Attributes:
        saved_usd: by all calls.
        retried_usd: by the calls made again.
        net_usd: saving minus calls made again; negative when the smaller budget costs more.
        pays: whether the smaller budget is cheaper in all.
        break_even_retry_share: share of calls made again at which nothing is won or lost; infinite for free retries.
        break_even_retries: the same in calls.
    """

    saved_usd: float
    retried_usd: float
    net_usd: float
    pays: bool
    break_even_retry_share: float
    break_even_retries: float


def thinking_budget(*, calls: int, saved_usd_per_call: float, retries: int, retry_usd: float) -> ThinkingBudget:
    """Return what a smaller thinking budget saves in all.

    Args:
        calls: calls with the smaller budget.
        saved_usd_per_call: what each costs less.
        retries: calls that are made again because the budget cut them short.
        retry_usd: what each of those costs.

    Raises:
        InvalidRequestError: a number is negative.

    Formula:
        net = n · d - r · c,   break-even r / n = d / c

    Source:
        the chapter, section 11.4.1
    """
    check_count("calls", calls)
    check_count("retries", retries, minimum=0)
    check_not_negative("saved_usd_per_call", saved_usd_per_call, "USD")
    check_not_negative("retry_usd", retry_usd, "USD")
    saved = calls * saved_usd_per_call
    retried = retries * retry_usd
    even = saved_usd_per_call / retry_usd if retry_usd else math.inf
    return ThinkingBudget(
        saved_usd=saved,
        retried_usd=retried,
        net_usd=saved - retried,
        pays=saved > retried,
        break_even_retry_share=even,
        break_even_retries=calls * even,
    )
