"""When to stop copying a running sandbox and pause it for the last difference.

Each round copies what was written during the one before. With a writing rate w and a copying rate c the rounds shrink
by w / c; as long as that is below 1 another round shortens the pause, and when it is not, no number of rounds will.
The pause lasts what the last round takes: the fixed cost of one, and its bytes at the rate that was seen.

Source: C. Clark et al., *Live Migration of Virtual Machines*, NSDI 2005, section 3.2 (pre-copy; writable working set).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError

SHRINKS = 0.9
"""A round that is not smaller than this share of the one before shows that copying does not gain on writing."""
_MINIMUM_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round that was copied.

    Attributes:
        copied_bytes: how much.
        duration_s: how long it took, its checkpoint included.
    """

    copied_bytes: int
    duration_s: float


class Next(enum.Enum):
    COPY = "copy"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next.

    Attributes:
        next: copy once more, or pause for the last difference.
        expected_s: how long the last difference would take now.
        reason: in words.
    """

    next: Next
    expected_s: float
    reason: str


def expected_last_s(rounds: Sequence[Round]) -> float:
    """Return how long a round would take now: what is written during a round is copied in the next.

    The first round copies everything and says nothing of the writing rate, so that after it alone the last one stands
    for the next, which is the worst case.
    """
    last = rounds[-1]
    if len(rounds) == 1:
        return last.duration_s
    writing = last.copied_bytes / max(rounds[-2].duration_s, _MINIMUM_S)
    copying = last.copied_bytes / max(last.duration_s, _MINIMUM_S)
    if not copying:
        return last.duration_s
    return writing * last.duration_s / copying


def decide(rounds: Sequence[Round], *, maximum_rounds: int, downtime_s: float) -> Decision:
    """Decide whether another round is copied while the sandbox runs.

    Args:
        rounds: those copied so far, at least one.
        maximum_rounds: of copying before the pause.
        downtime_s: how long the last difference may take.

    Raises:
        InvalidRequestError: there is no round, or a bound is out of range.
    """
    if not rounds or maximum_rounds < 1 or downtime_s < 0:
        raise InvalidRequestError(
            "copying needs a first round, at least one round, and a downtime that is not negative"
        )
    expected_s = expected_last_s(rounds)
    if expected_s <= downtime_s:
        return Decision(next=Next.PAUSE, expected_s=expected_s, reason=f"the last difference takes {expected_s:.3g} s")
    if len(rounds) >= maximum_rounds:
        return Decision(next=Next.PAUSE, expected_s=expected_s, reason=f"{maximum_rounds} rounds were copied")
    if len(rounds) > 2 and rounds[-1].copied_bytes >= SHRINKS * rounds[-2].copied_bytes:
        return Decision(next=Next.PAUSE, expected_s=expected_s, reason="the sandbox writes as fast as it is copied")
    return Decision(next=Next.COPY, expected_s=expected_s, reason=f"the last difference would take {expected_s:.3g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What moving a sandbox is expected to cost.

    Attributes:
        move_s: from its beginning to its end.
        downtime_s: of it, how long the sandbox stands still.
        copied_bytes: all rounds together.
        rounds: how many, the last one included.
    """

    move_s: float
    downtime_s: float
    copied_bytes: int
    rounds: int


def predict(
    *,
    written_bytes: int,
    writing_bytes_per_s: float,
    copying_bytes_per_s: float,
    fixed_s: float,
    maximum_rounds: int = 5,
    downtime_s: float = 0.2,
) -> Prediction:
    """Predict a move by going through its rounds with constant rates, as `decide` would.

    Args:
        written_bytes: what the first round copies.
        writing_bytes_per_s: how fast the sandbox writes while it is copied.
        copying_bytes_per_s: how fast rounds are copied.
        fixed_s: what each round costs beside its bytes, and the start on the target beside the last one.
        maximum_rounds, downtime_s: see `decide`.

    Raises:
        InvalidRequestError: a figure is out of range.
    """
    if min(written_bytes, writing_bytes_per_s, fixed_s) < 0 or not copying_bytes_per_s > 0:
        raise InvalidRequestError("a move is predicted from figures that are not negative, and a copying rate above 0")
    rounds: list[Round] = []
    size = float(written_bytes)
    while True:
        rounds.append(Round(copied_bytes=round(size), duration_s=fixed_s + size / copying_bytes_per_s))
        # More is not written than there is to write over, however long a round takes.
        size = min(writing_bytes_per_s * rounds[-1].duration_s, float(max(written_bytes, 1)))
        if decide(rounds, maximum_rounds=maximum_rounds, downtime_s=downtime_s).next is Next.PAUSE:
            break
    last_s = 2 * fixed_s + size / copying_bytes_per_s
    return Prediction(
        move_s=sum(each.duration_s for each in rounds) + last_s,
        downtime_s=last_s,
        copied_bytes=sum(each.copied_bytes for each in rounds) + round(size),
        rounds=len(rounds) + 1,
    )
