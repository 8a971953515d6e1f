"""What a sandbox may write while a snapshot's base is kept: its whole quota, and no more for long."""

from __future__ import annotations

import pytest

from dsec.base.errors import SandboxDiskFullError
from dsec.model.sandbox import DiskFullAction, Resources, SandboxSpec
from dsec.node.node import Node
from dsec.state.memory import MemoryWritableLayers
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-test0-box"
QUOTA, HELD = 100_000, 60_000


@pytest.fixture(autouse=True)
def simple_quotas(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let layers in memory count as btrfs' simple quotas do; return what checkpoints hold, by layer, to be set."""
    held: dict[str, int] = {}
    used = MemoryWritableLayers.used_bytes
    monkeypatch.setattr(MemoryWritableLayers, "counts_frozen", True)
    monkeypatch.setattr(MemoryWritableLayers, "used_bytes", lambda layers, name: used(layers, name) + held.get(name, 0))
    return held


async def begin(node: Node, action: DiskFullAction = DiskFullAction.ERROR) -> None:
    """Save a sandbox with `HELD` bytes."""
    await node.create(SandboxSpec(resources=Resources(disk_bytes=QUOTA), on_disk_full=action), sandbox_id=BOX)
    await node.write_file(BOX, "/tmp/a", bytes(HELD))
    await node.state.snapshot(BOX)


def quota(host: MemoryHost, node: Node) -> int:
    layer = host.layers.get(node._core.registry.find(BOX).record.layer)
    assert layer is not None
    return host.runtime.quotas[layer.upper]


async def test_a_base_raises_the_quota_by_what_it_can_hold_and_gives_it_back_with_itself(
    simple_quotas: dict[str, int],
) -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        assert QUOTA + HELD <= quota(host, node) <= 2 * QUOTA
        raised = quota(host, node)
        await node._base_room.look()
        assert quota(host, node) == raised
        layer = node._core.registry.find(BOX).record.layer
        simple_quotas[layer] = QUOTA  # It deleted all that was saved, and wrote so much again.
        await node._base_room.look()
        assert await node.state.list_checkpoints(BOX) == []
        assert quota(host, node) == raised, "what the base held is not freed yet"
        simple_quotas.clear()
        await node._base_room.look()
        assert quota(host, node) == QUOTA
        with pytest.raises(SandboxDiskFullError):
            await node.write_file(BOX, "/tmp/b", bytes(QUOTA))


async def test_a_raised_quota_is_not_full_before_its_end(simple_quotas: dict[str, int]) -> None:
    async with MemoryHost().node() as node:
        await begin(node, DiskFullAction.ROLLBACK)
        simple_quotas[node._core.registry.find(BOX).record.layer] = QUOTA - HELD
        await node._disk_full.look()
        assert (await node.inspect(BOX)).generation == 0


async def test_a_full_host_takes_the_base_and_nothing_that_somebody_asked_for() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        asked = await node.state.checkpoint(BOX)
        host.host.disk_bytes = 0
        await node._base_room.look()
        assert [each.checkpoint_id for each in await node.state.list_checkpoints(BOX)] == [asked.checkpoint_id]


@pytest.mark.parametrize("has_base", [True, False])
async def test_a_restart_puts_quotas_right(has_base: bool) -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        raised = quota(host, node)
        if not has_base:
            (base,) = await node.state.list_checkpoints(BOX)
            await node.state.remove_checkpoint(BOX, base.checkpoint_id)
    async with host.node() as node:
        await node._base_room.look()
        assert quota(host, node) == (raised if has_base else QUOTA)
