"""Saved events of a log from a sequence on: for whoever watches an episode, goes away, and comes back with an offset.

A page is found by the names of the segments, which say where each begins and which epoch counts, so that neither what
lies before it is read nor anything kept for a watcher. A watcher that is slow holds nobody up: the log is its queue.
Only saved events are shown, since a watcher must never have seen what a restart takes back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread

from dsec.base.errors import NotFoundError, PlatformError, StateCorruptedError
from dsec.base.units import MIB
from dsec.episode.log_events import EpisodeEnded, LogEvent, decode_log_events, is_state
from dsec.episode.segments import parse_segment_name, read_segment, segment_name
from dsec.stores.episode_log_disk import Disk, HostDisk
from dsec.stores.episode_log_group import DurableLog

DEFAULT_PAGE_BYTES = 1 * MIB
_TRIES = 5
_HOST_DISK = HostDisk()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPage:
    """Events that follow each other.

    Attributes:
        first: sequence of the first event; higher than was asked for if what was asked for was dropped behind a state,
            with which the page then begins.
        events: the events; none if there are no more yet.
    """

    first: int
    events: list[LogEvent]

    @property
    def next_sequence(self) -> int:
        """What to ask for next."""
        return self.first + len(self.events)


def read_page(
    directory: Path,
    sequence: int,
    *,
    through: int | None = None,
    maximum_bytes: int = DEFAULT_PAGE_BYTES,
    disk: Disk = _HOST_DISK,
) -> FeedPage:
    """Return events of a log from a sequence on; at least one if there is one.

    Args:
        directory: of the log.
        sequence: of the first event that is wanted, from 1.
        through: the last event that may be shown: what the writer has saved. None: the log has no writer.
        maximum_bytes: about how much to return.
        disk: where it is.

    Raises:
        NotFoundError: there is no log.
        CapabilityMissingError: a newer version wrote it.
        StateCorruptedError: what should be there is not, or does not verify.
    """
    for _ in range(_TRIES):
        try:
            found = _segments(directory, disk)
            if not found:
                raise NotFoundError(f"there is no log of an episode in {directory}")
            return _page_from(directory, found, sequence, through, maximum_bytes, disk)
        except FileNotFoundError:
            continue  # A state was saved meanwhile, or another writer began.
        except OSError as error:
            raise PlatformError(f"the log in {directory} cannot be read", detail=error.strerror or "") from error
    raise PlatformError(f"the log in {directory} changes faster than it can be read", resolution="try again")


def _segments(directory: Path, disk: Disk) -> list[tuple[int, int]]:
    return [named for name in disk.names(directory) if (named := parse_segment_name(name)) is not None]


def _holding(found: list[tuple[int, int]], sequence: int) -> tuple[int, int]:
    """Return the segment that holds an event: of those that begin before it, the last one of the newest epoch, which
    has made void what older ones hold from where it begins.
    """
    reaching = [(first, epoch) for first, epoch in found if first <= sequence]
    newest = max(epoch for _, epoch in reaching)
    return max((first, epoch) for first, epoch in reaching if epoch == newest)


def _page_from(
    directory: Path, found: list[tuple[int, int]], sequence: int, through: int | None, maximum_bytes: int, disk: Disk
) -> FeedPage:
    """Return a page with the event that is asked for, or one with the state that stands in for it.

    What a state stands in for may still lie there in part: removing it takes a while, and ends where the writer died.
    """
    if any(first <= sequence for first, _ in found):
        page = _page(directory, _holding(found, sequence), sequence, through, maximum_bytes, disk)
        ends_here = through is None and not any(first > sequence for first, _ in found)
        if page.events or ends_here or (through is not None and sequence > through):
            return page
    state = _newest_state(directory, found, sequence, disk)
    if state is None:
        raise StateCorruptedError(f"event {sequence} of the log in {directory} is gone, and no state stands in for it")
    page = _page(directory, state, state[0], through, maximum_bytes, disk)
    # A state that was saved after the writer was asked what it had saved is shown the next time.
    return page if page.events else FeedPage(first=sequence, events=[])


def _newest_state(directory: Path, found: list[tuple[int, int]], sequence: int, disk: Disk) -> tuple[int, int] | None:
    for first, epoch in sorted(found, reverse=True):
        if first <= sequence:
            return None
        name = segment_name(first, epoch)
        documents = read_segment(name, disk.read(directory / name), episode_id=directory.name).documents
        if documents and is_state(documents[0]):
            return first, epoch
    return None


def _page(
    directory: Path, holding: tuple[int, int], begin: int, through: int | None, maximum_bytes: int, disk: Disk
) -> FeedPage:
    """Return what a segment holds from an event on."""
    name = segment_name(*holding)
    segment = read_segment(name, disk.read(directory / name), episode_id=directory.name)
    wanted = segment.documents[begin - segment.head.first :]
    if through is not None:
        wanted = wanted[: max(0, through + 1 - begin)]
    taken, length = 0, 0
    while taken < len(wanted) and (not taken or length + len(wanted[taken]) <= maximum_bytes):
        length += len(wanted[taken])
        taken += 1
    return FeedPage(first=begin, events=decode_log_events(wanted[:taken], name=name))


async def follow(log: DurableLog, sequence: int, *, maximum_bytes: int = DEFAULT_PAGE_BYTES) -> AsyncIterator[FeedPage]:
    """Yield the saved events of an open log from a sequence on, then as they are saved, until the episode has ended.

    Raises:
        DsecError: as for `read_page`; or the log was stopped, and nothing more will be saved.
    """
    place = log.place
    while True:
        await log.wait_saved(sequence)
        through = log.log.saved_sequence
        read = partial(
            read_page, place.directory, sequence, through=through, maximum_bytes=maximum_bytes, disk=place.disk
        )
        page = await anyio.to_thread.run_sync(read)
        sequence = page.next_sequence
        yield page
        if page.events and isinstance(page.events[-1], EpisodeEnded):
            return
