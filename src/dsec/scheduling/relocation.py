"""Wait for room, move what stands in the way, or start spread over several nodes: by predicted completion.

Which is best depends on whose time counts. For the new job alone, a move is worth it as long as it is shorter than the
wait. If the delay of the job that is moved counts as well, it is worth it only while it is shorter than half of what
is left of the wait after that job's own loss. Both goals are offered; the formulas are in `dsec.costs.relocation`.

Source: the chapter, example 11-3 and exercise 11-4.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dsec.costs.relocation import Start, delay_by_moving_s


class Goal(enum.Enum):
    """Whose time counts."""

    COMPLETION = "completion"
    """The new job's completion."""
    TOTAL_DELAY = "total_delay"
    """The new job's wait, or what spreading costs it, and the moved job's delay together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What is predicted about a job that does not fit.

    Attributes:
        run_local_s: its time on one node.
        wait_s: until room is there by itself; None: not foreseeable.
        move_s: until what stands in the way is moved; None: it cannot be moved.
        moved_extra_s: by which the moved job is late beside the time of the move.
        spread_ready_s: until a spread configuration is ready; None: there is none.
        spread_run_s: its time on several nodes.
    """

    run_local_s: float
    wait_s: float | None = None
    move_s: float | None = None
    moved_extra_s: float = 0.0
    spread_ready_s: float | None = None
    spread_run_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to do.

    Attributes:
        start: wait, move or spread; None: nothing is possible.
        completes_s: when the new job completes.
        delay_s: the new job's and the moved job's delay together.
        reason: in words, with the alternatives.
    """

    start: Start | None
    completes_s: float
    delay_s: float
    reason: str


def choose_start(predictions: Predictions, goal: Goal) -> Choice:
    """Choose how a job that does not fit starts; where two are equal, what disturbs less.

    Raises:
        InvalidRequestError: a time is negative.
    """
    ways = _ways(predictions)
    if not ways:
        return Choice(
            start=None, completes_s=float("inf"), delay_s=float("inf"), reason="no way to start is foreseeable"
        )
    judged = {start: (completes_s if goal is Goal.COMPLETION else delay_s) for start, completes_s, delay_s in ways}
    start, completes_s, delay_s = min(ways, key=lambda way: judged[way[0]])
    what = "completion" if goal is Goal.COMPLETION else "total delay"
    listed = ", ".join(f"{each.value} {value:g} s" for each, value in judged.items())
    return Choice(start=start, completes_s=completes_s, delay_s=delay_s, reason=f"{start.value}: {what} by {listed}")


def _ways(predictions: Predictions) -> list[tuple[Start, float, float]]:
    """The possible ways in the order of how little they disturb: completion and total delay of each."""
    local_s = predictions.run_local_s
    ways: list[tuple[Start, float, float]] = []
    if predictions.wait_s is not None:
        ways.append((Start.WAIT, predictions.wait_s + local_s, predictions.wait_s))
    if predictions.spread_ready_s is not None:
        spread_s = predictions.spread_ready_s + predictions.spread_run_s
        ways.append((Start.SPREAD, spread_s, max(spread_s - local_s, 0.0)))
    if predictions.move_s is not None:
        both_s = delay_by_moving_s(move_s=predictions.move_s, extra_s=predictions.moved_extra_s)
        ways.append((Start.MOVE, predictions.move_s + local_s, both_s))
    return ways
