"""The log of an episode on a disk: what is promised, at every operation at which a machine can stop."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    DsecError,
    HostDiskFullError,
    InvalidStateError,
    LimitExceededError,
    LogSuspectError,
    NotFoundError,
    PlatformError,
    StateCorruptedError,
    StateLockedError,
    WriterFencedError,
)
from dsec.episode.content import Content
from dsec.episode.frames import encode_frame
from dsec.episode.log_content import Completeness, LogContent
from dsec.episode.log_events import (
    EpisodeEnded,
    OperationsRunning,
    RoundCommitted,
    RoundDecided,
    StateSaved,
)
from dsec.episode.operations import Effect
from dsec.stores import episode_log
from dsec.stores.episode_log import EpisodeLog, create_log, open_log
from dsec.stores.episode_log_disk import Disk, HostDisk
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.testing.episodes import EPISODE, decision, identity, round_record
from dsec.testing.faults import Killed
from dsec.testing.simulated_disk import Chooser, SimulatedDisk

DIRECTORY = Path("/episodes") / EPISODE
LEASE_S = 30.0


def place(disk: Disk, *, clock: ManualClock | None = None, directory: Path = DIRECTORY, writer: str = "a") -> LogPlace:
    """Segments are small, so that a few rounds begin new ones."""
    return LogPlace(
        directory=directory,
        writer=writer,
        disk=disk,
        clock=clock or ManualClock(),
        lease_s=LEASE_S,
        segment_bytes=1200,
    )


def committed(number: int, *, size: int = 0) -> RoundCommitted:
    return RoundCommitted(round_record(number, size=size))


def state(number: int) -> StateSaved:
    return StateSaved(number=number, identity=identity(), workspace=f"w{number}", content=Content(text="summary"))


@dataclass
class Acknowledged:
    """What a writer was told: the sequence up to which it is saved, and the last round of it."""

    sequence: int = 0
    rounds: int = 0
    began: int = 0
    seen: list[int] = field(default_factory=list)


def save(log: EpisodeLog, told: Acknowledged) -> None:
    log.save()
    told.sequence, told.rounds = log.saved_sequence, log.progress.last_round


def write_some(log: EpisodeLog, told: Acknowledged, *, rounds: int = 6) -> None:
    """Play rounds: each saved, with a whole state behind the fourth new one, and announcements in the fifth."""
    first = log.progress.last_round + 1
    for number in range(first, first + rounds):
        told.began = number
        if number == first + 4:
            decided = decision(number, [Effect.ONCE])
            log.append(RoundDecided(number=number, decision=decided, workspace=f"w{number - 1}"))
            log.append(OperationsRunning(number=number, operations=(decided.operations[0].operation_id,)))
            save(log, told)
            log.append(RoundCommitted(round_record(number, effects=[Effect.ONCE])))
        else:
            log.append(committed(number))
        save(log, told)
        if number == first + 3:
            log.append(state(number))
            told.sequence = log.saved_sequence


def full_life(disk: Disk, told: Acknowledged, *, clock: ManualClock | None = None, directory: Path = DIRECTORY) -> None:
    """Begin an episode, play, open it again, play on."""
    with create_log(place(disk, clock=clock, directory=directory), identity()) as log:
        told.sequence = log.saved_sequence
        write_some(log, told)
    log, _ = open_log(place(disk, clock=clock, directory=directory))
    with log:
        write_some(log, told)


def check(content: LogContent, told: Acknowledged) -> None:
    """Nothing acknowledged is missing, nothing is there that was not written, and it is in order."""
    assert content.completeness is Completeness.OPEN, content.problem
    assert content.next_sequence > told.sequence
    assert told.rounds <= content.progress.last_round <= told.began
    for record in content.rounds:
        effects = [Effect.ONCE] if record.decision.operations[0].effect is Effect.ONCE else [Effect.WORKSPACE]
        assert record == round_record(record.number, effects=effects)
    numbers = [record.number for record in content.rounds]
    assert numbers == list(range(content.progress.last_round - len(numbers) + 1, content.progress.last_round + 1))
    if numbers and numbers[0] > 1:
        beginning = content.events[0]
        assert isinstance(beginning, StateSaved)
        assert beginning.number == numbers[0] - 1


def go_on(disk: Disk, told: Acknowledged, *, directory: Path = DIRECTORY) -> None:
    """Open what is left, check it, write on, and read all of it again."""
    try:
        log, content = open_log(place(disk, directory=directory, writer="b"))
    except NotFoundError:
        assert told.sequence == 0
        return
    check(content, told)
    told.rounds = content.progress.last_round
    with log:
        if log.progress.open is None:
            write_some(log, told, rounds=2)
    check(read_episode_log(directory, disk=disk), told)


# -- one writer, nothing in its way ------------------------------------------------------------------------------------


def test_a_log_reads_back_as_it_was_written_across_segments_states_and_openings() -> None:
    disk, told = SimulatedDisk(), Acknowledged()
    full_life(disk, told)
    content = read_episode_log(DIRECTORY, disk=disk)
    check(content, told)
    assert content.progress.last_round == 12
    assert content.first > 1, "what the state covers was dropped"
    assert content.next_sequence == told.sequence + 1


def test_without_a_state_nothing_is_dropped() -> None:
    disk = SimulatedDisk()
    with create_log(place(disk), identity()) as log:
        for number in range(1, 30):
            log.append(committed(number))
            log.save()
    assert len([name for name in disk.names(DIRECTORY) if name.endswith(".jsonl")]) > 5
    content = read_episode_log(DIRECTORY, disk=disk)
    assert [record.number for record in content.rounds] == list(range(1, 30))
    assert content.first == 1


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after an opening"])
def test_a_state_in_a_segment_that_has_just_begun_takes_its_place(again: bool) -> None:
    disk = SimulatedDisk()
    log = create_log(place(disk), identity())
    log.append(committed(1))
    log.rotate()
    if again:
        log.close()
        log, _ = open_log(place(disk))
    log.append(state(1))
    log.append(committed(2))
    log.save()
    log.close()
    content = read_episode_log(DIRECTORY, disk=disk)
    assert content.completeness is Completeness.OPEN
    assert [record.number for record in content.rounds] == [2]


def test_each_opening_takes_the_next_epoch_and_leaves_nothing_of_the_last_behind() -> None:
    disk = SimulatedDisk()
    create_log(place(disk), identity()).close()
    for epoch in (2, 3, 4):
        log, _ = open_log(place(disk))
        assert log.epoch == epoch
        log.close()
        assert disk.names(DIRECTORY) == [f"0000000001-{epoch:06}.jsonl", f"epoch-{epoch:06}"]


def test_what_is_unsaved_can_be_read_at_any_moment() -> None:
    with create_log(place(SimulatedDisk()), identity()) as log:
        assert (log.unsaved.rounds, log.unsaved.operations) == (0, 0)
        log.append(RoundCommitted(round_record(1, effects=[Effect.NONE] * 3)))
        log.append(committed(2))
        assert (log.unsaved.rounds, log.unsaved.operations) == (2, 4)
        assert log.has_unsaved_events
        log.save()
        assert (log.unsaved.rounds, log.unsaved.operations) == (0, 0)


def test_an_ended_log_takes_nothing_more_and_only_that_is_called_complete() -> None:
    disk = SimulatedDisk()
    with create_log(place(disk), identity()) as log:
        log.append(EpisodeEnded(reason="submitted"))
        with pytest.raises(InvalidStateError, match="has ended"):
            log.append(committed(1))
        log.save()
    content = read_episode_log(DIRECTORY, disk=disk)
    assert content.completeness is Completeness.COMPLETE


def test_a_closed_log_takes_nothing_more() -> None:
    log = create_log(place(SimulatedDisk()), identity())
    log.close()
    log.close()
    with pytest.raises(InvalidStateError, match="is closed"):
        log.append(committed(1))


def test_a_log_is_begun_once_and_only_in_its_own_directory() -> None:
    disk = SimulatedDisk()
    create_log(place(disk), identity()).close()
    with pytest.raises(AlreadyExistsError):
        create_log(place(disk), identity())
    with pytest.raises(InvalidStateError):
        create_log(place(disk), identity("ep-other"))
    with pytest.raises(NotFoundError):
        open_log(place(disk, directory=Path("/episodes/ep-none")))
    with pytest.raises(NotFoundError):
        read_episode_log(Path("/episodes/ep-none"), disk=disk)


def test_an_event_that_is_too_long_is_refused_and_the_log_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_log, "MAXIMUM_EVENT_BYTES", 5000)
    with create_log(place(SimulatedDisk()), identity()) as log:
        with pytest.raises(LimitExceededError, match="too long"):
            log.append(committed(1, size=6000))
        log.append(committed(1, size=2000))
        log.save()


@pytest.mark.slow
def test_ten_thousand_rounds_cost_each_the_same() -> None:
    disk = SimulatedDisk()
    per_round: list[int] = []
    with create_log(place(disk), identity()) as log:
        for number in range(1, 10_001):
            before = disk.operations
            log.append(committed(number))
            log.save()
            per_round.append(disk.operations - before)
            if number % 1000 == 0:
                log.append(state(number))
                assert len(disk.names(DIRECTORY)) == 2, "a tenure and one segment"
    assert sum(per_round[:1000]) == sum(per_round[-1000:])
    assert max(per_round) <= 10
    content = read_episode_log(DIRECTORY, disk=disk)
    assert (content.progress.last_round, content.rounds) == (10_000, ())


# -- the machine stops -------------------------------------------------------------------------------------------------


def _operations_of_a_full_life() -> int:
    disk = SimulatedDisk()
    full_life(disk, Acknowledged())
    return disk.operations


OPERATIONS = _operations_of_a_full_life()


def _stopped(kill_at: int, *, after: bool) -> tuple[SimulatedDisk, Acknowledged]:
    disk, told = SimulatedDisk(kill_at=kill_at, kill_after=after), Acknowledged()
    with pytest.raises(Killed):
        full_life(disk, told)
    return disk, told


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_operation_loses_nothing_that_was_acknowledged(after: bool) -> None:
    for kill_at in range(1, OPERATIONS + 1):
        disk, told = _stopped(kill_at, after=after)
        go_on(disk.after_kill(), told)


def _choosers() -> Iterator[Chooser]:
    yield lambda most: 0
    yield lambda most: most
    for seed in range(6):
        draw = random.Random(seed)
        yield lambda most, draw=draw: draw.randint(0, most)  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_loss_of_power_at_any_operation_loses_nothing_that_was_acknowledged(after: bool) -> None:
    for kill_at in range(1, OPERATIONS + 1):
        for choose in _choosers():
            disk, told = _stopped(kill_at, after=after)
            go_on(disk.after_power_loss(choose), told)


@pytest.mark.slow
def test_a_second_loss_of_power_while_the_first_is_recovered_from_loses_nothing_either() -> None:
    for kill_at in range(1, OPERATIONS + 1, 3):
        for second in range(1, 25):
            draw = random.Random(kill_at * 100 + second)
            disk, told = _stopped(kill_at, after=False)
            disk = disk.after_power_loss(lambda most, draw=draw: draw.randint(0, most))  # type: ignore[misc]
            disk.kill_at, disk.operations = second, 0
            try:
                go_on(disk, told)
            except Killed:
                go_on(disk.after_power_loss(lambda most, draw=draw: draw.randint(0, most)), told)  # type: ignore[misc]


class SuicidalDisk(HostDisk):
    """The host's disk for a process that is killed, really, at one of its changes to it."""

    changes = frozenset({"create", "write", "truncate", "sync", "sync_directory", "rename", "link", "remove"})

    def __init__(self, kill_at: int) -> None:
        self.kill_at, self.count = kill_at, 0

    def __getattribute__(self, name: str) -> object:
        value = object.__getattribute__(self, name)
        return self._counted(value) if name in SuicidalDisk.changes else value

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            self._strike()
            result = call(*arguments)
            self._strike()
            return result

        return counted

    def _strike(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _live_until_killed(directory: Path, kill_at: int) -> tuple[Acknowledged, bool]:
    """Fork a process that tells what was acknowledged through a pipe until it is killed; return whether it was."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        told = Acknowledged()
        told_so_far = (0, 0)

        class Telling(SuicidalDisk):
            def _strike(self) -> None:
                nonlocal told_so_far
                if (told.sequence, told.rounds) != told_so_far:
                    told_so_far = (told.sequence, told.rounds)
                    os.write(writing, f"{told.sequence} {told.rounds}\n".encode())
                super()._strike()

        try:
            full_life(Telling(kill_at), told, directory=directory)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as lines:
        last = [line.split() for line in lines][-1:]
    _, status = os.waitpid(child, 0)
    told = Acknowledged(began=99)
    if last:
        told.sequence, told.rounds = int(last[0][0]), int(last[0][1])
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return told, os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # The child ends without touching a lock.
def test_a_real_process_killed_at_every_change_of_the_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    kill_at, was_killed = 0, True
    while was_killed:
        kill_at += 1
        directory = tmp_path / str(kill_at) / EPISODE
        told, was_killed = _live_until_killed(directory, kill_at)
        go_on(HostDisk(), told, directory=directory)
    assert kill_at > 150


# -- torn tails and damage ---------------------------------------------------------------------------------------------


def _written(tmp_path: Path, rounds: int = 3) -> tuple[Path, bytes]:
    """Return the one segment of a log on the host, and its bytes."""
    directory = tmp_path / EPISODE
    with create_log(LogPlace(directory=directory), identity()) as log:
        for number in range(1, rounds + 1):
            log.append(committed(number))
        log.save()
    [segment] = directory.glob("*.jsonl")
    return segment, segment.read_bytes()


@pytest.mark.slow
def test_every_torn_end_of_the_last_two_events_is_cut_and_written_over(tmp_path: Path) -> None:
    segment, data = _written(tmp_path)
    third = data.rindex(b"\n", 0, len(data) - 1) + 1
    second = data.rindex(b"\n", 0, third - 1) + 1
    for length in range(second, len(data)):
        for left in segment.parent.iterdir():
            left.unlink()
        segment.write_bytes(data[:length])
        log, content = open_log(LogPlace(directory=segment.parent))
        with log:
            whole = 2 if length >= third else 1
            assert content.progress.last_round == whole
            assert content.torn_bytes == length - (third if length >= third else second)
            log.append(committed(whole + 1))
            log.save()
        assert read_episode_log(segment.parent).progress.last_round == whole + 1


@pytest.mark.parametrize("garbage", [b"\0" * 700, b"garbage", b"garbage\n", b'{"event":"round"}\n', b"\n\n\n"])
def test_whatever_bad_lines_stand_at_the_end_are_a_torn_tail(tmp_path: Path, garbage: bytes) -> None:
    segment, data = _written(tmp_path)
    segment.write_bytes(data + garbage)
    log, content = open_log(LogPlace(directory=segment.parent))
    log.close()
    assert (content.progress.last_round, content.torn_bytes) == (3, len(garbage))
    assert read_episode_log(segment.parent).torn_bytes == 0


def test_damage_that_good_lines_follow_is_never_taken_for_a_tail(tmp_path: Path) -> None:
    segment, data = _written(tmp_path)
    lines = data.splitlines(keepends=True)
    damaged = bytearray(lines[2])
    damaged[30] ^= 1
    segment.write_bytes(b"".join([*lines[:2], bytes(damaged), *lines[3:]]))
    content = read_episode_log(segment.parent)
    assert content.completeness is Completeness.INCOMPLETE
    assert content.progress.last_round == 0
    before = segment.read_bytes()
    with pytest.raises(StateCorruptedError, match=r"line 3 of .* does not verify, and good lines follow it"):
        open_log(LogPlace(directory=segment.parent))
    assert segment.read_bytes() == before


def test_a_line_that_was_taken_out_is_noticed(tmp_path: Path) -> None:
    segment, data = _written(tmp_path)
    lines = data.splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    with pytest.raises(StateCorruptedError, match="out of order"):
        open_log(LogPlace(directory=segment.parent))


def test_a_segment_that_is_gone_makes_the_log_incomplete_and_unwritable() -> None:
    disk = SimulatedDisk()
    with create_log(place(disk), identity()) as log:
        for number in range(1, 10):
            log.append(committed(number))
            log.save()
    names = [name for name in disk.names(DIRECTORY) if name.endswith(".jsonl")]
    assert len(names) > 2
    disk.remove(DIRECTORY / names[1])
    content = read_episode_log(DIRECTORY, disk=disk)
    assert content.completeness is Completeness.INCOMPLETE
    assert "are missing" in content.problem
    with pytest.raises(StateCorruptedError, match="are missing"):
        open_log(place(disk))


def test_a_log_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    segment, data = _written(tmp_path)
    head = encode_frame(b'{"event":"segment","version":3,"of":"the future"}')
    segment.write_bytes(head + b"".join(data.splitlines(keepends=True)[1:]))
    before = segment.read_bytes()
    for refused in (lambda: open_log(LogPlace(directory=segment.parent)), lambda: read_episode_log(segment.parent)):
        with pytest.raises(CapabilityMissingError, match="version 3"):
            refused()
    assert segment.read_bytes() == before


# -- a disk that fails -------------------------------------------------------------------------------------------------


def test_a_full_disk_costs_the_round_and_stops_the_log_which_goes_on_when_there_is_room() -> None:
    disk = SimulatedDisk()
    log = create_log(place(disk), identity())
    log.append(committed(1))
    log.save()
    disk.faults.full = lambda operation, name: operation == "write"
    with pytest.raises(HostDiskFullError, match="cannot be written"):
        log.append(committed(2))
    disk.faults.full = lambda operation, name: False
    with pytest.raises(HostDiskFullError):
        log.append(committed(2))
    assert log.progress.last_round == 1
    log.close()
    log, content = open_log(place(disk))
    assert (content.progress.last_round, content.torn_bytes) == (1, 0)
    with log:
        log.append(committed(2))
        log.save()


def test_a_disk_that_fills_while_a_segment_is_begun_costs_nothing_that_is_saved() -> None:
    for operation in ("create", "write"):
        disk = SimulatedDisk()
        log = create_log(place(disk), identity())
        number = 1
        while not log.is_segment_full:
            log.append(committed(number))
            number += 1
        disk.faults.full = lambda asked, name, operation=operation: asked == operation and name.endswith(".tmp")  # type: ignore[misc]
        with pytest.raises(HostDiskFullError):
            log.append(committed(number))
        log.close()
        disk.faults.full = lambda asked, name: False
        log, content = open_log(place(disk))
        log.close()
        assert content.progress.last_round == number - 1


def test_a_write_that_is_interrupted_stops_the_log_and_leaves_it_readable() -> None:
    for interrupted_at in ("write", "half"):
        disk = SimulatedDisk()
        log = create_log(place(disk), identity())
        log.append(committed(1))
        log.save()

        def interrupt(operation: str, name: str, disk: SimulatedDisk = disk, how: str = interrupted_at) -> None:
            if operation == "write":
                if how == "half":
                    disk.kill_at = disk.operations + 1
                else:
                    raise KeyboardInterrupt

        disk.on_operation = interrupt
        with pytest.raises((KeyboardInterrupt, Killed)):
            log.append(committed(2))
        disk.on_operation = lambda operation, name: None
        disk.kill_at = 0
        with pytest.raises(InvalidStateError, match="was interrupted"):
            log.append(committed(2))
        log.close()
        log, content = open_log(place(disk))
        assert content.progress.last_round == 1
        log.append(committed(2))
        log.save()
        log.close()
        assert read_episode_log(DIRECTORY, disk=disk).progress.last_round == 2


def test_a_failed_sync_makes_the_log_suspect_and_is_never_tried_again() -> None:
    disk = SimulatedDisk()
    log = create_log(place(disk), identity())
    log.append(committed(1))
    log.save()
    log.append(committed(2))
    disk.faults.failing = lambda operation, name: operation == "sync"
    with pytest.raises(LogSuspectError, match="the disk failed"):
        log.save()
    disk.faults.failing = lambda operation, name: False
    syncs = sum(operation == "sync" for operation, _ in disk.performed)
    for again in (log.save, lambda: log.append(committed(3)), log.rotate, log.renew):
        with pytest.raises(LogSuspectError):
            again()
    assert sum(operation == "sync" for operation, _ in disk.performed) == syncs
    assert log.saved_sequence == 2
    log.close()


def test_what_a_failed_sync_left_in_the_page_cache_is_written_anew_before_it_is_believed() -> None:
    for choose in _choosers():
        disk = SimulatedDisk()
        log = create_log(place(disk), identity())
        log.append(committed(1))
        disk.faults.failing = lambda operation, name: operation == "sync"
        with pytest.raises(LogSuspectError):
            log.save()
        log.close()
        disk.faults.failing = lambda operation, name: False
        log, content = open_log(place(disk))
        assert content.progress.last_round == 1, "the page cache shows it"
        log.append(committed(2))
        log.save()
        told = Acknowledged(sequence=log.saved_sequence, rounds=2, began=2)
        check(read_episode_log(DIRECTORY, disk=disk.after_power_loss(choose)), told)


@pytest.mark.parametrize("operation", ["sync", "sync_directory", "rename", "write", "create", "link", "truncate"])
def test_whatever_operation_fails_the_error_is_ours_and_nothing_acknowledged_is_lost(operation: str) -> None:
    count = 0
    while True:
        count += 1
        disk, told, left = SimulatedDisk(), Acknowledged(), [count]

        def failing(asked: str, name: str, left: list[int] = left) -> bool:
            left[0] -= asked == operation
            return asked == operation and left[0] == 0

        disk.faults.failing = failing
        try:
            full_life(disk, told)
        except PlatformError:
            assert left[0] <= 0
        else:
            break
        disk.faults.failing = lambda asked, name: False
        go_on(disk.after_kill(), told)
        disk.kill_at = 0
    assert count > (1 if operation != "truncate" else 0)


# -- two writers -------------------------------------------------------------------------------------------------------


def test_a_living_writer_is_not_succeeded_before_its_lease_is_over() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    log = create_log(place(disk, clock=clock), identity())
    clock.advance(LEASE_S - 1)
    with pytest.raises(StateLockedError, match="another writer has the log"):
        open_log(place(disk, clock=clock))
    log.renew()
    clock.advance(LEASE_S - 1)
    with pytest.raises(StateLockedError, match="a has it for another 1 s"):
        open_log(place(disk, clock=clock))
    log.append(committed(1))
    log.save()
    clock.advance(LEASE_S + 1)
    other, content = open_log(place(disk, clock=clock, writer="b"))
    assert content.progress.last_round == 1
    other.close()


def test_a_jump_of_the_wall_clock_ends_no_lease() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    log = create_log(place(disk, clock=clock), identity())
    clock.wall += 1e9
    with pytest.raises(StateLockedError):
        open_log(place(disk, clock=clock))
    clock.wall -= 2e9
    with pytest.raises(StateLockedError):
        open_log(place(disk, clock=clock))
    log.close()


def test_a_dead_writer_is_succeeded_at_once() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    create_log(place(disk, clock=clock), identity())
    log, _ = open_log(place(disk.after_kill(), clock=clock))
    log.close()


def test_a_writer_that_wakes_after_its_lease_is_refused_whatever_it_does() -> None:
    for act in ("append", "save", "rotate", "state", "renew"):
        disk, clock = SimulatedDisk(), ManualClock()
        log = create_log(place(disk, clock=clock), identity())
        log.append(committed(1))
        log.save()
        clock.advance(LEASE_S + 1)
        other, _ = open_log(place(disk, clock=clock, writer="b"))
        other.append(committed(2))
        other.save()
        with pytest.raises(WriterFencedError, match="another writer has taken over"):
            _act(log, act)
        with pytest.raises(WriterFencedError):
            log.append(committed(3))
        other.append(committed(3))
        other.save()
        log.close()
        other.close()
        content = read_episode_log(DIRECTORY, disk=disk)
        assert content.progress.last_round == 3
        assert content.completeness is Completeness.OPEN


def _act(log: EpisodeLog, act: str) -> None:
    match act:
        case "append":
            log.append(committed(2))
            log.save()
        case "state":
            log.append(state(1))
        case "save":
            log.save()
        case "rotate":
            log.rotate()
        case _:
            log.renew()


def _taken_over_at(stop_at: int, *, again: bool) -> bool:
    """Stop a writer at one of its operations, let its lease end, let another write on, and let it wake.

    `again`: the other one is succeeded, too, before the first wakes. Return whether the operation was reached.
    """
    clock, others, told = ManualClock(), Acknowledged(), Acknowledged()
    reached = [False]
    numbers = [0]

    def on_operation(operation: str, name: str) -> None:
        numbers[0] += 1
        if numbers[0] != stop_at:
            return
        reached[0] = True
        for _ in range(2 if again else 1):
            clock.advance(LEASE_S + 1)
            log, content = open_log(place(disk, clock=clock, writer="b"))
            check(content, Acknowledged(sequence=told.sequence, rounds=told.rounds, began=99))
            others.sequence, others.rounds = content.next_sequence - 1, content.progress.last_round
            with log:
                if log.progress.open is None:
                    write_some(log, others, rounds=2)

    disk = SimulatedDisk()
    log = create_log(place(disk, clock=clock), identity())
    told.sequence = log.saved_sequence
    disk.on_operation = on_operation
    try:
        write_some(log, told)
        assert not reached[0], "a writer that was taken over from was not refused"
    except WriterFencedError:
        assert reached[0]
    log.close()
    disk.on_operation = lambda operation, name: None
    content = read_episode_log(DIRECTORY, disk=disk)
    others.began = 99
    check(content, others if reached[0] else told)
    assert content.progress.last_round == (others.rounds if reached[0] else told.rounds)
    return reached[0]


@pytest.mark.parametrize("again", [False, True], ids=["one successor", "two successors"])
def test_wherever_a_writer_sleeps_through_its_lease_it_acknowledges_only_what_its_successor_read(again: bool) -> None:
    stop_at = 1
    while _taken_over_at(stop_at, again=again):
        stop_at += 1
    assert stop_at > 40


def test_two_that_open_a_dead_writers_log_at_once_do_not_both_get_it() -> None:
    stop_at = 1
    while True:
        disk, clock = SimulatedDisk(), ManualClock()
        create_log(place(disk, clock=clock), identity()).close()
        opened: list[EpisodeLog] = []
        numbers = [0]

        def second(
            operation: str,
            name: str,
            numbers: list[int] = numbers,
            disk: SimulatedDisk = disk,
            clock: ManualClock = clock,
            opened: list[EpisodeLog] = opened,
            stop_at: int = stop_at,
        ) -> None:
            numbers[0] += 1
            if numbers[0] == stop_at:
                try:
                    opened.append(open_log(place(disk, clock=clock, writer="b"))[0])
                except StateLockedError:
                    numbers.append(1)

        disk.on_operation = second
        try:
            first = open_log(place(disk, clock=clock, writer="a"))[0]
            first.append(committed(1))
            first.save()
            assert not opened
            first.close()
        except (StateLockedError, WriterFencedError):
            assert opened
            opened[0].append(committed(1))
            opened[0].save()
            opened[0].close()
        disk.on_operation = lambda operation, name: None
        assert read_episode_log(DIRECTORY, disk=disk).progress.last_round == 1
        if numbers[0] < stop_at:
            break
        stop_at += 1
    assert stop_at > 10


def _opened_after_others(stop_at: int) -> bool:
    """Open a dead writer's log; at one of the operations of that, three others come, write and go, one after another.

    Three: the first of them takes the epoch that we want, and the third has taken the tenure after that away again.
    Return whether the operation was reached.
    """
    disk, clock = SimulatedDisk(), ManualClock()
    create_log(place(disk, clock=clock), identity()).close()
    numbers, rounds = [0], [0]

    def others(operation: str, name: str) -> None:
        numbers[0] += 1
        if numbers[0] != stop_at:
            return
        for _ in range(3):
            try:
                log = open_log(place(disk, clock=clock, writer="b"))[0]
            except StateLockedError:
                return
            with log:
                log.append(committed(log.progress.last_round + 1))
                log.save()
                rounds[0] = log.progress.last_round

    disk.on_operation = others
    try:
        log = open_log(place(disk, clock=clock, writer="a"))[0]
        with log:
            assert log.progress.last_round == rounds[0], "it read the log without what others have acknowledged"
            log.append(committed(rounds[0] + 1))
            log.save()
            rounds[0] += 1
    except (StateLockedError, WriterFencedError):
        assert rounds[0] == 3
    disk.on_operation = lambda operation, name: None
    assert read_episode_log(DIRECTORY, disk=disk).progress.last_round == rounds[0]
    return numbers[0] >= stop_at


def test_whoever_opens_a_log_while_others_come_and_go_gets_it_after_them_or_not_at_all() -> None:
    stop_at = 1
    while _opened_after_others(stop_at):
        stop_at += 1
    assert stop_at > 10


def test_a_lock_is_held_between_processes(tmp_path: Path) -> None:
    directory = tmp_path / EPISODE
    log = create_log(LogPlace(directory=directory), identity())
    with pytest.raises(StateLockedError):
        open_log(LogPlace(directory=directory))
    log.close()
    open_log(LogPlace(directory=directory))[0].close()


def test_every_error_of_a_log_is_one_of_ours(tmp_path: Path) -> None:
    directory = tmp_path / EPISODE
    directory.mkdir()
    (directory / "0000000001-000001.jsonl").mkdir()
    with pytest.raises(DsecError):
        open_log(LogPlace(directory=directory))
