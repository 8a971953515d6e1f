"""A thin HTTP/1.1 client for bodies of any length: files, archives, streams of events.

A body that comes is received into one piece of memory that is used again, and copied once, into what the caller gets.
A body that goes is sent from the caller's own memory. A general client passes every byte through a parser, an event and
several buffers in pieces of 64 KiB, which costs more than the kernel's work for it (docs/http-api.md has the numbers).

While it sends, the client looks whether the server has answered already: then it has refused, and the rest stays here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, MutableSequence, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from dsec.api.framing import LAST_CHUNK, BodyDecoder, FramingError, chunk
from dsec.linux.pipes import Pipe
from dsec.sdk.channel import Channel, open_channel
from dsec.sdk.keepalive import IDLE_S, MAXIMUM_IDLE, MAXIMUM_REPLY_BYTES, Endpoint
from dsec.service.content import ByteStream

_SMALL_BUFFER_BYTES = 64 << 10
"""What a connection keeps: enough for a head and a small file."""
_FRAME_ROOM_BYTES = 4 << 10
_LINE_BYTES = 256
"""How much is received where a line between chunks is expected and what follows is to be moved."""
MAXIMUM_HEAD_BYTES = 32 << 10


class CutError(Exception):
    """The connection ended, or stopped being HTTP, before the response was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """One request.

    Attributes:
        headers: complete lines, each with its CRLF.
        content: the body; an iterable is sent in chunks, piece by piece, and a `ByteStream` is not copied.
        timeout_s: seconds for the whole exchange.
    """

    method: str
    target: str
    headers: bytes
    content: AsyncIterable[bytes] | bytes | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    headers: dict[bytes, bytes]

    @property
    def decoder(self) -> BodyDecoder | None:
        """None: the body ends with the connection."""
        if self.status in (204, 304):
            return BodyDecoder(0)
        if self.headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return BodyDecoder(None)
        length = self.headers.get(b"content-length")
        return None if length is None else BodyDecoder(_number(length))

    @property
    def keeps(self) -> bool:
        return self.headers.get(b"connection", b"").lower() != b"close"


class _Connection:
    """A channel and what was received from it but not used."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.idle_since = 0.0
        self._view = memoryview(bytearray(_SMALL_BUFFER_BYTES))
        self._start = self._end = 0
        self._received_anything = False
        self._found: deque[memoryview] = deque()

    @property
    def is_untouched(self) -> bool:
        """Nothing has come since the request began."""
        return not self._received_anything

    def begin(self) -> None:
        self._start = self._end = 0
        self._received_anything = False

    async def _receive(self, view: memoryview) -> int:
        try:
            count = await self.channel.receive_into(view)
        except OSError as error:
            raise CutError(str(error)) from error
        self._received_anything |= count > 0
        return count

    async def send(self, content: AsyncIterable[bytes] | bytes | None, head: bytes) -> bool:
        """Send a request. Returns whether all of it was sent, rather than the server answering before its end."""
        if content is None or isinstance(content, bytes):
            return await self._pass([head, content] if content else [head])
        if not await self._pass([head]):
            return False
        sent_all = await (self._pour(content) if isinstance(content, ByteStream) else self._iterate(content))
        return sent_all and await self._pass([LAST_CHUNK])

    async def _iterate(self, content: AsyncIterable[bytes]) -> bool:
        async for piece in content:
            if self.channel.has_input() or not await self._pass(chunk(piece) if piece else ()):
                return False
        return True

    async def _pour(self, content: ByteStream) -> bool:
        with Pipe() as pipe:
            while count := await content.fill(pipe):
                if self.channel.has_input() or not await self._sent(self.channel.send_chunk_from(pipe, count)):
                    return False
        return True

    async def _pass(self, parts: Sequence[bytes | memoryview]) -> bool:
        return not parts or await self._sent(self.channel.send(parts))

    async def _sent(self, sending: Awaitable[None]) -> bool:
        try:
            await sending
        except (BrokenPipeError, ConnectionResetError):
            return False  # Its reason may have come before the end.
        except OSError as error:
            raise CutError(str(error)) from error
        return True

    async def read_head(self) -> _Head:
        """Receive the head of the final response."""
        while True:
            data = bytes(self._view[self._start : self._end])
            end = data.find(b"\r\n\r\n")
            if (len(data) if end < 0 else end) > MAXIMUM_HEAD_BYTES:
                raise CutError("the answer's head is too long")
            if end >= 0:
                self._start += end + 4
                head = _parse_head(data[:end])
                if head.status >= 200:
                    return head
                continue  # An interim answer; the real one follows.
            count = await self._receive(self._view[self._end :])
            if not count:
                raise CutError("the server closed the connection")
            self._end += count

    async def pieces(self, decoder: BodyDecoder | None, least_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield the body in pieces of at least `least_bytes`, or what came until there was no room."""
        view, start, end = self._view, self._start, self._end
        self._start = self._end = 0  # Whenever this waits for its caller, all that came is told.
        found, self._found = list(self._found), deque()
        size_bytes, over = sum(map(len, found)), False
        while not over:
            size_bytes += _decode(decoder, view[start:end], found)
            over = decoder is not None and decoder.complete
            start = end
            if size_bytes >= least_bytes or end == len(view) or over:
                if found:
                    yield b"".join(found)
                found.clear()
                if end == len(view) < least_bytes:
                    view = memoryview(bytearray(least_bytes + _FRAME_ROOM_BYTES))
                size_bytes = start = end = 0
            if not over:
                count = await self._receive(view[end:])
                if not count and decoder is not None:
                    raise CutError("the server closed the connection")
                over = not count
                end += count
        if found:
            yield b"".join(found)

    async def fill(self, decoder: BodyDecoder | None, pipe: Pipe) -> int:
        """Move what comes next of the body into an empty pipe; 0: it has ended.

        What was received already, with the head or with a line between chunks, goes first.
        """
        if decoder is None and not self._found:
            async with aclosing(self.pieces(None, 1)) as pieces:
                data = await anext(pieces, b"")
            self._found.append(memoryview(data))
        while self._found or (decoder is not None and not decoder.complete):
            count = self._put(pipe)
            if decoder is None or self._found:
                return count
            if self._start == self._end and (left := decoder.content_left_bytes):
                return count + await self._move(decoder, pipe, left, count)
            if count:
                return count
            await self._take_line(decoder)
        return 0

    async def _take_line(self, decoder: BodyDecoder) -> None:
        """Receive what stands between chunks, and what comes with it, unless it was received before."""
        if self._start == self._end:
            self._start, self._end = 0, await self._receive(self._view[:_LINE_BYTES])
            if not self._end:
                raise CutError("the server closed the connection")
        _decode(decoder, self._view[self._start : self._end], self._found)
        self._start = self._end

    def _put(self, pipe: Pipe) -> int:
        count = 0
        while self._found:
            piece = self._found.popleft()
            put = pipe.put(piece)
            count += put
            if put < len(piece):
                self._found.appendleft(piece[put:])
                break
        return count

    async def _move(self, decoder: BodyDecoder, pipe: Pipe, left: int, held: int) -> int:
        try:
            count = await self.channel.receive_into_pipe(pipe, left, held=held)
        except OSError as error:
            raise CutError(str(error)) from error
        if not count and not held:
            raise CutError("the server closed the connection")
        decoder.skip_content(count)
        return count


class StreamReply:
    """A response whose head has come.

    Attributes:
        status: of HTTP.
        content_type: of the body.
        complete: the body was received to its end.
    """

    def __init__(self, head: _Head, connection: _Connection) -> None:
        self._connection = connection
        self._decoder = head.decoder
        self._iterated: AsyncGenerator[bytes, None] | None = None
        self.status = head.status
        self.content_type = head.headers.get(b"content-type", b"")
        self.complete = self._decoder is not None and self._decoder.complete

    async def pieces(self, least_bytes: int = 1) -> AsyncIterator[bytes]:
        """Yield the body, once.

        Args:
            least_bytes: size of the pieces, more or less; 1: what comes is handed on at once.

        Raises:
            CutError: it broke off.
        """
        async for piece in self._connection.pieces(self._decoder, least_bytes):
            yield piece
        self.complete = True

    async def take(self, pipe: Pipe | None, least_bytes: int) -> bytes | int:
        """Return the next piece of the body, or how many bytes of it were moved into the empty pipe; nothing: it is
        over. From one call to the other either way will do.

        Raises:
            CutError: it broke off.
        """
        if pipe is not None:
            if self._iterated is not None:
                await self._iterated.aclose()
                self._iterated = None
            taken: bytes | int = await self._connection.fill(self._decoder, pipe)
        else:
            if self._iterated is None:
                self._iterated = self._connection.pieces(self._decoder, least_bytes)
            taken = await anext(self._iterated, b"")
        self.complete = not taken
        return taken

    async def read(self) -> bytes:
        """Return the whole body. Raises `CutError`: it broke off, or is longer than an answer may be."""
        parts: list[bytes] = []
        size_bytes = 0
        async for piece in self.pieces(_SMALL_BUFFER_BYTES):
            parts.append(piece)
            size_bytes += len(piece)
            if size_bytes > MAXIMUM_REPLY_BYTES:
                raise CutError(f"the answer is longer than {MAXIMUM_REPLY_BYTES} bytes")
        return b"".join(parts)


class StreamClient:
    """Requests with long bodies to one server. Belongs to the event loop it is first used in."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()
        host = "localhost" if endpoint.socket_path else urlsplit(endpoint.url).netloc
        token = f"authorization: Bearer {endpoint.token}\r\n" if endpoint.token else ""
        self._head = f" HTTP/1.1\r\nhost: {host}\r\n{token}".encode()

    @asynccontextmanager
    async def stream(self, request: StreamRequest) -> AsyncIterator[StreamReply]:
        """Send a request; the response's body is read inside. Leaving before its end closes the connection.

        Raises:
            NodeUnavailableError: the server cannot be reached.
            CutError: the connection ended before the head of the response.
        """
        connection, head, sent_all = await self._exchange(request)
        timer = asyncio.get_running_loop().call_later(request.timeout_s, connection.channel.close)
        reply = StreamReply(head, connection)
        try:
            yield reply
        finally:
            timer.cancel()
            if reply.complete and sent_all and head.keeps:
                self._keep(connection)
            else:
                self._drop(connection)

    async def _exchange(self, request: StreamRequest) -> tuple[_Connection, _Head, bool]:
        while True:
            connection = self._idle_connection()
            reused = connection is not None
            if connection is None:
                connection = await self._connect()
            answered = False
            try:
                async with asyncio.timeout(request.timeout_s) as timeout:
                    sent_all = await connection.send(request.content, self._encode(request))
                    head = await connection.read_head()
                answered = True
                return connection, head, sent_all
            except TimeoutError as error:
                if not timeout.expired():
                    raise  # It is the caller's own, from its content.
                raise CutError("the server did not answer in time") from error
            except CutError:
                # The server may have closed a kept connection while the request was on its way.
                if not (reused and connection.is_untouched and request.method == "GET"):
                    raise
            finally:
                if not answered:
                    self._drop(connection)

    def _encode(self, request: StreamRequest) -> bytes:
        content = request.content
        if content is None:
            framing = b""
        elif isinstance(content, bytes):
            framing = b"content-length: %d\r\n" % len(content)
        else:
            framing = b"transfer-encoding: chunked\r\n"
        line = f"{request.method} {request.target}".encode()
        return b"".join((line, self._head, request.headers, framing, b"\r\n"))

    def _idle_connection(self) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            # Input that nobody asked for is the server's farewell.
            if now - connection.idle_since < IDLE_S and not connection.channel.has_input():
                connection.begin()
                return connection
            self._drop(connection)
        return None

    async def _connect(self) -> _Connection:
        connection = _Connection(await open_channel(self._endpoint))
        self._all.add(connection)
        return connection

    def _keep(self, connection: _Connection) -> None:
        if connection not in self._all or len(self._idle) >= MAXIMUM_IDLE:
            self._drop(connection)
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def _drop(self, connection: _Connection) -> None:
        self._all.discard(connection)
        connection.channel.close()

    def close(self) -> None:
        """Close every connection; what is under way is cut."""
        for connection in tuple(self._all):
            self._drop(connection)
        self._idle.clear()


def _decode(decoder: BodyDecoder | None, data: memoryview, found: MutableSequence[memoryview]) -> int:
    """Add the body's pieces in `data` to `found`; return how many bytes they are."""
    if decoder is None:
        found.append(data)
        return len(data)
    try:
        pieces, used = decoder.feed(data)
    except FramingError as error:
        raise CutError(f"the answer is not HTTP: {error}") from error
    if used < len(data):
        raise CutError("the server sent more than its answer")
    found.extend(pieces)
    return sum(map(len, pieces))


def _parse_head(data: bytes) -> _Head:
    line, *fields = data.split(b"\r\n")
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise CutError("the answer is not HTTP")
    headers = {}
    for field in fields:
        name, _, value = field.partition(b":")
        headers[name.lower()] = value.strip()
    return _Head(_number(rest[:3]), headers)


def _number(text: bytes) -> int:
    if not text.isdigit():
        raise CutError("the answer is not HTTP: a number was expected")
    return int(text)
