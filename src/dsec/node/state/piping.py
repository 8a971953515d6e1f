"""Layers as streams of bytes: a driver that blocks on a pipe in a thread, and a consumer or producer in the event loop.

A pipe holds the two together and apart: its capacity is the back-pressure, and closing one end is what ends the thread
at the other. So nothing is buffered beside it, and a peer that stops reading or sending costs one thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread
from blake3 import blake3

from dsec.base.errors import DsecError, MigrationFailedError
from dsec.linux.pipes import CAPACITY_BYTES, Pipe
from dsec.node.core import Core
from dsec.service.content import ByteStream

_READ_BYTES = 256 * 1024
_F_SETPIPE_SZ = 1031


@dataclass(frozen=True, slots=True)
class Passed:
    """What went through: its length and its BLAKE3."""

    size_bytes: int
    digest: str


class Counted(ByteStream):
    """A stream that counts and hashes what is taken from it."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._hash = blake3()
        self._rest = memoryview(b"")

    def passed(self) -> Passed:
        return Passed(self._size_bytes, self._hash.hexdigest())

    async def __anext__(self) -> bytes:
        data = await self._next()
        if not data:
            raise StopAsyncIteration
        return data

    async def fill(self, pipe: Pipe) -> int:
        data = memoryview(await self._next())
        put = pipe.put(data)
        # A pipe may be smaller than a piece.
        self._rest = data[put:]
        return put

    async def _next(self) -> bytes:
        """Return what comes next; nothing at the end."""
        if self._rest:
            data, self._rest = bytes(self._rest), memoryview(b"")
            return data
        return self.count(await self._take())

    def count(self, data: bytes) -> bytes:
        self._size_bytes += len(data)
        self._hash.update(data)
        return data

    @abstractmethod
    async def _take(self) -> bytes:
        """Take from what is behind the stream; nothing at its end."""


class CountedBytes(Counted):
    """A content that is held whole."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._left = content

    async def _take(self) -> bytes:
        data, self._left = self._left[:_READ_BYTES], self._left[_READ_BYTES:]
        return data

    async def aclose(self) -> None:
        self._left = b""


class SentLayer(Counted):
    """A frozen layer as its driver spells it."""

    def __init__(self, reading: int) -> None:
        super().__init__()
        self._reading = reading
        self.sent = anyio.Event()
        self.error: BaseException | None = None

    async def _take(self) -> bytes:
        while self._reading >= 0:
            try:
                data = os.read(self._reading, _READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._reading)
                continue
            if not data:
                await self.sent.wait()
                if self.error is not None:
                    raise self.error
            return data
        return b""

    async def aclose(self) -> None:
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1


@asynccontextmanager
async def sending(core: Core, layer: str, parent: str | None) -> AsyncIterator[SentLayer]:
    """Give the stream that makes the frozen layer out of the frozen layer `parent`, or out of nothing.

    It waits for its turn before it gives the stream: whoever receives it holds a thread for it, and must not hold that
    for one that has not begun.
    """
    async with core.sends, _sending(core, layer, parent) as stream:
        yield stream


@asynccontextmanager
async def _sending(core: Core, layer: str, parent: str | None) -> AsyncIterator[SentLayer]:
    reading, writing = _open_pipe()
    os.set_blocking(reading, False)
    stream = SentLayer(reading)

    async def work() -> None:
        try:
            await anyio.to_thread.run_sync(core.parts.layers.send, layer, parent, writing, limiter=_one_thread())
        except BrokenPipeError:
            pass  # Nobody reads any more.
        except OSError as error:
            stream.error = _unsendable(layer, error)
        except BaseException as error:
            stream.error = error  # Whoever reads must not take the end of the pipe for the end of the layer.
            raise
        finally:
            os.close(writing)
            stream.sent.set()

    core.supervisor.start(f"send {layer}", work)
    try:
        yield stream
    finally:
        await stream.aclose()
        with anyio.CancelScope(shield=True):
            # It holds the layer, and the end of the pipe is closed: it ends at once.
            await stream.sent.wait()


def _one_thread() -> anyio.CapacityLimiter:
    """For who has waited for its turn already."""
    return anyio.CapacityLimiter(1)


def _unsendable(layer: str, error: OSError) -> DsecError:
    deep = error.errno in (errno.ENAMETOOLONG, errno.ENOMEM)
    return MigrationFailedError(
        f"the layer {layer} cannot be sent",
        detail=str(error),
        resolution="a path in it may be longer than the kernel can tell (4,095 bytes)" if deep else "",
    )


async def pour(
    core: Core, content: AsyncIterable[bytes], take: Callable[[int], None], *, progress: Callable[[], None]
) -> Passed:
    """Have a thread take a content from a pipe, and return what went through once it took all of it.

    Args:
        core: the node.
        content: what comes.
        take: reads a descriptor to its end; blocks.
        progress: called at every piece.
    """
    reading, writing = _open_pipe()
    os.set_blocking(writing, False)
    counted = CountedBytes(b"")
    errors: list[DsecError] = []

    async def taking() -> None:
        try:
            await anyio.to_thread.run_sync(take, reading, limiter=core.receipts)
        except DsecError as error:
            errors.append(error)
        finally:
            os.close(reading)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(taking)
            try:
                async for data in content:
                    progress()
                    await _write(writing, counted.count(data))
            except BrokenPipeError:
                pass  # The thread took no more, and says why.
            except DsecError as error:
                errors.insert(0, error)
            finally:
                os.close(writing)
    except BaseExceptionGroup as several:
        # What is no error of ours goes on as it was raised.
        raise several.exceptions[0] from None
    if errors:
        raise errors[0]
    return counted.passed()


async def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            await anyio.wait_writable(fd)


def _open_pipe() -> tuple[int, int]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        fcntl.fcntl(writing, _F_SETPIPE_SZ, CAPACITY_BYTES)
    except OSError:
        pass  # The user's pipes hold all that they may; a small one works as well.
    return reading, writing
