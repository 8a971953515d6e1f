"""The loop of one episode: decide, announce what must be, act, commit; and after a death, what the log says is to do.

Nothing that counts is kept here. The loop asks `plan_recovery` what is open, does it, and plays rounds from there, so
that going on after a death and going on after a round are the same thing. Three orders carry the promises:

- An operation that must not run twice is announced and saved before it begins (`DurableLog.announce`).
- The workspace is saved before a record says that a round ended with that version, and a version is forgotten only
  once a later round is saved.
- A round is committed before the next one is decided.

Inside a round, files are saved as well where they are dear: behind operations that took long, and behind one that must
not run twice and may have changed files, which a workspace that was put back would lack.

An error stops the loop and leaves the episode open. What is undecidable stops it too (`Waiting`), until somebody
settles it (`settle`). Only the policy, a submission or a limit end an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

import anyio
from msgspec.structs import replace

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import DsecError, InvalidStateError, NotFoundError, OutsideUnavailableError
from dsec.episode.agent_calls import EditFile, Submit, UnusableCall
from dsec.episode.identity import operation_id
from dsec.episode.log_events import (
    EpisodeEnded,
    LogEvent,
    OperationFinished,
    OperationSettled,
    OperationsRunning,
    RoundCommitted,
    RoundDecided,
    Verdict,
)
from dsec.episode.operations import Effect, ModelDecision, Operation, RoundRecord
from dsec.episode.recovery import (
    AskOutside,
    AwaitVerdict,
    CompensateOutside,
    OperationAction,
    Recovery,
    ReturnRecorded,
    RunOperation,
    SendAgain,
    plan_recovery,
)
from dsec.episode.tools import Run, ToolFailed, ToolResult, UploadArchive, WriteFile
from dsec.stores.episode_log_group import DurableLog
from dsec.worker.episodes.deciding import Around, Decider
from dsec.worker.episodes.ports import Declare, EpisodePolicy, Finished, Hands, Proposal, Workspace
from dsec.worker.episodes.recovery.checking import is_checked
from dsec.worker.episodes.results import bounded_result
from dsec.worker.episodes.window import RoundWindow

UNUSABLE_ANSWERS = "unusable_answers"
TOO_MANY_ROUNDS = "too_many_rounds"
BY_SYSTEM = "the system outside"
"""Who says that an operation did not happen, where nobody had to look."""
_HOST_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    """When an episode ends by itself.

    Attributes:
        rounds: it has so many.
        useless_rounds: so many rounds in a row held no call that could be carried out.
        calls: of one decision; what is beyond is answered with a failure and not carried out.
        dear_s: operations on files that took so long together are not done again after a death: a version is saved
            behind them, inside the round.
    """

    rounds: int = 10_000
    useless_rounds: int = 5
    calls: int = 64
    dear_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The episode waits: nobody knows what became of these operations, which must not run twice."""

    operations: tuple[AwaitVerdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    result: ToolResult
    attempts: int


def decision_seed(seed: int, *, number: int, decision: int) -> int:
    """Return the seed of a decision, from its episode's: 31 bits, which every model service takes."""
    digest = blake2b(f"{seed}.{number}.{decision}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


class EpisodeLoop:
    """One life of the loop of one episode.

    Args:
        log: begun or opened; the loop is the only one that writes there, and does not close it.
        rounds: what was read when it was opened; nothing for one that was just begun.
        policy, hands, workspace: see `dsec.worker.episodes.ports`.
        declare: what the tools declare.
        limits: when it ends by itself.
        around: what stands around it; see there.
        clock: tells when rounds were committed.

    Attributes:
        rounds: the newest committed rounds.
    """

    def __init__(
        self,
        log: DurableLog,
        *,
        policy: EpisodePolicy,
        hands: Hands,
        workspace: Workspace,
        declare: Declare,
        rounds: Sequence[RoundRecord] = (),
        limits: LoopLimits = LoopLimits(),
        around: Around | None = None,
        clock: Clock = _HOST_CLOCK,
    ) -> None:
        self._log = log
        self._progress = log.log.progress
        self._around = around or Around()
        self._gate = self._around.gate
        self._hands = hands
        self._workspace = workspace
        self._declare = declare
        self._limits = limits
        self._clock = clock
        self._versions: list[tuple[int, str]] = []
        self._points: list[tuple[int, str]] = []
        # Whoever begins life after life keeps one window: a copy would leave the next life without what this one did.
        self.rounds = (
            rounds if isinstance(rounds, RoundWindow) else RoundWindow(rounds, limit_bytes=self._around.window_bytes)
        )
        self._decider = Decider(log, policy, self.rounds, self._around, clock, seed=self._decision_seed)

    def use(self, policy: EpisodePolicy) -> None:
        """Let another policy decide from the next decision on."""
        self._decider.use(policy)

    async def run(self) -> EpisodeEnded | Waiting:
        """Go on until the episode ends, or waits for a verdict. May be called again after that was given.

        Raises:
            InvalidStateError: the workspace is not what the log says, and cannot be put back.
            DsecError: a save, the sandbox or the model failed. The episode stays open; open its log anew to go on.
        """
        if self._progress.ended is not None:
            return self._progress.ended
        async with self._gate.working():
            plan = plan_recovery(
                self._progress, workspace=await self._workspace.version(), restorable=await self._workspace.versions()
            )
        if plan.workspace.lost:
            raise InvalidStateError(
                f"episode {self._name()} cannot go on: {plan.workspace.lost}",
                resolution="begin an episode of its own from a checkpoint or snapshot that is left",
            )
        if plan.unknown:
            return Waiting(operations=plan.unknown)
        await self._recover(plan)
        while (ended := self._end()) is None:
            ended = await self._round()
            if ended is not None:
                break
        ended = replace(ended, at_s=self._clock.wall_s())
        await self._log.announce(ended)
        return ended

    async def _recover(self, plan: Recovery) -> None:
        async with self._gate.working():
            if plan.workspace.restore:
                await self._workspace.restore(plan.workspace.version)
            await self._workspace.keep_only({plan.workspace.version, self._progress.workspace})
        self._versions = [(self._log.log.saved_sequence, self._progress.workspace)]
        self._points = [(plan.number, plan.workspace.version)]
        if not plan.ask_model:
            assert self._progress.open is not None
            await self._play(self._progress.open.decided.decision, plan.actions, decide_s=0.0)

    # -- rounds --------------------------------------------------------------------------------------------------------

    async def _round(self) -> EpisodeEnded | None:
        began = anyio.current_time()
        proposal = await self._decider.decide()
        if isinstance(proposal, Finished):
            return EpisodeEnded(reason=proposal.reason, error_code=proposal.error_code)
        decision = self._decision(proposal)
        actions = tuple(
            RunOperation(operation_id=operation.operation_id, attempt=1, reason="it is new")
            for operation in decision.operations
        )
        await self._play(decision, actions, decide_s=anyio.current_time() - began)
        return None

    def _decision_seed(self, number: int, decision: int) -> int:
        assert self._progress.identity is not None
        return decision_seed(self._progress.identity.seed, number=number, decision=decision)

    def _decision(self, proposal: Proposal) -> ModelDecision:
        calls = list(proposal.calls)
        for place in range(self._limits.calls, len(calls)):
            problem = f"one answer may hold {self._limits.calls} calls; this one was not carried out"
            calls[place] = UnusableCall(problem=problem)
        number, decision = self._progress.last_round + 1, self._progress.decisions + 1
        operations = []
        for place, call in enumerate(calls):
            declared = self._declare(call)
            name = operation_id(self._name(), number=number, decision=decision, call=place)
            operations.append(
                Operation(operation_id=name, call=call, effect=declared.effect, parallel=declared.parallel)
            )
        return ModelDecision(
            operations=tuple(operations),
            message=proposal.message,
            answer=proposal.answer,
            model=proposal.model,
            usage=proposal.usage,
        )

    async def _play(self, decision: ModelDecision, actions: Sequence[OperationAction], *, decide_s: float) -> None:
        began = anyio.current_time()
        environment = self._around.environment
        if environment is not None:
            async with self._gate.working():
                await environment.before_tools(decision)
        outcomes: list[_Outcome] = []
        pairs = list(zip(decision.operations, actions, strict=True))
        spent_s = 0.0
        for side_by_side, group in groupby(pairs, key=lambda pair: _may_run_beside(pair[0])):
            if side_by_side:
                outcomes += await self._act_beside(decision, list(group))
                continue
            for operation, action in group:
                started = anyio.current_time()
                outcomes.append(await self._act(decision, operation, action, outcomes))
                if operation.effect is Effect.WORKSPACE and not isinstance(action, ReturnRecorded):
                    spent_s += anyio.current_time() - started
                    if spent_s >= self._limits.dear_s and len(outcomes) < len(pairs):
                        spent_s = 0.0
                        await self._save_point(decision, outcomes)
        async with self._gate.working():
            record = await self._commit(decision, outcomes, decide_s=decide_s, began=began)
            if environment is not None:
                await environment.after_round(record)
            if self._around.after_commit is not None:
                await self._around.after_commit(self.rounds)

    async def _commit(
        self, decision: ModelDecision, outcomes: Sequence[_Outcome], *, decide_s: float, began: float
    ) -> RoundRecord:
        version = before = self._progress.workspace
        if any(_may_change_files(operation) for operation in decision.operations):
            version = await self._workspace.save(self._progress.last_round + 1)
        record = RoundRecord(
            number=self._progress.last_round + 1,
            decision=decision,
            results=tuple(outcome.result for outcome in outcomes),
            attempts=tuple(outcome.attempts for outcome in outcomes),
            workspace_before=before,
            workspace_after=version,
            decide_s=round(decide_s, 6),
            tools_s=round(anyio.current_time() - began, 6),
            committed_at_s=self._clock.wall_s(),
        )
        sequence = await self._log.commit(RoundCommitted(record))
        self.rounds.append(record)
        if version != before:
            self._versions.append((sequence, version))
        await self._forget_versions()
        return record

    async def _forget_versions(self) -> None:
        """Forget what no log that a failure could leave asks for: all before the newest version that is saved."""
        saved = [
            place for place, (sequence, _) in enumerate(self._versions) if sequence <= self._log.log.saved_sequence
        ]
        if saved and saved[-1]:
            self._versions = self._versions[saved[-1] :]
            saved_round = self._progress.last_round - self._log.unsaved.rounds
            self._points = [point for point in self._points if point[0] > saved_round]
            try:
                await self._workspace.keep_only({version for _, version in (*self._versions, *self._points)})
            except DsecError:
                return  # It costs room, and the next round tries again.

    # -- operations ----------------------------------------------------------------------------------------------------

    async def _act_beside(
        self, decision: ModelDecision, pairs: Sequence[tuple[Operation, OperationAction]]
    ) -> list[_Outcome]:
        outcomes: dict[int, _Outcome] = {}
        failures: list[DsecError] = []

        async def act(place: int, operation: Operation, action: OperationAction) -> None:
            try:
                outcomes[place] = await self._act(decision, operation, action)
            except DsecError as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for place, (operation, action) in enumerate(pairs):
                tasks.start_soon(act, place, operation, action)
        if failures:
            raise failures[0]
        return [outcomes[place] for place in range(len(pairs))]

    async def _act(
        self,
        decision: ModelDecision,
        operation: Operation,
        action: OperationAction,
        before: Sequence[_Outcome] = (),
    ) -> _Outcome:
        match action:
            case ReturnRecorded():
                begun = self._progress.open.attempts if self._progress.open is not None else {}
                return _Outcome(result=action.result, attempts=begun.get(operation.operation_id, 0))
            case AwaitVerdict():
                raise InvalidStateError(f"{operation.operation_id} waits for a verdict")
            case AskOutside():
                async with self._gate.working():
                    found = await self._hands.ask(operation)
                if found is not None:
                    return await self._finish(operation, found, action.attempt - 1)
            case CompensateOutside():
                async with self._gate.working():
                    await self._hands.compensate(operation)
            case _:
                pass
        try:
            result = await self._execute(decision, operation, action.attempt)
        except OutsideUnavailableError:
            # Of what is sent again, an earlier attempt may have happened; of all else it is known now.
            if operation.effect.is_announced and not isinstance(action, SendAgain):
                await settle(self._log, operation.operation_id, Verdict.DID_NOT_HAPPEN, by=BY_SYSTEM)
            raise
        if (
            operation.effect.is_announced
            and _may_change_files(operation)
            and len(before) + 1 < len(decision.operations)
        ):
            # It is never made again, so that the files that it left are saved with its result.
            outcome = _Outcome(result=bounded_result(result), attempts=action.attempt)
            await self._save_point(decision, [*before, outcome])
            return outcome
        return await self._finish(operation, result, action.attempt)

    async def _execute(self, decision: ModelDecision, operation: Operation, attempt: int) -> ToolResult:
        if isinstance(operation.call, Run) or is_checked(operation):
            # A command is not waited for when the episode has to stand still: it is frozen with its sandbox.
            async with self._gate.working():
                await self._announce(decision, operation, attempt)
            return await self._hands.run(operation)
        async with self._gate.working():
            await self._announce(decision, operation, attempt)
            return await self._hands.run(operation)

    async def _announce(self, decision: ModelDecision, operation: Operation, attempt: int) -> None:
        if not operation.effect.is_announced:
            return
        number = self._progress.last_round + 1
        events: list[LogEvent] = []
        if self._progress.open is None:
            events.append(RoundDecided(number=number, decision=decision, workspace=self._progress.workspace))
        running = OperationsRunning(number=number, operations=(operation.operation_id,), attempt=attempt)
        await self._log.announce(*events, running)
        if self._around.announced is not None:
            await self._around.announced()

    async def _finish(self, operation: Operation, result: ToolResult, attempt: int) -> _Outcome:
        outcome = _Outcome(result=bounded_result(result), attempts=attempt)
        if operation.effect.is_announced:
            await self._log.note(self._finished(operation, outcome))
        return outcome

    def _finished(self, operation: Operation, outcome: _Outcome, version: str = "") -> OperationFinished:
        return OperationFinished(
            number=self._progress.last_round + 1,
            operation=operation.operation_id,
            result=outcome.result,
            attempt=max(1, outcome.attempts),
            workspace=version,
        )

    async def _save_point(self, decision: ModelDecision, outcomes: Sequence[_Outcome]) -> None:
        """Save the files inside a round, behind the operations that have an outcome, and with them these outcomes."""
        number = self._progress.last_round + 1
        async with self._gate.working():
            version = await self._workspace.save(number)
            self._points.append((number, version))
            events: list[LogEvent] = []
            if self._progress.open is None:
                events.append(RoundDecided(number=number, decision=decision, workspace=self._progress.workspace))
            pairs = list(zip(decision.operations, outcomes, strict=False))
            events += [self._finished(*pair) for pair in pairs[:-1] if not self._is_recorded(*pair)]
            await self._log.announce(*events, self._finished(*pairs[-1], version))

    def _is_recorded(self, operation: Operation, outcome: _Outcome) -> bool:
        opened, name = self._progress.open, operation.operation_id
        if opened is None:
            return False
        known = opened.finished.get(name) or opened.settled.get(name)
        return known is not None and known.result == outcome.result

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self) -> EpisodeEnded | None:
        """Say whether the committed rounds end the episode; a death before that was recorded changes nothing."""
        if self.rounds:
            for operation, result in zip(self.rounds[-1].decision.operations, self.rounds[-1].results, strict=True):
                if isinstance(operation.call, Submit) and not isinstance(result, ToolFailed):
                    return EpisodeEnded(reason="submitted")
        # Rounds of a model that another one took over from count against nobody any more.
        useless = min(self.rounds.useless, self._progress.last_round - self._progress.totals.changed_after)
        if useless >= self._limits.useless_rounds:
            return EpisodeEnded(
                reason=f"{useless} rounds in a row held nothing that could be carried out", error_code=UNUSABLE_ANSWERS
            )
        if self._progress.last_round >= self._limits.rounds:
            return EpisodeEnded(reason=f"it had its {self._limits.rounds} rounds", error_code=TOO_MANY_ROUNDS)
        return None

    def _name(self) -> str:
        assert self._progress.identity is not None
        return self._progress.identity.episode_id


def _may_run_beside(operation: Operation) -> bool:
    """Announcements are made one after another, so that what needs one runs alone whatever its tool declares."""
    return operation.parallel and not operation.effect.is_announced


def _may_change_files(operation: Operation) -> bool:
    """A command changes files whatever else it declares, such as one that reaches systems outside."""
    changing = isinstance(operation.call, Run | WriteFile | UploadArchive | EditFile)
    return operation.effect is Effect.WORKSPACE or (operation.effect.is_announced and changing)


async def settle(
    log: DurableLog, operation: str, verdict: Verdict, *, result: ToolResult | None = None, by: str = ""
) -> None:
    """Say what became of an operation whose outcome is unknown; saved when this returns.

    Args:
        log: of its episode, which no loop runs on.
        operation: its id.
        verdict: whether it happened.
        result: what it answered, if it happened.
        by: who says so.

    Raises:
        NotFoundError: no round is under way.
        InvalidStateError: that operation's outcome is not unknown, or a result is missing or too much.
    """
    opened = log.log.progress.open
    if opened is None:
        raise NotFoundError(f"nothing of {log.place.directory.name} waits for a verdict")
    settled = OperationSettled(number=opened.decided.number, operation=operation, verdict=verdict, result=result, by=by)
    await log.announce(settled)
