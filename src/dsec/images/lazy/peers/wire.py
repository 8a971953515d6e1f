"""The little of HTTP/1.1 that nodes speak when they give each other chunks, over non-blocking sockets.

A message is a head and a body of a known length: no chunked bodies, no continuation, no upgrades. Whatever else comes
is refused, so that there is little to get wrong against a hostile peer. Bodies go straight between the socket and where
they belong: into one buffer of the announced length, or out of a file by sendfile(2).

Why not a library: a chunk is 4 MiB, and each copy of it in Python costs as much as sending it. Sources: RFC 9112
(message syntax), RFC 9110 (semantics).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import anyio

HEAD_BYTES = 8192
_HEAD_END = b"\r\n\r\n"
_PIECE_BYTES = 256 << 10
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEXT = re.compile(r"[\t\x20-\x7e]*")
_NUMBER = re.compile(r"[0-9]{1,15}")


class WireError(Exception):
    """The other side broke the rules, or the connection; it is of no further use."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message: its first line, and its fields by lower-case name."""

    line: str
    fields: Mapping[str, str]

    @property
    def body_bytes(self) -> int:
        """Length of the body that follows. Raises `WireError`."""
        if "transfer-encoding" in self.fields:
            raise WireError("a body without a length")
        text = self.fields.get("content-length", "0")
        if _NUMBER.fullmatch(text) is None:
            raise WireError("a malformed length")
        return int(text)

    @property
    def status(self) -> int:
        """Status of an answer. Raises `WireError`."""
        parts = self.line.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not (parts[1].isdecimal() and len(parts[1]) == 3):
            raise WireError("no answer of HTTP/1.1")
        return int(parts[1])


class Wire:
    """One connection. Used by one task at a time; every wait may be cancelled, after which it can only be closed.

    Args:
        connection: connected; made non-blocking, and closed by `close`.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._ahead = b""
        self.sent_bytes = 0

    async def head(self, limit: int = HEAD_BYTES) -> Head | None:
        """Return the next message's head; None at the end of the connection.

        Raises:
            WireError: it is malformed or longer than `limit`, or the connection broke.
        """
        while (end := self._ahead.find(_HEAD_END)) < 0:
            if len(self._ahead) > limit:
                raise WireError("a head that does not end")
            more = await self._receive(limit)
            if not more:
                if self._ahead:
                    raise WireError("half a head")
                return None
            self._ahead += more
        data, self._ahead = self._ahead[:end], self._ahead[end + len(_HEAD_END) :]
        return parse_head(data)

    async def body(self, count: int) -> bytes:
        """Return a body of this length. Raises `WireError`."""
        buffer = bytearray(count)
        view, at = memoryview(buffer), 0
        while at < count:
            at += await self.receive_into(view[at:])
        return bytes(buffer)

    async def receive_into(self, view: memoryview) -> int:
        """Receive at least one byte of a body; return how many. Raises `WireError`."""
        if self._ahead:
            count = min(len(self._ahead), len(view))
            view[:count] = self._ahead[:count]
            self._ahead = self._ahead[count:]
            return count
        while True:
            try:
                count = self._socket.recv_into(view[:_PIECE_BYTES])
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise WireError(str(error)) from error
            else:
                if not count:
                    raise WireError("the connection ended in the middle of a body")
                return count

    async def _receive(self, limit: int) -> bytes:
        while True:
            try:
                return self._socket.recv(limit)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise WireError(str(error)) from error

    async def send(self, data: bytes) -> None:
        """Send all of it. Raises `WireError`."""
        rest = memoryview(data)
        while rest:
            try:
                count = self._socket.send(rest)
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise WireError(str(error)) from error
            else:
                rest = rest[count:]
                self.sent_bytes += count

    async def send_from(self, descriptor: int, start: int, count: int) -> int:
        """Send some of a file, at least one byte of it; return how many. Raises `WireError`."""
        while True:
            try:
                sent = os.sendfile(self._socket.fileno(), descriptor, start, count)
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise WireError(str(error)) from error
            else:
                if not sent:
                    raise WireError("the file became shorter")
                self.sent_bytes += sent
                return sent

    @property
    def is_idle(self) -> bool:
        """Whether nothing came that nobody asked for, and the other side has not ended it."""
        if self._ahead:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()


def parse_head(data: bytes) -> Head:
    """Return a head without its empty line. Raises `WireError`."""
    line, *lines = data.decode("latin1").split("\r\n")
    fields: dict[str, str] = {}
    for each in (line, *lines):
        if _TEXT.fullmatch(each) is None:
            raise WireError("a head that is no text")
    for each in lines:
        name, colon, value = each.partition(":")
        if not colon or _NAME.fullmatch(name) is None:
            raise WireError("a malformed field")
        if name.lower() in fields and name.lower() in ("content-length", "transfer-encoding", "authorization"):
            raise WireError("a field that comes twice")
        fields[name.lower()] = value.strip()
    return Head(line, fields)


def head_of(line: str, fields: Mapping[str, str]) -> bytes:
    """Return a head as it is sent."""
    return "".join((f"{line}\r\n", *(f"{name}: {value}\r\n" for name, value in fields.items()), "\r\n")).encode(
        "latin1"
    )


async def connect(host: str, port: int) -> Wire:
    """Connect. Raises `WireError`."""
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise WireError(f"{host}: {error.strerror}") from error
    failure: OSError = OSError("no address")
    for family, kind, protocol, _, address in found:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await _connected(connection, address)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return Wire(connection)
    raise WireError(f"{host}:{port}: {failure.strerror or failure}") from failure


async def _connected(connection: socket.socket, address: object) -> None:
    try:
        connection.connect(address)  # type: ignore[arg-type]
    except BlockingIOError:
        await anyio.wait_writable(connection)
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code)) from None
