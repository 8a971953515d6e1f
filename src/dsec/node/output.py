"""Output of commands: what is kept, and an exact count of what is not.

`Collector` keeps head and tail of one stream of a foreground command. `OutputLog` keeps both streams of a background
process in the order in which they came, for replay. In both the first half of the limit is the head and never changes,
the second half is the tail.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dsec.model.process import CommandResult, ExitStatus, OutputEvent, Stream

_JOINED_BYTES = 16_384
_FRAME_COST_BYTES = 256
"""Tails of very many tiny frames are cut by number too, so that a frame's own memory stays bounded."""


class Collector:
    """Head and tail of one stream."""

    __slots__ = ("_head", "_head_room", "_tail", "_tail_bytes", "_tail_limit", "total")

    def __init__(self, limit_bytes: int) -> None:
        self._head_room = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        if self._head_room:
            taken = data[: self._head_room]
            self._head += taken
            self._head_room -= len(taken)
            data = data[len(taken) :]
        if not data:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())
        if len(self._tail) > 64 and self._tail_bytes < len(self._tail) * _FRAME_COST_BYTES:
            self._tail = deque((b"".join(self._tail),))

    @property
    def kept(self) -> bytes:
        tail = b"".join(self._tail)
        return bytes(self._head) + (tail[-self._tail_limit :] if self._tail_limit else b"")

    @property
    def dropped(self) -> int:
        return self.total - len(self._head) - min(self._tail_bytes, self._tail_limit)


def result(status: ExitStatus, stdout: Collector, stderr: Collector) -> CommandResult:
    return CommandResult(
        status=status,
        stdout=stdout.kept,
        stderr=stderr.kept,
        stdout_dropped_bytes=stdout.dropped,
        stderr_dropped_bytes=stderr.dropped,
    )


@dataclass(slots=True)
class Frame:
    """Consecutive bytes of one stream; `offset` counts the stream's bytes before them."""

    stream: Stream
    offset: int
    data: bytearray

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(slots=True)
class Cursor:
    """How far a reader of an `OutputLog` has come."""

    frame: int = 0
    position: int = -1
    """Offset in the stream of the next byte of that frame; -1: its beginning."""


class _StreamLog:
    """What an `OutputLog` remembers of one stream."""

    __slots__ = ("head_room", "tail", "tail_bytes", "total")

    def __init__(self, head_room: int) -> None:
        self.head_room = head_room
        self.tail: deque[int] = deque()
        self.tail_bytes = 0
        self.total = 0


class OutputLog:
    """Both streams of a background process, in order, within a limit for each."""

    def __init__(self, limit_bytes: int) -> None:
        self._tail_limit = limit_bytes // 2
        self._frames: dict[int, Frame] = {}
        self._next = 0
        head_room = limit_bytes - limit_bytes // 2
        self._streams = {stream: _StreamLog(head_room) for stream in Stream}

    def total(self, stream: Stream) -> int:
        return self._streams[stream].total

    def add(self, stream: Stream, data: bytes, *, offset: int | None = None) -> None:
        """Append bytes; `offset` says where they stand when bytes before them are missing."""
        log = self._streams[stream]
        if offset is not None and offset > log.total:
            log.total = offset
            log.head_room = 0
        if log.head_room:
            taken = data[: log.head_room]
            log.head_room -= len(taken)
            self._append(stream, log.total, taken)
            log.total += len(taken)
            data = data[len(taken) :]
        if data:
            self._add_tail(stream, log, data)

    def _add_tail(self, stream: Stream, log: _StreamLog, data: bytes) -> None:
        number = self._append(stream, log.total, data, joinable=bool(log.tail))
        if not log.tail or log.tail[-1] != number:
            log.tail.append(number)
        log.total += len(data)
        log.tail_bytes += len(data)
        while log.tail and (
            log.tail_bytes > self._tail_limit or len(log.tail) > 64 + self._tail_limit // _FRAME_COST_BYTES
        ):
            self._trim(log)

    def _trim(self, log: _StreamLog) -> None:
        """Cut what is too much off the oldest frame of the tail."""
        number = log.tail[0]
        frame = self._frames[number]
        excess = log.tail_bytes - self._tail_limit
        if excess <= 0 or excess >= len(frame.data):
            del self._frames[number]
            log.tail.popleft()
            log.tail_bytes -= len(frame.data)
            return
        del frame.data[:excess]
        frame.offset += excess
        log.tail_bytes -= excess

    def _append(self, stream: Stream, offset: int, data: bytes, *, joinable: bool = True) -> int:
        last = self._frames.get(self._next - 1)
        in_tail = bool(self._streams[stream].tail)
        if (
            joinable
            and last is not None
            and last.stream is stream
            and last.end == offset
            and len(last.data) < _JOINED_BYTES
            and (not in_tail or self._streams[stream].tail[-1] == self._next - 1)
        ):
            last.data += data
            return self._next - 1
        self._frames[self._next] = Frame(stream, offset, bytearray(data))
        self._next += 1
        return self._next - 1

    def read(self, cursor: Cursor) -> OutputEvent | None:
        """Return the next bytes after `cursor` and move it; None when there are none yet."""
        while cursor.frame < self._next:
            frame = self._frames.get(cursor.frame)
            if frame is not None and frame.end > max(cursor.position, frame.offset - 1) and frame.data:
                start = max(cursor.position, frame.offset)
                if start < frame.end:
                    cursor.position = frame.end
                    return OutputEvent(
                        stream=frame.stream, data=bytes(frame.data[start - frame.offset :]), offset=start
                    )
            if cursor.frame == self._next - 1:
                # The newest frame may still grow.
                return None
            cursor.frame += 1
            cursor.position = -1
        return None

    def result(self, status: ExitStatus) -> CommandResult:
        """Return what was kept, with exact counts of what was not."""
        kept = {stream: bytearray() for stream in Stream}
        for frame in self._frames.values():
            kept[frame.stream] += frame.data
        out, err = kept[Stream.STDOUT], kept[Stream.STDERR]
        return CommandResult(
            status=status,
            stdout=bytes(out),
            stderr=bytes(err),
            stdout_dropped_bytes=self.total(Stream.STDOUT) - len(out),
            stderr_dropped_bytes=self.total(Stream.STDERR) - len(err),
        )
