"""How late other work may start without making a batch end later.

A batch cannot end before its slowest sample does. Work of at most d seconds that starts at end - d stays inside that
time; preparing for it has to begin p seconds earlier. Resources freed by an expired wait are free only once the old
work has ended: what goes on behind a reported timeout uses them twice.

Source: the chapter, section 11.3.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_not_negative

_ROUNDING = 1e-9
"""Work that fits exactly is not refused for the rounding of binary numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestStart:
    """The latest times at which work may begin.

    Attributes:
        work_starts_s: latest start of the work itself.
        preparation_starts_s: latest start of its preparation.
        slack_s: from now until preparation has to begin.
    """

    work_starts_s: float
    preparation_starts_s: float
    slack_s: float


def latest_start(
    *, batch_end_s: float, duration_s: float, preparation_s: float = 0.0, now_s: float = 0.0
) -> LatestStart:
    """Return how late work may start that must not make a batch end later.

    Args:
        batch_end_s: when the batch ends at the earliest, because of its slowest sample.
        duration_s: how long the work takes at most.
        preparation_s: what has to happen before (environment, transfer).
        now_s: the present, on the same clock.

    Raises:
        InvalidRequestError: a time is negative, or even work that begins now ends after the batch.

    Formula:
        work = end - duration,   preparation = work - preparation time

    Source:
        the chapter, section 11.3.4
    """
    for name, value in (("batch_end_s", batch_end_s), ("duration_s", duration_s), ("preparation_s", preparation_s)):
        check_not_negative(name, value, "s")
    check_not_negative("now_s", now_s, "s")
    work_starts_s = batch_end_s - duration_s
    preparation_starts_s = work_starts_s - preparation_s
    if preparation_starts_s < now_s - _ROUNDING * batch_end_s:
        raise InvalidRequestError(
            f"the work ends {now_s - preparation_starts_s:g} s after the batch even if it begins now",
            detail=f"now {now_s:g} s, preparation {preparation_s:g} s, work {duration_s:g} s, end {batch_end_s:g} s",
            resolution="begin it earlier, make it shorter, or let the batch end later",
        )
    return LatestStart(
        work_starts_s=work_starts_s,
        preparation_starts_s=preparation_starts_s,
        slack_s=max(preparation_starts_s - now_s, 0.0),
    )


def double_use_s(*, handed_over_s: float, really_ended_s: float) -> float:
    """Return for how long two pieces of work use a resource that was handed on before the first had ended.

    Args:
        handed_over_s: when the resource was given to the next.
        really_ended_s: when the process or thread of the first was gone.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        overlap = max(really ended - handed over, 0)

    Source:
        the chapter, section 11.3.4
    """
    check_not_negative("handed_over_s", handed_over_s, "s")
    check_not_negative("really_ended_s", really_ended_s, "s")
    return max(really_ended_s - handed_over_s, 0.0)
