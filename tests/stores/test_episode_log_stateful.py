"""A log, its disk, its writers and its copy, in any order of events, against a model that is a list.

The model knows every event that was ever appended by the writer whose history counts, and how many of them were
acknowledged. Whatever happens, a reader sees a beginning of that list, at least as long as what was acknowledged; the
copy never holds anything else; and its watermark never promises what is not there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsec.base.clock import ManualClock
from dsec.base.errors import DsecError, HostDiskFullError, LogSuspectError, StateLockedError, WriterFencedError
from dsec.episode.log_content import Completeness, LogContent
from dsec.episode.log_events import (
    EpisodeBegan,
    LogEvent,
    OperationFinished,
    OperationsRunning,
    RoundAbandoned,
    RoundCommitted,
    RoundDecided,
    StateSaved,
)
from dsec.episode.operations import Effect, RoundRecord
from dsec.stores.episode_log import EpisodeLog, create_log, open_log
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.stores.episode_log_remote import read_stored_log, restore_log
from dsec.stores.episode_log_upload import LogUploader, UploadSettings
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.episodes import EPISODE, decision, identity, result
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.simulated_disk import SimulatedDisk

DIRECTORY = Path("/episodes") / EPISODE
EFFECTS = st.lists(st.sampled_from(list(Effect)), max_size=3)


async def _in_place(call: Callable[..., Any], *arguments: object) -> Any:
    """Stand in for a thread, so that the same seed does the same."""
    return call(*arguments)


class EpisodeLogMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.disk, self.clock = SimulatedDisk(), ManualClock()
        self.store = FaultyObjectStore(MemoryObjectStore())
        self.log = create_log(self.place(), identity())
        self.attempted: list[LogEvent] = [EpisodeBegan(identity())]
        self.acknowledged = 1
        self.uploaded = 0
        self.sleepers: list[EpisodeLog] = []

    def place(self) -> LogPlace:
        return LogPlace(directory=DIRECTORY, disk=self.disk, clock=self.clock, segment_bytes=1500)

    # -- what a loop does ----------------------------------------------------------------------------------------------

    def append(self, event: LogEvent) -> None:
        self.log.append(event)
        self.attempted.append(event)
        self.acknowledged = max(self.acknowledged, self.log.saved_sequence)

    def between_rounds(self) -> bool:
        return self.log.progress.open is None

    def in_a_round(self) -> bool:
        return self.log.progress.open is not None

    @rule(effects=EFFECTS)
    @precondition(between_rounds)
    def decide(self, effects: list[Effect]) -> None:
        number = self.log.progress.last_round + 1
        decided = decision(number, effects, attempt=self.log.progress.decisions + 1)
        self.append(RoundDecided(number=number, decision=decided, workspace=self.log.progress.workspace))

    @rule(data=st.data())
    @precondition(in_a_round)
    def run_an_operation(self, data: st.DataObject) -> None:
        open_round = self.log.progress.open
        assert open_round is not None
        waiting = [
            found.operation_id
            for found in open_round.decided.decision.operations
            if found.operation_id not in open_round.attempts
        ]
        if not waiting:
            return
        operation = data.draw(st.sampled_from(waiting))
        number = open_round.decided.number
        self.append(OperationsRunning(number=number, operations=(operation,)))
        if data.draw(st.booleans()):
            self.append(OperationFinished(number=number, operation=operation, result=result(operation)))

    @rule()
    @precondition(in_a_round)
    def abandon(self) -> None:
        open_round = self.log.progress.open
        assert open_round is not None
        if not open_round.undecided():
            self.append(RoundAbandoned(number=open_round.decided.number))

    @rule(padding=st.integers(0, 400))
    def commit(self, padding: int) -> None:
        progress = self.log.progress
        number = progress.last_round + 1
        decided = progress.open.decided.decision if progress.open is not None else decision(number)
        results = []
        for operation in decided.operations:
            finished = progress.open.finished.get(operation.operation_id) if progress.open is not None else None
            announced = progress.open is not None and operation.operation_id in progress.open.attempts
            if operation.effect.is_announced and not announced:
                return
            results.append(finished.result if finished is not None else result("x" * padding))
        record = RoundRecord(number=number, decision=decided, results=tuple(results), workspace_after=f"w{number}")
        self.append(RoundCommitted(record))

    @rule()
    def save(self) -> None:
        self.log.save()
        self.acknowledged = len(self.attempted)

    @rule()
    @precondition(between_rounds)
    def save_a_state(self) -> None:
        progress = self.log.progress
        assert progress.identity is not None
        state = StateSaved(number=progress.last_round, identity=progress.identity, workspace=progress.workspace)
        self.append(state)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        self.log, content = open_log(self.place())
        self.check(content)
        self.attempted = self.attempted[: content.next_sequence - 1]
        self.acknowledged = len(self.attempted)

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.reopen()

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.after_kill()
        self.sleepers.clear()
        self.reopen()

    @rule(seed=st.integers(0, 1000))
    def lose_power(self, seed: int) -> None:
        draw = random.Random(seed)
        self.disk = self.disk.after_power_loss(lambda most: draw.randint(0, most))
        self.sleepers.clear()
        self.reopen()

    @rule()
    def fail_to_sync(self) -> None:
        if not self.log.has_unsaved_events:
            return
        self.disk.faults.failing = lambda operation, name: operation == "sync"
        with pytest.raises(LogSuspectError):
            self.log.save()
        self.disk.faults.failing = lambda operation, name: False
        with pytest.raises(LogSuspectError):
            self.log.save()
        self.log.close()
        self.reopen()

    @rule()
    @precondition(between_rounds)
    def fill_the_disk(self) -> None:
        self.disk.faults.full = lambda operation, name: operation in ("write", "create")
        with pytest.raises(HostDiskFullError):
            self.log.append(RoundDecided(number=self.log.progress.last_round + 1, decision=decision(1, [])))
        self.disk.faults.full = lambda operation, name: False
        self.log.close()
        self.reopen()

    @rule()
    def be_succeeded(self) -> None:
        with pytest.raises(StateLockedError):
            open_log(self.place())
        self.clock.advance(31.0)
        self.sleepers.append(self.log)
        self.reopen()

    @rule(data=st.data())
    @precondition(lambda self: self.sleepers)
    def a_sleeper_wakes(self, data: st.DataObject) -> None:
        sleeper = self.sleepers[data.draw(st.integers(0, len(self.sleepers) - 1))]
        if sleeper.progress.open is None:
            number = sleeper.progress.last_round + 1
            try:
                sleeper.append(RoundDecided(number=number, decision=decision(number, [Effect.ONCE], attempt=9)))
            except DsecError:
                pass
        with pytest.raises((WriterFencedError, StateLockedError)):
            sleeper.save()

    # -- the copy ------------------------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 1000), batch_bytes=st.sampled_from([1, 700, 100_000]), turns=st.integers(0, 300))
    def upload_for_a_while(self, seed: int, batch_bytes: int, turns: int) -> None:
        draw = random.Random(seed)
        faults = self.store.faults
        faults.fails = lambda action, key: draw.random() < 0.2
        faults.loses = lambda key: draw.random() < 0.2
        faults.truncates = lambda key: draw.random() < 0.1
        upload = LogUploader(
            self.log,
            self.place(),
            self.store,
            settings=UploadSettings(backoff_s=(0.0,), batch_bytes=batch_bytes, interval_s=0.0, merge_at=3),
        )

        async def a_while() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(upload.run)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()

        with mock.patch.object(anyio.to_thread, "run_sync", _in_place):
            anyio.run(a_while)
        self.store.faults = type(faults)()
        self.uploaded = max(self.uploaded, upload.watermark.sequence)

    @rule()
    def read_the_copy(self) -> None:
        if not self.uploaded:
            return  # No precondition: how far an upload came depends on threads, and which rules there are must not.
        content = anyio.run(read_stored_log, self.store, EPISODE)
        assert content.completeness is Completeness.OPEN, content.problem
        assert content.next_sequence > self.uploaded
        assert content.events == self.attempted[content.first - 1 : content.next_sequence - 1]
        elsewhere = SimulatedDisk()
        place = LogPlace(directory=DIRECTORY, disk=elsewhere, clock=self.clock)
        anyio.run(restore_log, place, self.store)
        log, restored = open_log(place)
        log.close()
        assert restored.events == content.events

    # -- what is always true -------------------------------------------------------------------------------------------

    def check(self, content: LogContent) -> None:
        assert content.completeness is Completeness.OPEN, content.problem
        assert self.acknowledged <= content.next_sequence - 1 <= len(self.attempted)
        assert content.events == self.attempted[content.first - 1 : content.next_sequence - 1]

    @invariant()
    def a_reader_sees_what_was_appended(self) -> None:
        if not hasattr(self, "log"):
            return
        content: Any = read_episode_log(DIRECTORY, disk=self.disk)
        self.check(content)
        assert content.next_sequence - 1 == len(self.attempted)
        assert self.log.saved_sequence >= self.acknowledged


EpisodeLogMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEpisodeLog = pytest.mark.slow(EpisodeLogMachine.TestCase)
