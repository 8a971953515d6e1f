"""A rollback launches the next instance while the old one ends, and hands on nothing before that has ended."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from dsec.base.errors import DsecError, RuntimeFailedError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.testing.faults import check_no_leak
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio

BOX = "sbx-box"


class Stage:
    """A runtime whose launches and terminations wait for their cue, once there is one, and may fail."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.began: dict[str, anyio.Event] = {"launch": anyio.Event(), "terminate": anyio.Event()}
        self.cues: dict[str, anyio.Event] = {}
        self.failures: dict[str, DsecError] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    async def act(self, name: str) -> None:
        self.began[name].set()
        if name in self.cues:
            await self.cues[name].wait()
        if name in self.failures:
            raise self.failures.pop(name)

    async def launch(self, request: Any) -> Any:
        if self.cues or self.failures:
            await self.act("launch")
        return Actor(await self._runtime.launch(request), self)


class Actor:
    """An instance on a stage."""

    def __init__(self, instance: Any, stage: Stage) -> None:
        self._instance, self._stage = instance, stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)

    async def terminate(self) -> None:
        if self._stage.cues or self._stage.failures:
            await self._stage.act("terminate")
        await self._instance.terminate()


async def test_the_next_instance_is_launched_before_the_old_one_has_ended() -> None:
    host = MemoryHost()
    stage = Stage(host.runtime)
    async with Node.open(host.parts(runtime=stage)) as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        stage.cues = {"launch": anyio.Event(), "terminate": anyio.Event()}
        async with anyio.create_task_group() as group:
            group.start_soon(node.rollback, BOX)
            await stage.began["launch"].wait()
            await stage.began["terminate"].wait()
            for cue in stage.cues.values():
                cue.set()
        assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


@pytest.mark.parametrize("last", ["launch", "terminate"])
async def test_nothing_is_ready_until_both_have_ended(last: str) -> None:
    host = MemoryHost()
    stage = Stage(host.runtime)
    async with Node.open(host.parts(runtime=stage)) as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        stage.cues = {last: anyio.Event()}
        ran: list[int | None] = []

        async def run() -> None:
            ran.append((await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code)

        async with anyio.create_task_group() as group:
            group.start_soon(node.rollback, BOX)
            await stage.began["launch"].wait()
            await anyio.wait_all_tasks_blocked()
            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            assert (await node.inspect(BOX)).state is SandboxState.ROLLING_BACK
            assert ran == []
            stage.cues[last].set()
        assert ran == [0]
        assert (await node.inspect(BOX)).state is SandboxState.READY


@pytest.mark.parametrize("failing", [("launch",), ("terminate",), ("launch", "terminate")])
async def test_a_failure_of_either_fails_the_sandbox_with_that_very_error(failing: tuple[str, ...]) -> None:
    host = MemoryHost()
    stage = Stage(host.runtime)
    async with Node.open(host.parts(runtime=stage)) as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        stage.failures = {name: RuntimeFailedError(f"no {name}") for name in failing}
        with pytest.raises(RuntimeFailedError, match=f"no {failing[0]}"):
            await node.rollback(BOX)
        assert (await node.inspect(BOX)).state is SandboxState.FAILED
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


async def test_a_stop_ends_a_rollback_with_both_instances_there() -> None:
    host = MemoryHost()
    stage = Stage(host.runtime)
    async with Node.open(host.parts(runtime=stage)) as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        stage.cues = {"terminate": anyio.Event()}

        async def roll_back() -> None:
            with pytest.raises(DsecError):
                await node.rollback(BOX)

        async with anyio.create_task_group() as group:
            group.start_soon(roll_back)
            await anyio.wait_all_tasks_blocked()
            assert len(await host.runtime.instances()) == 2
            stage.cues = {}
            await node.stop(BOX)
        assert (await node.inspect(BOX)).state is SandboxState.STOPPED
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)
