"""Watching an episode: from an offset, as it is saved, without a gap."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import InvalidStateError, NotFoundError, StateCorruptedError
from dsec.episode.durability import Durability, asynchronous, every_n_rounds
from dsec.episode.log_events import EpisodeEnded, LogEvent, RoundCommitted, StateSaved
from dsec.stores.episode_log import EpisodeLog, create_log, open_log
from dsec.stores.episode_log_feed import follow, read_page
from dsec.stores.episode_log_group import DurableLog, GroupCommit
from dsec.stores.episode_log_place import LogPlace
from dsec.testing.episodes import EPISODE, history, identity, round_record
from dsec.testing.simulated_disk import SimulatedDisk

DIRECTORY = Path("/episodes") / EPISODE


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def place(disk: SimulatedDisk, clock: ManualClock | None = None) -> LogPlace:
    return LogPlace(directory=DIRECTORY, disk=disk, clock=clock or ManualClock(), segment_bytes=1500)


def write(log: EpisodeLog, rounds: int) -> None:
    for _ in range(rounds):
        log.append(RoundCommitted(round_record(log.progress.last_round + 1)))
    log.save()


def everything(disk: SimulatedDisk, sequence: int, *, maximum_bytes: int, through: int | None = None) -> list[LogEvent]:
    events: list[LogEvent] = []
    while True:
        page = read_page(DIRECTORY, sequence, through=through, maximum_bytes=maximum_bytes, disk=disk)
        assert page.first == sequence
        if not page.events:
            return events
        events += page.events
        sequence = page.next_sequence


@pytest.mark.parametrize("maximum_bytes", [1, 900, 1 << 20])
def test_from_every_offset_every_event_comes_once(disk: SimulatedDisk, maximum_bytes: int) -> None:
    log = create_log(place(disk), identity())
    write(log, 12)
    expected = history(12)
    for sequence in range(1, 14):
        assert everything(disk, sequence, maximum_bytes=maximum_bytes) == expected[sequence - 1 :]


def test_what_is_not_saved_is_not_shown(disk: SimulatedDisk) -> None:
    log = create_log(place(disk), identity())
    write(log, 2)
    log.append(RoundCommitted(round_record(3)))
    assert everything(disk, 1, maximum_bytes=1000, through=log.saved_sequence) == history(2)
    assert everything(disk, 4, maximum_bytes=1000, through=log.saved_sequence) == []


def test_what_a_state_stands_in_for_is_passed_over_and_told(disk: SimulatedDisk) -> None:
    log = create_log(place(disk), identity())
    write(log, 5)
    log.append(StateSaved(number=5, identity=identity(), workspace="w5"))
    write(log, 2)
    page = read_page(DIRECTORY, 2, disk=disk)
    assert page.first == 7
    assert isinstance(page.events[0], StateSaved)
    assert [event.record.number for event in page.events[1:] if isinstance(event, RoundCommitted)] == [6, 7]


@pytest.mark.parametrize("through", [None, "all"])
@pytest.mark.parametrize("deaths", range(1, 5))
def test_a_state_stands_in_for_what_a_death_left_of_what_it_replaced(
    disk: SimulatedDisk, deaths: int, through: str | None
) -> None:
    log = create_log(place(disk), identity())
    write(log, 12)
    left: list[SimulatedDisk] = []
    disk.on_operation = lambda operation, name: left.append(disk.after_kill()) if operation == "remove" else None
    log.append(StateSaved(number=12, identity=identity(), workspace=log.progress.workspace))
    torn = left[deaths]
    opened, _ = open_log(place(torn))
    write(opened, 2)
    saved = opened.saved_sequence if through else None
    seen: list[int] = []
    sequence = 1
    while (page := read_page(DIRECTORY, sequence, through=saved, maximum_bytes=1, disk=torn)).events:
        jumps = page.first != sequence
        assert not jumps or isinstance(page.events[0], StateSaved)
        sequence = page.next_sequence
        seen += range(page.first, sequence)
    assert sequence == opened.next_sequence
    assert seen[-3:] == list(range(sequence - 3, sequence))


def test_a_state_that_was_saved_a_moment_ago_is_shown_the_next_time(disk: SimulatedDisk) -> None:
    log = create_log(place(disk), identity())
    write(log, 3)
    saved = log.saved_sequence
    log.append(StateSaved(number=3, identity=identity(), workspace=log.progress.workspace))
    page = read_page(DIRECTORY, 2, through=saved, disk=disk)
    assert (page.first, page.events) == (2, [])
    assert isinstance(read_page(DIRECTORY, 2, through=log.saved_sequence, disk=disk).events[0], StateSaved)


def test_a_writer_that_was_succeeded_shows_nothing_of_what_it_wrote_after_it(disk: SimulatedDisk) -> None:
    clock = ManualClock()
    log = create_log(place(disk, clock), identity())
    write(log, 2)
    clock.advance(31)
    other, _ = open_log(place(disk, clock))
    log._write(b"something that a sleeper still had in hand\n")
    write(other, 9)
    assert everything(disk, 1, maximum_bytes=500) == history(11)


def test_a_hole_is_an_error_and_not_an_end(disk: SimulatedDisk) -> None:
    log = create_log(place(disk), identity())
    write(log, 12)
    names = [name for name in disk.names(DIRECTORY) if name.endswith(".jsonl")]
    disk.remove(DIRECTORY / names[1])
    with pytest.raises(StateCorruptedError, match="is gone"):
        everything(disk, 1, maximum_bytes=1 << 20, through=log.saved_sequence)
    with pytest.raises(NotFoundError):
        read_page(Path("/episodes/ep-none"), 1, disk=disk)


async def watch(log: DurableLog, sequence: int, seen: list[LogEvent], *, until: int | None = None) -> int:
    """Watch until the end, or until so many events were seen; return the offset to come back with."""
    async for page in follow(log, sequence, maximum_bytes=700):
        assert page.first == sequence
        assert page.next_sequence - 1 <= log.log.saved_sequence
        seen += page.events
        sequence = page.next_sequence
        if until is not None and len(seen) >= until:
            break
    return sequence


@pytest.mark.anyio
@pytest.mark.parametrize("durability", [every_n_rounds(3), asynchronous(4)])
async def test_watchers_that_come_and_go_miss_nothing_and_hold_nobody_up(
    disk: SimulatedDisk, durability: Durability
) -> None:
    expected = [*history(30), EpisodeEnded(reason="done")]
    whole: list[LogEvent] = []
    in_parts: list[LogEvent] = []

    async def come_and_go() -> None:
        sequence = 1
        for until in (4, 11, 25, None):
            sequence = await watch(log, sequence, in_parts, until=until)
            await anyio.sleep(0.001)

    async with GroupCommit(threads=2) as group:
        log = group.attach(create_log(place(disk), identity()), durability)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, log, 1, whole)
                tasks.start_soon(come_and_go)
                for number in range(1, 31):
                    await log.commit(RoundCommitted(round_record(number)))
                    if number % 7 == 0:
                        await anyio.sleep(0.001)
                await log.announce(EpisodeEnded(reason="done"))
        late: list[LogEvent] = []
        await watch(log, 20, late)
    assert whole == expected
    assert in_parts == expected
    assert late == expected[19:]


@pytest.mark.anyio
async def test_a_watcher_hears_that_nothing_more_will_come(disk: SimulatedDisk) -> None:
    async with GroupCommit(threads=1) as group:
        log = group.attach(create_log(place(disk), identity()))
        seen: list[LogEvent] = []

        async def hear() -> None:
            with pytest.raises(InvalidStateError, match="is closed"):
                await watch(log, 1, seen)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hear)
                await log.commit(RoundCommitted(round_record(1)))
                await anyio.sleep(0.01)
                await log.aclose()
        assert seen == history(1)
