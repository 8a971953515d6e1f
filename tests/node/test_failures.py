"""Every step of create, rollback and stop fails once, or the node dies there: nothing is lost, and nothing leaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from dsec.base.errors import DsecError, InvalidStateError, SandboxNotFoundError
from dsec.lifecycle.machine import LIVE
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxFilter, SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio

BOX = "sbx-box"
MOST_STEPS = 200
Action = Callable[[Node], Awaitable[object]]


async def create(node: Node) -> None:
    await node.create(SandboxSpec(), sandbox_id=BOX)


async def _settled(node: Node) -> None:
    """Let background discards finish."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def prepare(node: Node) -> None:
    """A sandbox with a neighbour, a background process and a checkpoint."""
    await node.create(SandboxSpec(), sandbox_id="sbx-neighbour")
    await create(node)
    await node.start_process(BOX, CommandRequest(argv=("sleep", "600"), timeout_s=None))
    await node.state.checkpoint(BOX)


async def rollback(node: Node) -> None:
    await node.rollback(BOX)


async def rollback_to_checkpoint(node: Node) -> None:
    (name,) = node._core.registry.find(BOX).checkpoints
    await node.rollback(BOX, snapshot=name)


async def rollback_paused(node: Node) -> None:
    await node.pause(BOX)
    await node.rollback(BOX)


async def stop(node: Node) -> None:
    await node.stop(BOX)


async def remove(node: Node) -> None:
    await node.remove(BOX)


async def pause_and_resume(node: Node) -> None:
    await node.pause(BOX)
    await node.resume(BOX)


async def run(node: Node) -> None:
    await node.run(BOX, CommandRequest(argv=("true",)))


async def start_process(node: Node) -> None:
    await node.start_process(BOX, CommandRequest(argv=("sleep", "600"), timeout_s=None))


ACTIONS = [
    rollback, rollback_to_checkpoint, rollback_paused, stop, remove, pause_and_resume, run, start_process,
]  # fmt: skip


async def test_a_creation_that_fails_at_any_step_leaves_nothing() -> None:
    struck = set()
    for step in range(1, MOST_STEPS):
        host, faults = MemoryHost(), Faults(fail_at=step)
        async with Node.open(faults.parts(host)) as node:
            try:
                await create(node)
            except DsecError:
                assert faults.struck
                with pytest.raises(SandboxNotFoundError):
                    await node.inspect(BOX)
                await check_no_leak(host, node)
                await create(node)
            await check_no_leak(host, node)
            faults.armed = False
        struck.add(faults.struck)
        if not faults.struck:
            break
    assert struck >= {"put_sandbox", "create", "launch", ""}


@pytest.mark.parametrize("action", ACTIONS)
async def test_an_operation_that_fails_at_any_step_can_be_ended_without_a_leak(action: Action) -> None:
    for step in range(1, MOST_STEPS):
        host, faults = MemoryHost(), Faults(fail_at=step)
        faults.armed = False
        async with Node.open(faults.parts(host)) as node:
            await prepare(node)
            faults.armed = True
            failed = False
            try:
                await action(node)
            except DsecError:
                failed = True
            await _settled(node)
            faults.armed = False
            if failed and faults.struck not in ("terminate", "discard", "delete_processes", "delete_sandbox"):
                states = {info.state for info in await node.list()}
                assert states <= {SandboxState.READY, SandboxState.PAUSED, SandboxState.FAILED, SandboxState.STOPPING}
            await node.remove(BOX)
            await _settled(node)
            await check_no_leak(host, node)
            assert (await node.run("sbx-neighbour", CommandRequest(argv=("true",)))).status.exit_code == 0
        if not faults.struck:
            return
    pytest.fail("the operation has no end")


async def test_a_node_killed_at_any_step_of_a_creation_is_cleaned_up_by_the_next() -> None:
    for step in range(1, MOST_STEPS):
        host = MemoryHost()
        was_killed = await killed(host, Faults(kill_at=step), create)
        async with host.node() as node:
            await check_no_leak(host, node)
            for info in await node.list():
                assert info.state is SandboxState.READY
            await create(node)
            assert (await node.run(BOX, CommandRequest(argv=("echo", "x")))).stdout == b"x\n"
        if not was_killed:
            return
    pytest.fail("the creation has no end")


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_node_killed_at_any_step_of_an_operation_loses_and_leaks_nothing(action: Action) -> None:
    for step in range(1, MOST_STEPS):
        host = MemoryHost()
        faults = Faults(kill_at=step)
        faults.armed = False

        async def scene(node: Node, faults: Faults = faults) -> None:
            await prepare(node)
            faults.armed = True
            await action(node)
            await _settled(node)

        was_killed = await killed(host, faults, scene)
        async with host.node() as node:
            await _settled(node)
            await check_no_leak(host, node)
            await _check_usable(node, action)
        if not was_killed:
            return
    pytest.fail("the operation has no end")


async def _check_usable(node: Node, action: Action) -> None:
    every = SandboxFilter(states=tuple(SandboxState))
    states = {info.sandbox_id: info.state for info in await node.list(every)}
    assert states["sbx-neighbour"] is SandboxState.READY
    if action not in (stop, remove):
        assert states[BOX] in LIVE
        assert (await node.run(BOX, CommandRequest(argv=("echo", "x")))).stdout == b"x\n"
    await node.remove(BOX)
    with pytest.raises(SandboxNotFoundError):
        await node.inspect(BOX)


@pytest.mark.parametrize("step", range(1, 6))
async def test_a_node_killed_while_it_recovers_leaves_the_rest_to_the_next(step: int) -> None:
    host = MemoryHost()
    async with host.node() as node:
        await prepare(node)
    host.layers.create("stray", quota_bytes=None)

    async def nothing(node: Node) -> None:
        return None

    await killed(host, Faults(kill_at=step), nothing)
    async with host.node() as node:
        await check_no_leak(host, node)
        assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0


async def test_a_cancelled_creation_is_undone() -> None:
    host = MemoryHost()
    async with host.node() as node:
        for steps in range(12):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(create, node)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
            await check_no_leak(host, node)
            await node.remove(BOX) if node._core.registry.get(BOX) else None


async def test_stopping_a_sandbox_that_is_being_created_undoes_the_creation() -> None:
    host = MemoryHost()
    async with host.node() as node:
        errors: list[DsecError] = []
        begun = anyio.Event()
        release = anyio.Event()
        launch = host.runtime.launch

        async def slow_launch(request):  # type: ignore[no-untyped-def]
            begun.set()
            await release.wait()
            return await launch(request)

        host.runtime.launch = slow_launch  # type: ignore[method-assign]

        async def creating() -> None:
            try:
                await create(node)
            except DsecError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(creating)
            await begun.wait()
            assert (await node.stop(BOX)).state is SandboxState.STOPPED
        assert [error.code for error in errors] == ["sandbox_exited"]
        await check_no_leak(host, node)


async def test_a_creation_past_its_deadline_is_undone_and_a_waiting_twin_takes_over() -> None:
    host = MemoryHost()
    async with host.node() as node:
        launch = host.runtime.launch
        calls: list[str] = []

        async def first_hangs(request):  # type: ignore[no-untyped-def]
            calls.append(request.instance_id)
            if len(calls) == 1:
                await anyio.sleep_forever()
            return await launch(request)

        host.runtime.launch = first_hangs  # type: ignore[method-assign]
        outcomes: list[str] = []

        async def creating(timeout_s: float) -> None:
            try:
                info = await node.create(SandboxSpec(), sandbox_id=BOX, timeout_s=timeout_s)
                outcomes.append(info.state.value)
            except DsecError as error:
                outcomes.append(error.code)

        async with anyio.create_task_group() as group:
            group.start_soon(creating, 0.02)
            group.start_soon(creating, 30.0)
        assert outcomes == ["deadline_exceeded", "ready"]
        await check_no_leak(host, node)


async def test_creating_again_with_the_id_of_a_stopped_sandbox_says_that_it_is_over() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await create(node)
        await node.stop(BOX)
        with pytest.raises(InvalidStateError, match="stopped"):
            await create(node)
        await node.remove(BOX)
        await create(node)


async def test_removing_a_failed_sandbox_frees_no_host_ids_that_another_has_got_since() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await create(node)
        failed = node._core.registry.find(BOX)
        slot = failed.record.slot
        await host.runtime.instance(f"{BOX}-g0").end_init("test")
        while node._core.registry.find(BOX).state is not SandboxState.FAILED or failed.holds_slot:
            await anyio.lowlevel.checkpoint()
        await node.create(SandboxSpec(), sandbox_id="sbx-next")
        assert node._core.registry.find("sbx-next").record.slot == slot
        await node.remove(BOX)
        await node.create(SandboxSpec(), sandbox_id="sbx-third")
        await check_no_leak(host, node)
