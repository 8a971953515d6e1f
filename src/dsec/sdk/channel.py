"""One connection as the client of streams needs it: send parts, receive into memory that is given.

Over plain sockets nothing stands between the caller and the kernel. TLS needs a transport, and pays for it.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from dsec.api.framing import chunk
from dsec.api.sending import enlarge_send_buffer, receive_into_pipe, send_chunk_from, send_parts
from dsec.linux.pipes import Pipe
from dsec.sdk.keepalive import CONNECT_TIMEOUT_S, Endpoint, unreachable


class Channel(Protocol):
    """A connection to a server. All methods raise `OSError` when it has ended."""

    async def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send all parts; returns when the kernel has them."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive something; 0: the server sends no more."""

    async def send_chunk_from(self, pipe: Pipe, count: int) -> None:
        """Send `count` bytes, which a pipe holds, as one chunk of a body."""

    async def receive_into_pipe(self, pipe: Pipe, limit: int, *, held: int) -> int:
        """Receive up to `limit` bytes into a pipe that holds `held`; 0 when that is 0: the server sends no more."""

    def has_input(self) -> bool:
        """Tell whether something, the end included, waits to be received."""

    def close(self) -> None:
        """Close at once; what waits on the channel raises or sees the end. Idempotent."""


class PlainChannel:
    """A channel over a socket of our own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._busy = False
        self._closed = False

    async def send(self, parts: Sequence[bytes | memoryview]) -> None:
        with self._at_work():
            await send_parts(self._connection, parts)

    async def receive_into(self, buffer: memoryview) -> int:
        with self._at_work():
            return await asyncio.get_running_loop().sock_recv_into(self._connection, buffer)

    async def send_chunk_from(self, pipe: Pipe, count: int) -> None:
        with self._at_work():
            await send_chunk_from(self._connection, pipe, count)

    async def receive_into_pipe(self, pipe: Pipe, limit: int, *, held: int) -> int:
        with self._at_work():
            return await receive_into_pipe(self._connection, pipe, limit, held=held)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            if self._closed:
                self._connection.close()

    def has_input(self) -> bool:
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """A descriptor that the loop waits for stays until the wait has ended, which the shutdown brings about."""
        if self._closed:
            return
        self._closed = True
        if not self._busy:
            self._connection.close()
            return
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # The other side was faster.


class TlsChannel:
    """A channel over asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, parts: Sequence[bytes | memoryview]) -> None:
        self._writer.writelines(parts)
        await self._writer.drain()

    async def receive_into(self, buffer: memoryview) -> int:
        data = await self._reader.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def send_chunk_from(self, pipe: Pipe, count: int) -> None:
        """What is encrypted has to be copied."""
        await self.send(chunk(pipe.take(count)))

    async def receive_into_pipe(self, pipe: Pipe, limit: int, *, held: int) -> int:
        if held:
            return 0
        data = await self._reader.read(min(limit, pipe.piece_bytes))
        put = pipe.put(data)
        assert put == len(data)  # It was empty.
        return put

    def has_input(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.transport.abort()


async def open_channel(endpoint: Endpoint) -> Channel:
    """Connect.

    Raises:
        InvalidRequestError: the URL is none that DSec can call.
        NodeUnavailableError: nobody answers there.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if endpoint.socket_path is not None:
                return PlainChannel(await _connect_unix(endpoint.socket_path))
            host, port, secure = endpoint.address()
            if secure:
                context = ssl.create_default_context()
                return TlsChannel(*await asyncio.open_connection(host, port, ssl=context, limit=1 << 20))
            return PlainChannel(await _connect_tcp(host, port))
    except (OSError, TimeoutError) as error:
        raise unreachable(endpoint, error) from error


async def _connect_unix(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    enlarge_send_buffer(connection)
    return await _connect(connection, path)


async def _connect_tcp(host: str, port: int) -> socket.socket:
    failure: OSError | None = None
    for family, kind, number, _, address in await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, number)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return await _connect(connection, address)
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")


async def _connect(connection: socket.socket, address: object) -> socket.socket:
    connection.setblocking(False)
    connected = False
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)  # type: ignore[arg-type]
        connected = True
    finally:
        if not connected:
            connection.close()
    return connection
