"""Hooks of an image carry the state of processes through checkpoints, and do no harm when they misbehave."""

from __future__ import annotations

import math

import anyio
import pytest

from dsec.base.errors import HookFailedError, LimitExceededError
from dsec.images.memory import MemoryImages
from dsec.model.image import ImageConfig, StateHooks
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.faults import check_no_leak
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"
EXPORT = ("sh", "-c", "cat /tmp/memory")
IMPORT = ("sh", "-c", "cat > /tmp/remembered")


def host_with(hooks: StateHooks, settings: NodeSettings = NodeSettings(runtime="memory")) -> MemoryHost:
    images = MemoryImages()
    base = images.get("python")
    images.add_image("hooked", [layer.digest for layer in base.layers], ImageConfig(hooks=hooks), source="test")
    return MemoryHost(images=images, settings=settings)


async def begin(node: Node) -> None:
    await node.create(SandboxSpec(image="hooked"), sandbox_id=BOX)
    await node.write_file(BOX, "/tmp/memory", b"thoughts")


async def remembered(node: Node, sandbox_id: str = BOX) -> bytes:
    return b"".join([chunk async for chunk in node.read_file(sandbox_id, "/tmp/remembered")])


async def test_what_is_exported_at_a_checkpoint_is_imported_after_rollback_and_fork_also_after_a_restart() -> None:
    host = host_with(StateHooks(export_state=EXPORT, import_state=IMPORT))
    async with host.node() as node:
        await begin(node)
        assert (await node.state.checkpoint(BOX, CheckpointRequest(name="a"))).exported_bytes == 8
        assert (await node.state.checkpoint(BOX, CheckpointRequest(name="b", hooks=False))).exported_bytes is None
        await node.write_file(BOX, "/tmp/memory", b"other")
    async with host.node() as node:
        await node.rollback(BOX, snapshot="a")
        assert await remembered(node) == b"thoughts"
        await node.write_file(BOX, "/tmp/memory", b"newer")
        (child,) = await node.state.fork(BOX)
        assert await remembered(node, child.sandbox_id) == b"newer"
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


@pytest.mark.parametrize(
    ("hooks", "why"),
    [
        (StateHooks(export_state=("sh", "-c", "echo no >&2; exit 3")), "status 3"),
        (StateHooks(export_state=("sleep", "100"), timeout_s=0.05), "did not end within"),
        (StateHooks(export_state=("yes",), maximum_bytes=10_000), "wrote more than"),
        (StateHooks(export_state=("no-such-program",)), "cannot start"),
    ],
)
async def test_an_export_that_fails_hangs_or_floods_leaves_the_sandbox_as_it_was(hooks: StateHooks, why: str) -> None:
    host = host_with(hooks)
    async with host.node() as node:
        await begin(node)
        with pytest.raises(HookFailedError, match=why):
            await node.state.checkpoint(BOX)
        with pytest.raises(HookFailedError, match=why):
            await node.state.fork(BOX, ForkRequest(count=2))
        assert await node.state.list_checkpoints(BOX) == []
        assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)
        assert host.exports.names() == frozenset()


async def test_a_sandbox_whose_import_fails_is_not_handed_out() -> None:
    host = host_with(StateHooks(export_state=EXPORT, import_state=("sh", "-c", "exit 1")))
    async with host.node() as node:
        await begin(node)
        await node.state.checkpoint(BOX, CheckpointRequest(name="a"))
        with pytest.raises(HookFailedError):
            await node.state.fork(BOX, ForkRequest(count=2, checkpoint="a"))
        with pytest.raises(HookFailedError):
            await node.rollback(BOX, snapshot="a")
        assert (await node.inspect(BOX)).state is SandboxState.FAILED
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


async def test_all_exported_state_of_a_sandbox_is_bounded() -> None:
    host = host_with(StateHooks(export_state=EXPORT), NodeSettings(runtime="memory", maximum_exported_bytes=10))
    async with host.node() as node:
        await begin(node)
        await node.state.checkpoint(BOX)
        with pytest.raises(LimitExceededError):
            await node.state.checkpoint(BOX)


FLOOD = StateHooks(export_state=("yes",), maximum_bytes=1 << 62)


@pytest.mark.parametrize(
    ("hooks", "allowed_s", "why"),
    [
        (FLOOD, 60.0, "wrote more than"),
        (StateHooks(export_state=("sleep", "100"), timeout_s=math.nan), 0.1, "did not end within"),
    ],
)
async def test_what_an_image_allows_its_hooks_ends_at_what_the_node_allows(
    hooks: StateHooks, allowed_s: float, why: str
) -> None:
    settings = NodeSettings(runtime="memory", maximum_exported_bytes=10_000, maximum_command_timeout_s=allowed_s)
    async with host_with(hooks, settings).node() as node:
        await node.create(SandboxSpec(image="hooked"), sandbox_id=BOX)
        with anyio.fail_after(60), pytest.raises(HookFailedError, match=why):
            await node.state.checkpoint(BOX)
