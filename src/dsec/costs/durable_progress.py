"""How far a history can be recovered that was saved round by round.

Rounds are numbered from 1. A copy that lacks a round is complete only up to the one before, whatever came later:

    contiguous = the largest r such that rounds base + 1 .. r are all saved,

where base is the last round of a saved whole state, 0 where there is none. Rounds after a gap are kept, but do not
count until the gap is filled. Source: the chapter, section 11.5.1 and figure 11-44.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsec.costs.checks import check_count


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableProgress:
    """What one copy of a history is good for.

    Attributes:
        contiguous_round: up to here it can be recovered.
        last_round: the last round that arrived.
        missing: rounds before the last that did not.
        is_complete: whether every round that was run can be recovered from it.
        lost_rounds: rounds that were run and cannot be recovered from it alone.
    """

    contiguous_round: int
    last_round: int
    missing: tuple[int, ...]
    is_complete: bool
    lost_rounds: int


def durable_progress(*, saved: Sequence[int], run: int, state_round: int = 0) -> DurableProgress:
    """Return how far a copy can be recovered that holds these rounds.

    Args:
        saved: numbers of the rounds that arrived, in any order, each from 1.
        run: how many rounds were run.
        state_round: the round at whose end a whole state was saved; 0: only the start.

    Raises:
        InvalidRequestError: a round's number is below 1, or a count is negative.

    Formula:
        contiguous = max r with {base + 1, ..., r} ⊆ saved

    Source:
        the chapter, section 11.5.1 and figure 11-44
    """
    check_count("run", run, minimum=0)
    check_count("state_round", state_round, minimum=0)
    held = {check_count("saved", number) for number in saved}
    contiguous = state_round
    while contiguous + 1 in held:
        contiguous += 1
    last = max(held, default=state_round)
    return DurableProgress(
        contiguous_round=contiguous,
        last_round=last,
        missing=tuple(number for number in range(contiguous + 1, last) if number not in held),
        is_complete=contiguous >= run,
        lost_rounds=max(run - contiguous, 0),
    )
