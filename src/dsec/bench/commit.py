"""`commit`: what it takes until a round of an episode is safe, beside the bare fsync of the same bytes.

Every sample commits the next round of the same episode. The bare reference appends exactly the line that the log
appends and calls fsync(2): nothing that is durable can be faster on this disk. SQLite in WAL mode with
``synchronous=FULL`` is what checkpointers of agents write to. Ours is what a worker calls: it encodes, appends, hands
the fsync to a thread so that 800 other loops go on, and looks whether it is still the writer.

References block, so each runs in a thread, and its clock inside of that: the way there and back does not count for
them, and does for ours. In the event loop's own thread they would pay for what that had just computed, because on a
busy host the scheduler lets it wait for its turn when it wakes.

The series has the chapter's trade-off (section 11.5.1): operations of 200 ms one after the other, and a disk that is
slowed down to 8 ms a commit and 2 ms a record.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from dsec.base.units import KIB
from dsec.bench.context import PureContext
from dsec.bench.distribution import Distribution, distribution, ratio
from dsec.bench.episode import bench_identity, bench_round
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.episode.durability import EVERY_ROUND, Durability, asynchronous, every_n_rounds
from dsec.episode.frames import encode_frame
from dsec.episode.log_events import encode_log_event
from dsec.stores.episode_log import create_log
from dsec.stores.episode_log_disk import HostDisk
from dsec.stores.episode_log_group import DurableLog, GroupCommit
from dsec.stores.episode_log_place import LogPlace

_BARE, _SQLITE = "bare write and fsync of the same bytes", "SQLite, WAL, synchronous=FULL"
_OURS, _BLOCKING = "ours", "ours, blocking"
_RESULT_BYTES = 4 * KIB
_SIZES = (256, 4 * KIB, 64 * KIB, 1024 * KIB)
_MANY, _END = 10_000, 1_000
_EPISODES = 100
_OPERATIONS, _OPERATION_S = 100, 0.2
_COMMIT_S, _RECORD_S = 0.008, 0.002


@contextmanager
def _workplace() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir="/var/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _attach(group: GroupCommit, directory: Path, episode_id: str, durability: Durability = EVERY_ROUND) -> DurableLog:
    return group.attach(create_log(LogPlace(directory=directory / episode_id), bench_identity(episode_id)), durability)


@dataclass(slots=True)
class _Contest:
    """The contestants on one size of round, each with a file of its own."""

    group: GroupCommit
    directory: Path
    size: int

    @contextmanager
    def contestants(self) -> Iterator[Mapping[str, Sample]]:
        bare = os.open(self.directory / f"bare-{self.size}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        database = sqlite3.connect(
            self.directory / f"sqlite-{self.size}", isolation_level=None, check_same_thread=False
        )
        database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE round (data BLOB);")
        name = f"ep-blocking-{self.size}"
        blocking = create_log(LogPlace(directory=self.directory / name), bench_identity(name))
        log = _attach(self.group, self.directory, f"ep-{self.size}")

        async def ours() -> float:
            event = bench_round(log.log.progress.last_round + 1, self.size)
            with timed() as watch:
                await log.commit(event)
            return watch.seconds

        def commit_blocking() -> None:
            blocking.append(bench_round(blocking.progress.last_round + 1, self.size))
            blocking.save()

        def bare_fsync(line: bytes) -> None:
            os.write(bare, line)
            os.fsync(bare)

        def sqlite_commit(line: bytes) -> None:
            database.execute("INSERT INTO round VALUES (?)", (line,))

        contestants = {
            _OURS: ours,
            _BLOCKING: _in_thread(lambda: commit_blocking),
            _BARE: _in_thread(lambda: partial(bare_fsync, self._line(blocking.progress.last_round + 1))),
            _SQLITE: _in_thread(lambda: partial(sqlite_commit, self._line(blocking.progress.last_round + 1))),
        }
        try:
            yield contestants
        finally:
            os.close(bare)
            database.close()
            blocking.close()

    def _line(self, number: int) -> bytes:
        return encode_frame(encode_log_event(bench_round(number, self.size)))


def _in_thread(prepare: Callable[[], Callable[[], object]]) -> Sample:
    """Return a sample of what `prepare` returns, done and timed in a thread."""

    def measure(act: Callable[[], object]) -> float:
        with timed() as watch:
            act()
        return watch.seconds

    async def sample() -> float:
        return await anyio.to_thread.run_sync(measure, prepare())

    return sample


async def bench_commit(context: PureContext) -> Report:
    """Measure a commit beside its references, by size, at the end of a long episode, of many episodes, and by mode."""
    with _workplace() as directory:
        async with GroupCommit() as group:
            seconds = await _measure(context, group, directory, _RESULT_BYTES, context.options.samples)
            series = [await _by_size(context, group, directory, size) for size in _SIZES]
            series += await _announced(context, group, directory)
            series += await _long_episode(context, group, directory)
            series += await _many_episodes(context, group, directory)
        series += await _trade_off(context, directory)
    context.note(
        f"rounds of one call whose result has {_RESULT_BYTES} bytes; segments of 4 MiB, begun within the clock"
    )
    return make_report(
        "commit",
        "ms",
        "lower",
        ours=distribution(seconds[_OURS], scale=1e3),
        references={name: distribution(seconds[name], scale=1e3) for name in (_BARE, _SQLITE, _BLOCKING)},
        series=series,
        host=context.host,
    )


async def _measure(
    context: PureContext, group: GroupCommit, directory: Path, size: int, samples: int
) -> dict[str, list[float]]:
    where = directory / f"{size}-{samples}"
    where.mkdir()
    with _Contest(group, where, size).contestants() as contestants:
        return await alternate(contestants, rounds=samples, progress=context.progress)


async def _by_size(context: PureContext, group: GroupCommit, directory: Path, size: int) -> dict[str, Any]:
    seconds = await _measure(context, group, directory, size, max(5, context.options.samples // 4))
    ours, bare = _p50(seconds[_OURS]), _p50(seconds[_BARE])
    return {"what": f"result of {size} bytes", "ours_ms": ours, "bare_ms": bare, "ratio": ratio(ours, bare)}


async def _announced(context: PureContext, group: GroupCommit, directory: Path) -> list[dict[str, Any]]:
    """A round with an operation that must not run twice is announced, which is a second save."""
    from dsec.bench.episode import announcements, outside_round

    log = _attach(group, directory, "ep-announced")
    announce_s: list[float] = []
    for number in range(1, max(10, context.options.samples // 2)):
        with timed() as watch:
            await log.announce(*announcements(number))
        announce_s.append(watch.seconds)
        await log.commit(outside_round(number, _RESULT_BYTES))
    return [{"what": "announcement of an operation that must not run twice", "ours_ms": _p50(announce_s)}]


async def _long_episode(context: PureContext, group: GroupCommit, directory: Path) -> list[dict[str, Any]]:
    """Commit ten thousand rounds in one episode: the last thousand beside the first."""
    rounds = context.options.count or _MANY
    log = _attach(group, directory, "ep-long")
    took: list[float] = []
    with context.progress.counting("rounds of one episode", rounds) as advance:
        for number in range(1, rounds + 1):
            event = bench_round(number, _RESULT_BYTES)
            with timed() as watch:
                await log.commit(event)
            took.append(watch.seconds)
            advance()
    end = min(_END, rounds // 2)
    first, last = distribution(took[:end], scale=1e3), distribution(took[-end:], scale=1e3)
    return [
        {"what": f"first {end} of {rounds} rounds", **_shown(first)},
        {"what": f"last {end} of {rounds} rounds", **_shown(last), "to_first": ratio(last.p50, first.p50)},
    ]


async def _many_episodes(context: PureContext, group: GroupCommit, directory: Path) -> list[dict[str, Any]]:
    """Commit a round of each of a hundred episodes at once; beside one after the other."""
    logs = [_attach(group, directory, f"ep-many-{number}") for number in range(_EPISODES)]
    together: list[float] = []
    alone: list[float] = []
    for number in range(1, 2 * max(5, context.options.samples // 20) + 1):
        event = bench_round(number, _RESULT_BYTES)
        with timed() as watch:
            if number % 2:
                async with anyio.create_task_group() as tasks:
                    for log in logs:
                        tasks.start_soon(log.commit, event)
            else:
                for log in logs:
                    await log.commit(event)
        (together if number % 2 else alone).append(watch.seconds)
    return [
        {"what": f"a round of each of {_EPISODES} episodes, at once", "ours_ms": _p50(together)},
        {"what": f"a round of each of {_EPISODES} episodes, one after the other", "ours_ms": _p50(alone)},
    ]


class SlowDisk(HostDisk):
    """The host's disk, on which a commit takes a fixed time and a time for each record."""

    def __init__(self) -> None:
        self._records = 0

    def write(self, handle: int, data: bytes | memoryview) -> int:
        self._records += 1
        return super().write(handle, data)

    def sync(self, handle: int) -> None:
        records, self._records = self._records, 0
        time.sleep(_COMMIT_S + records * _RECORD_S)
        super().sync(handle)


async def _trade_off(context: PureContext, directory: Path) -> list[dict[str, Any]]:
    """Play the chapter's hundred operations in each mode, at the same time; fewer if few samples are asked for."""
    modes = {"every round": EVERY_ROUND, "every 10 rounds": every_n_rounds(10), "asynchronous": asynchronous(10)}
    operations = min(_OPERATIONS, 10 * context.options.samples)
    context.progress.say(f"playing {operations} operations of {_OPERATION_S * 1e3:.0f} ms in each mode")
    rows: dict[str, dict[str, Any]] = {}

    async def play(name: str, durability: Durability) -> None:
        episode_id = f"ep-{name.replace(' ', '-')}"
        place = LogPlace(directory=directory / episode_id, disk=SlowDisk())
        async with GroupCommit(threads=1) as group:
            log = group.attach(create_log(place, bench_identity(episode_id)), durability)
            saves, most = log.saves, 0
            with timed() as watch:
                for number in range(1, operations + 1):
                    await anyio.sleep(_OPERATION_S)
                    await log.commit(bench_round(number, 0))
                    most = max(most, log.unsaved.rounds)
                await log.flush()
            rows[name] = {
                "what": f"{operations} operations of 0.2 s, commits of 8 ms + 2 ms each, {name}",
                "total_s": round(watch.seconds, 2),
                "commits": log.saves - saves,
                "most_unsaved_rounds": most,
            }

    async with anyio.create_task_group() as tasks:
        for name, durability in modes.items():
            tasks.start_soon(play, name, durability)
    return [rows[name] for name in modes]


def _p50(seconds: list[float]) -> float:
    return distribution(seconds, scale=1e3).p50


def _shown(found: Distribution) -> dict[str, Any]:
    return {"p50_ms": found.p50, "p99_ms": found.p99}
