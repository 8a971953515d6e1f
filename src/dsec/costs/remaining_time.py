"""How long work goes on that has already run for a while.

Of measured durations S only those longer than the time already run, e, are still possible:

    E[S - e | S > e] = mean of (s - e) over the measured s > e.

The overall mean minus e is no estimate: it forgets what the waiting has shown, and can even be negative. Assumes that
the measured durations are of the same kind of work. Source: the chapter, section 11.3.4 and figure 11-37.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count, check_not_empty, check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingTime:
    """What is left of work that is still running.

    Attributes:
        mean_s: mean of all measured durations.
        naive_s: that mean minus the time already run; wrong, and here to be compared.
        remaining_s: mean time left, given that the work still runs.
        longest_s: the longest time left that was ever measured.
        still_running_share: share of measured durations that are longer than the time already run.
    """

    mean_s: float
    naive_s: float
    remaining_s: float
    longest_s: float
    still_running_share: float


def _counted(durations_s: Sequence[float], counts: Sequence[int]) -> list[tuple[float, int]]:
    check_not_empty("durations_s", durations_s)
    counts = counts or [1] * len(durations_s)
    if len(counts) != len(durations_s):
        raise InvalidRequestError(
            f"there are {len(durations_s)} durations but {len(counts)} counts",
            resolution="give one count for each duration, or none",
        )
    for duration_s, count in zip(durations_s, counts, strict=True):
        check_not_negative("durations_s", duration_s, "s")
        check_count("counts", count)
    return list(zip(durations_s, counts, strict=True))


def remaining_time(*, durations_s: Sequence[float], elapsed_s: float, counts: Sequence[int] = ()) -> RemainingTime:
    """Return what is left of work that has run for `elapsed_s` and still runs.

    Args:
        durations_s: measured durations of such work.
        elapsed_s: how long this one has run.
        counts: how often each duration was measured; once each where it is left out.

    Raises:
        InvalidRequestError: nothing was measured that runs this long, or an input is out of range.

    Formula:
        E[S - e | S > e] = Σ n_i (s_i - e) / Σ n_i over s_i > e

    Source:
        the chapter, section 11.3.4 and figure 11-37
    """
    measured = _counted(durations_s, counts)
    check_not_negative("elapsed_s", elapsed_s, "s")
    total = sum(count for _, count in measured)
    mean_s = math.fsum(duration_s * count for duration_s, count in measured) / total
    running = [(duration_s - elapsed_s, count) for duration_s, count in measured if duration_s > elapsed_s]
    if not running:
        raise InvalidRequestError(
            f"no measured duration is longer than the {elapsed_s:g} s already run",
            detail=f"longest: {max(durations_s):g} s",
            resolution="measure longer runs, or treat this work as hung",
        )
    running_count = sum(count for _, count in running)
    return RemainingTime(
        mean_s=mean_s,
        naive_s=mean_s - elapsed_s,
        remaining_s=math.fsum(left_s * count for left_s, count in running) / running_count,
        longest_s=max(left_s for left_s, _ in running),
        still_running_share=running_count / total,
    )
