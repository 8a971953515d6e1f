"""Checkpoints form a tree, come and go whole, and belong to one sandbox."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    LimitExceededError,
    RuntimeFailedError,
    SandboxDiskFullError,
    SnapshotNotFoundError,
)
from dsec.model.pool import PoolChange
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest
from dsec.node import rollback
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX, OTHER = "sbx-box", "sbx-other"


async def content(node: Node, path: str = "/tmp/x") -> bytes:
    return b"".join([chunk async for chunk in node.read_file(BOX, path)])


async def named(node: Node, name: str) -> str:
    await node.write_file(BOX, "/tmp/x", name.encode())
    return (await node.state.checkpoint(BOX, CheckpointRequest(name=name))).checkpoint_id


async def test_checkpoints_form_a_tree_along_which_rollbacks_move() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        a = await named(node, "a")
        b = await named(node, "b")
        await node.rollback(BOX, snapshot="a")
        assert await content(node) == b"a"
        c = await named(node, "c")
        await node.rollback(BOX)
        d = await named(node, "d")
        listed = await node.state.list_checkpoints(BOX)
        assert [(each.checkpoint_id, each.parent) for each in listed] == [(a, None), (b, a), (c, a), (d, None)]
        assert [each.is_current for each in listed] == [False, False, False, True]
        assert [each.generation for each in listed] == [0, 0, 1, 2]
        await node.rollback(BOX, snapshot=b)
        assert await content(node) == b"b"
        await check_settled(host, node)


async def check_settled(host: MemoryHost, node: Node) -> None:
    await anyio.wait_all_tasks_blocked()
    await check_no_leak(host, node)


async def test_what_began_from_a_removed_checkpoint_begins_from_its_parent_also_after_a_restart() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        a, b, c = [await named(node, name) for name in "abc"]
        await node.state.remove_checkpoint(BOX, "b")
        await node.state.remove_checkpoint(BOX, b)
        await node.state.remove_checkpoint(BOX, c)
        with pytest.raises(SnapshotNotFoundError):
            await node.state.remove_checkpoint(BOX, "b")
    async with host.node() as node:
        (left,) = await node.state.list_checkpoints(BOX)
        assert (left.checkpoint_id, left.is_current) == (a, True)
        await check_settled(host, node)


async def test_an_unknown_checkpoint_is_refused_with_the_reason() -> None:
    host = MemoryHost()
    async with host.node() as node:
        for name in (BOX, OTHER):
            await node.create(SandboxSpec(), sandbox_id=name)
        foreign = (await node.state.checkpoint(OTHER)).checkpoint_id
        gone = (await node.state.checkpoint(BOX)).checkpoint_id
        await node.state.remove_checkpoint(BOX, gone)
    async with host.node() as node:
        for reference, reason in ((foreign, "another sandbox"), (gone, "was removed"), ("ckp-no", "never had")):
            with pytest.raises(SnapshotNotFoundError, match=reason):
                await node.rollback(BOX, snapshot=reference)
        assert (await node.inspect(BOX)).generation == 0


async def test_names_are_unique_within_a_sandbox_and_no_ids() -> None:
    async with MemoryHost().node() as node:
        for name in (BOX, OTHER):
            await node.create(SandboxSpec(), sandbox_id=name)
            await node.state.checkpoint(name, CheckpointRequest(name="snap-001"))
        with pytest.raises(AlreadyExistsError):
            await node.state.checkpoint(BOX, CheckpointRequest(name="snap-001"))
        for bad in ("ckp-1", "a/b", "-x", "x" * 200, "\0"):
            with pytest.raises(InvalidRequestError):
                await node.state.checkpoint(BOX, CheckpointRequest(name=bad))


async def test_more_checkpoints_than_are_allowed_are_refused() -> None:
    host = MemoryHost(settings=NodeSettings(runtime="memory", maximum_checkpoints=2))
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        for _ in range(2):
            await node.state.checkpoint(BOX)
        with pytest.raises(LimitExceededError):
            await node.state.checkpoint(BOX)


async def test_a_paused_sandbox_is_saved_as_it_stands() -> None:
    async with MemoryHost().node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.pause(BOX)
        assert (await node.state.checkpoint(BOX)).frozen_s == 0
        assert (await node.inspect(BOX)).state is SandboxState.PAUSED


class NoCopy:
    """Writable layers that cannot be copied, for a reason that nobody foresaw or a known one."""

    def __init__(self, layers: Any, error: Exception) -> None:
        self._layers, self._error = layers, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layers, name)

    def checkpoint(self, name: str, checkpoint: str) -> None:
        raise self._error


@pytest.mark.parametrize("error", [RuntimeFailedError("no"), ZeroDivisionError("no")])
async def test_a_checkpoint_that_fails_thaws_and_leaves_nothing(error: Exception) -> None:
    host = MemoryHost()
    async with Node.open(host.parts(layers=NoCopy(host.layers, error))) as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        with pytest.raises(type(error)):
            await node.state.checkpoint(BOX)
        assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0
        assert await node.state.list_checkpoints(BOX) == []
        await check_settled(host, node)


async def test_nothing_of_a_stopped_sandbox_is_kept() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.state.checkpoint(BOX)
        await node.stop(BOX)
        assert await node.state.list_checkpoints(BOX) == []
        await check_settled(host, node)


@pytest.mark.parametrize("doing", ["checkpoint", "remove"])
async def test_a_kill_at_any_step_leaves_all_of_a_checkpoint_or_nothing(doing: str) -> None:
    step = 0
    while True:
        step += 1
        host = MemoryHost()
        async with host.node() as node:
            await node.create(SandboxSpec(), sandbox_id=BOX)
            await named(node, "a")

        async def act(node: Node) -> None:
            if doing == "checkpoint":
                await node.state.checkpoint(BOX, CheckpointRequest(name="b"))
            else:
                await node.state.remove_checkpoint(BOX, "a")

        was_killed = await killed(host, Faults(kill_at=step), act)
        async with host.node() as node:
            names = {each.name for each in await node.state.list_checkpoints(BOX)}
            assert names in (({"a"}, {"a", "b"}) if doing == "checkpoint" else ({"a"}, set()))
            assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0
            for name in names:
                await node.rollback(BOX, snapshot=name)
            await check_settled(host, node)
        if not was_killed:
            break
    assert step > 4


async def test_a_foreign_error_in_a_rollback_fails_the_sandbox_and_leaves_no_state_without_an_end() -> None:
    host = MemoryHost()

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(host.runtime, name)

        async def launch(self, request: Any) -> Any:
            if request.instance_id.endswith("-g1"):
                raise ZeroDivisionError("nobody foresaw this")
            return await host.runtime.launch(request)

    async with Node.open(host.parts(runtime=Broken())) as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        with pytest.raises(ZeroDivisionError):
            await node.rollback(BOX)
        assert (await node.inspect(BOX)).state is SandboxState.FAILED
        await check_settled(host, node)


async def test_a_seed_stands_in_a_file_and_is_reset_by_a_rollback() -> None:
    async with MemoryHost().node() as node:
        await node.create(SandboxSpec(seed=41), sandbox_id=BOX)
        assert await content(node, "/dev/dsec-seed") == b"41\n"
        await node.write_file(BOX, "/dev/dsec-seed", b"7", user="root")
        await node.rollback(BOX)
        assert await content(node, "/dev/dsec-seed") == b"41\n"


async def test_a_rollback_with_a_reason_ends_commands_with_it_and_tells_of_it() -> None:
    async with MemoryHost().node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        sandbox = node._core.registry.find(BOX)
        await rollback.rollback(node._core, sandbox, None, because=SandboxDiskFullError("its disk is full"))
        info = await node.inspect(BOX)
        assert (info.state, info.generation, info.cause) == (SandboxState.READY, 1, "rolled back: its disk is full")
        assert (await node.stop(BOX)).cause == "stopped on request"


async def test_nothing_of_one_tenants_checkpoints_reaches_the_next_tenant_of_a_pool() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.pools.set_pool(SandboxSpec(), PoolChange(floor=1, maximum=2))
        await node.create(SandboxSpec(), sandbox_id=BOX)
        point = await node.state.checkpoint(BOX, CheckpointRequest(name="secret"))
        assert point.generation == 0
        await node.rollback(BOX, snapshot="secret")
        await node.stop(BOX)
        await anyio.wait_all_tasks_blocked()
        await node.create(SandboxSpec(), sandbox_id=OTHER)
        assert await node.state.list_checkpoints(OTHER) == []
        for reference in ("secret", point.checkpoint_id):
            with pytest.raises(SnapshotNotFoundError):
                await node.rollback(OTHER, snapshot=reference)
        await check_settled(host, node)
