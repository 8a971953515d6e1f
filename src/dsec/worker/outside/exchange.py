"""One HTTP exchange that tells apart what can be known of it: never sent, sent and not answered, answered.

A connection of its own for each exchange, and nothing is followed or tried again here: whoever asked knows what an
operation may bear. Bounded in time and size, whatever the other side does.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio
import httptools
from anyio.abc import ByteStream

from dsec.base.errors import InvalidRequestError, OutsideUnavailableError, UnknownOutcomeError

_READ_BYTES = 64 * 1024
_HEAD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """What is sent; the connection is closed behind it."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """What came back; `truncated`: more of the body would have come, or was announced and did not."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False


class _Received:
    """Callbacks of the parser."""

    def __init__(self, limit_bytes: int) -> None:
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.truncated = False
        self.is_complete = False
        self.has_head = False
        self._limit_bytes = limit_bytes

    def on_message_begin(self) -> None:
        # An interim answer (103, say) is followed by another one, and only the last one counts.
        self.headers.clear()
        self.body.clear()
        self.is_complete = self.has_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        room = self._limit_bytes - len(self.body)
        self.body += body[:room]
        self.truncated = self.truncated or len(body) > room

    def on_message_complete(self) -> None:
        self.is_complete = True


def check_url(url: str, *, what: str) -> str:
    """Return `url` if it is one that can be asked.

    Raises:
        InvalidRequestError: it is not.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if known and "@" in parts.netloc:
        raise InvalidRequestError(
            f"{what} holds a name or a password", resolution="put it into a header, by a variable"
        )
    if not known or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidRequestError(f"{what}: {url[:200]!r} is no URL", resolution="it looks like https://bank/transfers")
    return url


async def exchange(request: HttpRequest, *, timeout_s: float, limit_bytes: int) -> HttpReply:
    """Send a request and return what was answered.

    Args:
        request: what to send.
        timeout_s: for all of it.
        limit_bytes: kept of the body; what is beyond is not read.

    Raises:
        OutsideUnavailableError: no connection came about; nothing was sent.
        UnknownOutcomeError: something was sent, and no whole head of an answer came back.
    """
    target = urlsplit(request.url)
    place = f"{target.scheme}://{target.netloc.rpartition('@')[2]}"
    sent = False
    try:
        with anyio.fail_after(timeout_s):
            stream = await _connect(target.hostname or "", target.port, tls=target.scheme == "https")
            async with stream:
                sent = True
                await stream.send(_message(request))
                return await _receive(stream, limit_bytes, place)
    except (OSError, ssl.SSLError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        reason = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
        if sent:
            raise UnknownOutcomeError(f"{place} was asked and did not answer", detail=reason) from error
        raise OutsideUnavailableError(
            f"{place} cannot be reached", detail=reason, resolution="nothing was sent; try again later"
        ) from error


async def _connect(host: str, port: int | None, *, tls: bool) -> ByteStream:
    if not tls:
        return await anyio.connect_tcp(host, port or 80)
    context = ssl.create_default_context()
    return await anyio.connect_tcp(host, port or 443, tls=True, ssl_context=context, tls_standard_compatible=False)


def _message(request: HttpRequest) -> bytes:
    parts = urlsplit(request.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"{request.method} {path} HTTP/1.1", f"host: {parts.netloc.rpartition('@')[2]}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if request.body or request.method not in ("GET", "HEAD", "DELETE"):
        lines.append(f"content-length: {len(request.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


async def _receive(stream: ByteStream, limit_bytes: int, place: str) -> HttpReply:
    received = _Received(limit_bytes)
    parser = httptools.HttpResponseParser(received)
    length = 0
    while not (received.is_complete or received.truncated):
        try:
            data = await stream.receive(_READ_BYTES)
        except anyio.EndOfStream:
            # A body without a length ends with its connection; one with a length has to be whole.
            announced = received.headers.keys() & {"content-length", "transfer-encoding"}
            received.truncated = bool(announced)
            break
        except (OSError, ssl.SSLError, anyio.BrokenResourceError):
            if not received.has_head:
                raise
            received.truncated = True
            break
        length += len(data)
        _feed(parser, data, place)
        if not received.has_head and length > _HEAD_BYTES:
            raise UnknownOutcomeError(f"{place} answered with a head of more than {_HEAD_BYTES} bytes")
        if received.is_complete and parser.get_status_code() < 200:
            received.on_message_begin()
    if not received.has_head:
        raise UnknownOutcomeError(f"{place} was asked and broke off before it answered")
    return HttpReply(
        status=parser.get_status_code(),
        headers=received.headers,
        body=bytes(received.body),
        truncated=received.truncated,
    )


def _feed(parser: httptools.HttpResponseParser, data: bytes, place: str) -> None:
    try:
        parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise UnknownOutcomeError(f"{place} was asked and does not speak HTTP", detail=str(error)) from error
