"""A sandbox that asked for it is rolled back when its writable layer is full; another gets the error alone."""

from __future__ import annotations

import anyio
import pytest

from dsec.base.errors import DsecError, SandboxDiskFullError
from dsec.model.event import EventKind
from dsec.model.process import CommandRequest
from dsec.model.sandbox import DiskFullAction, Resources, SandboxSpec, SandboxState
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"
QUOTA = 65_536


def spec(action: DiskFullAction) -> SandboxSpec:
    return SandboxSpec(resources=Resources(disk_bytes=QUOTA), on_disk_full=action)


async def test_a_write_that_meets_the_quota_forces_the_rollback_that_was_asked_for() -> None:
    async with MemoryHost().node() as node:
        await node.create(spec(DiskFullAction.ROLLBACK), sandbox_id=BOX)
        errors: list[DsecError] = []

        async def command() -> None:
            try:
                await node.run(BOX, CommandRequest(argv=("sleep", "100")))
            except DsecError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(command)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(SandboxDiskFullError):
                await node.write_file(BOX, "/tmp/x", bytes(2 * QUOTA))
        assert isinstance(errors[0], SandboxDiskFullError)
        assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0
        info = await node.inspect(BOX)
        assert (info.state, info.generation) == (SandboxState.READY, 1)
        assert "reached its quota" in info.cause
        assert [each.kind for each in node._core.recorder._events if each.kind is EventKind.DISK_FULL]


async def test_a_look_finds_what_a_program_inside_filled() -> None:
    async with MemoryHost().node() as node:
        await node.create(spec(DiskFullAction.ROLLBACK), sandbox_id=BOX)
        await node.write_file(BOX, "/tmp/x", bytes(QUOTA - 100))
        await node._disk_full.look()
        assert (await node.inspect(BOX)).generation == 1
        await node._disk_full.look()
        assert (await node.inspect(BOX)).generation == 1


async def test_an_error_is_all_that_comes_of_it_by_default() -> None:
    async with MemoryHost().node() as node:
        await node.create(spec(DiskFullAction.ERROR), sandbox_id=BOX)
        with pytest.raises(SandboxDiskFullError):
            await node.write_file(BOX, "/tmp/x", bytes(2 * QUOTA))
        await node._disk_full.look()
        await anyio.wait_all_tasks_blocked()
        assert (await node.inspect(BOX)).generation == 0
