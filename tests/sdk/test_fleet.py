"""Two nodes behind servers: sandboxes move between them over HTTP, clients follow, a node is emptied from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest

from dsec import Client
from dsec.base.errors import AlreadyExistsError, InvalidRequestError, NodeUnavailableError, SandboxMovedError
from dsec.model.fleet import DrainProgress, DrainReport, DrainRequest
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import CheckpointRequest, ForkRequest, MigrationRequest
from dsec.sdk.fleet import fleet_of
from dsec.sdk.state import state_of
from dsec.testing.http_fleet import TOKEN, Served, http_fleet

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HERE, THERE = "nadea", "nadeb"
BOX = "sbx-wanderer"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[dict[str, Served]]:
    async with http_fleet(tmp_path, HERE, THERE) as fleet:
        yield fleet


async def test_a_sandbox_moves_over_http_and_its_clients_follow(fleet: dict[str, Served]) -> None:
    client = fleet[HERE].client
    made = (await client.create(SandboxSpec(seed=7))).sandbox_id
    content = bytes(range(256)) * 20_000
    await client.write_file(made, "/tmp/f", content)
    await state_of(client).checkpoint(made, CheckpointRequest(name="one"))
    await client.write_file(made, "/tmp/f", content + b"more")
    report = await state_of(client).migrate(made, MigrationRequest(node=THERE))
    assert (report.source, report.target, report.sandbox.node) == (HERE, THERE, THERE)
    assert sum(report.copied_bytes) >= len(content)
    assert b"".join([piece async for piece in client.read_file(made, "/tmp/f")]) == content + b"more"
    assert (await client.run(made, CommandRequest(argv=("echo", "x")))).stdout == b"x\n"
    await client.rollback(made, snapshot="one")
    assert b"".join([piece async for piece in client.read_file(made, "/tmp/f")]) == content
    # And a client of the other server finds it without any hop, though its id names the first.
    assert (await fleet[THERE].client.inspect(made)).node == THERE
    assert [info.sandbox_id for info in await client.list()] == []
    with pytest.raises(SandboxMovedError) as raised:
        await fleet[HERE].node.inspect(made)
    assert raised.value.url == fleet[THERE].url


async def test_it_moves_back(fleet: dict[str, Served]) -> None:
    client = fleet[HERE].client
    await client.create(SandboxSpec(), sandbox_id=BOX)
    await state_of(client).migrate(BOX, MigrationRequest(node=THERE))
    await state_of(client).migrate(BOX, MigrationRequest(node=fleet[HERE].url))
    assert (await client.inspect(BOX)).node == HERE
    assert (await fleet[THERE].client.inspect(BOX)).node == HERE
    await fleet[THERE].client.remove(BOX)
    assert await client.list() == []


async def test_a_creation_and_a_removal_that_are_repeated_find_what_moved(fleet: dict[str, Served]) -> None:
    client = fleet[HERE].client
    await client.create(SandboxSpec(), sandbox_id=BOX)
    await state_of(client).migrate(BOX, MigrationRequest(node=THERE))
    client._links._moved.clear()
    assert (await client.create(SandboxSpec(), sandbox_id=BOX)).node == THERE
    with pytest.raises(AlreadyExistsError):
        await client.create(SandboxSpec(seed=1), sandbox_id=BOX)
    client._links._moved.clear()
    await client.remove(BOX)
    assert await fleet[THERE].client.list() == []


async def test_only_peers_in_the_settings_are_moved_to(fleet: dict[str, Served]) -> None:
    client = fleet[HERE].client
    await client.create(SandboxSpec(), sandbox_id=BOX)
    for node in ("nadec", "http://127.0.0.1:1", "", HERE):
        with pytest.raises(InvalidRequestError):
            await state_of(client).migrate(BOX, MigrationRequest(node=node))
    assert (await client.inspect(BOX)).node == HERE


async def test_a_fork_is_spread_over_http(fleet: dict[str, Served]) -> None:
    client = fleet[HERE].client
    await client.create(SandboxSpec(), sandbox_id=BOX)
    children = await state_of(client).fork(BOX, ForkRequest(count=4, spread=True))
    assert {child.node for child in children} == {HERE, THERE}
    for child in children:
        assert (await client.inspect(child.sandbox_id)).node == child.node


async def test_a_node_is_emptied_from_outside(fleet: dict[str, Served]) -> None:
    client = fleet[HERE].client
    made = [(await client.create(SandboxSpec())).sandbox_id for _ in range(3)]
    info = await fleet_of(client).look()
    assert (info.node, [peer.node for peer in info.peers], info.peers[0].answers) == (HERE, [THERE], True)
    async with fleet_of(client).drain(DrainRequest(to=(THERE,))) as events:
        heard = [event async for event in events]
    assert [event.done for event in heard if isinstance(event, DrainProgress)] == [0, 1, 2, 3]
    report = heard[-1]
    assert isinstance(report, DrainReport)
    assert set(report.moved) == set(made)
    assert set(report.moved.values()) == {THERE}
    assert (await fleet_of(client).look()).draining
    with pytest.raises(NodeUnavailableError, match="drained"):
        await client.create(SandboxSpec())
    for box in made:
        assert (await client.inspect(box)).node == THERE
    await fleet_of(client).undo_drain()
    await client.create(SandboxSpec())
    with pytest.raises(InvalidRequestError):
        async with fleet_of(client).drain(DrainRequest(to=("nadec",))):
            pass


async def test_the_blocking_half_follows_too(fleet: dict[str, Served], monkeypatch: pytest.MonkeyPatch) -> None:
    peers = ",".join(f"{name}={served.url}" for name, served in fleet.items())
    monkeypatch.setenv("DSEC_PEERS", peers)

    def work() -> None:
        with Client(fleet[HERE].url, token=TOKEN) as client, client.create() as box:
            box.files.write("/tmp/f", b"kept")
            assert box.migrate(THERE).target == THERE
            assert box.files.read("/tmp/f") == b"kept"
            assert box.run("echo here").stdout == "here\n"
            assert box.info().node == THERE
            other = client.create()
            seen: list[str] = []
            assert client.drain(THERE, on_progress=lambda event: seen.append(event.sandbox_id)).moved
            assert seen == ["", other.sandbox_id]
            assert client.fleet().draining
            client.undo_drain()
            other.close()

    await anyio.to_thread.run_sync(work)
    assert await fleet[THERE].client.list() == []
