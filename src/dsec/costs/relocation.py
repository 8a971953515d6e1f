"""Waiting for a node, moving what stands in the way, or starting spread over several nodes at once.

A job that does not fit can begin as soon as all its resources are together:

    wait      T_wait + T_run,local
    move      T_move + T_run,local
    spread    T_ready,spread + T_run,spread

For the new job alone, moving is better exactly when it takes less time than waiting. The job that is moved pays for
it: it is late by the move and by what it loses beside (its restart, its cold caches), and counts in a goal that
includes both:

    new job's wait + old job's delay:   T_move + (T_move + extra)  <  T_wait      ⇔   T_move < (T_wait - extra) / 2

So the same move can be right for the one goal and wrong for the other.

Assumes that all three times are known, and that moving frees the resources only when it is complete. Source: the
chapter, example 11-3 and exercise 11-4.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dsec.costs.checks import check_not_negative


class Start(enum.Enum):
    """How a job that does not fit gets its resources."""

    WAIT = "wait"
    MOVE = "move"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """When a job completes.

    Attributes:
        wait_s: by waiting.
        move_s: by moving what stands in the way.
        spread_s: by starting on several nodes.
        best: the earliest; where two are equal, the one that disturbs less.
        best_end_s: when that one completes.
        move_gains_on_wait_s: how much earlier moving is than waiting; negative: later.
        move_gains_on_spread_s: how much earlier it is than spreading.
    """

    wait_s: float
    move_s: float
    spread_s: float
    best: Start
    best_end_s: float
    move_gains_on_wait_s: float
    move_gains_on_spread_s: float


def start_options(
    *, wait_s: float, move_s: float, run_local_s: float, spread_ready_s: float, spread_run_s: float
) -> StartOptions:
    """Return when a job completes by waiting, by moving another, and by starting spread.

    Args:
        wait_s: until the node is free by itself.
        move_s: until what stands in the way is moved.
        run_local_s: time of the job on one node.
        spread_ready_s: until a spread configuration is ready.
        spread_run_s: time of the job on several nodes.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        wait + run,   move + run,   ready + run spread

    Source:
        the chapter, example 11-3
    """
    for name, value in (("wait_s", wait_s), ("move_s", move_s), ("run_local_s", run_local_s)):
        check_not_negative(name, value, "s")
    check_not_negative("spread_ready_s", spread_ready_s, "s")
    check_not_negative("spread_run_s", spread_run_s, "s")
    ends_s = {
        Start.WAIT: wait_s + run_local_s,
        Start.SPREAD: spread_ready_s + spread_run_s,
        Start.MOVE: move_s + run_local_s,
    }
    best = min(ends_s, key=lambda start: ends_s[start])
    return StartOptions(
        wait_s=ends_s[Start.WAIT],
        move_s=ends_s[Start.MOVE],
        spread_s=ends_s[Start.SPREAD],
        best=best,
        best_end_s=ends_s[best],
        move_gains_on_wait_s=ends_s[Start.WAIT] - ends_s[Start.MOVE],
        move_gains_on_spread_s=ends_s[Start.SPREAD] - ends_s[Start.MOVE],
    )


def delay_by_moving_s(*, move_s: float, extra_s: float) -> float:
    """Return the new job's wait and the old job's delay together, when the old one is moved.

    Args:
        move_s: how long the move takes; both jobs stand still meanwhile.
        extra_s: what the old job loses beside that.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        move + (move + extra)

    Source:
        the chapter, exercise 11-4
    """
    check_not_negative("move_s", move_s, "s")
    return 2 * move_s + check_not_negative("extra_s", extra_s, "s")


def longest_move_for_both_s(*, wait_s: float, extra_s: float) -> float:
    """Return below which time a move lowers the sum of the new job's wait and the old job's delay; 0: never.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        move < (wait - extra) / 2

    Source:
        the chapter, exercise 11-4
    """
    check_not_negative("wait_s", wait_s, "s")
    return max((wait_s - check_not_negative("extra_s", extra_s, "s")) / 2, 0.0)
