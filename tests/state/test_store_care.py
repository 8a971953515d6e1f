"""What no snapshot needs goes in steps, a dry run says the next one, and what is saved meanwhile loses nothing."""

from __future__ import annotations

import pytest

from dsec.model.sandbox import SandboxSpec
from dsec.model.state import SnapshotInfo
from dsec.node.node import Node
from dsec.state.store_care import StoreCare
from dsec.stores.chunks import CollectionReport, open_chunks
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
DAY_S = 86_400.0


async def later(host: MemoryHost) -> None:
    """Let more than a grace period pass."""
    host.clock.advance(DAY_S + 1)


async def collect(host: MemoryHost, *, dry_run: bool = False) -> CollectionReport:
    async with open_chunks(host.store, clock=host.clock) as chunks:
        return await StoreCare(host.store, chunks).collect(dry_run=dry_run)


async def keys(host: MemoryHost, prefix: str) -> set[str]:
    return {info.key async for info in host.store.list(prefix)}


async def save(node: Node, content: bytes) -> SnapshotInfo:
    box = (await node.create(SandboxSpec())).sandbox_id
    await node.write_file(box, "/tmp/x", content)
    info = await node.state.snapshot(box)
    await node.remove(box)
    return info


async def restored(node: Node, info: SnapshotInfo) -> bytes:
    box = (await node.state.restore(info.snapshot_id)).sandbox_id
    found = b"".join([piece async for piece in node.read_file(box, "/tmp/x")])
    await node.remove(box)
    return found


async def test_what_no_snapshot_needs_is_gone_after_some_runs_and_the_rest_stays() -> None:
    host = MemoryHost()
    async with host.node() as node:
        gone, kept = await save(node, b"gone" * 5000), await save(node, b"kept" * 5000)
        await node.state.remove_snapshot(gone.snapshot_id)
        for _ in range(4):
            await later(host)
            dry, done = await collect(host, dry_run=True), await collect(host)
            assert (dry.deleted, dry.freed_bytes) == (done.deleted, done.freed_bytes)
        assert len(await keys(host, "manifests/")) == 1
        assert len(await keys(host, "chunks/packs/")) == 1
        assert await keys(host, "doomed-manifests/") | await keys(host, "chunks/doomed/") == set()
        assert await restored(node, kept) == b"kept" * 5000


async def test_a_dry_run_changes_nothing() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.state.remove_snapshot((await save(node, b"gone")).snapshot_id)
        await later(host)
        before = await keys(host, "")
        await collect(host, dry_run=True)
        assert await keys(host, "") == before


async def test_what_is_saved_between_the_steps_of_a_collection_loses_nothing() -> None:
    host = MemoryHost()
    async with host.node() as node:
        box = (await node.create(SandboxSpec())).sandbox_id
        await node.write_file(box, "/tmp/x", b"content" * 5000)
        infos = []
        for _ in range(6):
            infos.append(await node.state.snapshot(box))
            if len(infos) > 1:
                await node.state.remove_snapshot(infos.pop(0).snapshot_id)
            await later(host)
            await collect(host)
            assert await restored(node, infos[-1]) == b"content" * 5000
