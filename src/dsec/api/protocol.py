"""uvicorn's HTTP/1.1 protocol with bounds on the request head, and a way around it for long bodies.

uvicorn copies each byte of a request's body four times (out of the parser, into a buffer, out of it, and when the
buffer grows) and each byte of an answer's once or more. Small bodies do not notice; of a gigabyte it was half of the
server's work. So, behind uvicorn's back but within its rules:

- When a head ends where we looked for its end, the body that follows does not pass the parser: `BodyDecoder` finds it,
  and its pieces are handed on as they came. A new parser begins with the next request. Where the head's end was not
  found (it may lie across two reads), the parser does the body too.
- The application may send a body through `Direct`, found in the scope's extensions, on a duplicate of the socket, and
  take a long body from there into a pipe: then its bytes are not copied at all (`dsec.linux.pipes`).

The transport stays with uvicorn: it reads, notices the end, times out and closes.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dsec.api.framing import BodyDecoder, FramingError, chunk
from dsec.api.sending import enlarge_send_buffer, receive_into_pipe, send_chunk_from, send_parts
from dsec.base.units import MIB
from dsec.linux.pipes import Pipe

BODY_AHEAD_BYTES = 1 * MIB
"""How much of a body is received ahead of whoever takes it in."""
DIRECT = "dsec.direct"
"""The scope's extension under which `Direct` is found."""
_LINE_BYTES = 256
"""How much is received where a line between chunks is expected."""
_HEAD_END = b"\r\n\r\n"


AtOnce = Callable[[bytes], bytes | None]
"""Returns the whole answer to a whole request; None: it takes the usual way."""


class Direct:
    """The connection of one request, to move long bodies past everything that would copy them.

    Only pieces of bodies go this way: the answer's head goes the usual way before, its last chunk after. A context
    manager: it holds a descriptor.

    Attributes:
        body: the request's long body, if it has one.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._connection: socket.socket | None = None
        self.body: LongBody | None = None

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> socket.socket:
        if self._connection is None:
            self._connection = _duplicate(self._transport)
        return self._connection

    def _may_send(self) -> bool:
        return not self._transport.get_write_buffer_size() and not self._transport.is_closing()

    async def send(self, data: bytes) -> bool:
        """Send one chunk. Returns whether that was possible now: not while the transport itself has data to send.

        Raises:
            OSError: the client has gone.
        """
        if not self._may_send():
            return False
        await send_parts(self._opened(), chunk(data))
        return True

    async def send_from(self, pipe: Pipe, count: int) -> bool:
        """As `send`, for `count` bytes that a pipe holds."""
        if not self._may_send():
            return False
        await send_chunk_from(self._opened(), pipe, count)
        return True

    async def receive_into(self, body: LongBody, pipe: Pipe) -> int:
        """Move what comes next of the body into an empty pipe; 0: nothing more does, for whatever reason.

        Raises:
            OSError: the client has gone.
        """
        return await body.fill(pipe, self._opened)


def _duplicate(transport: asyncio.Transport) -> socket.socket:
    original = transport.get_extra_info("socket")
    connection = socket.fromfd(original.fileno(), original.family, original.type)
    connection.setblocking(False)
    enlarge_send_buffer(connection)
    return connection


class LongBody:
    """A request's body between the connection and the application, in the pieces in which it came."""

    def __init__(self, protocol: LongBodyProtocol, decoder: BodyDecoder) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle
        self._decoder = decoder
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0

    @property
    def complete(self) -> bool:
        return self._decoder.complete

    def feed(self, data: bytes) -> int:
        """Take in what came; return how much of it belongs to the body. Raises `FramingError`."""
        pieces, used = self._decoder.feed(memoryview(data))
        cycle = self._cycle
        if not cycle.response_complete:  # Otherwise nobody wants it any more.
            if pieces:
                # One object, not one for each chunk: of tiny ones they would take far more memory than is counted.
                self._pieces.append(data if len(pieces[0]) == len(data) else b"".join(pieces))
                self._held_bytes += len(self._pieces[-1])
            if self._held_bytes >= BODY_AHEAD_BYTES:
                self._protocol.flow.pause_reading()
            cycle.more_body = not self._decoder.complete
            cycle.message_event.set()
        return used

    async def receive(self) -> Any:
        """uvicorn's `receive`, one piece at a time."""
        cycle = self._cycle
        self._invite()
        while not self._pieces and not cycle.disconnected and not cycle.response_complete:
            self._protocol.flow.resume_reading()
            await cycle.message_event.wait()
            cycle.message_event.clear()
            if not cycle.more_body:
                break
        if cycle.disconnected or cycle.response_complete:
            return {"type": "http.disconnect"}
        piece = self._pieces.popleft() if self._pieces else b""
        self._held_bytes -= len(piece)
        if self._held_bytes < BODY_AHEAD_BYTES:
            self._protocol.flow.resume_reading()
        return {"type": "http.request", "body": piece, "more_body": cycle.more_body or bool(self._pieces)}

    def _invite(self) -> None:
        cycle = self._cycle
        if cycle.waiting_for_100_continue and not cycle.transport.is_closing():
            cycle.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False

    async def fill(self, pipe: Pipe, open_connection: Callable[[], socket.socket]) -> int:
        """Move what comes next into an empty pipe. The transport rests meanwhile, and goes on with the answer's end."""
        try:
            return await self._fill(pipe, open_connection)
        except BaseException:
            # What had been received is lost, and with it the place of the body's end: nothing may follow the answer.
            self._cycle.keep_alive = False
            raise

    async def _fill(self, pipe: Pipe, open_connection: Callable[[], socket.socket]) -> int:
        self._invite()
        while not self._is_over():
            self._protocol.flow.pause_reading()
            count = self._pour(pipe)
            if self._pieces:
                return count
            if left := self._decoder.content_left_bytes:
                return count + await self._move(pipe, open_connection(), left, count)
            if count:
                return count
            await self._take_line(open_connection())
        return self._pour(pipe)

    def _is_over(self) -> bool:
        cycle = self._cycle
        return self.complete or cycle.disconnected or cycle.response_complete or cycle.transport.is_closing()

    def _pour(self, pipe: Pipe) -> int:
        count = 0
        while self._pieces:
            piece = self._pieces.popleft()
            put = pipe.put(piece)
            count += put
            self._held_bytes -= put
            if put < len(piece):
                self._pieces.appendleft(piece[put:])
                break
        return count

    async def _move(self, pipe: Pipe, connection: socket.socket, left: int, held: int) -> int:
        count = await receive_into_pipe(connection, pipe, left, held=held)
        if not count and not held:
            raise ConnectionResetError("the client sends no more")
        self._decoder.skip_content(count)
        if self.complete:
            self._cycle.more_body = False
            self._protocol.end_body()
        return count

    async def _take_line(self, connection: socket.socket) -> None:
        """Receive what stands between chunks, and what comes with it."""
        data = await asyncio.get_running_loop().sock_recv(connection, _LINE_BYTES)
        if not data:
            raise ConnectionResetError("the client sends no more")
        self._protocol.data_received(data)


class LongBodyProtocol(HttpToolsProtocol):
    """See the module. Subclassed with the bounds of one server.

    Attributes:
        head_bytes: largest request head.
        head_s: seconds to send one completely.
        short: answers small requests that come whole, past uvicorn altogether; None: it has none.
    """

    head_bytes: int
    head_s: float
    short: AtOnce | None = None

    _seen_head_bytes = 0
    _in_head = True
    _awaits_head_end = True
    _has_body_begun = False
    _head_timer: asyncio.TimerHandle | None = None
    _body: LongBody | None = None
    _direct: Direct

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._seen_head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = self._awaits_head_end = self._has_body_begun = False
        self._stop_timer()
        self._direct = Direct(self.transport)
        self.scope["extensions"] = {DIRECT: {"direct": self._direct}}
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_body_begun = True
        super().on_body(body)
        # uvicorn holds the client back at 64 KiB, which is less than one read: nothing would arrive while a part
        # is being written to disk.
        if self.flow.read_paused and len(self.cycle.body) < BODY_AHEAD_BYTES:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        self._awaits_head_end = True
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self.short is not None and self._is_between_requests() and (answer := self.short(data)) is not None:
            self._answer_at_once(answer)
            return
        # In a loop, since thousands of requests may come at once.
        while data:
            data = self._take_head(data) if self._body is None else self._take_body(self._body, data)

    def _is_between_requests(self) -> bool:
        """Whether what comes begins a request, and nothing is being sent."""
        return (
            self._body is None
            and self._awaits_head_end
            and not (self._in_head and self._seen_head_bytes)
            and (self.cycle is None or self.cycle.response_complete)
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )

    def _answer_at_once(self, answer: bytes) -> None:
        """Send a whole answer; the connection is kept as after any other."""
        self._stop_timer()
        self._in_head = False
        self._unset_keepalive_if_required()
        self.transport.write(answer)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _take_head(self, data: bytes) -> bytes:
        """Let the parser have what comes up to the end of a head; return the rest."""
        awaited_head_end = self._awaits_head_end
        end = data.find(_HEAD_END) + len(_HEAD_END) if awaited_head_end else 0
        rest = data[end:] if end >= len(_HEAD_END) else b""
        data = data[: len(data) - len(rest)]
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # Refused, or upgraded.
            return b""
        if awaited_head_end and not self._awaits_head_end and data.endswith(_HEAD_END):
            self._begin_body()
        self._check_head(len(data))
        return b"" if self.transport.is_closing() else rest

    def _check_head(self, count: int) -> None:
        if not self._in_head:
            return
        self._seen_head_bytes += count
        if self._seen_head_bytes > self.head_bytes:
            self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self.transport.close)

    def _begin_body(self) -> None:
        """Take the body that follows a head upon ourselves, if there is one and nothing else is asked for.

        Where the parser has seen some of it, what looked like the head's end lies in the body, and the parser goes on.
        """
        cycle = self.cycle
        if self._has_body_begun:
            return
        if cycle is None or cycle.scope is not self.scope or not cycle.more_body or self.parser.should_upgrade():
            return
        decoder = _decoder_of(self.headers)
        if decoder is not None:
            self._body = LongBody(self, decoder)
            self._direct.body = self._body
            cycle.receive = self._body.receive  # type: ignore[method-assign]

    def _take_body(self, body: LongBody, data: bytes) -> bytes:
        """Take what belongs to the body; return the rest."""
        self._unset_keepalive_if_required()
        try:
            used = body.feed(data)
        except FramingError:
            self.send_400_response("Invalid HTTP request received.")
            return b""
        if body.complete:
            self.end_body()
        return data[used:]

    def end_body(self) -> None:
        """Be ready for the next request's head."""
        self._body = None
        self._awaits_head_end = True
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn does.

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _decoder_of(headers: list[tuple[bytes, bytes]]) -> BodyDecoder | None:
    """Return the decoder of a long body, or None: leave it to the parser, which has checked these headers."""
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings == [b"chunked"] and not lengths:
        return BodyDecoder(None)
    if codings or len(lengths) != 1 or not lengths[0].isdigit():
        return None
    length_bytes = int(lengths[0])
    return BodyDecoder(length_bytes) if length_bytes > BODY_AHEAD_BYTES else None
