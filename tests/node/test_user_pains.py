"""What users of other systems lost: each known failure that concerns saved state, held against a node."""

from __future__ import annotations

import anyio
import pytest

from dsec.base.errors import SnapshotNotFoundError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import ExpiryAction, Lifetime, SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"


async def content(node: Node) -> bytes:
    return b"".join([chunk async for chunk in node.read_file(BOX, "f")])


async def test_what_was_written_is_there_after_every_one_of_many_pauses_also_across_restarts() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
    for number in range(6):
        async with host.node() as node:
            await node.write_file(BOX, "f", b"%d" % number, append=True)
            assert (await node.pause(BOX)).state is SandboxState.PAUSED
        async with host.node() as node:
            assert (await node.resume(BOX)).state is SandboxState.READY
            assert await content(node) == b"012345"[: number + 1]


async def test_a_pause_at_expiry_keeps_what_was_written_just_before() -> None:
    host = MemoryHost()
    async with host.node() as node:
        lifetime = Lifetime(idle_timeout_s=10.0, on_expiry=ExpiryAction.PAUSE)
        await node.create(SandboxSpec(lifetime=lifetime), sandbox_id=BOX)
        await node.write_file(BOX, "f", b"late")
        host.clock.advance(10.0)
        await node.expire_due()
        assert (await node.inspect(BOX)).state is SandboxState.PAUSED
        assert await content(node) == b"late"


async def test_a_resume_right_after_a_pause_is_executed_and_the_sandbox_can_be_removed() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        async with anyio.create_task_group() as group:
            group.start_soon(node.pause, BOX)
            await anyio.lowlevel.checkpoint()
            group.start_soon(node.resume, BOX)
        assert (await node.inspect(BOX)).state is SandboxState.READY
        assert not host.runtime.instance(f"{BOX}-g0").paused
        assert (await node.run(BOX, CommandRequest(argv=("echo", "x")))).stdout == b"x\n"
        await node.remove(BOX)
        assert not host.layers.names()


async def test_using_a_sandbox_never_shortens_its_lifetime() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(lifetime=Lifetime(maximum_s=1800.0)), sandbox_id=BOX)
        before = (await node.inspect(BOX)).expires_in_s
        await node.run(BOX, CommandRequest(argv=("true",)))
        await node.pause(BOX)
        await node.resume(BOX)
        assert (await node.inspect(BOX)).expires_in_s == before


async def test_the_id_of_a_snapshot_is_no_checkpoint() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        with pytest.raises(SnapshotNotFoundError, match="snp-0123"):
            await node.rollback(BOX, snapshot="snp-0123")
        assert (await node.inspect(BOX)).generation == 0
