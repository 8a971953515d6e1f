"""What one task that passes costs, when those that fail are paid for too.

    per success          C_all / N_q
    per timely success   C_all / N_q,d

C_all is the spending on every attempt, failed ones among it: leaving those out makes each success look cheaper than
it is. Source: the chapter, section 11.5.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessCost:
    """Spending by submitted, passed and timely passed task.

    Attributes:
        submitted_usd: cost of a submitted task.
        success_usd: cost of one that passed; infinite when none did.
        timely_success_usd: cost of one that passed in time; infinite when none did.
        success_share: share of the submitted that passed.
        timely_share: share of the submitted that passed in time.
    """

    submitted_usd: float
    success_usd: float
    timely_success_usd: float
    success_share: float
    timely_share: float


def success_cost(
    *, spent_usd: float, submitted: float, successes: float, timely_successes: float | None = None
) -> SuccessCost:
    """Return what a task that passes costs.

    Args:
        spent_usd: on all attempts of all submitted tasks.
        submitted: tasks submitted.
        successes: tasks that passed.
        timely_successes: those among them that passed in time; absent: all.

    Raises:
        InvalidRequestError: a number is negative, or more passed than were submitted.

    Formula:
        C_all / N_q and C_all / N_q,d

    Source:
        the chapter, section 11.5.2
    """
    check_not_negative("spent_usd", spent_usd, "USD")
    check_positive("submitted", submitted)
    timely = successes if timely_successes is None else timely_successes
    if not 0 <= timely <= successes <= submitted:
        raise InvalidRequestError(
            f"{timely:g} timely of {successes:g} successes of {submitted:g} submitted tasks cannot be",
            resolution="count each task once: timely ones are successes, successes were submitted",
        )
    return SuccessCost(
        submitted_usd=spent_usd / submitted,
        success_usd=spent_usd / successes if successes else math.inf,
        timely_success_usd=spent_usd / timely if timely else math.inf,
        success_share=successes / submitted,
        timely_share=timely / submitted,
    )
