"""How an episode fails to make progress, as far as its rounds and errors tell.

What will help depends on how it failed: a check that failed is repaired by who knows the code, answers that are of no
use by another model, a service that is down by waiting. So failures are sorted into kinds, and everything that is
learned is learned for a kind (`dsec.episode.recovery_experience`). Source: the chapter, section 11.5.2: two kinds of
failure that do not recover equally well are two nodes of the tree.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from msgspec.structs import replace

from dsec.episode.agent_calls import Submit, UnusableCall
from dsec.episode.operations import RoundRecord
from dsec.episode.tools import CommandOutput, ToolFailed, ToolResult

CHECK_FAILED_CODE = "check_failed"
"""Code of the result of a submission that its check found wanting."""
DEADLINE_PASSED = "deadline_exceeded"
COST_REACHED = "budget_exhausted"
_LIMITED = ("too_many_rounds", DEADLINE_PASSED, COST_REACHED)
STUCK_ROUNDS = 4
"""Rounds in a row with the same calls and the same results."""


class FailureKind(enum.Enum):
    """How it failed.

    CHECK_FAILED: it was submitted, and its check, or its grade, says that it is not done.
    USELESS: rounds in which nothing could be carried out: no call, unknown tools, garbage.
    STUCK: the same calls with the same results, again and again.
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
        count: how many rounds in a row show it; failed checks: how many since this model decides.
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


def failure_in(rounds: Sequence[RoundRecord], *, stuck_rounds: int = STUCK_ROUNDS) -> Failure | None:
    """Return what is wrong in the newest rounds of the model that decides now; None: nothing that can be seen.

    Args:
        rounds: the newest committed rounds, oldest first.
        stuck_rounds: so many equal rounds in a row count as stuck.
    """
    own = _own(rounds)
    if not own:
        return None
    last = own[-1]
    if (said := failed_check(last)) is not None:
        checks = sum(failed_check(record) is not None for record in own)
        return Failure(kind=FailureKind.CHECK_FAILED, count=checks, detail=said.detail or said.brief)
    newest = list(reversed(own))
    if useless := _run([is_useless(record) for record in newest]):
        return Failure(kind=FailureKind.USELESS, count=useless, detail=_problem(last))
    equal = _run([_is_same(record, last) for record in newest])
    if equal >= stuck_rounds:
        return Failure(kind=FailureKind.STUCK, count=equal)
    if failed := _run([_all_failed(record) for record in newest]):
        return Failure(kind=FailureKind.TOOLS_FAILED, count=failed, detail=_problem(last))
    return None


def failure_of_end(error_code: str, *, passed: bool | None) -> FailureKind | None:
    """Return how an ended episode failed, by the code it ended with; None: it passed, or nobody said."""
    if passed:
        return None
    match error_code:
        case "unusable_answers":
            return FailureKind.USELESS
        case _ if error_code in _LIMITED:
            return FailureKind.LIMITED
        case "check_failed":
            return FailureKind.CHECK_FAILED
        case "stuck" | "tools_failed" | "model_failed":
            return FailureKind(error_code)
        case "backend_failed" | "backend_timeout":
            return FailureKind.MODEL_FAILED
        case "":
            return FailureKind.CHECK_FAILED if passed is False else None
        case _:
            return FailureKind.LOST if passed is None else FailureKind.CHECK_FAILED


def _own(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the rounds since the model that decided the last one does: those before are another's failures."""
    if not rounds:
        return []
    model = rounds[-1].decision.model.name
    return list(reversed(list(takewhile(lambda record: record.decision.model.name == model, reversed(rounds)))))


def _run(holds: Sequence[bool]) -> int:
    """Return in how many of the newest rounds in a row something holds."""
    return sum(1 for _ in takewhile(bool, holds))


def _all_failed(record: RoundRecord) -> bool:
    return bool(record.results) and all(isinstance(result, ToolFailed) for result in record.results)


def _is_same(record: RoundRecord, other: RoundRecord) -> bool:
    """Say whether two rounds asked for the same and got the same, but for the time that it took."""
    if len(record.results) != len(other.results) or not record.results:
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
