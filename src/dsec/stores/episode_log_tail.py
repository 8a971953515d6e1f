"""The saved end of a log, cut into the segments that are uploaded.

A batch is described and not kept: an episode whose store does not answer costs no memory, and what it holds is read
again from the log when its turn has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.base.units import MIB
from dsec.episode.log_events import is_state
from dsec.episode.segments import LOG_VERSION, SegmentHead, encode_head, line_checksum
from dsec.stores.episode_log import EpisodeLog, SavedSegment
from dsec.stores.episode_log_disk import Disk

DEFAULT_BATCH_BYTES = 1 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Events that become one object.

    Attributes:
        segment: name of the segment that they lie in.
        offset, length: where.
        first: sequence of the first.
        events: how many.
        previous: checksum of the event before them; empty: not known, or none.
        checksum: of the last.
        round: the last committed round up to the last.
        is_state: whether they begin with a whole state.
    """

    segment: str
    offset: int
    length: int
    first: int
    events: int
    previous: str
    checksum: str
    round: int
    is_state: bool

    @property
    def last(self) -> int:
        """The sequence of the last event."""
        return self.first + self.events - 1


class _Numbered(msgspec.Struct):
    number: int


class _Counted(msgspec.Struct):
    """What of a line says which round is committed."""

    record: _Numbered | None = None
    number: int = 0


_DECODER = msgspec.json.Decoder(_Counted)
_ROUND_TAG = b'{"event":"round"'


class LogTail:
    """Walks behind a writer, over what it has saved. Its calls block, and run one at a time.

    Args:
        log: the log; only what it says is saved is read.
        directory, disk: where it lies.
        sequence: the last event that is not wanted.
        checksum: of that event, if known.
        round: the last committed round up to it.
    """

    def __init__(
        self, log: EpisodeLog, directory: Path, disk: Disk, *, sequence: int = 0, checksum: str = "", round: int = 0
    ) -> None:
        self._log = log
        self._directory = directory
        self._disk = disk
        self._next = sequence + 1
        self._previous = checksum
        self._round = round
        self._segment = ""
        self._offset = 0

    @property
    def next_sequence(self) -> int:
        """The sequence of the first event that no batch holds yet."""
        return self._next

    def next_batch(self, maximum_bytes: int = DEFAULT_BATCH_BYTES) -> Batch | None:
        """Return the next batch, None when all that is saved is in one.

        Raises:
            StateCorruptedError: a segment of the log is gone.
        """
        gone = ""
        while self._next <= self._log.saved_sequence:
            segment = self._find()
            try:
                return self._cut(segment, maximum_bytes)
            except FileNotFoundError:
                # A state was saved, and this was dropped behind it; the log then says so.
                if segment.name == gone:
                    raise StateCorruptedError(f"{self._directory / gone} is gone") from None
                gone = segment.name
        return None

    def read(self, batches: Sequence[Batch], *, epoch: int, episode_id: str) -> bytes | None:
        """Return the object of batches that follow each other; None if one of them was dropped behind a state."""
        try:
            lines = [self._disk.read(self._directory / one.segment, one.offset, one.length) for one in batches]
        except FileNotFoundError:
            return None
        head = SegmentHead(
            version=LOG_VERSION,
            episode=episode_id,
            epoch=epoch,
            first=batches[0].first,
            previous=batches[0].previous,
            events=sum(one.events for one in batches),
        )
        return b"".join((encode_head(head), *lines))

    def checksum_of(self, sequence: int) -> str | None:
        """Return the checksum of a saved event, None if it is not there (any more)."""
        holding = [segment for segment in self._log.saved_segments() if segment.first <= sequence]
        for number, _, line in self._lines(holding[-1]) if holding else ():
            if number == sequence:
                return line_checksum(line)
        return None

    def _find(self) -> SavedSegment:
        """Return the segment that holds the next event; go ahead to where the log begins, if it begins later."""
        segments = self._log.saved_segments()
        if self._next < segments[0].first:
            self._next, self._previous = segments[0].first, ""
        holding = [segment for segment in segments if segment.first <= self._next]
        segment = holding[-1]
        if segment.name != self._segment:
            self._segment, self._offset = segment.name, 0
        return segment

    def _cut(self, segment: SavedSegment, maximum_bytes: int) -> Batch | None:
        first, offset, length, events, round_ = self._next, 0, 0, 0, self._round
        checksum, begins_with_state = "", False
        for number, start, line in self._lines(segment, self._offset):
            if number < self._next:
                continue
            if events and (length + len(line) > maximum_bytes or is_state(line)):
                break
            if not events:
                offset, begins_with_state = start, is_state(line)
            events, length, checksum = events + 1, length + len(line), line_checksum(line)
            round_ = _round_of(line, round_)
        if not events:
            return None
        batch = Batch(
            segment=segment.name,
            offset=offset,
            length=length,
            first=first,
            events=events,
            previous=self._previous,
            checksum=checksum,
            round=round_,
            is_state=begins_with_state,
        )
        self._next, self._previous, self._round, self._offset = batch.last + 1, checksum, round_, offset + length
        return batch

    def _lines(self, segment: SavedSegment, offset: int = 0) -> Iterator[tuple[int, int, bytes]]:
        """Yield sequence, offset and bytes of the saved events of a segment, from an offset at which `_next` lies."""
        length = segment.bytes - offset if segment.bytes >= 0 else -1
        data = self._disk.read(self._directory / segment.name, offset, length)
        position, number = offset, self._next if offset else segment.first - 1
        for line in data.splitlines(keepends=True):
            if offset or position:
                yield number, position, line
            position += len(line)
            number += 1


def _round_of(line: bytes, before: int) -> int:
    if not line.startswith(_ROUND_TAG) and not is_state(line):
        return before
    counted = _DECODER.decode(line)
    return counted.record.number if counted.record is not None else counted.number
