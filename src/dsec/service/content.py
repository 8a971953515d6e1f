"""Bytes of any length on their way, which may be moved without passing this program.

Whoever produces bytes gives a `ByteStream`: a request's body, an answer's body, a file of the host or of a sandbox.
Whoever consumes them iterates it or has it fill a pipe, piece by piece, as suits. So one way of transfer serves every
pair of ends, and where both ends are descriptors no byte is copied in between (`dsec.linux.pipes` has the theory).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator

from dsec.linux.pipes import Pipe


class ByteStream(AsyncIterator[bytes]):
    """Bytes to be taken once, by one task. Iterating and filling may be mixed."""

    @abstractmethod
    async def fill(self, pipe: Pipe) -> int:
        """Move what comes next into an empty pipe.

        Returns:
            How many bytes the pipe holds now; 0: the stream has ended. After an error or a cancellation the pipe's
            content is undefined.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what is behind the stream. Idempotent; a stream that was read to its end needs none."""


class GeneratedStream(ByteStream):
    """A stream out of a generator, which holds what is behind it open.

    Args:
        pieces: is sent a pipe to fill or None for bytes, and yields how many bytes it put there or the bytes. Its
            first yield, of anything, says that it is open.
    """

    def __init__(self, pieces: AsyncGenerator[bytes | int, Pipe | None]) -> None:
        self._pieces = pieces
        self._opened = False

    async def __anext__(self) -> bytes:
        await self._open()
        data = await self._pieces.asend(None)
        assert isinstance(data, bytes)
        return data

    async def fill(self, pipe: Pipe) -> int:
        try:
            await self._open()
            count = await self._pieces.asend(pipe)
        except StopAsyncIteration:
            return 0
        assert isinstance(count, int)
        return count

    async def _open(self) -> None:
        if not self._opened:
            self._opened = True
            await anext(self._pieces)

    async def aclose(self) -> None:
        await self._pieces.aclose()
