"""Logs saved together: what each durability promises, and what happens when a save fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import (
    DsecError,
    HostDiskFullError,
    InvalidStateError,
    LogSuspectError,
    StateLockedError,
    WriterFencedError,
)
from dsec.costs.commit_frequency import commit_cost
from dsec.episode.durability import EVERY_ROUND, Durability, asynchronous, every_n_rounds
from dsec.episode.log_events import EpisodeEnded, OperationsRunning, RoundCommitted, RoundDecided, StateSaved
from dsec.episode.operations import Effect
from dsec.stores.episode_log import EpisodeLog, create_log, open_log
from dsec.stores.episode_log_group import GroupCommit
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.testing.episodes import EPISODE, decision, identity, round_record
from dsec.testing.simulated_disk import SimulatedDisk

DIRECTORY = Path("/episodes") / EPISODE


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class GatedDisk(SimulatedDisk):
    """A disk whose syncs wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.gated = False
        self.syncs = 0

    def sync(self, handle: int) -> None:
        if self.gated:
            assert self.gate.acquire(timeout=60)
        self.syncs += 1
        super().sync(handle)


def new_log(disk: SimulatedDisk, *, clock: ManualClock | None = None, episode_id: str = EPISODE) -> EpisodeLog:
    directory = DIRECTORY.parent / episode_id
    return create_log(
        LogPlace(directory=directory, disk=disk, clock=clock or ManualClock(), segment_bytes=3000), identity(episode_id)
    )


def committed(number: int, *, episode_id: str = EPISODE) -> RoundCommitted:
    return RoundCommitted(round_record(number, episode_id=episode_id))


def saved_rounds(disk: SimulatedDisk) -> int:
    """Return how many rounds would be there after a loss of power now."""
    return read_episode_log(DIRECTORY, disk=disk.after_power_loss(lambda most: 0)).progress.last_round


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("durability", "lost"), [(EVERY_ROUND, 0), (every_n_rounds(4), 3), (asynchronous(5), 5), (asynchronous(1), 1)]
)
async def test_at_any_moment_no_more_answered_rounds_are_unsaved_than_was_promised(
    durability: Durability, lost: int
) -> None:
    assert durability.lost_rounds == lost
    disk = SimulatedDisk()
    async with GroupCommit(threads=2) as group:
        log = group.attach(new_log(disk), durability)
        for number in range(1, 30):
            await log.commit(committed(number))
            assert log.unsaved.rounds <= lost
            assert number - saved_rounds(disk) <= lost
    assert saved_rounds(disk) == 29


@pytest.mark.anyio
async def test_every_n_rounds_saves_once_in_n() -> None:
    disk = GatedDisk()
    async with GroupCommit(threads=1) as group:
        log = group.attach(new_log(disk), every_n_rounds(5))
        before = disk.syncs
        for number in range(1, 6):
            assert disk.syncs == before
            await log.commit(committed(number))
        assert disk.syncs == before + 1
        assert log.unsaved.rounds == 0


@pytest.mark.anyio
async def test_an_asynchronous_loop_goes_on_while_the_disk_works_and_waits_at_its_bound() -> None:
    disk = GatedDisk()
    async with GroupCommit(threads=1) as group:
        log = group.attach(new_log(disk), asynchronous(3))
        disk.gated = True
        for number in (1, 2, 3):
            with anyio.fail_after(60):
                await log.commit(committed(number))
        assert (log.unsaved.rounds, log.unsaved.operations) == (3, 3)
        assert group.unsaved.rounds == 3
        answered = anyio.Event()

        async def fourth() -> None:
            await log.commit(committed(4))
            answered.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fourth)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert not answered.is_set()
            disk.gated = False
            disk.gate.release(10)
        assert log.unsaved.rounds <= 3
        await log.flush()
        assert log.unsaved.rounds == 0


@pytest.mark.anyio
@pytest.mark.parametrize("durability", [EVERY_ROUND, every_n_rounds(100), asynchronous(100)])
async def test_an_announcement_is_saved_at_once_in_every_mode_and_all_before_it_too(durability: Durability) -> None:
    disk = SimulatedDisk()
    async with GroupCommit(threads=1) as group:
        log = group.attach(new_log(disk), durability)
        await log.commit(committed(1))
        decided = decision(2, [Effect.ONCE])
        await log.announce(
            RoundDecided(number=2, decision=decided, workspace="w1"),
            OperationsRunning(number=2, operations=(decided.operations[0].operation_id,)),
        )
        progress = read_episode_log(DIRECTORY, disk=disk.after_power_loss(lambda most: 0)).progress
        assert progress.last_round == 1
        assert progress.open is not None
        assert progress.open.undecided()


@pytest.mark.anyio
async def test_a_whole_state_and_the_end_are_saved_in_every_mode() -> None:
    disk = SimulatedDisk()
    async with GroupCommit(threads=1) as group:
        log = group.attach(new_log(disk), asynchronous(100))
        for number in range(1, 20):
            await log.commit(committed(number))
        with pytest.raises(InvalidStateError, match="the last one is 19"):
            await log.save_state(StateSaved(number=4, identity=identity(), workspace="w4"))
        await log.save_state(StateSaved(number=19, identity=identity(), workspace="w19"))
        assert read_episode_log(DIRECTORY, disk=disk).rounds == ()
        content = read_episode_log(DIRECTORY, disk=disk.after_power_loss(lambda most: 0))
        assert content.progress.state is not None
        await log.announce(EpisodeEnded(reason="submitted"))
        assert read_episode_log(DIRECTORY, disk=disk.after_power_loss(lambda most: 0)).progress.ended is not None


@pytest.mark.anyio
async def test_many_episodes_save_at_once_and_what_waits_shares_a_save() -> None:
    disk = GatedDisk()
    async with GroupCommit(threads=4) as group:
        logs = [group.attach(new_log(disk, episode_id=f"ep-{number}"), asynchronous(10)) for number in range(8)]
        before = disk.syncs
        disk.gated = True
        for number in range(1, 5):
            for index, log in enumerate(logs):
                await log.commit(committed(number, episode_id=f"ep-{index}"))
        assert group.unsaved.rounds == 32
        disk.gated = False
        disk.gate.release(100)
        async with anyio.create_task_group() as tasks:
            for log in logs:
                tasks.start_soon(log.flush)
        assert disk.syncs - before <= 2 * len(logs)
        assert group.unsaved.rounds == 0


class ModelDisk(SimulatedDisk):
    """A disk on which a commit takes 8 ms and each of its records 2 ms, by a clock that is moved."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.records = 0

    def write(self, handle: int, data: bytes | memoryview) -> int:
        self.records += 1
        return super().write(handle, data)

    def sync(self, handle: int) -> None:
        self.clock.advance(0.008 + 0.002 * self.records)
        self.records = 0
        super().sync(handle)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("rounds", "total_s", "commit_s", "again_s"),
    [(1, 21.0, 1.0, 0.2), (10, 20.28, 0.28, 2.0), (100, 20.208, 0.208, 20.0)],
)
async def test_how_often_is_saved_costs_what_the_chapter_says(
    rounds: int, total_s: float, commit_s: float, again_s: float
) -> None:
    """100 operations of 200 ms one after the other; section 11.5.1."""
    clock = ManualClock()
    disk = ModelDisk(clock)
    expected = commit_cost(requests=100, request_s=0.2, requests_per_commit=rounds, fixed_s=0.008, record_s=0.002)
    log_place = LogPlace(directory=DIRECTORY, disk=disk, clock=clock)
    async with GroupCommit(threads=1) as group:
        log = group.attach(create_log(log_place, identity()), every_n_rounds(rounds))
        disk.records, began, saves = 0, clock.boot_s(), log.saves
        unsaved_before_a_save = 0
        for number in range(1, 101):
            clock.advance(0.2)
            unsaved_before_a_save = max(unsaved_before_a_save, log.unsaved.rounds + 1)
            await log.commit(committed(number))
        took_s = clock.boot_s() - began
        assert log.unsaved.rounds == 0
    assert took_s == pytest.approx(total_s)
    assert took_s == pytest.approx(expected.total_s)
    assert took_s - 20.0 == pytest.approx(commit_s)
    assert log.saves - saves == expected.commits
    assert 0.2 * unsaved_before_a_save == pytest.approx(again_s)
    assert unsaved_before_a_save == expected.at_risk_requests


async def _fails(log_of: Callable[[GroupCommit], EpisodeLog], disk: SimulatedDisk, durability: Durability) -> DsecError:
    async with GroupCommit(threads=1) as group:
        log = group.attach(log_of(group), durability)
        await log.commit(committed(1))
        await log.flush()
        disk.faults.failing = lambda operation, name: operation == "sync"

        async def play_on() -> None:
            for number in range(2, 9):
                await log.commit(committed(number))

        with pytest.raises(DsecError) as caught:
            await play_on()
        with anyio.fail_after(60):
            assert (await log.wait_stopped()).brief == caught.value.brief
        with pytest.raises(type(caught.value)):
            await log.commit(committed(9))
        with pytest.raises(type(caught.value)):
            await log.flush()
        return caught.value


@pytest.mark.anyio
@pytest.mark.parametrize("durability", [EVERY_ROUND, every_n_rounds(3), asynchronous(2)])
async def test_a_failed_save_stops_the_episode_at_once_in_every_mode(durability: Durability) -> None:
    disk = SimulatedDisk()
    assert isinstance(await _fails(lambda group: new_log(disk), disk, durability), LogSuspectError)
    disk.faults.failing = lambda operation, name: False
    log, content = open_log(LogPlace(directory=DIRECTORY, disk=disk, clock=ManualClock()))
    log.close()
    assert content.progress.last_round >= 1


@pytest.mark.anyio
async def test_a_full_disk_stops_the_episode_and_only_this_one() -> None:
    disk, other_disk = SimulatedDisk(), SimulatedDisk()
    async with GroupCommit(threads=2) as group:
        log, other = group.attach(new_log(disk)), group.attach(new_log(other_disk))
        disk.faults.full = lambda operation, name: operation == "write"
        with pytest.raises(HostDiskFullError):
            await log.commit(committed(1))
        assert isinstance(log.failure, HostDiskFullError)
        await other.commit(committed(1))
        assert other.failure is None


@pytest.mark.anyio
async def test_a_round_that_may_not_come_next_is_refused_and_the_log_goes_on() -> None:
    async with GroupCommit(threads=1) as group:
        log = group.attach(new_log(SimulatedDisk()))
        with pytest.raises(InvalidStateError):
            await log.commit(committed(2))
        await log.commit(committed(1))


@pytest.mark.anyio
async def test_a_waiting_writer_renews_its_lease_and_hears_that_it_was_succeeded() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    async with GroupCommit(threads=1, renewal_s=0.001) as group:
        log = group.attach(new_log(disk, clock=clock))
        clock.advance(29.0)
        await log.renew()
        clock.advance(29.0)
        with pytest.raises(DsecError, match="another writer has the log"):
            open_log(LogPlace(directory=DIRECTORY, disk=disk, clock=clock))
        clock.advance(31.0)
        other, _ = open_log(LogPlace(directory=DIRECTORY, disk=disk, clock=clock))
        with anyio.fail_after(60):
            assert isinstance(await log.wait_stopped(), WriterFencedError)
        other.close()


@pytest.mark.anyio
async def test_leaving_saves_what_was_answered() -> None:
    disk = SimulatedDisk()
    async with GroupCommit(threads=1) as group:
        log = group.attach(new_log(disk), every_n_rounds(100))
        for number in range(1, 8):
            await log.commit(committed(number))
    assert saved_rounds(disk) == 7
    with pytest.raises(InvalidStateError):
        await log.commit(committed(8))


@pytest.mark.anyio
async def test_logs_are_begun_and_opened_in_threads() -> None:
    disk = SimulatedDisk()
    where = LogPlace(directory=DIRECTORY, disk=disk, clock=ManualClock())
    async with GroupCommit(threads=2) as group:
        log = await group.create(where, identity())
        await log.commit(committed(1))
        with pytest.raises(StateLockedError):
            await group.open(where)
        await log.aclose()
        log, content = await group.open(where, every_n_rounds(2))
        assert content.progress.last_round == 1
        await log.commit(committed(2))
        assert log.unsaved.rounds == 1
    assert saved_rounds(disk) == 2


@pytest.mark.anyio
async def test_a_log_whose_opener_was_cancelled_is_let_go() -> None:
    disk = GatedDisk()
    where = LogPlace(directory=DIRECTORY, disk=disk, clock=ManualClock())
    create_log(where, identity()).close()
    async with GroupCommit(threads=1) as group:
        disk.gated = True
        with anyio.move_on_after(0.01):
            await group.open(where)
        disk.gated = False
        disk.gate.release(5)
        log, _ = await group.open(where)
        assert log.log.epoch == 3


@pytest.mark.anyio
async def test_segments_are_begun_in_a_thread_while_rounds_go_on() -> None:
    disk = SimulatedDisk()
    async with GroupCommit(threads=2) as group:
        log = group.attach(new_log(disk), asynchronous(4))
        for number in range(1, 60):
            await log.commit(committed(number))
    assert len(log.log.saved_segments()) > 5
    assert read_episode_log(DIRECTORY, disk=disk).progress.last_round == 59
