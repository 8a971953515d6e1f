"""The client of long bodies: connections kept and replaced, answers before the end, and every way to break off."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import msgspec
import pytest

from dsec.api import wire
from dsec.base.errors import NodeUnavailableError, PathNotFoundError, UnknownOutcomeError
from dsec.linux.pipes import Pipe
from dsec.model.files import FileInfo, FileKind
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.service.content import GeneratedStream
from dsec.service.local import LocalFile, save

pytestmark = pytest.mark.anyio

LONG = os.urandom((5 << 20) + 7)
WRITTEN = FileInfo(name="x", path="/x", kind=FileKind.FILE, size_bytes=1, mode=0o644, uid=0)

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Script:
    """A server that plays one answer per request, over as many connections as the client opens."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.heads: list[bytes] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await self.answers.pop(0)(reader, writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # The client has gone, perhaps in the middle of a body that nobody wanted.
        finally:
            writer.close()

    @asynccontextmanager
    async def client(self, socket_path: Path | None = None) -> AsyncIterator[HttpService]:
        if socket_path is not None:
            server = await asyncio.start_unix_server(self.handle, socket_path, limit=1 << 22)
            url = f"unix:{socket_path}"
        else:
            server = await asyncio.start_server(self.handle, "127.0.0.1", 0, limit=1 << 22)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            service = HttpService(Endpoint(url=url))
            try:
                with anyio.fail_after(60):
                    yield service
            finally:
                await service.aclose()


def reply(head: bytes, body: bytes = b"", *, piece_bytes: int = 1 << 30, closes: bool = False) -> Answer:
    """Answer with this, in writes of `piece_bytes`, once the request's head has come."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b"HTTP/1.1 " + head + b"\r\n\r\n" + body
        for start in range(0, len(data), piece_bytes):
            writer.write(data[start : start + piece_bytes])
            await writer.drain()
        if closes:
            writer.close()

    return answer


def written(reads: Callable[[asyncio.StreamReader], Awaitable[object]]) -> Answer:
    """Read the body so, and say that it was written."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reads(reader)
        body = msgspec.msgpack.encode(WRITTEN)
        await reply(b"200 OK\r\ncontent-length: %d" % len(body), body)(reader, writer)

    return answer


def chunks(data: bytes, size: int) -> bytes:
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


Take = Callable[[HttpService], Awaitable[bytes]]


async def content_of(service: HttpService) -> bytes:
    return b"".join([piece async for piece in service.read_file("sbx-1", "/x")])


async def piped_content_of(service: HttpService) -> bytes:
    """All of it through a pipe."""
    content = service.read_file("sbx-1", "/x")
    parts = []
    with Pipe() as pipe:
        while count := await content.fill(pipe):
            parts.append(pipe.take(count))
            assert len(parts[-1]) == count
    return b"".join(parts)


async def mixed_content_of(service: HttpService) -> bytes:
    """Turn by turn as bytes and through a pipe."""
    content = service.read_file("sbx-1", "/x")
    parts = [b"x"]
    with Pipe() as pipe:
        while parts[-1]:
            parts.append(await anext(content, b""))
            parts.append(pipe.take(await content.fill(pipe)))
    return b"".join(parts[1:])


takes = pytest.mark.parametrize("take", [content_of, piped_content_of, mixed_content_of])


CHUNKED = b"200 OK\r\nTransfer-Encoding: chunked"


@takes
@pytest.mark.parametrize(("size", "piece_bytes"), [(1000, 1 << 30), (262_144, 70_001), (3 << 20, 9999), (7, 1 << 30)])
async def test_a_chunked_body_arrives_whole_and_its_connection_is_used_again(
    size: int, piece_bytes: int, take: Take
) -> None:
    body = LONG if size > 1000 else LONG[:20_000]
    answer = reply(CHUNKED, chunks(body, size), piece_bytes=piece_bytes)
    script = Script(answer, answer)
    async with script.client() as service:
        assert await take(service) == body
        assert await take(service) == body
    assert script.connections == 1


@takes
async def test_bodies_of_known_length_of_none_and_until_the_end_arrive_whole(state_dir: Path, take: Take) -> None:
    script = Script(
        reply(b"200 OK\r\ncontent-length: %d" % len(LONG), LONG),
        reply(b"200 OK\r\ncontent-length: 0"),
        reply(b"100 Continue\r\n\r\nHTTP/1.1 200 OK", LONG, closes=True),
    )
    async with script.client(state_dir / "s") as service:
        assert [await take(service) for _ in range(3)] == [LONG, b"", LONG]
    assert script.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        reply(CHUNKED, chunks(LONG, 1 << 20)[:-1], closes=True),
        reply(CHUNKED, b"5\r\nfour\r\n0\r\n\r\n"),
        reply(CHUNKED, b"4\r\nfour\r\n0\r\n\r\nmore"),
        reply(b"200 OK\r\ncontent-length: 5", b"four", closes=True),
        reply(b"200 OK\r\ncontent-length: five", b"four"),
        reply(b"ok"),
        reply(b"200 OK\r\nx: " + bytes(65_000)),
    ],
)
@takes
async def test_a_body_that_breaks_off_or_is_not_http_is_never_taken_for_whole(answer: Answer, take: Take) -> None:
    async with Script(answer).client() as service:
        with pytest.raises(NodeUnavailableError):
            await take(service)


async def test_a_connection_the_server_has_closed_meanwhile_is_replaced() -> None:
    body = chunks(b"x", 1)
    script = Script(reply(CHUNKED, body, closes=True), reply(CHUNKED, body))
    async with script.client() as service:
        assert await content_of(service) == b"x"
        assert await content_of(service) == b"x"
    assert script.connections == 2


async def test_content_of_known_and_of_unknown_length_is_framed_as_what_it_is() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield LONG
        yield b""
        yield b"end"

    received: list[bytes] = []

    async def whole(reader: asyncio.StreamReader) -> None:
        received.append(await reader.readexactly(len(LONG)))

    async def in_chunks(reader: asyncio.StreamReader) -> None:
        received.append(await _until_last_chunk(reader))

    script = Script(written(whole), written(in_chunks))
    async with script.client() as service:
        assert await service.write_file("sbx-1", "/x", LONG) == WRITTEN
        assert await service.write_file("sbx-1", "/x", pieces()) == WRITTEN
    assert b"content-length: %d\r\n" % len(LONG) in script.heads[0]
    assert b"transfer-encoding: chunked\r\n" in script.heads[1]
    assert received == [LONG, b"%x\r\n%b\r\n3\r\nend\r\n0\r\n\r\n" % (len(LONG), LONG)]
    assert script.connections == 1


async def _until_last_chunk(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        data += await reader.read(1 << 20)
    return data


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(65_536)


async def endless_pipes() -> AsyncGenerator[bytes | int, Pipe | None]:
    pipe = yield 0
    while True:
        pipe = yield bytes(65_536) if pipe is None else pipe.put(bytes(65_536))


@pytest.mark.parametrize("content", [endless, lambda: GeneratedStream(endless_pipes())])
@pytest.mark.parametrize("closes", [False, True])
async def test_endless_content_that_is_refused_stops_and_the_reason_arrives(
    closes: bool, content: Callable[[], AsyncIterator[bytes]]
) -> None:
    body = msgspec.msgpack.encode(wire.error_body(PathNotFoundError("there is no /x")))
    head = b"404 Not Found\r\ncontent-type: application/msgpack\r\ncontent-length: %d" % len(body)
    script = Script(reply(head, body, closes=closes), reply(CHUNKED, chunks(b"x", 1)))
    async with script.client() as service:
        with pytest.raises(PathNotFoundError if not closes else (PathNotFoundError, UnknownOutcomeError)):
            await service.write_file("sbx-1", "/x", content())
        assert await content_of(service) == b"x"
    assert script.connections == 2  # Half a request stands on the first.


async def test_a_local_file_is_sent_and_saved_whole_over_either_kind_of_connection(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(LONG)
    received: list[bytes] = []

    async def in_chunks(reader: asyncio.StreamReader) -> None:
        data = await _until_last_chunk(reader)
        while data != b"0\r\n\r\n":
            size, _, data = data.partition(b"\r\n")
            received.append(data[: int(size, 16)])
            data = data[int(size, 16) + 2 :]

    for socket_path in (None, tmp_path / "s"):
        received.clear()
        script = Script(written(in_chunks), reply(CHUNKED, chunks(LONG, 1_000_000)))
        async with script.client(socket_path) as service:
            await service.write_file("sbx-1", "/x", LocalFile(tmp_path / "source"))
            assert b"".join(received) == LONG
            assert await save(service.read_file("sbx-1", "/x"), tmp_path / "target") == len(LONG)
        assert (tmp_path / "target").read_bytes() == LONG


async def test_a_transfer_that_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"before")
    async with Script(reply(CHUNKED, chunks(LONG, 1 << 20)[:-1], closes=True)).client() as service:
        with pytest.raises(NodeUnavailableError):
            await save(service.read_file("sbx-1", "/x"), tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target").read_bytes() == b"before"


async def test_a_write_cut_midway_is_unknown_and_never_sent_again() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    script = Script(hang_up, hang_up)
    async with script.client() as service:
        with pytest.raises(UnknownOutcomeError):
            await service.write_file("sbx-1", "/x", b"x")
    assert script.connections == 1


@pytest.mark.parametrize("kind", [FileNotFoundError, ConnectionResetError, TimeoutError])
async def test_an_error_of_the_content_comes_out_as_itself_and_the_server_sees_no_end(kind: type[Exception]) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"begin"
        raise kind("the caller's own")

    seen: list[bytes] = []
    done = anyio.Event()

    async def read(reader: asyncio.StreamReader) -> None:
        seen.append(await reader.read())
        done.set()

    async with Script(written(read)).client() as service:
        with pytest.raises(kind, match="the caller's own"):
            await service.write_file("sbx-1", "/x", failing())
        await done.wait()
    assert seen == [b"5\r\nbegin\r\n"]


async def test_leaving_a_body_early_closes_its_connection() -> None:
    gone = anyio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 " + CHUNKED + b"\r\n\r\n" + chunks(LONG, 1 << 20)[:-5])
        try:
            await reader.read()  # Ends, or is reset: what was sent is not read by anybody.
        finally:
            gone.set()

    async with Script(endless).client() as service:
        async with aclosing(cast(AsyncGenerator[bytes, None], service.read_file("sbx-1", "/x"))) as body:
            await anext(body)
        await gone.wait()


@pytest.mark.parametrize("part", ["before the head", "in the body"])
async def test_cancelling_and_closing_end_a_wait_at_once(part: str) -> None:
    begun = anyio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if part == "in the body":
            writer.write(b"HTTP/1.1 " + CHUNKED + b"\r\n\r\n4\r\n")
        begun.set()
        await reader.read()

    async with Script(silent, silent).client() as service:
        async with anyio.create_task_group() as group:
            group.start_soon(content_of, service)
            await begun.wait()
            group.cancel_scope.cancel()
        begun = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(_expect_cut, service)
            await begun.wait()
            await anyio.wait_all_tasks_blocked()
            await service.aclose()


async def _expect_cut(service: HttpService) -> None:
    with pytest.raises(NodeUnavailableError):
        await content_of(service)
