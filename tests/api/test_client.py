"""What happens at the seams between client and server: vanishing, back-pressure, cuts, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest

from dsec.api import wire
from dsec.api.application import Limits
from dsec.api.server import TcpAddress, serve
from dsec.base.errors import (
    DsecError,
    NodeUnavailableError,
    SandboxExitedError,
    UnauthorizedError,
    UnknownOutcomeError,
    WrongNodeError,
    error_types,
)
from dsec.model.node import NodeInfo
from dsec.model.process import (
    CommandRequest,
    CommandResult,
    ExitEvent,
    ExitStatus,
    OutputEvent,
    ProcessEvent,
    Stream,
    TerminalSize,
)
from dsec.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint

pytestmark = pytest.mark.anyio

TOKEN = "a-token-for-tests"
REQUEST = CommandRequest(argv=("true",))


class Standin:
    """As much of a service as a test gives it; counts what is under way."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.ended = anyio.Event()
        self.produced_bytes = 0
        self.written = b""
        self.sizes: list[TerminalSize] = []
        self.signals: list[int] = []
        self.error: Exception | None = None
        self.reads_input = True

    async def run(self, sandbox_id: str, request: CommandRequest) -> CommandResult:
        if self.error is not None:
            raise self.error
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.ended.set()
        raise AssertionError

    @asynccontextmanager
    async def stream(self, sandbox_id: str, request: CommandRequest) -> AsyncIterator[Any]:
        self.begun.set()
        try:
            yield _StandinCommand(self, request)
        finally:
            self.ended.set()

    def read_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        return self._produce()

    async def _produce(self) -> AsyncIterator[bytes]:
        self.begun.set()
        try:
            while True:
                self.produced_bytes += 65536
                yield bytes(65536)
        finally:
            self.ended.set()

    async def inspect(self, sandbox_id: str) -> SandboxInfo:
        raise KeyError("secret of the server")

    async def stop(self, sandbox_id: str) -> SandboxInfo:
        self.begun.set()
        await asyncio.sleep(0.05)
        self.ended.set()
        return SandboxInfo(sandbox_id=sandbox_id, state="stopped", spec=SandboxSpec(), created_at_s=0.0)  # type: ignore[arg-type]


class _StandinCommand:
    process_id = "prc-1"

    def __init__(self, owner: Standin, request: CommandRequest) -> None:
        self._owner = owner
        self._request = request
        self._eof = anyio.Event()

    def __aiter__(self) -> AsyncIterator[ProcessEvent]:
        return self._events()

    async def _events(self) -> AsyncIterator[ProcessEvent]:
        if self._request.keep_stdin_open:
            await self._eof.wait()
            yield OutputEvent(stream=Stream.STDERR, data=self._owner.written, offset=7)
            yield ExitEvent(status=ExitStatus(exit_code=0))
            return
        while True:
            self._owner.produced_bytes += 65536
            yield OutputEvent(stream=Stream.STDOUT, data=bytes(65536))

    async def write(self, data: bytes) -> None:
        if not self._owner.reads_input:
            await anyio.sleep_forever()
        self._owner.written += data

    async def close_stdin(self) -> None:
        self._eof.set()

    async def signal(self, number: int) -> None:
        self._owner.signals.append(number)
        self._eof.set()

    async def resize(self, size: TerminalSize) -> None:
        self._owner.sizes.append(size)


@pytest.fixture
def standin() -> Standin:
    return Standin()


@asynccontextmanager
async def connected(standin: Any, limits: Limits = Limits()) -> AsyncIterator[HttpService]:
    async with serve(standin, tcp=TcpAddress(token=TOKEN), limits=limits) as serving:
        service = HttpService(Endpoint(url=serving.url, token=TOKEN))
        try:
            yield service
        finally:
            await service.aclose()


async def settled(reading: Callable[[], int]) -> int:
    """Return a number once it no longer changes."""
    last = -1
    while last != reading():
        last = reading()
        await anyio.sleep(0.1)
    return last


async def test_cancelling_a_run_cancels_it_at_the_server(standin: Standin) -> None:
    async with connected(standin) as service:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(service.run, "sbx-1", REQUEST)
                await standin.begun.wait()
                group.cancel_scope.cancel()
            await standin.ended.wait()


async def test_a_client_that_vanishes_in_a_stream_cancels_it(standin: Standin) -> None:
    async with connected(standin) as service:
        endpoint = service._links.home.endpoint
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=endpoint.url, headers=headers) as client:
            body = msgspec.to_builtins(REQUEST)
            async with client.stream("POST", "/v1/sandboxes/sbx-1/stream", json=body) as response:
                assert response.status_code == 200
                await standin.begun.wait()
        with anyio.fail_after(60):
            await standin.ended.wait()


async def test_leaving_a_command_early_returns_when_the_server_has_ended_it(standin: Standin) -> None:
    async with connected(standin) as service:
        with anyio.fail_after(60):
            async with service.stream("sbx-1", REQUEST) as command:
                await anext(command)
            assert standin.ended.is_set()


@pytest.mark.slow
async def test_a_reader_that_does_not_read_stops_the_producer_of_a_stream(standin: Standin) -> None:
    async with connected(standin) as service, service.stream("sbx-1", REQUEST) as command:
        await anext(command)
        produced = await settled(lambda: standin.produced_bytes)
        assert produced < 16 << 20
        for _ in range(300):
            await anext(command)
        assert standin.produced_bytes > produced


@pytest.mark.slow
async def test_a_reader_that_does_not_read_stops_the_producer_of_a_file(standin: Standin) -> None:
    async with connected(standin) as service:
        chunks = service.read_file("sbx-1", "/x")
        await anext(chunks)
        produced = await settled(lambda: standin.produced_bytes)
        assert produced < 16 << 20
        await chunks.aclose()  # type: ignore[attr-defined]
        with anyio.fail_after(60):
            await standin.ended.wait()


async def test_input_and_controls_arrive_and_output_keeps_stream_and_offset(standin: Standin) -> None:
    request = CommandRequest(argv=("sh",), keep_stdin_open=True, terminal=TerminalSize())
    data = bytes(range(256)) * 20_000
    async with connected(standin) as service, service.stream("sbx-1", request) as command:
        assert command.process_id == "prc-1"
        await command.resize(TerminalSize(columns=100, rows=30))
        with anyio.fail_after(60):
            await command.write(data)
            await command.close_stdin()
            events = [event async for event in command]
    assert events == [
        OutputEvent(stream=Stream.STDERR, data=data, offset=7),
        ExitEvent(status=ExitStatus(exit_code=0)),
    ]
    assert standin.sizes == [TerminalSize(columns=100, rows=30)]


async def test_a_signal_passes_input_that_nobody_reads(standin: Standin) -> None:
    standin.reads_input = False
    request = CommandRequest(argv=("sh",), keep_stdin_open=True)
    async with connected(standin) as service, service.stream("sbx-1", request) as command:
        with anyio.fail_after(60):
            with anyio.move_on_after(0.2) as waiting:
                await command.write(bytes(4 << 20))
            assert waiting.cancelled_caught  # The window is full: writing waits for the command.
            await command.signal(15)
            assert isinstance([event async for event in command][-1], ExitEvent)
            with pytest.raises(SandboxExitedError):
                await command.write(bytes(4 << 20))
    assert standin.signals == [15]


@pytest.mark.parametrize("code", sorted(error_types()))
async def test_every_registered_error_arrives_as_itself(code: str) -> None:
    standin = Standin()
    kind = error_types()[code]
    standin.error = kind("brief \udcff", detail="detail", resolution="resolution")
    async with connected(standin) as service:
        with pytest.raises(DsecError) as caught:
            await service.run("sbx-1", REQUEST)
    assert type(caught.value) is kind
    if code != "internal":
        expected = ("brief \ufffd", "detail", "resolution")
        assert (caught.value.brief, caught.value.detail, caught.value.resolution) == expected


async def test_an_unexpected_failure_leaks_nothing(standin: Standin) -> None:
    async with connected(standin) as service:
        with pytest.raises(DsecError) as caught:
            await service.inspect("sbx-1")
    assert (caught.value.code, "secret" in str(caught.value)) == ("internal", False)


async def test_a_wrong_token_is_unauthorized_on_every_way(node: Node) -> None:
    async with serve(node, tcp=TcpAddress(token=TOKEN)) as serving:
        service = HttpService(Endpoint(url=serving.url, token="wrong"))
        with pytest.raises(UnauthorizedError):
            await service.run("sbx-1", REQUEST)
        with pytest.raises(UnauthorizedError):
            await anext(service.read_file("sbx-1", "/x"))
        with pytest.raises(UnauthorizedError):
            async with service.stream("sbx-1", REQUEST):
                pass
        await service.aclose()


async def test_where_nobody_listens_the_node_is_unavailable(short_dir: Path) -> None:
    service = HttpService(Endpoint(url=f"unix:{short_dir / 'none.sock'}"))
    with pytest.raises(NodeUnavailableError):
        await service.run("sbx-1", REQUEST)
    with pytest.raises(NodeUnavailableError):
        await anext(service.read_file("sbx-1", "/x"))
    with pytest.raises(NodeUnavailableError):
        async with service.stream("sbx-1", REQUEST):
            pass
    await service.aclose()


@asynccontextmanager
async def cutting_server(connections: list[bytes]) -> AsyncIterator[str]:
    """A server that reads each request and hangs up, but says who it is."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(65536)
        if data.startswith(b"GET /v1/node "):
            writer.write(answer(200, NodeInfo(node="cut00")))
        else:
            connections.append(data)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_command_cut_midway_is_unknown_and_never_sent_again() -> None:
    connections: list[bytes] = []
    async with cutting_server(connections) as url:
        service = HttpService(Endpoint(url=url))
        with pytest.raises(UnknownOutcomeError):
            await service.run("sbx-1", REQUEST)
        await service.aclose()
    assert len(connections) == 1


async def test_a_creation_cut_midway_is_asked_for_again_under_the_same_id() -> None:
    connections: list[bytes] = []
    async with cutting_server(connections) as url:
        service = HttpService(Endpoint(url=url))
        with pytest.raises(NodeUnavailableError):
            await service.create(SandboxSpec())
        await service.aclose()
    bodies = [msgspec.msgpack.decode(data.partition(b"\r\n\r\n")[2]) for data in connections]
    assert len(bodies) == 2
    assert bodies[0]["sandbox_id"] == bodies[1]["sandbox_id"]


def answer(status: int, value: Any) -> bytes:
    body = msgspec.msgpack.encode(value)
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/msgpack\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body


async def test_ids_follow_the_node_when_another_one_serves_at_the_address() -> None:
    nodes = ["first", "first", "other"]
    asked: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(65536)
        if data.startswith(b"GET /v1/node "):
            writer.write(answer(200, NodeInfo(node=nodes[0])))
        else:
            asked.append(msgspec.msgpack.decode(data.partition(b"\r\n\r\n")[2])["sandbox_id"])
            nodes.pop(0)
            if asked[-1].startswith(f"sbx-{nodes[0]}-"):
                info = SandboxInfo(sandbox_id=asked[-1], state=SandboxState.READY, spec=SandboxSpec(), created_at_s=0.0)
                writer.write(answer(201, info))
            else:
                writer.write(answer(421, wire.error_body(WrongNodeError("that is another node's"))))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        service = HttpService(Endpoint(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        await service.create(SandboxSpec())
        nodes[:] = ["other"] * 3
        assert (await service.create(SandboxSpec())).sandbox_id == asked[-1]
        await service.aclose()
    assert [sandbox_id[:10] for sandbox_id in asked] == ["sbx-first-", "sbx-first-", "sbx-other-"]


async def test_shutdown_lets_a_unary_request_finish_and_ends_the_rest(standin: Standin) -> None:
    results: list[object] = []

    async def stop(service: HttpService) -> None:
        results.append((await service.stop("sbx-1")).sandbox_id)

    async def run(service: HttpService) -> None:
        try:
            await service.run("sbx-1", REQUEST)
        except DsecError as error:
            results.append(type(error))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:  # noqa: SIM117 - the server ends first.
            async with serve(standin, tcp=TcpAddress(token=TOKEN), limits=Limits(grace_s=1)) as serving:  # type: ignore[arg-type]
                service = HttpService(Endpoint(url=serving.url, token=TOKEN))
                group.start_soon(stop, service)
                await standin.begun.wait()
                standin.begun = anyio.Event()
                group.start_soon(run, service)
                await standin.begun.wait()
        await service.aclose()
    assert results[0] == "sbx-1"
    assert results[1] in (UnknownOutcomeError, DsecError, NodeUnavailableError)
