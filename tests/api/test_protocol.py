"""Long bodies past uvicorn's buffers, seen from a socket: framing, order, back-pressure, and what follows on it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from dsec.api.protocol import BODY_AHEAD_BYTES
from dsec.api.server import TcpAddress, serve
from dsec.base.errors import DeadlineExceededError, PathNotFoundError
from dsec.linux.pipes import Pipe
from dsec.model.files import FileInfo, FileKind
from dsec.service.content import ByteStream, GeneratedStream

pytestmark = pytest.mark.anyio

TOKEN = "a-token-for-tests"
LONG = os.urandom(3 * BODY_AHEAD_BYTES + 17)
TARGET = "/v1/sandboxes/sbx-1/files?path=/x"


class Sink:
    """Takes in files, and says what it got by its size and, in the name, by its hash.

    Args:
        by_pipe: take all that comes after the first piece through a pipe.
    """

    def __init__(self, *, by_pipe: bool = False) -> None:
        self.by_pipe = by_pipe
        self.taken_bytes = 0
        self.takes = anyio.Event()
        self.refuses = False
        self.cut = anyio.Event()

    async def write_file(self, sandbox_id: str, path: str, content: AsyncIterable[bytes], **_: Any) -> FileInfo:
        if self.refuses:
            raise PathNotFoundError("there is no such path")
        await self.takes.wait()
        digest = hashlib.sha256()
        try:
            async for piece in self._pieces(content):
                digest.update(piece)
                self.taken_bytes += len(piece)
        except BaseException:
            self.cut.set()
            raise
        return FileInfo(
            name=digest.hexdigest(), path=path, kind=FileKind.FILE, size_bytes=self.taken_bytes, mode=0o644, uid=0
        )

    async def _pieces(self, content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        async for piece in content:
            yield piece
            if self.by_pipe:
                break
        assert isinstance(content, ByteStream)
        with Pipe() as pipe:
            while count := await content.fill(pipe):
                yield pipe.take(count)

    async def read_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        for start in range(0, len(LONG), 100_000):  # Pieces on both sides of what is sent past the transport.
            yield LONG[start : start + 100_000]
            yield b""


@pytest.fixture(params=["as bytes", "by pipe"])
def sink(request: pytest.FixtureRequest) -> Sink:
    sink = Sink(by_pipe=request.param == "by pipe")
    sink.takes.set()
    return sink


@asynccontextmanager
async def connection(sink: Any) -> AsyncIterator[SocketStream]:
    async with serve(sink, tcp=TcpAddress(token=TOKEN)) as serving:
        host, _, port = serving.url.removeprefix("http://").partition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            with anyio.fail_after(60):
                yield stream


def head(method: str, framing: str) -> bytes:
    return f"{method} {TARGET} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n{framing}\r\n".encode()


def put(body: bytes, *, is_chunked: bool, piece_bytes: int = 300_001) -> bytes:
    if not is_chunked:
        return head("PUT", f"content-length: {len(body)}\r\n") + body
    pieces = [body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head("PUT", "transfer-encoding: chunked\r\n") + framed + b"0\r\n\r\n"


async def responses(stream: SocketStream, count: int) -> list[bytes]:
    """Read as many responses with a content-length."""
    data, found = b"", []
    while len(found) < count:
        top, separator, rest = data.partition(b"\r\n\r\n")
        length = int(top.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0) if separator else 0
        if separator and len(rest) >= length:
            found.append(top + separator + rest[:length])
            data = rest[length:]
        else:
            data += await stream.receive()
    assert not data
    return found


@pytest.mark.slow
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_requests_that_follow_a_long_body_at_once_are_answered_in_order(sink: Sink, is_chunked: bool) -> None:
    small = b"small"
    data = put(LONG, is_chunked=is_chunked) + put(small, is_chunked=is_chunked) + head("DELETE", "") * 2
    async with connection(sink) as stream, anyio.create_task_group() as group:
        group.start_soon(stream.send, data)
        first, second, *rest = await responses(stream, 4)
    assert hashlib.sha256(LONG).hexdigest().encode() in first
    assert hashlib.sha256(small).hexdigest().encode() in second
    assert len(rest) == 2


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("cut", [1, 40, -1, -2, -3, -4])
async def test_a_head_that_arrives_in_two_parts_loses_nothing_of_its_body(
    sink: Sink, is_chunked: bool, cut: int
) -> None:
    data = put(LONG, is_chunked=is_chunked)
    at = cut if cut > 0 else data.index(b"\r\n\r\n") + 4 + cut
    async with connection(sink) as stream, anyio.create_task_group() as group:
        await stream.send(data[:at])
        await anyio.wait_all_tasks_blocked()
        group.start_soon(stream.send, data[at:])
        (answer,) = await responses(stream, 1)
    assert hashlib.sha256(LONG).hexdigest().encode() in answer


@pytest.mark.slow
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_what_looks_like_a_heads_end_in_a_body_that_comes_with_its_heads_last_byte_is_body(
    sink: Sink, is_chunked: bool
) -> None:
    body = b"before\r\n\r\nafter" + LONG
    data = put(body, is_chunked=is_chunked)
    at = data.index(b"\r\n\r\n") + 3
    async with connection(sink) as stream, anyio.create_task_group() as group:
        await stream.send(data[:at])
        await anyio.wait_all_tasks_blocked()
        group.start_soon(stream.send, data[at:] + head("DELETE", ""))
        answer, second = await responses(stream, 2)
    assert hashlib.sha256(body).hexdigest().encode() in answer
    assert second.startswith(b"HTTP/1.1 ")


@pytest.mark.slow
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_however_many_requests_come_at_once_they_are_answered(sink: Sink, is_chunked: bool) -> None:
    count = 1200
    data = (put(b"x", is_chunked=True) if is_chunked else head("PATCH", "")) * count
    async with connection(sink) as stream, anyio.create_task_group() as group:
        group.start_soon(stream.send, data)
        assert len(await responses(stream, count)) == count


async def test_a_client_that_expects_100_continue_gets_it_before_it_sends(sink: Sink) -> None:
    async with connection(sink) as stream, anyio.create_task_group() as group:
        await stream.send(head("PUT", f"content-length: {len(LONG)}\r\nexpect: 100-continue\r\n"))
        assert await stream.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        group.start_soon(stream.send, LONG)
        (answer,) = await responses(stream, 1)
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_body_that_is_no_chunked_one_is_refused_and_not_written(sink: Sink) -> None:
    async with connection(sink) as stream:
        await stream.send(head("PUT", "transfer-encoding: chunked\r\n") + b"4\r\nfour\r\n-1\r\n")
        answer = await stream.receive()
        assert answer.startswith(b"HTTP/1.1 400")
        await sink.cut.wait()


@pytest.mark.parametrize(
    "framing", ["transfer-encoding: chunked\r\ncontent-length: 4\r\n", "content-length: 4\r\n" * 2]
)
async def test_a_head_with_two_lengths_is_refused(sink: Sink, framing: str) -> None:
    async with connection(sink) as stream:
        await stream.send(head("PUT", framing) + b"0\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 400")


async def test_a_client_that_goes_away_midway_cuts_the_write(sink: Sink) -> None:
    async with connection(sink) as stream:
        await stream.send(head("PUT", f"content-length: {len(LONG)}\r\n") + LONG[:100_000])
        await stream.aclose()
        await sink.cut.wait()


@pytest.mark.slow
async def test_a_refused_body_is_dropped_and_the_connection_serves_on(sink: Sink) -> None:
    sink.refuses = True
    async with connection(sink) as stream, anyio.create_task_group() as group:
        group.start_soon(stream.send, put(LONG, is_chunked=True) + head("DELETE", ""))
        first, second = await responses(stream, 2)
    assert first.startswith(b"HTTP/1.1 404")
    assert b"not_found" in first
    assert second.startswith(b"HTTP/1.1 ")


class Impatient(Sink):
    """Gives up while it waits for more of a body that is being moved, of which something has come."""

    async def write_file(self, sandbox_id: str, path: str, content: AsyncIterable[bytes], **_: Any) -> FileInfo:
        assert isinstance(content, ByteStream)
        await anext(content)
        with Pipe() as pipe, anyio.CancelScope() as scope:
            self.scope = scope
            self.takes.set()
            await content.fill(pipe)
        raise DeadlineExceededError("it took too long")


async def test_nothing_follows_on_a_connection_whose_body_was_given_up_while_it_was_moved() -> None:
    sink = Impatient()
    async with connection(sink) as stream:
        await stream.send(head("PUT", f"content-length: {len(LONG)}\r\n") + LONG[:1])
        await sink.takes.wait()
        await stream.send(LONG[1:101])
        await anyio.wait_all_tasks_blocked()
        sink.scope.cancel()
        answer = b"".join([piece async for piece in stream])
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.slow
async def test_a_writer_that_does_not_write_holds_the_client_back(sink: Sink) -> None:
    sink.takes = anyio.Event()
    sent_bytes = 0

    async def send(stream: SocketStream) -> None:
        nonlocal sent_bytes
        await stream.send(head("PUT", f"content-length: {64 << 20}\r\n"))
        for _ in range(64):
            await stream.send(bytes(1 << 20))
            sent_bytes += 1 << 20

    async with connection(sink) as stream, anyio.create_task_group() as group:
        group.start_soon(send, stream)
        last = -1
        while last != sent_bytes:
            last = sent_bytes
            await anyio.sleep(0.1)
        assert sent_bytes < 32 << 20
        sink.takes.set()
        await responses(stream, 1)
    assert sink.taken_bytes == 64 << 20


class PipedSource(Sink):
    """Gives a file through pipes of any filling."""

    def read_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        return GeneratedStream(self._content())

    async def _content(self) -> AsyncGenerator[bytes | int, Pipe | None]:
        pipe = yield 0
        at, size = 0, 100_000
        while at < len(LONG):
            data = LONG[at : at + size]
            count = len(data) if pipe is None else pipe.put(data)
            at, size = at + count, size * 2 + 1
            pipe = yield data if pipe is None else count


async def test_a_client_that_goes_away_while_an_answer_is_moved_ends_it() -> None:
    closed = anyio.Event()

    class Endless(PipedSource):
        async def _content(self) -> AsyncGenerator[bytes | int, Pipe | None]:
            pipe = yield 0
            try:
                while True:
                    data = bytes(200_000)
                    pipe = yield data if pipe is None else pipe.put(data)
            finally:
                closed.set()

    async with connection(Endless()) as stream:
        await stream.send(head("GET", ""))
        await stream.receive()
        await stream.aclose()
        await closed.wait()


@pytest.mark.slow
@pytest.mark.parametrize("piece_bytes", [1, 100, 70_001])
async def test_a_body_in_any_chunks_arrives_whole(sink: Sink, piece_bytes: int) -> None:
    body = LONG[: 20_000 * min(piece_bytes, 20)]
    async with connection(sink) as stream, anyio.create_task_group() as group:
        group.start_soon(stream.send, put(body, is_chunked=True, piece_bytes=piece_bytes))
        (answer,) = await responses(stream, 1)
    assert hashlib.sha256(body).hexdigest().encode() in answer


async def test_a_body_in_tiny_chunks_is_held_in_as_many_pieces_as_it_came_in() -> None:
    """An object for each chunk would take twenty times the memory that is counted."""
    lengths: list[int] = []

    class Counting(Sink):
        async def _pieces(self, content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
            async for piece in content:
                lengths.append(len(piece))
                yield piece

    sink = Counting()
    sink.takes.set()
    async with connection(sink) as stream, anyio.create_task_group() as group:
        group.start_soon(stream.send, put(LONG[:20_000], is_chunked=True, piece_bytes=2))
        await responses(stream, 1)
    assert sum(lengths) == 20_000
    assert len(lengths) < 1000


@pytest.mark.parametrize("source", [Sink, PipedSource])
async def test_a_long_answer_arrives_in_order_and_the_connection_serves_on(source: type[Sink]) -> None:
    sink = source()
    data = b""
    async with connection(sink) as stream:
        for _ in range(2):
            await stream.send(head("GET", ""))
            while not data.endswith(b"\r\n0\r\n\r\n"):
                data += await stream.receive()
            top, _, rest = data.partition(b"\r\n\r\n")
            assert b"transfer-encoding: chunked" in top
            body = b""
            while rest != b"0\r\n\r\n":
                size, _, rest = rest.partition(b"\r\n")
                body += rest[: int(size, 16)]
                rest = rest[int(size, 16) + 2 :]
            assert body == LONG
            data = b""
