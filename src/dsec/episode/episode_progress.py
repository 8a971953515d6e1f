"""How far an episode has come: the state machine over the events of its log.

Writer, reader and recovery fold the same events through `EpisodeProgress.apply`. The writer asks before it writes
(`check`), so that an event that would break a promise (an operation that must not run twice, carried out without an
announcement) is refused while it can still be.

::

    began ── decided ── running* ── finished* ── round ── decided ...   ── ended
                │          └─ settled ─┘            │
                └────────── abandoned ──────────────┘        state: only between rounds

    at any time before the end: life, steered, held, released, model, model_failed, environment
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from dsec.base.errors import InvalidStateError, StateCorruptedError
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_events import (
    EpisodeBegan,
    EpisodeEnded,
    LogEvent,
    OperationFinished,
    OperationSettled,
    OperationsRunning,
    RoundAbandoned,
    RoundCommitted,
    RoundDecided,
    StateSaved,
    Verdict,
)
from dsec.episode.operations import Operation, RoundRecord
from dsec.episode.totalling import with_decision, with_event
from dsec.episode.totals import EpisodeTotals


@dataclass(slots=True)
class OpenRound:
    """A round that is decided and not committed.

    Attributes:
        decided: its decision, and the version of the workspace before it.
        attempts: how often each operation was announced, by id.
        finished: the last recorded result of each, by id.
        settled: what somebody decided, by id.
    """

    decided: RoundDecided
    attempts: dict[str, int] = field(default_factory=dict)
    finished: dict[str, OperationFinished] = field(default_factory=dict)
    settled: dict[str, OperationSettled] = field(default_factory=dict)

    def operation(self, operation_id: str) -> Operation | None:
        """Return an operation of the decision."""
        return next((found for found in self.decided.decision.operations if found.operation_id == operation_id), None)

    def undecided(self) -> list[str]:
        """Return the operations that began, must not run twice, and have neither result nor verdict."""
        return [
            operation.operation_id
            for operation in self.decided.decision.operations
            if operation.effect.is_announced
            and operation.operation_id in self.attempts
            and operation.operation_id not in self.finished
            and operation.operation_id not in self.settled
        ]


@dataclass(slots=True)
class EpisodeProgress:
    """What the events so far add up to.

    Attributes:
        identity: of the episode; None before its first event.
        last_round: the last committed round; 0: none.
        state_round: the round of the newest whole state; 0: none.
        state: that state.
        workspace: version of the workspace after the last committed round.
        open: the round that is under way.
        decisions: decisions of the round after the last committed one, the open one included.
        totals: what was used, and what the episode was told.
        ended: how the episode ended.
    """

    identity: EpisodeIdentity | None = None
    last_round: int = 0
    state_round: int = 0
    state: StateSaved | None = None
    workspace: str = ""
    open: OpenRound | None = None
    decisions: int = 0
    totals: EpisodeTotals = field(default_factory=EpisodeTotals)
    ended: EpisodeEnded | None = None

    @property
    def operations(self) -> int:
        """Operations of all committed rounds."""
        return self.totals.operations

    def check(self, event: LogEvent) -> None:
        """Say whether an event may come next.

        Raises:
            InvalidStateError: it may not; the brief says why.
        """
        if reason := self._objection(event):
            raise InvalidStateError(
                f"the log of {self._name()} takes no such event now: {reason}",
                resolution="this is a mistake of the loop; nothing was written",
            )

    def apply(self, event: LogEvent) -> None:
        """Take in an event that was read or written.

        Raises:
            StateCorruptedError: no writer can have written it here.
        """
        if reason := self._objection(event):
            raise StateCorruptedError(f"the log of {self._name()} holds an event out of order: {reason}")
        self.apply_checked(event)

    def apply_checked(self, event: LogEvent) -> None:
        """Take in an event for which `check` was called just now."""
        match event:
            case EpisodeBegan():
                self.identity, self.workspace = event.identity, event.identity.workspace
            case RoundDecided():
                self.open = OpenRound(event)
                self.decisions += 1
                self.totals = with_decision(self.totals, event.decision)
            case RoundCommitted():
                self._commit(event.record)
            case RoundAbandoned():
                self.open = None
            case StateSaved():
                self.identity, self.state, self.state_round = event.identity, event, event.number
                self.last_round, self.workspace, self.totals = event.number, event.workspace, event.totals
            case EpisodeEnded():
                self.ended = event
            case OperationsRunning() | OperationFinished() | OperationSettled():
                self._advance(event)
            case _:
                self.totals = with_event(self.totals, event, last_round=self.last_round)

    def _advance(self, event: OperationsRunning | OperationFinished | OperationSettled) -> None:
        if self.open is None:
            return
        match event:
            case OperationsRunning():
                for operation_id in event.operations:
                    self.open.attempts[operation_id] = event.attempt
                    # What was settled as not having happened is under way again.
                    self.open.settled.pop(operation_id, None)
            case OperationFinished():
                self.open.finished[event.operation] = event
            case OperationSettled():
                self.open.settled[event.operation] = event

    def _commit(self, record: RoundRecord) -> None:
        if self.open is None:
            self.totals = with_decision(self.totals, record.decision)
        self.open = None
        self.decisions = 0
        self.last_round = record.number
        self.workspace = record.workspace_after
        operations = self.totals.operations + len(record.decision.operations)
        self.totals = replace(self.totals, operations=operations)

    def _name(self) -> str:
        return self.identity.episode_id if self.identity is not None else "an episode"

    # -- what may come next --------------------------------------------------------------------------------------------

    def _objection(self, event: LogEvent) -> str:
        if self.identity is None:
            return "" if isinstance(event, EpisodeBegan | StateSaved) else "it has not begun"
        if self.ended is not None:
            return "the episode has ended"
        match event:
            case EpisodeBegan():
                return "it has begun already"
            case RoundDecided():
                return self._objection_to_decision(event)
            case RoundCommitted():
                return self._objection_to_round(event.record)
            case StateSaved():
                return self._objection_to_state(event)
            case RoundAbandoned():
                return self._objection_in_round(event.number) or self._objection_to_abandoning()
            case OperationsRunning():
                return self._objection_in_round(event.number) or self._objection_to_running(event)
            case OperationFinished():
                return self._objection_in_round(event.number) or self._objection_to_result(event)
            case OperationSettled():
                return self._objection_in_round(event.number) or self._objection_to_settling(event)
            case _:
                return ""

    def _objection_to_decision(self, event: RoundDecided) -> str:
        if self.open is not None:
            return f"round {self.open.decided.number} is under way"
        if event.number != self.last_round + 1:
            return f"round {event.number} does not follow round {self.last_round}"
        return _objection_to_ids(event.decision.operations)

    def _objection_in_round(self, number: int) -> str:
        if self.open is None:
            return "no round is under way"
        if number != self.open.decided.number:
            return f"round {self.open.decided.number} is under way, not {number}"
        return ""

    def _objection_to_abandoning(self) -> str:
        undecided = self.open.undecided() if self.open is not None else []
        return f"nobody knows what became of {undecided[0]}" if undecided else ""

    def _objection_to_running(self, event: OperationsRunning) -> str:
        for operation_id in event.operations:
            if (objection := self._objection_to_operation(operation_id)) or self.open is None:
                return objection
            if event.attempt <= self.open.attempts.get(operation_id, 0):
                return f"attempt {event.attempt} at {operation_id} was announced before"
            operation = self.open.operation(operation_id)
            if operation is not None and operation.effect.is_announced and self._has_result(operation_id):
                return f"{operation_id} has a result, and must not run twice"
        return ""

    def _has_result(self, operation_id: str) -> bool:
        assert self.open is not None
        settled = self.open.settled.get(operation_id)
        return operation_id in self.open.finished or (settled is not None and settled.verdict is Verdict.HAPPENED)

    def _objection_to_operation(self, operation_id: str) -> str:
        if self.open is None or self.open.operation(operation_id) is None:
            return f"{operation_id} is no operation of the decision"
        return ""

    def _objection_to_result(self, event: OperationFinished) -> str:
        if (objection := self._objection_to_operation(event.operation)) or self.open is None:
            return objection
        operation = self.open.operation(event.operation)
        if operation is None or not operation.effect.is_announced:
            return ""
        if event.operation not in self.open.attempts:
            return f"{event.operation} was never announced"
        return f"{event.operation} has a result already" if self._has_result(event.operation) else ""

    def _objection_to_settling(self, event: OperationSettled) -> str:
        if (objection := self._objection_to_operation(event.operation)) or self.open is None:
            return objection
        if event.operation not in self.open.undecided():
            return f"the outcome of {event.operation} is not unknown"
        if (event.result is not None) != (event.verdict is Verdict.HAPPENED):
            return "a result goes with having happened, and only with it"
        return ""

    def _objection_to_state(self, event: StateSaved) -> str:
        if self.open is not None:
            return "a state is of the end of a round"
        if event.number != self.last_round or event.workspace != self.workspace:
            return f"the state is of round {event.number}, and the last one is {self.last_round}"
        return "" if event.identity == self.identity else "the state is of another episode"

    def _objection_to_round(self, record: RoundRecord) -> str:
        operations = record.decision.operations
        if record.number != self.last_round + 1:
            return f"round {record.number} does not follow round {self.last_round}"
        if len(record.results) != len(operations) or len(record.attempts) not in (0, len(operations)):
            return f"round {record.number} has {len(record.results)} results of {len(operations)} operations"
        if self.open is None:
            unannounced = next((found for found in operations if found.effect.is_announced), None)
            if unannounced is not None:
                return f"{unannounced.operation_id} was never announced"
            return _objection_to_ids(operations)
        if record.decision != self.open.decided.decision:
            return f"round {record.number} was decided otherwise"
        return next((found for place, _ in enumerate(operations) if (found := self._contradiction(record, place))), "")

    def _contradiction(self, record: RoundRecord, place: int) -> str:
        assert self.open is not None
        operation = record.decision.operations[place]
        if not operation.effect.is_announced:
            return ""
        if operation.operation_id not in self.open.attempts:
            return f"{operation.operation_id} was never announced"
        finished, settled = (
            self.open.finished.get(operation.operation_id),
            self.open.settled.get(operation.operation_id),
        )
        recorded = finished.result if finished is not None else settled.result if settled is not None else None
        if recorded is not None and recorded != record.results[place]:
            return f"{operation.operation_id} has another result already"
        return ""


def _objection_to_ids(operations: tuple[Operation, ...]) -> str:
    if len({operation.operation_id for operation in operations}) != len(operations):
        return "two of its operations have the same id"
    return ""


def fold(events: list[LogEvent]) -> EpisodeProgress:
    """Return the progress of an episode from its events.

    Raises:
        StateCorruptedError: they are out of order.
    """
    progress = EpisodeProgress()
    for event in events:
        progress.apply(event)
    return progress
