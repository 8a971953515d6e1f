"""How an episode fails to make progress, as far as its rounds and errors tell.

What will help depends on how it failed: a check that failed is repaired by who knows the code, answers that are of no
use by another model, a service that is down by waiting. So failures are sorted into kinds, and everything that is
learned is learned for a kind (`dsec.episode.recovery_experience`). Source: the chapter, section 11.5.2: two kinds of
failure that do not recover equally well are two nodes of the tree.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from dsec.episode.agent_calls import Submit, UnusableCall
from dsec.episode.operations import RoundRecord
from dsec.episode.tools import CommandOutput, ToolFailed, ToolResult

CHECK_FAILED_CODE = "check_failed"
"""Code of the result of a submission that its check found wanting."""
DEADLINE_PASSED = "deadline_exceeded"
COST_REACHED = "budget_exhausted"
_LIMITED = ("too_many_rounds", DEADLINE_PASSED, COST_REACHED)
MAXIMUM_ROUNDS = 1000
"""That are looked at."""
STUCK_ROUNDS = 4
"""Rounds in a row with the same calls and the same results."""
WAITING_S = 10.0
"""A round whose tools took so long waits for something, and does not go in circles."""


class FailureKind(enum.Enum):
    """How it failed.

    CHECK_FAILED: it was submitted, and its check, or its grade, says that it is not done.
    USELESS: rounds in which nothing could be carried out: no call, unknown tools, garbage.
    STUCK: the same calls with the same results, again and again, at once.
    TOOLS_FAILED: rounds in which every call that was carried out failed.
    MODEL_FAILED: the model's service refused, broke off or did not answer, also when asked again.
    LOST: the platform failed: a sandbox that is gone, a full disk.
    LIMITED: time, money or rounds were used up.
    """

    CHECK_FAILED = "check_failed"
    USELESS = "useless"
    STUCK = "stuck"
    TOOLS_FAILED = "tools_failed"
    MODEL_FAILED = "model_failed"
    LOST = "lost"
    LIMITED = "limited"

    @property
    def is_final(self) -> bool:
        """Whether no step of a policy can help."""
        return self in (FailureKind.LIMITED, FailureKind.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure in the newest rounds.

    Attributes:
        kind: how.
        count: how many rounds in a row show it.
        detail: for people, and for the model.
    """

    kind: FailureKind
    count: int
    detail: str = ""


def is_useless(record: RoundRecord) -> bool:
    """Say whether nothing of a round could be carried out."""
    return all(isinstance(operation.call, UnusableCall) for operation in record.decision.operations)


def failed_check(record: RoundRecord) -> ToolFailed | None:
    """Return what a check said of the submission of a round, if it failed."""
    for operation, result in zip(record.decision.operations, record.results, strict=False):
        if isinstance(operation.call, Submit) and isinstance(result, ToolFailed) and result.code == CHECK_FAILED_CODE:
            return result
    return None


def failure_in(newest: Iterable[RoundRecord], *, stuck_rounds: int = STUCK_ROUNDS) -> Failure | None:
    """Return what is wrong in the newest rounds of the model that decides now; None: nothing that can be seen.

    Args:
        newest: committed rounds, the newest first; only as many are looked at as show the same.
        stuck_rounds: so many equal rounds in a row count as stuck.
    """
    rounds = iter(newest)
    last = next(rounds, None)
    if last is None:
        return None
    if (said := failed_check(last)) is not None:
        return Failure(kind=FailureKind.CHECK_FAILED, count=1, detail=said.detail or said.brief)
    runs = _Runs(last)
    for record in islice(rounds, MAXIMUM_ROUNDS):
        # What rounds before another model took over show is that one's failure.
        if record.decision.model.name != last.decision.model.name or not runs.take(record):
            break
    if runs.useless:
        return Failure(kind=FailureKind.USELESS, count=runs.useless, detail=_problem(last))
    if runs.equal >= stuck_rounds:
        return Failure(kind=FailureKind.STUCK, count=runs.equal)
    if runs.failed:
        return Failure(kind=FailureKind.TOOLS_FAILED, count=runs.failed, detail=_problem(last))
    return None


class _Runs:
    """Counts, from the newest round on, how many in a row are useless, equal to it, or failed."""

    def __init__(self, last: RoundRecord) -> None:
        self._last = last
        self.useless, self.equal, self.failed = int(is_useless(last)), 1, int(_all_failed(last))
        self._going = [bool(self.useless), last.tools_s < WAITING_S, bool(self.failed)]

    def take(self, record: RoundRecord) -> bool:
        """Count the round before; say whether any run goes on."""
        holds = (is_useless(record), _is_same(record, self._last), _all_failed(record))
        self._going = [going and held for going, held in zip(self._going, holds, strict=True)]
        self.useless += self._going[0]
        self.equal += self._going[1]
        self.failed += self._going[2]
        return any(self._going)


def failure_of_end(error_code: str, *, passed: bool | None) -> FailureKind | None:
    """Return how an ended episode failed, by the code it ended with; None: it passed, or nobody said.

    One that somebody cancelled was not let to the end: what it would have come to is not known, whatever it is graded.
    """
    if passed:
        return None
    match error_code:
        case "cancelled":
            return None
        case "unusable_answers":
            return FailureKind.USELESS
        case _ if error_code in _LIMITED:
            return FailureKind.LIMITED
        case "check_failed":
            return FailureKind.CHECK_FAILED
        case "stuck" | "tools_failed" | "model_failed":
            return FailureKind(error_code)
        case "backend_failed" | "backend_refused" | "backend_timeout":
            return FailureKind.MODEL_FAILED
        case "":
            return FailureKind.CHECK_FAILED if passed is False else None
        case _:
            return FailureKind.LOST if passed is None else FailureKind.CHECK_FAILED


def _all_failed(record: RoundRecord) -> bool:
    return bool(record.results) and all(isinstance(result, ToolFailed) for result in record.results)


def _is_same(record: RoundRecord, other: RoundRecord) -> bool:
    """Say whether two rounds asked for the same and got the same, but for the time that it took."""
    if len(record.results) != len(other.results) or not record.results or record.tools_s >= WAITING_S:
        return False
    calls = zip(record.decision.operations, other.decision.operations, strict=True)
    return all(mine.call == theirs.call for mine, theirs in calls) and all(
        _timeless(mine) == _timeless(theirs) for mine, theirs in zip(record.results, other.results, strict=True)
    )


def _timeless(result: ToolResult) -> ToolResult:
    return replace(result, duration_s=0.0) if isinstance(result, CommandOutput) else result


def _problem(record: RoundRecord) -> str:
    for result in record.results:
        if isinstance(result, ToolFailed):
            return result.brief
    return ""
