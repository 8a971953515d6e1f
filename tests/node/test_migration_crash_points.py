"""Either node is killed, or a message lost, at every step of a migration: exactly one serves, and nothing is lost."""

from __future__ import annotations

import msgspec
import pytest

from dsec.images.memory import MemoryImages
from dsec.lifecycle.migration import SourcePhase
from dsec.model.image import ImageConfig, StateHooks
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import CheckpointRequest, ForkRequest, MigrationRequest
from dsec.node.core import Core
from dsec.node.node import Node
from dsec.node.state import migration_release
from dsec.node.state.migration_recovery import MigrationRecovery
from dsec.node.state.migration_source import _Migration
from dsec.service.migration import ReleaseAnswer
from dsec.service.peers import Peer
from dsec.stores.port import MigrationRecord
from dsec.testing.fleet import Fleet
from dsec.testing.migration_crashes import HERE, THERE, Kind, Move, check_every

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
BOX = "sbx-box"


async def branched(fleet: Fleet) -> None:
    node = fleet.nodes[HERE]
    await node.create(SandboxSpec(seed=7), sandbox_id=BOX)
    await node.write_file(BOX, "f", b"one")
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.write_file(BOX, "f", b"two")


async def forked(fleet: Fleet) -> None:
    node = fleet.nodes[HERE]
    await node.create(SandboxSpec(), sandbox_id="sbx-parent")
    await node.write_file("sbx-parent", "f", b"parent")
    await node.state.fork("sbx-parent", ForkRequest(sandbox_ids=(BOX,)))
    await node.remove("sbx-parent")
    await node.write_file(BOX, "f", b"child")


async def clean_is_the_parents(node: Node) -> None:
    await node.rollback(BOX)
    assert await read(node, "f") == b"parent"


async def come_back(fleet: Fleet) -> None:
    there = fleet.nodes[THERE]
    await there.create(SandboxSpec(), sandbox_id=BOX)
    await there.write_file(BOX, "f", b"once there")
    await there.state.migrate(BOX, MigrationRequest(node=HERE))
    await fleet.nodes[HERE].write_file(BOX, "f", b"now here")


async def paused(fleet: Fleet) -> None:
    await branched(fleet)
    await fleet.nodes[HERE].pause(BOX)


async def with_memory(fleet: Fleet) -> None:
    node = fleet.nodes[HERE]
    await node.create(SandboxSpec(image="hooked"), sandbox_id=BOX)
    await node.write_file(BOX, "/tmp/memory", b"old")
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.write_file(BOX, "/tmp/memory", b"thoughts")


async def memory_is_kept(node: Node) -> None:
    await node.rollback(BOX, snapshot="one")
    assert await read(node, "/tmp/memory") == b"old"


def hooked() -> MemoryImages:
    hooks = StateHooks(export_state=("sh", "-c", "cat /tmp/memory"), import_state=("sh", "-c", "cat > /tmp/memory"))
    images = MemoryImages()
    layers = [layer.digest for layer in images.get("python").layers]
    images.add_image("hooked", layers, ImageConfig(hooks=hooks), source="test")
    return images


async def read(node: Node, path: str) -> bytes:
    return b"".join([piece async for piece in node.read_file(BOX, path)])


async def move(node: Node) -> None:
    await node.state.migrate(BOX, MigrationRequest(node=THERE, maximum_rounds=1))


MOVE = Move(name="branched", sandbox_id=BOX, prepare=branched, act=move)
MOVES = [
    MOVE,
    Move(name="forked", sandbox_id=BOX, prepare=forked, act=move, verify=clean_is_the_parents),
    Move(name="paused", sandbox_id=BOX, prepare=paused, act=move),
    Move(name="come-back", sandbox_id=BOX, prepare=come_back, act=move),
    Move(name="hooked", sandbox_id=BOX, prepare=with_memory, act=move, verify=memory_is_kept, images=hooked),
]
every_move = pytest.mark.parametrize("case", MOVES, ids=lambda case: case.name)


@every_move
async def test_a_source_that_is_killed_at_any_step_leaves_one_that_serves(case: Move) -> None:
    counts = await check_every(case, Kind.KILL, HERE)
    assert min(counts[HERE], counts[THERE]) >= 4, counts


@every_move
async def test_a_target_that_is_killed_at_any_step_leaves_one_that_serves(case: Move) -> None:
    counts = await check_every(case, Kind.KILL, THERE)
    assert min(counts[HERE], counts[THERE]) >= 4, counts


@every_move
@pytest.mark.parametrize("node", [HERE, THERE])
async def test_a_call_that_fails_at_any_step_leaves_one_that_serves(case: Move, node: str) -> None:
    counts = await check_every(case, Kind.FAIL, node)
    assert counts[HERE] >= 3, counts


@every_move
async def test_a_message_that_is_lost_leaves_one_that_serves(case: Move) -> None:
    counts = await check_every(case, Kind.LOSE)
    assert counts[HERE] >= 8, "before the release the source gives up"
    assert counts[THERE] >= 2, "the release and its acknowledgement are repeated"


@every_move
@pytest.mark.parametrize("node", [HERE, THERE])
async def test_a_caller_who_goes_away_at_any_step_leaves_one_that_serves(case: Move, node: str) -> None:
    counts = await check_every(case, Kind.CANCEL, node)
    assert min(counts[HERE], counts[THERE]) >= 2, counts


@every_move
@pytest.mark.parametrize("node", [HERE, THERE])
async def test_a_stop_at_any_step_destroys_it_or_comes_too_late(case: Move, node: str) -> None:
    counts = await check_every(case, Kind.STOP, node)
    assert min(counts[""], counts[THERE]) >= 2, counts
    assert not counts[HERE]


# -- the detecting power of the above -------------------------------------------------------------------------------


async def test_a_decision_that_is_not_written_down_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decide(migration: _Migration) -> None:
        migration._record = msgspec.structs.replace(migration._record, source=SourcePhase.RELEASED)
        migration._decided = True

    monkeypatch.setattr(_Migration, "_decide", decide)
    with pytest.raises(AssertionError):
        await check_every(MOVE, Kind.KILL, HERE)


async def test_a_prepared_copy_that_becomes_live_by_a_restart_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MigrationRecovery, "prepared", {}, raising=False)
    monkeypatch.setattr(MigrationRecovery, "__setattr__", _without_prepared)
    with pytest.raises(AssertionError):
        await check_every(MOVE, Kind.KILL, THERE)


def _without_prepared(recovery: MigrationRecovery, name: str, value: object) -> None:
    object.__setattr__(recovery, name, _Forgetful() if name == "prepared" else value)


class _Forgetful(dict[str, object]):
    def __contains__(self, key: object) -> bool:
        return False


async def test_a_source_that_goes_on_when_the_release_was_not_heard_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell_once(core: Core, peer: Peer, record: MigrationRecord) -> ReleaseAnswer:
        return await peer.release(record.migration_id)

    monkeypatch.setattr(migration_release, "tell", tell_once)
    monkeypatch.setattr(migration_release, "start", lambda *_: None)
    with pytest.raises(AssertionError):
        await check_every(MOVE, Kind.LOSE)
