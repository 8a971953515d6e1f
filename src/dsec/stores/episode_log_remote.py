"""Read the copy of a log in an object store, and bring it back to a disk.

A list may be old, so it is only a hint: whatever is missing at a gap or behind the end is asked for by its name, which
follows from the sequence and from the epochs that are known. What a reader returns is proven as on a disk, and besides
it must reach the watermark: a store that shows less than it once showed has lost something.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from dsec.base.errors import AlreadyExistsError, NotFoundError, StateCorruptedError
from dsec.episode.log_content import Completeness, LogContent, read_content
from dsec.episode.segments import JoinedLog, Segment, join_segments, parse_segment_name, read_segment, segment_name
from dsec.stores.at_once import each_at_once
from dsec.stores.episode_log_disk import write_new
from dsec.stores.episode_log_objects import (
    Watermark,
    decode_watermark,
    log_prefix,
    parse_segment_key,
    segment_key,
    watermark_key,
)
from dsec.stores.episode_log_place import LogPlace, disk_failure
from dsec.stores.objects import ObjectStore

_AT_ONCE = 16
_READINGS = 3
"""How often an answer that makes no sense is asked for."""
_EPOCHS = 64
"""How many epochs below the newest known one are asked for at a gap."""


@dataclass(slots=True)
class _Reading:
    """What of a copy was found so far."""

    store: ObjectStore
    episode_id: str
    segments: dict[str, Segment] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(_AT_ONCE))

    async def fetch(self, key: str) -> None:
        """Get one object; one that is not there, or no segment, is remembered as such."""
        problem = ""
        for _ in range(_READINGS):
            async with self.limiter:
                try:
                    data = await self.store.get(key)
                except NotFoundError:
                    self.missing.add(key)
                    return
            try:
                segment = read_segment(key.rpartition("/")[2], data, episode_id=self.episode_id)
            except StateCorruptedError as error:
                problem = error.brief
                continue
            self.segments[key], self.data[key] = segment, data
            if not segment.damage:
                return
        if problem:
            self.problems.append(problem)
            self.missing.add(key)

    def joined(self) -> JoinedLog:
        """Join what was found."""
        return join_segments(self.segments.values())


async def read_stored_log(store: ObjectStore, episode_id: str, *, believe_watermark: bool = True) -> LogContent:
    """Return what the copy of a log proves.

    Args:
        store: where it is.
        episode_id: whose.
        believe_watermark: whether less than the watermark promises is incomplete; an audit looks only at what is there.

    Raises:
        NotFoundError: there is no copy.
        CapabilityMissingError: a newer version wrote it.
        StateCorruptedError: an event cannot be understood.
        StoreUnavailableError: the store does not answer.
    """
    reading, watermark = await _read(store, episode_id)
    return _content(reading, watermark, believe_watermark=believe_watermark)


def _content(reading: _Reading, watermark: Watermark | None, *, believe_watermark: bool) -> LogContent:
    joined = reading.joined()
    problem = _shortfall(joined, watermark) if believe_watermark else ""
    if joined.problem:
        problem = "; ".join([joined.problem, *reading.problems[:1]])
    return read_content(joined, name=f"{reading.store.url}/{log_prefix(reading.episode_id)}", problem=problem)


def _shortfall(joined: JoinedLog, watermark: Watermark | None) -> str:
    if watermark is None:
        return "there is no watermark, so that nothing says how much there should be"
    if joined.next_sequence <= watermark.sequence:
        return f"the store once showed events up to {watermark.sequence}, and now up to {joined.next_sequence - 1}"
    return ""


async def _read(store: ObjectStore, episode_id: str) -> tuple[_Reading, Watermark | None]:
    """Read what there is. If something is missing that was there before, it may have been merged while we read."""
    known: set[str] = set()
    for _ in range(_READINGS):
        watermark = await _watermark(store, episode_id)
        reading = await _read_once(store, episode_id, known, watermark)
        joined = reading.joined()
        vanished = reading.missing & (known | reading.listed)
        known |= reading.segments.keys()
        if not vanished or not (joined.problem or _shortfall(joined, watermark)):
            break
    if not reading.segments and not reading.problems and watermark is None:
        raise NotFoundError(f"{store.url} holds no copy of the log of {episode_id}")
    return reading, watermark


async def _read_once(store: ObjectStore, episode_id: str, known: set[str], watermark: Watermark | None) -> _Reading:
    listed = {info.key async for info in store.list(log_prefix(episode_id))}
    found = {key: named for key in listed | known if (named := parse_segment_key(episode_id, key)) is not None}
    reading = _Reading(store, episode_id, listed=listed)
    await each_at_once(found, reading.fetch)
    newest = max([epoch for _, epoch in found.values()] + [watermark.epoch if watermark is not None else 0])
    await _look_further(reading, newest)
    return reading


async def _watermark(store: ObjectStore, episode_id: str) -> Watermark | None:
    """Return the watermark; None if there is none, or none that can be read."""
    key = watermark_key(episode_id)
    for _ in range(_READINGS):
        try:
            return decode_watermark(await store.get(key), name=f"{store.url}/{key}")
        except NotFoundError:
            return None
        except StateCorruptedError:
            continue
    return None


async def _look_further(reading: _Reading, newest: int) -> None:
    """Ask by name for what would go on where the proven part ends, until there is nothing."""
    epochs = range(newest, max(0, newest - _EPOCHS), -1)
    while True:
        joined = reading.joined()
        keys = [segment_key(reading.episode_id, joined.next_sequence, epoch) for epoch in epochs]
        unknown = [key for key in keys if key not in reading.segments and key not in reading.missing]
        await each_at_once(unknown, reading.fetch)
        if reading.joined().next_sequence == joined.next_sequence:
            return


async def restore_log(place: LogPlace, store: ObjectStore) -> LogContent:
    """Bring the copy of a log back to a disk on which there is none; then `open_log` goes on with it.

    Raises:
        NotFoundError: there is no copy.
        AlreadyExistsError: there is a log.
        StateCorruptedError: the copy is incomplete. Nothing was written.
        PlatformError: store or disk failed.
    """
    reading, watermark = await _read(store, place.directory.name)
    content = _content(reading, watermark, believe_watermark=True)
    if content.completeness is Completeness.INCOMPLETE:
        raise StateCorruptedError(
            f"the copy of {place.directory.name} in {store.url} is incomplete: {content.problem}",
            resolution="look for the worker's own disk, which may have what is missing",
        )
    await anyio.to_thread.run_sync(_write_segments, place, reading)
    return content


def _write_segments(place: LogPlace, reading: _Reading) -> None:
    """Write the objects as segments, the last one last, so that a log that was restored in part is not taken for one
    that ends earlier: without its beginning it proves nothing.
    """
    disk, directory = place.disk, place.directory
    if any(parse_segment_name(name) is not None for name in disk.names(directory)):
        raise AlreadyExistsError(f"there is a log in {directory}", resolution="open it")
    try:
        disk.make_directory(directory)
        by_first = sorted(reading.joined().segments, key=lambda segment: segment.head.first, reverse=True)
        for segment in by_first:
            data = next(reading.data[key] for key, found in reading.segments.items() if found.name == segment.name)
            _write_file(place, segment_name(segment.head.first, segment.head.epoch), data)
        disk.sync_directory(directory)
    except OSError as error:
        raise disk_failure(directory, error) from error


def _write_file(place: LogPlace, name: str, data: bytes) -> None:
    disk, directory = place.disk, place.directory
    temporary = directory / f".{name.removesuffix('.jsonl')}.tmp"
    disk.close(write_new(disk, temporary, data))
    disk.rename(temporary, directory / name)
