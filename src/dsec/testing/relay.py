"""A network between two ends that can fail: a relay of TCP connections that is told what to do to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.abc

from dsec.testing.loopback import on_loopback


@dataclass
class Relay:
    """Carries connections from a port of its own to another one.

    Attributes:
        port: its own.
        answers: whether what the other end says comes back; a connection on which it does not is closed.
        takes: whether anything is passed there.
        cut_there_at, cut_back_at: the connection that passes this byte, counted over all, is closed; None: none is.
        passed_there, passed_back: how many bytes have passed.
        cuts: connections that were closed for their bytes.
    """

    port: int = 0
    answers: bool = True
    takes: bool = True
    cut_there_at: int | None = None
    cut_back_at: int | None = None
    passed_there: int = 0
    passed_back: int = 0
    cuts: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def carry(self, target: int, client: anyio.abc.SocketStream) -> None:
        """Carry one connection to its end."""
        try:
            server = await anyio.connect_tcp("127.0.0.1", target)
        except OSError:
            await client.aclose()
            return
        async with client, server, anyio.create_task_group() as group:
            group.start_soon(self._there, client, server, group.cancel_scope)
            group.start_soon(self._back, server, client, group.cancel_scope)

    async def _there(
        self, client: anyio.abc.SocketStream, server: anyio.abc.SocketStream, scope: anyio.CancelScope
    ) -> None:
        try:
            while True:
                if not self.takes:
                    await anyio.sleep_forever()
                data = await client.receive()
                self.passed_there += len(data)
                if self.cut_there_at is not None and self.passed_there >= self.cut_there_at:
                    self.cut_there_at, self.cuts = None, self.cuts + 1
                    break
                await server.send(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass  # Either end has gone, and the other is told so below.
        scope.cancel()

    async def _back(
        self, server: anyio.abc.SocketStream, client: anyio.abc.SocketStream, scope: anyio.CancelScope
    ) -> None:
        try:
            while True:
                data = await server.receive()
                self.passed_back += len(data)
                if self.cut_back_at is not None and self.passed_back >= self.cut_back_at:
                    self.cut_back_at, self.cuts = None, self.cuts + 1
                    break
                if not self.answers:
                    break
                await client.send(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass  # As above.
        scope.cancel()


@asynccontextmanager
async def relayed(target: int) -> AsyncIterator[Relay]:
    """Run a relay to a port of loopback."""
    relay = Relay()

    async def carry(client: anyio.abc.SocketStream) -> None:
        await relay.carry(target, client)

    async with on_loopback(carry) as relay.port:
        yield relay
