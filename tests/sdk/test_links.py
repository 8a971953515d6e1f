"""A client follows a sandbox to where it moved, and takes its token nowhere that its configuration does not name."""

from __future__ import annotations

import dataclasses
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from dsec.api.server import TcpAddress, serve
from dsec.base.errors import NodeUnavailableError, SandboxMovedError, SandboxNotFoundError, UnauthorizedError
from dsec.model.process import CommandRequest, ExitEvent, OutputEvent
from dsec.model.sandbox import SandboxInfo, SandboxSpec
from dsec.model.state import ForkRequest
from dsec.node.node import Node
from dsec.node.sandbox import Sandbox
from dsec.sdk.connect import open_service
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.sdk.links import MAXIMUM_HOPS
from dsec.sdk.state import state_of
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio

TOKEN = "a-token-for-the-fleet"
BOX = "sbx-wanderer"


@dataclass
class Server:
    """A node behind a server that can be told where its sandboxes went."""

    node: Node
    url: str
    moved: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def watch(self) -> None:
        registry = self.node._core.registry
        find: Callable[[str], Sandbox] = registry.find

        def moved_or_here(sandbox_id: str) -> Sandbox:
            self.asked.append(sandbox_id)
            if sandbox_id in self.moved:
                error = SandboxMovedError(f"{sandbox_id} has moved")
                error.url = self.moved[sandbox_id]
                raise error
            return find(sandbox_id)

        registry.find = moved_or_here  # type: ignore[method-assign]


@asynccontextmanager
async def server(name: str, token: str = TOKEN) -> AsyncIterator[Server]:
    async with (
        Node.open(dataclasses.replace(MemoryHost().parts(), node_id=name)) as node,
        serve(node, tcp=TcpAddress(token=token)) as serving,
    ):
        found = Server(node, serving.url)
        found.watch()
        yield found


@dataclass
class Fleet:
    """Three servers, `BOX` on the last, and a client of the first that may follow to all."""

    servers: list[Server]
    client: HttpService

    def leads(self, *places: int) -> None:
        """Let each of these servers say that `BOX` is at the next one."""
        for at, to in itertools.pairwise(places):
            self.servers[at].moved[BOX] = self.servers[to].url


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(server(f"nade{number}")) for number in range(3)]
        peers = [Endpoint(url=each.url, token=TOKEN) for each in servers[1:]]
        client = HttpService(Endpoint(url=servers[0].url, token=TOKEN), peers=peers)
        stack.push_async_callback(client.aclose)
        await servers[2].node.create(SandboxSpec(), sandbox_id=BOX)
        yield Fleet(servers, client)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_request_follows_hop_by_hop_and_the_next_goes_there_at_once(fleet: Fleet) -> None:
    fleet.leads(0, 1, 2)
    assert (await fleet.client.run(BOX, CommandRequest(argv=("echo", "here")))).stdout == b"here\n"
    assert [len(each.asked) for each in fleet.servers][:2] == [1, 1]
    assert (await fleet.client.inspect(BOX)).node == "nade2"
    assert [len(each.asked) for each in fleet.servers][:2] == [1, 1]


async def test_streams_files_and_archives_follow(fleet: Fleet) -> None:
    fleet.leads(0, 2)
    client = fleet.client
    async with client.stream(BOX, CommandRequest(argv=("echo", "one"))) as command:
        events = [event async for event in command]
    assert any(isinstance(event, OutputEvent) and event.data == b"one\n" for event in events)
    assert isinstance(events[-1], ExitEvent)
    client._links._moved.clear()
    await client.write_file(BOX, "/tmp/a", b"bytes")
    client._links._moved.clear()
    await client.write_file(BOX, "/tmp/b", pieces(b"in ", b"pieces"))
    client._links._moved.clear()
    assert b"".join([piece async for piece in client.read_file(BOX, "/tmp/b")]) == b"in pieces"
    archive = b"".join([piece async for piece in client.download(BOX, "/tmp")])
    await client.remove_file(BOX, "/tmp/b")
    client._links._moved.clear()
    await client.upload(BOX, "/tmp", pieces(archive))
    assert (await client.stat_file(BOX, "/tmp/b")).size_bytes == len(b"in pieces")


async def test_reattaching_follows(fleet: Fleet) -> None:
    fleet.leads(0, 2)
    process = await fleet.servers[2].node.start_process(BOX, CommandRequest(argv=("echo", "still here")))
    async with fleet.client.attach(BOX, process.process_id) as command:
        events = [event async for event in command]
    assert any(isinstance(event, OutputEvent) and event.data == b"still here\n" for event in events)


async def test_a_creation_that_is_repeated_finds_what_it_made_where_that_went(fleet: Fleet) -> None:
    create = fleet.servers[0].node.create

    async def moved(spec: SandboxSpec, *, sandbox_id: str | None = None, timeout_s: float = 1.0) -> object:
        fleet.servers[0].node._core.registry.find(sandbox_id or "")
        return await create(spec, sandbox_id=sandbox_id, timeout_s=timeout_s)

    fleet.servers[0].node.create = moved  # type: ignore[method-assign, assignment]
    fleet.leads(0, 2)
    assert (await fleet.client.create(SandboxSpec(), sandbox_id=BOX)).node == "nade2"


async def test_children_of_one_that_moved_are_named_after_the_node_where_it_is(fleet: Fleet) -> None:
    fleet.leads(0, 2)
    children = await state_of(fleet.client).fork(BOX, ForkRequest(count=2))
    assert {child.sandbox_id.split("-")[1] for child in children} == {"nade2"}


async def test_a_place_that_the_configuration_does_not_name_is_told_and_never_called(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        url = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        fleet.servers[0].moved[BOX] = url
        with pytest.raises(SandboxMovedError, match="DSEC_PEERS") as raised:
            await fleet.client.run(BOX, CommandRequest(argv=("true",)))
        assert raised.value.url == url
        for spelling in (f"{url}/", f"{fleet.servers[1].url}@127.0.0.1:{stranger.getsockname()[1]}", "", "x", "\n"):
            fleet.servers[0].moved[BOX] = spelling
            with pytest.raises(SandboxMovedError):
                await fleet.client.inspect(BOX)
            with pytest.raises(SandboxMovedError):
                async with fleet.client.stream(BOX, CommandRequest(argv=("true",))):
                    pass
        with pytest.raises(BlockingIOError):
            stranger.accept()


async def test_servers_that_name_each_other_end_the_search(fleet: Fleet) -> None:
    fleet.leads(0, 1, 0)
    with pytest.raises(NodeUnavailableError, match="name each other") as raised:
        await fleet.client.inspect(BOX)
    assert len(raised.value.detail.split(" -> ")) <= MAXIMUM_HOPS + 1
    assert sum(len(each.asked) for each in fleet.servers) == 4


async def test_one_that_comes_back_while_it_is_followed_is_found(fleet: Fleet) -> None:
    fleet.leads(0, 1, 0)
    home = fleet.servers[0]
    await home.node.create(SandboxSpec(), sandbox_id=BOX)
    asked = len(home.asked)
    inspect = fleet.servers[1].node.inspect

    async def came_back(sandbox_id: str) -> SandboxInfo:
        del home.moved[BOX]
        return await inspect(sandbox_id)

    fleet.servers[1].node.inspect = came_back  # type: ignore[method-assign]
    assert (await fleet.client.inspect(BOX)).node == "nade0"
    assert len(home.asked) == asked + 2


async def test_one_that_came_back_is_found_again(fleet: Fleet) -> None:
    fleet.leads(0, 1)
    await fleet.servers[1].node.create(SandboxSpec(), sandbox_id=BOX)
    await fleet.client.inspect(BOX)
    del fleet.servers[0].moved[BOX]
    fleet.leads(1, 0)
    await fleet.servers[0].node.create(SandboxSpec(), sandbox_id=BOX)
    assert (await fleet.client.inspect(BOX)).node == "nade0"
    assert (await fleet.client.inspect(BOX)).node == "nade0"


async def test_one_that_ended_elsewhere_is_not_found(fleet: Fleet) -> None:
    fleet.leads(0, 2)
    await fleet.client.inspect(BOX)
    await fleet.client.remove(BOX)
    with pytest.raises(SandboxNotFoundError):
        await fleet.client.inspect(BOX)


async def test_the_environment_names_the_servers_to_follow_to(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.leads(0, 2)
    monkeypatch.setenv("DSEC_PEERS", f"nade2={fleet.servers[2].url}")
    async with open_service(url=fleet.servers[0].url, token=TOKEN) as service:
        assert (await service.inspect(BOX)).node == "nade2"
    monkeypatch.delenv("DSEC_PEERS")
    async with open_service(url=fleet.servers[0].url, token=TOKEN) as service:
        with pytest.raises(SandboxMovedError):
            await service.inspect(BOX)


async def test_a_peer_with_another_token_refuses() -> None:
    async with server("nade0") as one, server("nade1", "another-token-there") as two:
        client = HttpService(Endpoint(url=one.url, token=TOKEN), peers=[Endpoint(url=two.url, token=TOKEN)])
        one.moved[BOX] = two.url
        with pytest.raises(UnauthorizedError):
            await client.inspect(BOX)
        await client.aclose()
