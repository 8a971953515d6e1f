"""The network between two nodes breaks at any byte of a migration: exactly one node serves the sandbox, with all that
was written to it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from dsec.base.errors import DsecError, SandboxMovedError, SandboxNotFoundError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxFilter, SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, MigrationRequest
from dsec.node.node import Node
from dsec.sdk.state import state_of
from dsec.testing.http_fleet import Served, http_fleet

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HERE, THERE = "nadea", "nadeb"
BOX = "sbx-wanderer"
CONTENT = bytes(range(256)) * 8_000
POINTS = 16


async def serving(fleet: dict[str, Served]) -> list[str]:
    """The nodes that serve the sandbox now; a copy that waits for its fate counts as an unknown one."""
    found = []
    for name, served in fleet.items():
        try:
            info = await served.node.inspect(BOX)
        except (SandboxMovedError, SandboxNotFoundError):
            continue
        found.append(name if info.state is SandboxState.READY else info.state.value)
    return found


async def settled(fleet: dict[str, Served]) -> Node:
    with anyio.fail_after(60):
        while (found := await serving(fleet)) not in ([HERE], [THERE]):  # noqa: ASYNC110 - nobody tells.
            await anyio.sleep(0.02)
    return fleet[found[0]].node


async def sizes(directory: Path) -> tuple[int, int]:
    """How many bytes a migration passes in each direction."""
    async with http_fleet(directory, HERE, THERE, relays=True) as fleet:
        await prepare(fleet)
        await state_of(fleet[HERE].client).migrate(BOX, MigrationRequest(node=THERE))
        relay = fleet[THERE].relay
        assert relay is not None
        return relay.passed_there, relay.passed_back


async def prepare(fleet: dict[str, Served]) -> None:
    client = fleet[HERE].client
    await client.create(SandboxSpec(), sandbox_id=BOX)
    await client.write_file(BOX, "/tmp/f", CONTENT)
    await state_of(client).checkpoint(BOX, CheckpointRequest(name="one"))
    await client.write_file(BOX, "/tmp/f", CONTENT + b"more")


@pytest.mark.parametrize("direction", ["there", "back"])
async def test_a_cut_at_any_byte_leaves_exactly_one(tmp_path: Path, direction: str) -> None:
    there, back = await sizes(tmp_path)
    whole = there if direction == "there" else back
    outcomes, cuts = set(), 0
    for point in range(POINTS):
        async with http_fleet(tmp_path, HERE, THERE, relays=True) as fleet:
            await prepare(fleet)
            relay = fleet[THERE].relay
            assert relay is not None
            at = 1 + whole * point // POINTS
            setattr(relay, f"cut_{direction}_at", at)
            try:
                await state_of(fleet[HERE].client).migrate(BOX, MigrationRequest(node=THERE))
                outcomes.add("moved")
            except DsecError as error:
                outcomes.add(error.code)
            # One that needs fewer messages than the first, whose bytes were counted, ends before the last points.
            passed = relay.passed_there if direction == "there" else relay.passed_back
            assert relay.cuts == (passed >= at)
            cuts += relay.cuts
            node = await settled(fleet)
            assert b"".join([piece async for piece in node.read_file(BOX, "/tmp/f")]) == CONTENT + b"more"
            assert (await node.run(BOX, CommandRequest(argv=("echo", "x")))).stdout == b"x\n"
            await node.rollback(BOX, snapshot="one")
            assert b"".join([piece async for piece in node.read_file(BOX, "/tmp/f")]) == CONTENT
            other = fleet[THERE if node is fleet[HERE].node else HERE].node
            assert await other.list(SandboxFilter(states=tuple(SandboxState))) == []
    assert outcomes - {"moved"}
    assert cuts > POINTS // 2


async def test_a_network_that_takes_nothing_ends_in_time_and_the_sandbox_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_fleet(tmp_path, HERE, THERE, relays=True) as fleet:
        await prepare(fleet)
        relay = fleet[THERE].relay
        assert relay is not None
        peer = await fleet[HERE].host.peers.find(THERE)
        await peer.view()
        monkeypatch.setattr(peer, "_stall_s", 0.2)
        offer = peer.offer

        async def then_nothing(asked: object) -> object:
            answer = await offer(asked)  # type: ignore[arg-type]
            relay.takes = False
            return answer

        monkeypatch.setattr(peer, "offer", then_nothing)
        with pytest.raises(DsecError), anyio.fail_after(60):
            await state_of(fleet[HERE].client).migrate(BOX, MigrationRequest(node=THERE))
        assert (await fleet[HERE].node.inspect(BOX)).state is SandboxState.READY
        assert (await fleet[HERE].node.run(BOX, CommandRequest(argv=("echo", "x")))).stdout == b"x\n"
