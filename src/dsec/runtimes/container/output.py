"""The output of one command: pipes read by the event loop, bounded in memory, with back-pressure.

A pipe is read only while less than `HIGH_WATER_BYTES` wait to be fetched; then the pipe fills and the command stops in
its write. When the command itself has ended, what its pipes hold at that moment is still its own output; whatever
comes later is from something it left running, and is drained unread so that this something neither blocks nor dies
of SIGPIPE.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from dsec.model.process import Stream

CHUNK_BYTES = 65_536
CHUNK_OVERHEAD_BYTES = 512
"""What a chunk costs this process on top of its bytes: a guest that writes byte by byte must not cost more memory."""
HIGH_WATER_BYTES = 4 * CHUNK_BYTES


class OutputReader:
    """Reads the streams of one command.

    Args:
        sources: non-blocking descriptors, owned from here on.
        adopt: takes over a descriptor that something left running still holds.
        terminal: the one source is a terminal. The kernel passes what is written to it on in the background, so that
            the last bytes may come after the command's end; then comes the hang-up.
        receive: reads up to so many bytes of a stream from its descriptor.
        returned: told of each chunk that is about to be returned, by its stream and length.
        backlog: chunks to return before anything is read.
    """

    def __init__(
        self,
        sources: Mapping[Stream, int],
        adopt: Callable[[int], None],
        *,
        terminal: bool = False,
        receive: Callable[[Stream, int, int], bytes] | None = None,
        returned: Callable[[Stream, int], None] | None = None,
        backlog: Iterable[tuple[Stream, bytes]] = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = dict(sources)
        self._adopt = adopt
        self._terminal = terminal
        self._receive = receive or _read
        self._returned = returned
        self._ending = False
        self._chunks: deque[tuple[Stream, bytes]] = deque(backlog)
        self._held_bytes = sum(len(data) + CHUNK_OVERHEAD_BYTES for _, data in self._chunks)
        self._reading = False
        self._finished = False
        self._waiter: asyncio.Future[None] | None = None
        self._resume()

    async def read(self) -> tuple[Stream, bytes] | None:
        """Return the next chunk, or None at the end."""
        while not self._chunks:
            if self._finished:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        stream, data = self._chunks.popleft()
        self._held_bytes -= len(data) + CHUNK_OVERHEAD_BYTES
        if self._returned is not None:
            self._returned(stream, len(data))
        if not self._reading and not self._finished and self._held_bytes < HIGH_WATER_BYTES:
            self._resume()
        return stream, data

    def finish(self) -> None:
        """The command has ended: take what its pipes hold now, and hand on those that are still open elsewhere."""
        if self._finished or self._ending:
            return
        if self._terminal and self._open:
            self._ending = True
            if not self._reading:
                self._resume()
            self._loop.call_later(HANG_UP_LIMIT_S, self._finish)
            return
        self._finish()

    def _finish(self) -> None:
        if self._finished:
            return
        self._pause()
        for stream, descriptor in list(self._open.items()):
            self._take(stream, descriptor, _bytes_in_pipe(descriptor))
        for descriptor in self._open.values():
            self._adopt(descriptor)
        self._open.clear()
        self._finished = True
        self._wake()

    def close(self) -> None:
        """Stop reading; descriptors are handed on."""
        self._pause()
        self._chunks.clear()
        for descriptor in self._open.values():
            self._adopt(descriptor)
        self._open.clear()
        self._finished = True
        self._wake()

    def _resume(self) -> None:
        self._reading = True
        for stream, descriptor in self._open.items():
            self._loop.add_reader(descriptor, self._on_readable, stream, descriptor)

    def _pause(self) -> None:
        self._reading = False
        for descriptor in self._open.values():
            self._loop.remove_reader(descriptor)

    def _on_readable(self, stream: Stream, descriptor: int) -> None:
        try:
            data = self._receive(stream, descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last holder of a terminal's other end has closed it.
            data = b""
        if not data:
            self._drop(stream, descriptor)
            if self._ending:
                self._finish()
            return
        self._keep(stream, data)
        if self._held_bytes >= HIGH_WATER_BYTES:
            self._pause()

    def _take(self, stream: Stream, descriptor: int, count: int) -> None:
        """Read exactly what is there; a descriptor at its end is closed."""
        while count > 0:
            try:
                data = self._receive(stream, descriptor, min(count, CHUNK_BYTES))
            except OSError:
                data = b""
            if not data:
                break
            self._keep(stream, data)
            count -= len(data)
        if _is_hung_up(descriptor):
            self._drop(stream, descriptor)

    def _keep(self, stream: Stream, data: bytes) -> None:
        self._chunks.append((stream, data))
        self._held_bytes += len(data) + CHUNK_OVERHEAD_BYTES
        self._wake()

    def _drop(self, stream: Stream, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._open.pop(stream, None)
        os.close(descriptor)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _read(stream: Stream, descriptor: int, limit: int) -> bytes:
    return os.read(descriptor, limit)


def _bytes_in_pipe(descriptor: int) -> int:
    try:
        count: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
    except OSError:
        return 0
    return count


def _is_hung_up(descriptor: int) -> bool:
    """Whether an empty pipe has no writer left (without waiting)."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poller.poll(0))


HANG_UP_LIMIT_S = 1.0
"""How long the end of a terminal's command waits for the terminal's own."""

DRAIN_INTERVAL_S = 0.05
"""Between two reads of one descriptor. Something left running that prints without end then takes at most 1.3 MB/s of
this process's time, and is itself slowed down by its full pipe."""

DRAIN_LIMIT = 256
"""Descriptors that one instance's left-running processes can hold open in this process. Beyond it the oldest is closed:
its writer hears SIGPIPE, as it would from a terminal that is closed."""


class Drain:
    """Reads and throws away what commands that ended left open, until it is closed at the other end."""

    def __init__(self, limit: int = DRAIN_LIMIT) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._open: dict[int, asyncio.TimerHandle | None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, descriptor: int) -> None:
        """Own a non-blocking descriptor."""
        if self._closed:
            os.close(descriptor)
            return
        self._listen(descriptor)
        if len(self._open) > self._limit:
            self._forget(next(iter(self._open)))

    def _listen(self, descriptor: int) -> None:
        self._open[descriptor] = None
        self._loop.add_reader(descriptor, self._discard, descriptor)

    def _discard(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(descriptor)
            return
        self._loop.remove_reader(descriptor)
        self._open[descriptor] = self._loop.call_later(DRAIN_INTERVAL_S, self._listen, descriptor)

    def _forget(self, descriptor: int) -> None:
        timer = self._open.pop(descriptor)
        if timer is None:
            self._loop.remove_reader(descriptor)
        else:
            timer.cancel()
        os.close(descriptor)

    def close(self) -> None:
        """Close everything, now and whatever is still added."""
        self._closed = True
        for descriptor in list(self._open):
            self._forget(descriptor)
