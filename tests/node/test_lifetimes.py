"""Lifetimes on a clock that moves only when told to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from dsec.base.clock import SystemClock
from dsec.base.errors import InvalidStateError, RuntimeFailedError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import ExpiryAction, Lifetime, SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"
TRUE = CommandRequest(argv=("true",))


@pytest.fixture
def host() -> MemoryHost:
    return MemoryHost()


@pytest.fixture
async def node(host: MemoryHost) -> AsyncIterator[Node]:
    async with host.node() as node:
        yield node


async def create(
    node: Node, *, idle: float | None = 10.0, maximum: float | None = 100.0, action: ExpiryAction = ExpiryAction.STOP
) -> None:
    lifetime = Lifetime(idle_timeout_s=idle, maximum_s=maximum, on_expiry=action)
    await node.create(SandboxSpec(lifetime=lifetime), sandbox_id=BOX)


async def state_after(node: Node, host: MemoryHost, seconds: float) -> SandboxState:
    host.clock.advance(seconds)
    await node.expire_due()
    return (await node.inspect(BOX)).state


async def test_an_idle_sandbox_is_stopped_and_says_why(node: Node, host: MemoryHost) -> None:
    await create(node)
    assert await state_after(node, host, 9.9) is SandboxState.READY
    assert await state_after(node, host, 0.2) is SandboxState.STOPPED
    assert "idle" in (await node.inspect(BOX)).cause


async def test_activity_begins_the_idle_time_anew(node: Node, host: MemoryHost) -> None:
    await create(node)
    for _ in range(5):
        assert await state_after(node, host, 9.0) is SandboxState.READY
        await node.run(BOX, TRUE)
    assert await state_after(node, host, 10.1) is SandboxState.STOPPED


async def test_a_running_foreground_command_is_activity_and_a_background_process_is_not(
    node: Node, host: MemoryHost
) -> None:
    await create(node)
    async with node.stream(BOX, CommandRequest(argv=("sleep", "600"), timeout_s=600)):
        assert await state_after(node, host, 50.0) is SandboxState.READY
    assert await state_after(node, host, 5.0) is SandboxState.READY
    await node.start_process(BOX, CommandRequest(argv=("sleep", "600"), timeout_s=None))
    assert await state_after(node, host, 10.1) is SandboxState.STOPPED


async def test_the_maximum_ends_a_busy_sandbox(node: Node, host: MemoryHost) -> None:
    await create(node)
    async with node.stream(BOX, CommandRequest(argv=("sleep", "600"), timeout_s=600)):
        assert await state_after(node, host, 100.1) is SandboxState.STOPPED
    assert "maximum" in (await node.inspect(BOX)).cause


async def test_a_wall_clock_that_jumps_expires_nothing(node: Node, host: MemoryHost) -> None:
    await create(node)
    host.clock.wall += 1e9
    await node.expire_due()
    assert (await node.inspect(BOX)).state is SandboxState.READY
    host.clock.wall -= 2e9
    assert await state_after(node, host, 10.1) is SandboxState.STOPPED


async def test_pausing_on_expiry_and_resuming_begins_anew(node: Node, host: MemoryHost) -> None:
    await create(node, action=ExpiryAction.PAUSE)
    assert await state_after(node, host, 10.1) is SandboxState.PAUSED
    await node.run(BOX, TRUE)
    assert await state_after(node, host, 5.0) is SandboxState.READY
    assert await state_after(node, host, 5.1) is SandboxState.PAUSED


async def test_a_paused_sandbox_that_reaches_its_maximum_is_stopped(node: Node, host: MemoryHost) -> None:
    await create(node, action=ExpiryAction.PAUSE)
    assert await state_after(node, host, 10.1) is SandboxState.PAUSED
    assert await state_after(node, host, 95.0) is SandboxState.STOPPED


async def test_a_sandbox_paused_at_its_maximum_waits_for_extension(node: Node, host: MemoryHost) -> None:
    await create(node, idle=None, action=ExpiryAction.PAUSE)
    assert await state_after(node, host, 100.1) is SandboxState.PAUSED
    with pytest.raises(InvalidStateError, match="maximum"):
        await node.run(BOX, TRUE)
    await node.extend(BOX, Lifetime(idle_timeout_s=None, maximum_s=50.0))
    await node.run(BOX, TRUE)
    assert await state_after(node, host, 50.1) is SandboxState.STOPPED


async def test_extension_starts_both_clocks_again(node: Node, host: MemoryHost) -> None:
    await create(node)
    await state_after(node, host, 9.0)
    info = await node.extend(BOX, Lifetime(idle_timeout_s=20.0, maximum_s=30.0))
    assert info.expires_in_s == 20.0
    assert await state_after(node, host, 19.0) is SandboxState.READY
    await node.run(BOX, TRUE)
    assert (await node.inspect(BOX)).expires_in_s == pytest.approx(11.0)
    assert await state_after(node, host, 11.1) is SandboxState.STOPPED


async def test_without_limits_a_sandbox_lives(node: Node, host: MemoryHost) -> None:
    await create(node, idle=None, maximum=None)
    assert await state_after(node, host, 1e9) is SandboxState.READY
    assert (await node.inspect(BOX)).expires_in_s is None


async def test_an_expiry_that_fails_is_tried_again(
    node: Node, host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(node)
    instance = host.runtime.instance("sbx-box-g0")

    async def fails() -> None:
        raise RuntimeFailedError("stuck")

    with monkeypatch.context() as patch:
        patch.setattr(instance, "terminate", fails)
        assert await state_after(node, host, 10.1) is SandboxState.STOPPING
    assert await state_after(node, host, 60.0) is SandboxState.STOPPED


async def test_many_changes_of_a_lifetime_leave_one_entry_each(node: Node) -> None:
    await create(node)
    for _ in range(50):
        await node.rollback(BOX)
        await node.extend(BOX, Lifetime(idle_timeout_s=20.0))
    assert len(node._lifetimes._heap) <= 2


async def test_the_maximum_holds_over_a_restart_and_the_idle_time_begins_anew(host: MemoryHost) -> None:
    async with host.node() as node:
        await create(node, idle=10.0, maximum=30.0)
        await state_after(node, host, 9.0)
    async with host.node() as node:
        assert await state_after(node, host, 9.0) is SandboxState.READY
        await node.run(BOX, TRUE)
        assert (await node.inspect(BOX)).expires_in_s == pytest.approx(10.0)
        await state_after(node, host, 9.0)
        await node.run(BOX, TRUE)
        assert await state_after(node, host, 3.1) is SandboxState.STOPPED


async def test_the_timer_acts_by_itself(host: MemoryHost) -> None:
    async with Node.open(host.parts(clock=SystemClock())) as node:
        await create(node, idle=1000.0)
        await node.create(SandboxSpec(lifetime=Lifetime(idle_timeout_s=0.05)), sandbox_id="sbx-short")
        sandbox = node._core.registry.find("sbx-short")
        generation = sandbox.running()
        with anyio.fail_after(60):
            await generation.ended.wait()
        await node.stop("sbx-short")
        assert "idle" in (await node.inspect("sbx-short")).cause
        assert (await node.inspect(BOX)).state is SandboxState.READY
