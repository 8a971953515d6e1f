"""One pipeline for everything that is read or written in chunks: files and archives, both ways.

A `Source` or `Sink` is plain blocking code; `ChunkReader` and `ChunkWriter` make the port's `Reader` and `Writer` of
it. Small contents cost no hop of their own: a reader is born with the first bytes, and a writer gathers what it is
given. Memory per stream is bounded by `HOP_BYTES` and one chunk. Long contents go through
a pipe of the caller's, where they are not copied.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from dsec.base.errors import InvalidStateError
from dsec.base.units import KIB, MIB
from dsec.linux.pipes import Pipe
from dsec.runtimes.container.access import Access
from dsec.runtimes.container.users import ResolvedUser

CHUNK_BYTES = 256 * KIB
"""The most that one read of a reader returns."""

HOP_BYTES = 1 * MIB
"""What one hop to a thread reads or writes, in pieces of a chunk: pieces that fit the processor's cache are copied
twice as fast as larger ones, and a hop for each of them would cost as much as the copying."""

_SMALL_PIECE_BYTES = 16 * KIB

AHEAD_BYTES = 64 * KIB


class Source(Protocol):
    """Blocking producer of bytes."""

    def take(self, limit: int) -> bytes:
        """Return 1 to `limit` bytes, or none at the end."""

    def fill(self, pipe: Pipe) -> int:
        """Put some into a pipe that has room; return how many bytes, 0 at the end."""

    def close(self) -> None: ...


class Sink(Protocol):
    """Blocking consumer of bytes."""

    def put(self, data: bytes) -> None: ...

    def drain(self, pipe: Pipe, count: int) -> None:
        """Take `count` bytes out of a pipe that holds them."""

    def finish(self) -> None:
        """Make what was put visible."""

    def undo(self) -> None:
        """Take back what can be taken back. Called as the user, at most once, after no or a failed `finish`."""

    def close(self) -> None:
        """Close descriptors; idempotent."""


class ChunkReader:
    """A `Reader` over a source.

    Args:
        ahead: bytes already taken.
        ended: whether those are all.
    """

    def __init__(
        self,
        access: Access,
        user: ResolvedUser,
        path: bytes,
        source: Source,
        *,
        size_bytes: int,
        ahead: bytes = b"",
        ended: bool = False,
    ) -> None:
        self.size_bytes = size_bytes
        self._access, self._user, self._path, self._source = access, user, path, source
        self._ahead = deque([ahead] if ahead else [])
        self._ended, self._closed, self._failed = ended, False, False

    async def read(self, limit: int) -> bytes:
        self._check_usable()
        if limit <= 0:
            return b""
        if not self._ahead and not self._ended:
            await self._read_ahead()
        if not self._ahead:
            return b""
        data = self._ahead.popleft()
        if len(data) > limit:
            self._ahead.appendleft(data[limit:])
        return data[:limit]

    async def fill(self, pipe: Pipe) -> int:
        self._check_usable()
        count = 0
        while self._ahead:
            data = self._ahead.popleft()
            put = pipe.put(data)
            count += put
            if put < len(data):
                self._ahead.appendleft(data[put:])
                return count
        if count or self._ended:
            return count
        self._failed = True
        count = await self._access.run(self._user, self._path, lambda _: self._source.fill(pipe))
        self._failed = False
        self._ended = not count
        return count

    def _check_usable(self) -> None:
        self._access.root.check_alive()
        if self._closed or self._failed:
            raise InvalidStateError("the reader is closed", resolution="open another one")

    async def _read_ahead(self) -> None:
        """Take some chunks in one hop."""

        def work(_: int) -> None:
            total = 0
            while total < HOP_BYTES and not self._ended:
                data = self._source.take(CHUNK_BYTES)
                self._ended = not data
                total += len(data)
                if data:
                    self._ahead.append(data)

        # Pessimistic: after an error or a cancellation bytes may be missing, and must not look like the end.
        self._failed = True
        await self._access.run(self._user, self._path, work)
        self._failed = False

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._access.run_outside(self._source.close)


class ChunkWriter:
    """A `Writer` over a sink. A failed write leaves it good for nothing but `abort`."""

    def __init__(self, access: Access, user: ResolvedUser, path: bytes, sink: Sink) -> None:
        self._access, self._user, self._path, self._sink = access, user, path, sink
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._done = False
        self._failed = False

    async def write(self, data: bytes) -> None:
        self._check_usable()
        self._gathered.append(bytes(data))
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= HOP_BYTES:
            await self._put(finish=False)

    async def drain(self, pipe: Pipe, count: int) -> None:
        self._check_usable()
        await self._put(finish=False, pipe=pipe, count=count)

    async def commit(self) -> None:
        self._check_usable()
        await self._put(finish=True)
        self._done = True

    async def abort(self) -> None:
        if self._done:
            return
        self._done = True
        self._gathered.clear()
        await self._access.run_outside(self._undo)

    def _undo(self) -> None:
        try:
            self._access.call_if_alive(self._user, self._path, self._sink.undo)
        finally:
            self._sink.close()

    async def _put(self, *, finish: bool, pipe: Pipe | None = None, count: int = 0) -> None:
        pieces = self._gathered
        if self._gathered_bytes < len(pieces) * _SMALL_PIECE_BYTES:
            pieces = [b"".join(pieces)]
        self._gathered = []
        self._gathered_bytes = 0

        def work(_: int) -> None:
            for piece in pieces:
                self._sink.put(piece)
            if pipe is not None:
                self._sink.drain(pipe, count)
            if finish:
                self._sink.finish()
                self._sink.close()

        # Pessimistic, so that an error and a cancellation both leave it set.
        self._failed = True
        await self._access.run(self._user, self._path, work)
        self._failed = False

    def _check_usable(self) -> None:
        self._access.root.check_alive()
        if self._done or self._failed:
            raise InvalidStateError("the writer is closed", resolution="abort it and open another one")
