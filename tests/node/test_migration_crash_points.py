"""Either node is killed, or a message lost, at every step of a migration: exactly one serves, and nothing is lost."""

from __future__ import annotations

import msgspec
import pytest

from dsec.lifecycle.migration import SourcePhase
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import CheckpointRequest, MigrationRequest
from dsec.node.core import Core
from dsec.node.node import Node
from dsec.node.state import migration_release
from dsec.node.state.migration_recovery import MigrationRecovery
from dsec.node.state.migration_source import _Migration
from dsec.service.migration import ReleaseAnswer
from dsec.service.peers import Peer
from dsec.stores.port import MigrationRecord
from dsec.testing.migration_crashes import HERE, THERE, Move, check_every

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
BOX = "sbx-box"


async def branched(node: Node) -> None:
    await node.create(SandboxSpec(seed=7), sandbox_id=BOX)
    await node.write_file(BOX, "f", b"one")
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.write_file(BOX, "f", b"two")


async def move(node: Node) -> None:
    await node.state.migrate(BOX, MigrationRequest(node=THERE, maximum_rounds=1))


MOVE = Move(sandbox_id=BOX, prepare=branched, act=move)


async def test_a_source_that_is_killed_at_any_step_leaves_one_that_serves() -> None:
    counts = await check_every(MOVE, kill=HERE)
    assert min(counts.values()) >= 4, counts


async def test_a_target_that_is_killed_at_any_step_leaves_one_that_serves() -> None:
    counts = await check_every(MOVE, kill=THERE)
    assert min(counts.values()) >= 4, counts


async def test_a_message_that_is_lost_leaves_one_that_serves() -> None:
    counts = await check_every(MOVE, lose=True)
    assert counts[False] >= 8, "before the release the source gives up"
    assert counts[True] >= 2, "the release and its acknowledgement are repeated"


# -- the detecting power of the above -------------------------------------------------------------------------------


async def test_a_decision_that_is_not_written_down_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decide(migration: _Migration) -> None:
        migration._record = msgspec.structs.replace(migration._record, source=SourcePhase.RELEASED)
        migration._decided = True

    monkeypatch.setattr(_Migration, "_decide", decide)
    with pytest.raises(AssertionError):
        await check_every(MOVE, kill=HERE)


async def test_a_prepared_copy_that_becomes_live_by_a_restart_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MigrationRecovery, "prepared", {}, raising=False)
    monkeypatch.setattr(MigrationRecovery, "__setattr__", _without_prepared)
    with pytest.raises(AssertionError):
        await check_every(MOVE, kill=THERE)


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
        await check_every(MOVE, lose=True)
