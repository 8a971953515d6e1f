"""What users of other systems lost: each known failure that concerns saved state, held against a node."""

from __future__ import annotations

import anyio
import pytest

from dsec.base.errors import DsecError, NodeUnavailableError, SandboxExitedError, SnapshotNotFoundError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import ExpiryAction, Lifetime, SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, RestoreRequest, SnapshotRequest
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.runtimes.memory import MemoryInstance, MemoryRuntime
from dsec.runtimes.port import LaunchRequest
from dsec.testing.faults import check_no_leak
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


async def test_who_comes_back_after_restarts_finds_the_same_sandbox_by_the_same_id_and_no_other() -> None:
    host = MemoryHost()
    async with host.node() as node:
        made = await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.write_file(BOX, "f", b"mine")
        await node.pause(BOX)
    for _ in range(2):
        async with host.node() as node:
            found = await node.create(SandboxSpec(), sandbox_id=BOX)
            assert (found.sandbox_id, found.created_at_s) == (BOX, made.created_at_s)
            assert await content(node) == b"mine"
            assert [info.sandbox_id for info in await node.list()] == [BOX]
            await node.pause(BOX)


class Stuck(MemoryRuntime):
    """A runtime that never comes back from a launch."""

    async def launch(self, request: LaunchRequest) -> MemoryInstance:
        await anyio.sleep_forever()
        raise AssertionError


async def test_a_sandbox_that_is_stuck_in_its_creation_can_be_removed() -> None:
    host = MemoryHost(runtime=Stuck())
    errors: list[DsecError] = []
    async with host.node() as node:

        async def create() -> None:
            try:
                await node.create(SandboxSpec(), sandbox_id=BOX)
            except DsecError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(create)
            await anyio.wait_all_tasks_blocked()
            assert (await node.inspect(BOX)).state is SandboxState.CREATING
            await node.remove(BOX)
        assert isinstance(errors[0], SandboxExitedError)
        assert not await node.list()
        await check_no_leak(host, node)


async def test_a_failed_sandbox_says_why_and_has_a_way_out_and_what_was_durable_is_restored() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.write_file(BOX, "f", b"durable")
        saved = (await node.state.snapshot(BOX)).snapshot_id
        await host.runtime.instance(f"{BOX}-g0").end_init("killed for memory")
        await anyio.wait_all_tasks_blocked()
        info = await node.inspect(BOX)
        assert info.state is SandboxState.FAILED
        assert "killed for memory" in info.cause
        for ask in (lambda: node.resume(BOX), lambda: node.rollback(BOX), lambda: node.state.checkpoint(BOX)):
            with pytest.raises(SandboxExitedError, match="killed for memory"):
                await ask()
        for _ in range(2):
            await node.stop(BOX)
        for _ in range(2):
            await node.remove(BOX)
        await node.state.restore(saved, RestoreRequest(sandbox_id=BOX))
        assert await content(node) == b"durable"
        await check_no_leak(host, node)


async def test_fifty_restores_at_once_of_which_some_fail_leave_no_orphan() -> None:
    host = MemoryHost(settings=NodeSettings(runtime="memory", maximum_sandboxes=21))
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        saved = (await node.state.snapshot(BOX)).snapshot_id
        told: list[str] = []
        refused: list[DsecError] = []

        async def restore() -> None:
            try:
                told.append((await node.state.restore(saved)).sandbox_id)
            except DsecError as error:
                refused.append(error)

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(restore)
        assert len(told) == 20
        assert {type(error) for error in refused} == {NodeUnavailableError}
        assert {info.sandbox_id for info in await node.list()} == {BOX, *told}
        await check_no_leak(host, node)


async def test_a_pause_a_checkpoint_and_a_snapshot_are_three_things_of_which_none_makes_another() -> None:
    async with MemoryHost().node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.pause(BOX)
        assert (await node.state.list_checkpoints(BOX), await node.state.list_snapshots()) == ([], [])
        await node.state.checkpoint(BOX, CheckpointRequest(name="local"))
        assert await node.state.list_snapshots() == []
        await node.state.snapshot(BOX, SnapshotRequest(checkpoint="local"))
        assert [info.name for info in await node.state.list_checkpoints(BOX)] == ["local"]
        assert (await node.inspect(BOX)).state is SandboxState.PAUSED
