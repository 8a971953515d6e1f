"""A thin HTTP/1.1 client for unary requests: a pool of kept connections, one write and one parse per request.

Why not httpx2 for these as well: measured side by side against the same server on loopback, a POST with a small body
takes 0.46 ms (uvloop) to 0.58 ms (asyncio) through httpx2 and 0.11 to 0.20 ms through this. On the path of `run` that
difference is larger than everything the server does. Bodies of any length go through `dsec.sdk.streaming`.

Failures are told apart by what was sent: nothing (`NodeUnavailableError`, safe to repeat) or something
(`UnknownOutcomeError`, unless the operation may be repeated).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from dsec.api.patience import Patience
from dsec.base.errors import InvalidRequestError, NodeUnavailableError, PlatformError, UnknownOutcomeError

IDLE_S = 60.0
"""How long a connection is kept for reuse: half of what the server keeps it, so that the server never closes first."""
MAXIMUM_IDLE = 256
"""Connections kept for reuse. Not a bound on requests under way: every running command holds a connection."""
CONNECT_TIMEOUT_S = 10.0
MAXIMUM_REPLY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server is.

    Attributes:
        url: such as ``http://127.0.0.1:8620`` or ``unix:/path/node.sock``.
        token: bearer token; empty: none is sent.
        remedy: what to do when nobody answers there.
    """

    url: str
    token: str = ""
    remedy: str = "start one with `dsec up`, or correct DSEC_URL"

    @property
    def socket_path(self) -> str | None:
        """Path of the unix socket, or None for TCP."""
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else None

    def address(self) -> tuple[str, int, bool]:
        """Return host, port and whether it is TLS.

        Raises:
            InvalidRequestError: the URL is none that DSec can call.
        """
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise InvalidRequestError(
                f"{self.url!r} is not the address of a server",
                resolution="write http://HOST:PORT, https://HOST:PORT or unix:/path/to/node.sock",
            )
        secure = parts.scheme == "https"
        return parts.hostname, parts.port or (443 if secure else 80), secure


@dataclass(slots=True)
class Reply:
    """A complete response."""

    status: int
    content_type: bytes
    body: bytes


class _CutError(Exception):
    """The connection ended before the response was complete."""


class _Lost(Protocol):
    def __call__(self, connection: _Connection) -> None: ...


class _Connection(asyncio.Protocol):
    """One kept connection; one exchange at a time."""

    def __init__(self, lost: _Lost) -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None
        self._parser: httptools.HttpResponseParser
        self._parts: list[bytes] = []
        self._size = 0
        self._content_type = b""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by class.

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost(self)
        self._finish(_CutError(str(exc or "the server closed the connection")))

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort()  # Words nobody asked for: this connection cannot be trusted any more.
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort()
            self._finish(_CutError(f"the answer is not HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._content_type = value

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAXIMUM_REPLY_BYTES:
            self.abort()
            self._finish(_CutError(f"the answer is longer than {MAXIMUM_REPLY_BYTES} bytes"))
        self._parts.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # An interim answer; the real one follows.
        keep = self._parser.should_keep_alive()
        self._finish(Reply(status, self._content_type, b"".join(self._parts)))
        if not keep:
            self.abort()

    def _finish(self, outcome: Reply | _CutError) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if isinstance(outcome, _CutError):
            waiter.set_exception(outcome)
        else:
            waiter.set_result(outcome)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, data: bytes) -> Reply:
        """Send a request and return its response. When cancelled the connection is closed, which cancels the server."""
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._parts, self._size, self._content_type = [], 0, b""
        self._transport.write(data)
        try:
            return await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _exchange(
    connection: _Connection, data: bytes, timeout_s: float, paused_s: Callable[[], Awaitable[float]] | None
) -> Reply:
    if paused_s is None:
        async with asyncio.timeout(timeout_s):
            return await connection.exchange(data)
    async with asyncio.timeout(None) as limit:
        patience = Patience(timeout_s, paused_s, lambda: limit.reschedule(asyncio.get_running_loop().time()))
        try:
            return await connection.exchange(data)
        finally:
            patience.close()


class KeepAliveClient:
    """Unary requests to one server. Belongs to the event loop it is first used in."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()
        host = "localhost" if endpoint.socket_path else urlsplit(endpoint.url).netloc
        token = f"authorization: Bearer {endpoint.token}\r\n" if endpoint.token else ""
        media = "application/msgpack"
        self._head = f" HTTP/1.1\r\nhost: {host}\r\n{token}accept: {media}\r\n".encode()
        self._body_head = self._head + f"content-type: {media}\r\ncontent-length: ".encode()
        self._empty_head = self._head + b"content-length: 0\r\n\r\n"

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | None,
        *,
        repeatable: bool,
        timeout_s: float,
        paused_s: Callable[[], Awaitable[float]] | None = None,
    ) -> Reply:
        """Send one request.

        Args:
            repeatable: the operation may be sent again when the connection is cut; it then is, once.
            timeout_s: seconds for the whole exchange.
            paused_s: tells how long the sandbox was paused whose command is waited for; that time is not counted.

        Raises:
            NodeUnavailableError: the server cannot be reached, and nothing (or nothing that matters) was done.
            UnknownOutcomeError: the connection was cut after the request was sent.
        """
        data = self._encode(method, target, body)
        for last_try in (not repeatable, True):
            connection = await self._connection()
            try:
                reply = await _exchange(connection, data, timeout_s, paused_s)
            except (_CutError, TimeoutError) as error:
                if last_try or isinstance(error, TimeoutError):
                    raise self._cut(error, repeatable) from error
                continue
            self._keep(connection)
            return reply
        raise AssertionError("the last try returns or raises")

    def _encode(self, method: str, target: str, body: bytes | None) -> bytes:
        line = f"{method} {target}".encode()
        if body is None:
            return line + self._empty_head
        return b"%b%b%d\r\n\r\n%b" % (line, self._body_head, len(body), body)

    def _cut(self, error: Exception, repeatable: bool) -> PlatformError:
        detail = str(error) or "the server did not answer in time"
        if repeatable:
            return NodeUnavailableError(f"the connection to {self._endpoint.url} was cut", detail=detail)
        return UnknownOutcomeError(
            "the connection was cut after the request was sent",
            detail=detail,
            resolution="look at the sandbox before asking again: the operation may have happened",
        )

    async def _connection(self) -> _Connection:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < IDLE_S:
                return connection
            connection.abort()
        return await self._connect()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                path = self._endpoint.socket_path
                if path is not None:
                    _, connection = await loop.create_unix_connection(lambda: _Connection(self._forget), path)
                else:
                    host, port, secure = self._endpoint.address()
                    context = ssl.create_default_context() if secure else None
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self._forget), host, port, ssl=context
                    )
        except (OSError, TimeoutError) as error:
            raise unreachable(self._endpoint, error) from error
        self._all.add(connection)
        return connection

    def _keep(self, connection: _Connection) -> None:
        if not connection.usable or len(self._idle) >= MAXIMUM_IDLE:
            connection.abort()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def _forget(self, connection: _Connection) -> None:
        self._all.discard(connection)

    def close(self) -> None:
        """Close every connection; requests under way end as cut."""
        for connection in tuple(self._all):
            connection.abort()
        self._idle.clear()


def unreachable(endpoint: Endpoint, error: Exception) -> NodeUnavailableError:
    """Return the error for a server that does not answer."""
    return NodeUnavailableError(
        f"no server answers at {endpoint.url}",
        detail=str(error),
        resolution=endpoint.remedy,
    )
