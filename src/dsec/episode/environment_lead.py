"""When to begin to prepare an environment while the model thinks: as late as will do, and that is a bet.

Whoever knows when the call comes begins P seconds before it, P being the time of a preparation. Nobody knows; the times
of thinking so far say how it spreads. Ready at r, an environment waits (r before the call: idle memory) or is waited
for (r after the call: the tool is late). With i the price of a second of idling and w that of a second of waiting, the
expected cost is least where

    F(r) = i / (i + w)

F being the distribution of the time of thinking: the balance of a newsvendor, between having too early and too late.
With one known time it gives r = G, and so the formula's start at G - P.

Before the model writes, the transitions seen so far say how probable it is that an environment is needed at all; a
preparation ahead has to save more waiting than it wastes memory (`dsec.costs.prediction`). Once the model has begun to
call a tool, that is known, and what is left is the time in which it writes the arguments: the same balance, over the
times that this took so far. A call that needs no environment ends what was begun.

Source: the chapter, section 11.2.4, figures 11-19 to 11-23, and exercise 11-3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.costs.prediction import prediction

WAIT_WEIGHT = 4.0
"""A second of a tool's wait against a second in which its environment idles: an accelerator or a trainer waits too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """When to begin.

    Attributes:
        begin_s: seconds after the model began to think.
        reason: why then, in words.
    """

    begin_s: float
    reason: str


def ready_at_s(thinking_s: Sequence[float], *, wait_weight: float = WAIT_WEIGHT) -> float:
    """Return when an environment had best be ready, in seconds after the model began to think.

    Args:
        thinking_s: times of thinking so far, or of writing; none: at once.
        wait_weight: price of a second of waiting in seconds of idling.
    """
    if not thinking_s:
        return 0.0
    ordered = sorted(thinking_s)
    place = math.ceil(len(ordered) / (1 + wait_weight))
    return ordered[max(place, 1) - 1]


def lead(
    thinking_s: Sequence[float],
    *,
    prepare_s: float,
    memory_gib: float,
    needed: float = 1.0,
    wait_weight: float = WAIT_WEIGHT,
) -> Lead | None:
    """Return when to begin a preparation ahead of the call; None: wait for what the model writes.

    Args:
        thinking_s: times of thinking so far. With none a preparation waits for what the model writes: to be late once
            costs one preparation, to be early a gap of unknown length.
        prepare_s: time of one preparation.
        memory_gib: memory of the environment.
        needed: probability that the call that comes needs this environment.
        wait_weight: price of a second of waiting in seconds of idling.

    Raises:
        InvalidRequestError: a time is negative, or the probability lies outside 0..1.
    """
    if not thinking_s:
        return None
    ready_s = ready_at_s(thinking_s, wait_weight=wait_weight)
    begin_s = max(ready_s - prepare_s, 0.0)
    ahead_s = ready_s - begin_s
    bet = prediction(prepare_s=prepare_s, lead_s=ahead_s, hit_probability=needed, memory_gib=memory_gib)
    worth_gib_s = bet.expected_saved_s * memory_gib * wait_weight
    if worth_gib_s < bet.expected_wasted_gib_s:
        return None
    return Lead(
        begin_s=begin_s,
        reason=f"the model is expected to think for {ready_s:.3g} s or longer, and preparing takes {prepare_s:.3g} s",
    )


def wait_after_hearing_s(
    writing_s: Sequence[float], *, prepare_s: float, left_s: float, wait_weight: float = WAIT_WEIGHT
) -> float:
    """Return how long to wait with a preparation once the model has begun to call a tool that needs it.

    Args:
        writing_s: how long it took so far from there until the call was there.
        prepare_s: time of one preparation.
        left_s: until the preparation would have begun without hearing anything; it counts where nothing else is known.
        wait_weight: price of a second of waiting in seconds of idling.
    """
    if not writing_s:
        return max(left_s, 0.0)
    return max(ready_at_s(writing_s, wait_weight=wait_weight) - prepare_s, 0.0)
