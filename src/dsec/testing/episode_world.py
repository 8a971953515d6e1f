"""A world that an agent's loop acts on, and the smallest loop that acts on it: for tests of what survives a death.

The world remembers what truly happened: it is the judge, and knows nothing of logs. It has a workspace, checkpoints of
it, and systems outside of each kind (`Effect`). Every change of it, and every operation on the loop's disk, is a step
at which the loop can be killed (`Fuse`), so that a death can come between an effect and its record.

The loop does what a worker does, without waiting: it opens or begins its log, recovers, plays rounds. What its model
decides is drawn anew whenever it is asked, as with a real one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dsec.base.clock import Clock
from dsec.base.errors import NotFoundError
from dsec.episode.identity import operation_id
from dsec.episode.log_events import (
    EpisodeEnded,
    OperationFinished,
    OperationSettled,
    OperationsRunning,
    RoundCommitted,
    RoundDecided,
    StateSaved,
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
    SendAgain,
    plan_recovery,
)
from dsec.episode.tools import Run, ToolResult
from dsec.stores.episode_log import EpisodeLog, create_log, open_log
from dsec.stores.episode_log_disk import Disk
from dsec.stores.episode_log_place import LogPlace
from dsec.testing.episodes import EPISODE, identity, result
from dsec.testing.faults import Killed

DIRECTORY = Path("/episodes") / EPISODE
START = "start"


@dataclass(slots=True)
class Fuse:
    """Kills the loop at a step; 0: never."""

    kill_at: int = 0
    steps: int = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            raise Killed


@dataclass(slots=True)
class World:
    """What is true.

    Attributes:
        workspace: operations that changed it, in order; None: it is gone.
        checkpoints: by version.
        outside: how often each operation is in effect outside.
        asked: how often the model was asked.
    """

    fuse: Fuse = field(default_factory=Fuse)
    workspace: list[str] | None = field(default_factory=list)
    checkpoints: dict[str, tuple[str, ...]] = field(default_factory=lambda: {START: ()})
    outside: Counter[str] = field(default_factory=Counter)
    asked: int = 0

    def version(self) -> str | None:
        """Return the version of the workspace; None: it is gone."""
        if self.workspace is None:
            return None
        return "/".join(self.workspace) or START

    def checkpoint(self) -> str:
        """Save the workspace and return its version."""
        assert self.workspace is not None
        self.fuse.step()
        version = self.version()
        assert version is not None
        self.checkpoints[version] = tuple(self.workspace)
        return version

    def restore(self, version: str) -> None:
        """Put the workspace back."""
        self.fuse.step()
        self.workspace = list(self.checkpoints[version])

    def execute(self, operation: Operation) -> ToolResult:
        """Carry an operation out; a death can come before it and after it."""
        self.fuse.step()
        match operation.effect:
            case Effect.NONE:
                pass
            case Effect.WORKSPACE:
                assert self.workspace is not None
                self.workspace.append(operation.operation_id)
            case Effect.DEDUPLICATED:
                self.outside[operation.operation_id] = 1
            case _:
                self.outside[operation.operation_id] += 1
        self.fuse.step()
        return result(operation.operation_id)

    def compensate(self, operation: Operation) -> None:
        """Undo an operation outside; idempotent."""
        self.fuse.step()
        self.outside[operation.operation_id] = 0


@dataclass(slots=True)
class LoopHabits:
    """What differs between loops; none of it may make a difference to what is promised.

    Attributes:
        rounds: how many rounds the episode has.
        save_every: durability: so many rounds are saved together.
        saved_points: share of workspace operations after which the workspace is saved inside the round.
        state_every: a whole state is saved every so many rounds; 0: never.
        segment_bytes: of the log.
    """

    rounds: int = 4
    save_every: int = 1
    saved_points: float = 0.3
    state_every: int = 0
    segment_bytes: int = 2000


@dataclass(slots=True)
class Loop:
    """One life of a loop.

    Attributes:
        acknowledged: the last round that was saved, over all lives.
        unknown: operations that waited for a verdict, over all lives.
        recorded: operations whose result was saved, over all lives.
    """

    world: World
    habits: LoopHabits
    draw: random.Random
    acknowledged: int = 0
    unknown: list[str] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)

    def live(self, disk: Disk, clock: Clock) -> None:
        """Go on until the episode has ended, or the fuse kills."""
        place = LogPlace(directory=DIRECTORY, disk=disk, clock=clock, segment_bytes=self.habits.segment_bytes)
        log = self._open(place)
        try:
            if log.progress.ended is None:
                self._recover(log)
                while log.progress.last_round < self.habits.rounds:
                    self._round(log)
                log.append(EpisodeEnded(reason="done"))
                self._save(log)
        finally:
            log.close()

    def _open(self, place: LogPlace) -> EpisodeLog:
        try:
            log, content = open_log(place)
        except NotFoundError:
            assert not self.acknowledged, "the log is gone"
            return create_log(place, identity(workspace=START))
        assert not content.problem
        assert content.progress.last_round >= self.acknowledged, "an acknowledged round is lost"
        return log

    def _save(self, log: EpisodeLog) -> None:
        log.save()
        self.acknowledged = log.progress.last_round
        if log.progress.open is not None:
            self.recorded |= log.progress.open.finished.keys()

    # -- recovery ------------------------------------------------------------------------------------------------------

    def _recover(self, log: EpisodeLog) -> None:
        plan = self._plan(log)
        while plan.unknown:
            for waiting in plan.unknown:
                self._settle(log, waiting)
            plan = self._plan(log)
        assert plan.can_go_on, plan
        if plan.workspace.restore:
            self.world.restore(plan.workspace.version)
        if plan.ask_model:
            return
        assert log.progress.open is not None
        decision = log.progress.open.decided.decision
        results = tuple(
            self._act(log, operation, action)
            for operation, action in zip(decision.operations, plan.actions, strict=True)
        )
        self._commit(log, decision, results)

    def _plan(self, log: EpisodeLog) -> Recovery:
        return plan_recovery(log.progress, workspace=self.world.version(), restorable=self.world.checkpoints.keys())

    def _settle(self, log: EpisodeLog, waiting: AwaitVerdict) -> None:
        """Do what a person does: look at the world, and say what happened."""
        name = waiting.operation_id
        self.unknown.append(name)
        assert name not in self.recorded, "its result was recorded"
        happened = self.world.outside[name] > 0
        log.append(
            OperationSettled(
                number=log.progress.last_round + 1,
                operation=name,
                verdict=Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN,
                result=result(name) if happened else None,
                by="a person",
            )
        )
        self._save(log)

    def _act(self, log: EpisodeLog, operation: Operation, action: OperationAction) -> ToolResult:
        match action:
            case ReturnRecorded():
                return action.result
            case AskOutside():
                if self.world.outside[operation.operation_id]:
                    return self._note(log, operation, result(operation.operation_id), action.attempt - 1)
                return self._execute(log, operation, action.attempt)
            case CompensateOutside():
                self.world.compensate(operation)
                return self._execute(log, operation, action.attempt)
            case SendAgain():
                return self._execute(log, operation, action.attempt)
            case AwaitVerdict():
                raise AssertionError("nothing waits any more")
            case _:
                return self._execute(log, operation, action.attempt)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _round(self, log: EpisodeLog) -> None:
        decision = self._decide(log)
        announced = any(operation.effect.is_announced for operation in decision.operations)
        if announced or self.draw.random() < 0.5:
            version = self.world.version()
            assert version is not None
            log.append(RoundDecided(number=log.progress.last_round + 1, decision=decision, workspace=version))
        results = tuple(self._execute(log, operation, 1) for operation in decision.operations)
        self._commit(log, decision, results)

    def _decide(self, log: EpisodeLog) -> ModelDecision:
        self.world.asked += 1
        self.world.fuse.step()
        number, place = log.progress.last_round + 1, log.progress.decisions + 1
        effects = self.draw.choices(list(Effect), k=self.draw.randint(0, 3))
        return ModelDecision(
            message=f"answer {self.world.asked}",
            operations=tuple(
                Operation(
                    operation_id=operation_id(EPISODE, number=number, decision=place, call=call),
                    call=Run(script=f"echo {self.world.asked}.{call}"),
                    effect=effect,
                )
                for call, effect in enumerate(effects)
            ),
        )

    def _execute(self, log: EpisodeLog, operation: Operation, attempt: int) -> ToolResult:
        if operation.effect.is_announced:
            number = log.progress.last_round + 1
            log.append(OperationsRunning(number=number, operations=(operation.operation_id,), attempt=attempt))
            self._save(log)
        return self._note(log, operation, self.world.execute(operation), attempt)

    def _note(self, log: EpisodeLog, operation: Operation, outcome: ToolResult, attempt: int) -> ToolResult:
        if log.progress.open is None:
            return outcome
        saves_point = operation.effect is Effect.WORKSPACE and self.draw.random() < self.habits.saved_points
        if operation.effect.is_announced or saves_point:
            log.append(
                OperationFinished(
                    number=log.progress.last_round + 1,
                    operation=operation.operation_id,
                    result=outcome,
                    attempt=max(1, attempt),
                    workspace=self.world.checkpoint() if saves_point else "",
                )
            )
            if self.draw.random() < 0.5:
                self._save(log)
        return outcome

    def _commit(self, log: EpisodeLog, decision: ModelDecision, results: tuple[ToolResult, ...]) -> None:
        number = log.progress.last_round + 1
        # The version has to be restorable before a record says that the round ended with it.
        version = self.world.checkpoint()
        log.append(
            RoundCommitted(RoundRecord(number=number, decision=decision, results=results, workspace_after=version))
        )
        if log.unsaved.rounds >= self.habits.save_every:
            self._save(log)
        if self.habits.state_every and number % self.habits.state_every == 0:
            assert log.progress.identity is not None
            log.append(StateSaved(number=number, identity=log.progress.identity, workspace=version))
            self.acknowledged = number


def live_again_and_again(
    loop: Loop,
    disk_of: Callable[[int], Disk],
    after_death: Callable[[], None],
    clock: Clock,
    *,
    kill_at: Callable[[int], int],
) -> int:
    """Let a loop live until its episode has ended; return how often it died.

    Args:
        loop: the loop.
        disk_of: its disk in its n-th life.
        after_death: what happens to the machine.
        clock: of the log.
        kill_at: at which step the n-th life ends; 0: it does not.
    """
    deaths = 0
    while True:
        loop.world.fuse = Fuse(kill_at=kill_at(deaths))
        try:
            loop.live(disk_of(deaths), clock)
        except Killed:
            deaths += 1
            after_death()
        else:
            return deaths
