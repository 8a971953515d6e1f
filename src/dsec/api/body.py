"""A request's body of any length as the service takes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from dsec.api.guard import Receive
from dsec.api.protocol import Direct
from dsec.base.errors import InvalidRequestError, NodeUnavailableError
from dsec.linux.pipes import Pipe
from dsec.service.content import ByteStream


class RequestBody(ByteStream):
    """The body that ASGI's `receive` gives, or that the connection moves into a pipe.

    Args:
        direct: the connection, where there is a way to it; its owner lets go of it.
    """

    def __init__(self, receive: Receive, direct: Direct | None) -> None:
        self._receive = receive
        self._direct = direct
        self._rest = b""
        self._ended = False

    async def __anext__(self) -> bytes:
        data, self._rest = self._rest, b""
        while not data and not self._ended:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _gone()
            self._ended = not message.get("more_body")
            data = message["body"]
        if not data:
            raise StopAsyncIteration
        return data

    async def fill(self, pipe: Pipe) -> int:
        long_body = None if self._direct is None else self._direct.body
        if self._direct is None or long_body is None or self._rest or self._ended:
            return await self._copy(pipe)
        try:
            count = await self._direct.receive_into(long_body, pipe)
        except OSError as error:
            raise _gone() from error
        if not count and not long_body.complete:
            raise _gone()
        return count

    async def _copy(self, pipe: Pipe) -> int:
        try:
            data = await anext(self)
        except StopAsyncIteration:
            return 0
        count = pipe.put(data)
        self._rest = data[count:]
        return count

    async def aclose(self) -> None:
        """Nothing to do: what the client still sends is dropped by the protocol."""


STALL_S = 60.0
"""How long one node waits for the next bytes of another before it gives them up."""


class PacedStream(ByteStream):
    """Bytes from another node, which may not stand still: a sandbox waits for their end.

    Args:
        inner: the bytes.
        stall_s: longest wait for the next of them.
    """

    def __init__(self, inner: ByteStream, stall_s: float = STALL_S) -> None:
        self._inner = inner
        self._stall_s = stall_s

    async def __anext__(self) -> bytes:
        with self._watched():
            return await anext(self._inner)

    async def fill(self, pipe: Pipe) -> int:
        with self._watched():
            return await self._inner.fill(pipe)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with anyio.move_on_after(self._stall_s) as scope:
            yield
        if scope.cancelled_caught:
            raise NodeUnavailableError(f"the peer sent nothing for {self._stall_s:g} s")

    async def aclose(self) -> None:
        await self._inner.aclose()


def _gone() -> InvalidRequestError:
    return InvalidRequestError("the client went away before the end of the body")
