"""The conformance suite of saved state with a store behind a real S3 server, and what happens when that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from dsec.model.sandbox import SandboxSpec
from dsec.service.port import SandboxService
from dsec.state.snapshots import MERGE_DEPTH
from dsec.state.store_care import StoreCare
from dsec.stores.chunks import open_chunks
from dsec.stores.opening import open_store
from dsec.testing.memory_node import MemoryHost
from dsec.testing.s3_server import S3Server
from dsec.testing.server_process import standing_still
from dsec.testing.state_suite import StateSuite

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def host(s3_server: S3Server, s3_url: str) -> AsyncIterator[MemoryHost]:
    host = MemoryHost()
    host.store = open_store(s3_url, environment=s3_server.environment)  # type: ignore[assignment]
    yield host
    await host.store.aclose()


class TestStateOverS3(StateSuite):
    @pytest.fixture
    async def service(self, host: MemoryHost) -> AsyncIterator[SandboxService]:
        async with host.node() as node:
            yield node


async def test_a_long_chain_in_s3_is_whole_and_passes_its_check(host: MemoryHost) -> None:
    async with host.node() as node:
        box = (await node.create(SandboxSpec())).sandbox_id
        for step in range(MERGE_DEPTH + 2):
            await node.write_file(box, f"/tmp/{step}", b"%d" % step * 1000)
            last = await node.state.snapshot(box)
        restored = (await node.state.restore(last.snapshot_id)).sandbox_id
        assert len(await node.list_files(restored, "/tmp")) == MERGE_DEPTH + 2
    async with open_chunks(host.store) as chunks:
        found = await StoreCare(host.store, chunks).check()
    assert (found.snapshots, found.problems) == (MERGE_DEPTH + 2, ())


async def test_a_server_that_stands_still_costs_a_snapshot_and_nothing_else(
    host: MemoryHost, s3_server: S3Server
) -> None:
    async with host.node() as node:
        box = (await node.create(SandboxSpec())).sandbox_id
        await node.state.snapshot(box)
        await node.write_file(box, "/tmp/x", b"new")
        # Patience is the store's; who asks has less of it.
        with standing_still(s3_server.process.pid), pytest.raises(TimeoutError), anyio.fail_after(0.5):
            await node.state.snapshot(box)
        assert len(await node.state.list_checkpoints(box)) == 1
        await node.state.snapshot(box)
        assert len(await node.state.list_snapshots()) == 2
