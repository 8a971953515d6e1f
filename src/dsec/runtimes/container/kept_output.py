"""Output of a durable command between the pipe and whoever reads it, so that a death of this process loses none.

What is read from a pipe into memory is gone with the memory. So bytes go from the pipe into a file first, by splice(2):
the kernel takes from the pipe what it has written, and a SIGKILL finds them either here or there. In the file they
stand at their offset in the stream. The file's size is how much was ever received, and what the reader has put away
itself becomes a hole, so that only the last of it takes room.

The reader puts a chunk away before it asks for the next one; after a death it knows itself how much it has (its spool),
and says so. One that let go in good order, and does not say, begins where it ended: `position` holds that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dsec.linux.inodes import punch_hole
from dsec.model.process import Stream

CHUNK_BYTES = 65_536
_HOLE_BYTES = 1 << 20
"""How much may be put away before it is given back: each time is a system call."""
_SPLICE_F_NONBLOCK = 2


class KeptOutput:
    """The files of one command's two streams, named after them, in its directory."""

    def __init__(self, directory: Path) -> None:
        self._position = directory / "position"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._files = {stream: os.open(directory / stream.value, flags, 0o600) for stream in Stream}
        self._received = {stream: os.fstat(file).st_size for stream, file in self._files.items()}
        self._returned = dict.fromkeys(Stream, 0)
        self._freed = dict.fromkeys(Stream, 0)

    def backlog(self, kept: Mapping[Stream, int] | None) -> Iterator[tuple[Stream, bytes]]:
        """Yield what was received and is not among the first `kept` bytes of its stream, which the reader has; None:
        what it had when it let go."""
        begins = self._ended_at() if kept is None else kept
        for stream, file in self._files.items():
            position = _next_data(file, begins.get(stream, 0))
            self._returned[stream] = self._freed[stream] = position
            while position < self._received[stream] and (data := os.pread(file, CHUNK_BYTES, position)):
                yield stream, data
                position += len(data)
            self._received[stream] = max(self._received[stream], position)

    def receive(self, stream: Stream, descriptor: int, limit: int) -> bytes:
        """Read from a pipe as os.read(2) does, through the file."""
        file, start = self._files[stream], self._received[stream]
        try:
            count = os.splice(descriptor, file, limit, offset_dst=start, flags=_SPLICE_F_NONBLOCK)
            data = os.pread(file, count, start)
        except BlockingIOError:
            raise
        except OSError:
            # No room for the file, or a file system that cannot: better without the safety than without the output.
            data = os.read(descriptor, limit)
        self._received[stream] = start + len(data)
        return data

    def returned(self, stream: Stream, count: int) -> None:
        """The reader gets the next `count` bytes of a stream, and has put away all that it got before."""
        put_away = self._returned[stream]
        self._returned[stream] = put_away + count
        if put_away - self._freed[stream] >= _HOLE_BYTES:
            punch_hole(self._files[stream], self._freed[stream], put_away - self._freed[stream])
            self._freed[stream] = put_away

    def _ended_at(self) -> dict[Stream, int]:
        try:
            return dict(zip(Stream, map(int, self._position.read_text(encoding="ascii").split()), strict=False))
        except (FileNotFoundError, ValueError):
            return {}

    def close(self) -> None:
        """Let go of the files; a later reader finds them again. Idempotent."""
        if self._files and any(self._returned.values()):
            with contextlib.suppress(FileNotFoundError):  # It went with its instance.
                self._position.write_text(" ".join(map(str, self._returned.values())), encoding="ascii")
        for file in self._files.values():
            os.close(file)
        self._files = {}


def _next_data(file: int, offset: int) -> int:
    """Return the first offset from `offset` on that is no hole; `offset` itself when nothing follows."""
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError:  # ENXIO: the file ends before.
        return offset
