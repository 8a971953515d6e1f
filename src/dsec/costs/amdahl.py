"""How much a whole gets faster when one part of it does (Amdahl's law).

A part takes the share f of the whole and becomes s times as fast; the rest keeps its time:

    S = 1 / ((1 - f) + f / s),      S < 1 / (1 - f) however large s is.

Assumes that part and rest run one after the other. Source: the chapter, section 11.5.3 (tools are 10 % of a task,
model calls 90 %) and section 11.4.4 (decoding is 63 % of the time of a token).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.costs.checks import check_not_negative, check_positive, check_probability


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratedTime:
    """A whole before and after one of its parts became faster.

    Attributes:
        before_s: part and rest as they were.
        after_s: the faster part and the unchanged rest.
        floor_s: the rest alone: what remains however fast the part becomes.
        part_share: the part's share of the time before.
        rest_share: the rest's share of the time before.
        saved_share: the share of the time before that is saved.
        overall_speedup: before over after.
        speedup_limit: before over floor; infinite when there is no rest.
    """

    before_s: float
    after_s: float
    floor_s: float
    part_share: float
    rest_share: float
    saved_share: float
    overall_speedup: float
    speedup_limit: float


def overall_speedup(*, part_share: float, part_speedup: float) -> float:
    """Return the speed-up of the whole when a part with this share of its time runs `part_speedup` times as fast.

    Raises:
        InvalidRequestError: the share lies outside 0..1, or the speed-up is not above 0.

    Formula:
        S = 1 / ((1 - f) + f / s)

    Source:
        Amdahl's law; the chapter, section 11.5.3
    """
    check_probability("part_share", part_share)
    check_positive("part_speedup", part_speedup)
    return 1 / ((1 - part_share) + part_share / part_speedup)


def speedup_limit(*, part_share: float) -> float:
    """Return the speed-up of the whole that no acceleration of the part reaches; infinite for a part that is all.

    Raises:
        InvalidRequestError: the share lies outside 0..1.

    Formula:
        S < 1 / (1 - f)

    Source:
        Amdahl's law; the chapter, section 11.5.3
    """
    check_probability("part_share", part_share)
    return math.inf if part_share == 1 else 1 / (1 - part_share)


def accelerate_part(*, part_s: float, rest_s: float, part_speedup: float) -> AcceleratedTime:
    """Return what becomes of `part_s` + `rest_s` when the part runs `part_speedup` times as fast.

    Raises:
        InvalidRequestError: a time is negative, both are 0, or the speed-up is not above 0.

    Formula:
        after = rest + part / s,   S = (part + rest) / after

    Source:
        Amdahl's law; the chapter, sections 11.4.4 and 11.5.3
    """
    check_not_negative("part_s", part_s, "s")
    check_not_negative("rest_s", rest_s, "s")
    before_s = check_positive("part_s + rest_s", part_s + rest_s, "s")
    after_s = rest_s + part_s / check_positive("part_speedup", part_speedup)
    return AcceleratedTime(
        before_s=before_s,
        after_s=after_s,
        floor_s=rest_s,
        part_share=part_s / before_s,
        rest_share=rest_s / before_s,
        saved_share=1 - after_s / before_s,
        overall_speedup=before_s / after_s,
        speedup_limit=before_s / rest_s if rest_s else math.inf,
    )
