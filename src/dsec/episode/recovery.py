"""What to do when an episode is opened again: a pure function of its log, its workspace and what can be restored.

The log says up to which round the episode is committed, and what of the next one had begun. For each operation of that
round the kind of effect decides (`Effect`):

==============  ===========  =============================================  ==================
effect          not begun    begun, no result                               result recorded
==============  ===========  =============================================  ==================
none            run          run again                                      return it
workspace       run          put the workspace back, run again from there   return it
asked           run          ask by id; if nothing is known, run            return it
deduplicated    run          send again with the same id                    return it
compensated     run          undo, then run again                           return it
once            run          UNKNOWN: wait for a verdict                    return it
==============  ===========  =============================================  ==================

The workspace is one thing that operations share, so they are not judged one by one: it is put back to the newest
version that is saved, and what changed it or looked at it after that is run again in order, recorded or not. Nothing of
it was committed, so nobody has acted on it. What happened outside stays as it is recorded: a rollback takes nothing
back there. Source: the chapter, sections 11.1.3 and 11.5.1, figure 11-43.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.episode.episode_progress import EpisodeProgress, OpenRound
from dsec.episode.log_events import EpisodeEnded, Verdict
from dsec.episode.operations import Effect, Operation
from dsec.episode.tools import ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnRecorded:
    """It has a result: return that, run nothing."""

    operation_id: str
    result: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOperation:
    """Run it, for the `attempt`-th time; it is announced first if its effect asks for that."""

    operation_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOutside:
    """Ask the system outside what became of it; if that knows nothing of the id, run it as `attempt`."""

    operation_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAgain:
    """Send it again with the same id: the system outside does it once."""

    operation_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensateOutside:
    """Undo it outside, which is idempotent, and then run it as `attempt`."""

    operation_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitVerdict:
    """UNKNOWN: it may have happened. Nothing goes on until somebody settles it."""

    operation_id: str
    reason: str


OperationAction = ReturnRecorded | RunOperation | AskOutside | SendAgain | CompensateOutside | AwaitVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspacePlan:
    """What to do about the workspace.

    Attributes:
        version: what it has to be before anything goes on; empty: nobody recorded one.
        restore: whether it has to be put there; otherwise it is there.
        lost: why it can be neither; the episode cannot go on as it is.
    """

    version: str
    restore: bool = False
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What to do, in order: the workspace, then the operations, then the round is committed.

    Attributes:
        last_round: the last committed round.
        workspace: what the workspace has to be.
        number: the round to go on with.
        ask_model: whether that round has no decision yet.
        actions: one for each operation of its decision, in order.
        ended: how the episode ended; nothing is to be done then.
    """

    last_round: int
    workspace: WorkspacePlan
    number: int
    ask_model: bool = True
    actions: tuple[OperationAction, ...] = ()
    ended: EpisodeEnded | None = None

    @property
    def unknown(self) -> tuple[AwaitVerdict, ...]:
        """The operations whose outcome somebody has to settle."""
        return tuple(action for action in self.actions if isinstance(action, AwaitVerdict))

    @property
    def can_go_on(self) -> bool:
        """Whether nothing has to be settled by somebody first."""
        return self.ended is None and not self.workspace.lost and not self.unknown


def plan_recovery(progress: EpisodeProgress, *, workspace: str | None, restorable: Collection[str] = ()) -> Recovery:
    """Return what to do about an episode that is opened again.

    Args:
        progress: of its log, which has to be complete.
        workspace: version that the workspace is now; None: it is gone, or cannot be told; empty: the episode has none.
        restorable: versions that it can be put back to.

    Raises:
        InvalidRequestError: the log has not begun.
    """
    if progress.identity is None:
        raise InvalidRequestError("an episode that has not begun cannot be recovered", resolution="start it")
    if progress.ended is not None:
        return Recovery(
            last_round=progress.last_round,
            workspace=WorkspacePlan(version=progress.workspace),
            number=progress.last_round + 1,
            ask_model=False,
            ended=progress.ended,
        )
    if progress.open is None:
        return Recovery(
            last_round=progress.last_round,
            workspace=_workspace(progress.workspace, workspace, restorable),
            number=progress.last_round + 1,
        )
    return _recover_round(progress, progress.open, workspace, restorable)


def _workspace(wanted: str, now: str | None, restorable: Collection[str]) -> WorkspacePlan:
    if wanted == now:
        return WorkspacePlan(version=wanted)
    if not wanted:
        return WorkspacePlan(version="", lost="no version of the workspace was recorded, so that it cannot be checked")
    if wanted in restorable:
        return WorkspacePlan(version=wanted, restore=True)
    found = f"is {now}" if now else "is gone"
    return WorkspacePlan(version=wanted, lost=f"the workspace has to be {wanted}, {found}, and that cannot be restored")


def _recover_round(
    progress: EpisodeProgress, open_round: OpenRound, now: str | None, restorable: Collection[str]
) -> Recovery:
    operations = open_round.decided.decision.operations
    touched = _touched(open_round)
    plan, kept = _latest_version(open_round, touched, now, restorable)
    if touched and not plan.version:
        plan = WorkspacePlan(
            version="", lost="no version of the workspace was recorded, and the round may have changed it"
        )
    actions: list[OperationAction] = []
    for place, operation in enumerate(operations):
        # Behind the version that the workspace is put to, what changed it or looked at it happens anew.
        anew = touched and place > kept and operation.effect in (Effect.WORKSPACE, Effect.NONE)
        actions.append(_action(open_round, operation, anew=anew and _stale(operations, kept, place)))
    return Recovery(
        last_round=progress.last_round,
        workspace=plan,
        number=open_round.decided.number,
        ask_model=False,
        actions=tuple(actions),
    )


def _touched(open_round: OpenRound) -> bool:
    """Whether any operation of the round may have changed the workspace. Those are not announced, so any may have."""
    return any(operation.effect is Effect.WORKSPACE for operation in open_round.decided.decision.operations)


def _stale(operations: tuple[Operation, ...], kept: int, place: int) -> bool:
    """Whether an operation follows, or is, one that changes the workspace behind the version that is kept."""
    return any(operation.effect is Effect.WORKSPACE for operation in operations[kept + 1 : place + 1])


def _latest_version(
    open_round: OpenRound, touched: bool, now: str | None, restorable: Collection[str]
) -> tuple[WorkspacePlan, int]:
    """Return the newest version inside the round that the workspace is at or can be put to, and the place of the
    operation that it follows; -1: the version before the round.
    """
    before = open_round.decided.workspace
    # An operation that must not run twice may have left files, too; they are with its result.
    if touched or any(finished.workspace for finished in open_round.finished.values()):
        for place, version in reversed(_saved_points(open_round)):
            plan = _workspace(version, now, restorable)
            if not plan.lost:
                return plan, place
    return _workspace(before, now, restorable), -1


def _saved_points(open_round: OpenRound) -> list[tuple[int, str]]:
    """Return place and version of each saved point of the round: all in front of it has a result.

    A version that was saved while a neighbour may still have run has some of that neighbour's work in it, and is none.
    """
    operations = open_round.decided.decision.operations
    points: list[tuple[int, str]] = []
    for place, operation in enumerate(operations):
        finished = open_round.finished.get(operation.operation_id)
        if finished is None and not _settled_as_done(open_round, operation.operation_id):
            break
        beside_the_next = operation.parallel and place + 1 < len(operations) and operations[place + 1].parallel
        if finished is not None and finished.workspace and not beside_the_next:
            points.append((place, finished.workspace))
    return points


def _settled_as_done(open_round: OpenRound, operation_id: str) -> bool:
    settled = open_round.settled.get(operation_id)
    return settled is not None and settled.verdict is Verdict.HAPPENED


def _action(open_round: OpenRound, operation: Operation, *, anew: bool) -> OperationAction:
    operation_id = operation.operation_id
    finished, settled = open_round.finished.get(operation_id), open_round.settled.get(operation_id)
    attempts = max(open_round.attempts.get(operation_id, 0), finished.attempt if finished is not None else 0)
    if anew:
        reason = "the workspace is put back to before it" if attempts else "it had not begun, or not said so"
        return RunOperation(operation_id=operation_id, attempt=attempts + 1, reason=reason)
    if finished is not None:
        return ReturnRecorded(operation_id=operation_id, result=finished.result)
    if settled is not None and settled.result is not None:
        return ReturnRecorded(operation_id=operation_id, result=settled.result)
    if settled is not None:
        return RunOperation(
            operation_id=operation_id, attempt=attempts + 1, reason=f"settled by {settled.by or 'hand'}"
        )
    if not operation.effect.is_announced:
        return RunOperation(operation_id=operation_id, attempt=attempts + 1, reason="it may be run again")
    if not attempts:
        return RunOperation(operation_id=operation_id, attempt=1, reason="it had not begun")
    return _undecided(operation, attempts + 1)


def _undecided(operation: Operation, attempt: int) -> OperationAction:
    operation_id = operation.operation_id
    match operation.effect:
        case Effect.ASKED:
            return AskOutside(operation_id=operation_id, attempt=attempt)
        case Effect.DEDUPLICATED:
            return SendAgain(operation_id=operation_id, attempt=attempt)
        case Effect.COMPENSATED:
            return CompensateOutside(operation_id=operation_id, attempt=attempt)
        case _:
            return AwaitVerdict(
                operation_id=operation_id, reason="it began, no result is recorded, and it must not run twice"
            )


def check_resumable_at(progress: EpisodeProgress, *, number: int, operations: int | None = None) -> str:
    """Return the version of the workspace at a point from which an episode is to be resumed.

    Args:
        progress: of its log.
        number: the round after which to go on; 0: its start. Only the last committed one can be: a log goes on at its
            end. Earlier rounds are resumed in an episode of their own, from their checkpoint.
        operations: so many operations into the round after that; None: between rounds.

    Raises:
        InvalidRequestError: that point was not saved.
    """
    if number != progress.last_round:
        raise InvalidRequestError(
            f"the log can be gone on with after round {progress.last_round}, not {number}",
            resolution="an earlier round is gone on with in an episode of its own, from its checkpoint",
        )
    if operations is None:
        return progress.workspace
    points = dict(_saved_points(progress.open)) if progress.open is not None else {}
    if operations - 1 not in points:
        saved = ", ".join(str(place + 1) for place in points) or "none"
        raise InvalidRequestError(
            f"round {number + 1} was not saved after {operations} of its operations",
            detail=f"saved points inside it: {saved}",
            resolution=f"go on after round {number}, which was saved as a whole",
        )
    return points[operations - 1]
