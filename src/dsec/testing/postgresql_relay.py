"""A relay in front of a PostgreSQL server that cuts connections where it hurts most: around COMMIT."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream, SocketStream

from dsec.testing.loopback import on_loopback

_READ_BYTES = 65536


@dataclass(slots=True)
class CommitRelay:
    """Carries connections from a port of loopback to a server's.

    Attributes:
        server: port of the server.
        fault: what happens to the next COMMIT. ``lose``: it is committed, and the connection cut before the answer
            comes back; ``drop``: cut before it gets there; ``late``: cut, and delivered once `deliver` is set; empty:
            nothing.
        deliver: see there.
        cuts: connections that were cut.
        connection: for libpq.
    """

    server: int
    fault: str = ""
    deliver: anyio.Event = field(default_factory=anyio.Event)
    cuts: int = 0
    connection: str = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CommitRelay]:
        """Carry connections until the context ends."""
        async with on_loopback(self._carry) as port:
            self.connection = f"host=127.0.0.1 port={port} user=dsec dbname=postgres sslmode=disable gssencmode=disable"
            yield self

    async def _carry(self, client: SocketStream) -> None:
        try:
            server = await anyio.connect_tcp("127.0.0.1", self.server)
        except OSError:
            await client.aclose()
            return
        async with client, server:
            cut: list[tuple[str, bytes]] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pump, server, client, tasks.cancel_scope)
                cut += await self._pump_there(client, server)
                tasks.cancel_scope.cancel()
            for fault, data in cut:
                await self._cut(fault, data, client, server)

    async def _pump_there(self, client: SocketStream, server: SocketStream) -> list[tuple[str, bytes]]:
        """Carry to the server until either end goes; return what is to be cut, and how."""
        try:
            while True:
                data = await client.receive(_READ_BYTES)
                if self.fault and b"COMMIT\0" in data:
                    fault, self.fault = self.fault, ""
                    self.cuts += 1
                    return [(fault, data)]
                await server.send(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return []

    async def _cut(self, fault: str, data: bytes, client: SocketStream, server: SocketStream) -> None:
        if fault == "drop":
            return
        await client.aclose()
        if fault == "late":
            await self.deliver.wait()
        await server.send(data)
        # Whatever the server says now, nobody hears; that it says it shows that it has committed.
        await server.receive(_READ_BYTES)


async def _pump(source: ByteStream, target: ByteStream, scope: anyio.CancelScope) -> None:
    try:
        while True:
            await target.send(await source.receive(_READ_BYTES))
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        scope.cancel()
