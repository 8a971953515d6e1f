"""What a node finds when it starts."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from dsec.base.errors import NodeUnavailableError, RuntimeFailedError, UnknownOutcomeError
from dsec.model.process import CommandRequest, ErrorEvent, OutputEvent, ProcessState
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import ForkRequest
from dsec.node.node import Node
from dsec.node.recovery import GONE
from dsec.stores.journal import SqliteJournal
from dsec.testing.faults import check_no_leak
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"


def sh(script: str) -> CommandRequest:
    return CommandRequest(argv=("sh", "-c", script), timeout_s=None)


async def wait_for_output(node: Node, process_id: str, wanted: bytes) -> None:
    """Until the process said `wanted`; says nothing is lost when it returns."""
    heard = b""
    with anyio.fail_after(60):
        async with node.attach(BOX, process_id) as stream:
            async for event in stream:
                if isinstance(event, OutputEvent):
                    heard += event.data
                    if wanted in heard:
                        return
    raise AssertionError(heard)


async def test_a_sandbox_is_adopted_with_its_files_and_state(tmp_path: Path) -> None:
    host = MemoryHost()
    path = tmp_path / "journal.sqlite"
    async with Node.open(host.parts(journal=SqliteJournal(path))) as node:
        created = await node.create(SandboxSpec(metadata={"task": "x"}, seed=7), sandbox_id=BOX)
        await node.write_file(BOX, "kept", b"data")
        await node.create(SandboxSpec(), sandbox_id="sbx-paused")
        await node.pause("sbx-paused")
    async with Node.open(host.parts(journal=SqliteJournal(path))) as node:
        assert await node.inspect(BOX) == created
        assert [chunk async for chunk in node.read_file(BOX, "kept")] == [b"data"]
        result = await node.run(BOX, CommandRequest(argv=("printenv", "DSEC_SEED", "PYTHONHASHSEED")))
        assert result.stdout == b"7\n7\n"
        assert (await node.inspect("sbx-paused")).state is SandboxState.PAUSED
        assert host.runtime.instance("sbx-paused-g0").paused
        assert (await node.create(SandboxSpec(metadata={"task": "x"}, seed=7), sandbox_id=BOX)).sandbox_id == BOX


async def test_a_sandbox_whose_processes_are_gone_has_failed_and_the_platform_is_at_fault() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
    await host.runtime.instance("sbx-box-g0").end_init("host rebooted")
    async with host.node() as node:
        info = await node.inspect(BOX)
        assert (info.state, info.cause) == (SandboxState.FAILED, GONE)
        with pytest.raises(RuntimeFailedError, match="gone when the node started"):
            await node.run(BOX, sh("true"))
        await check_no_leak(host, node)
        await node.remove(BOX)


async def test_one_that_has_to_end_at_the_start_takes_nothing_with_it_that_its_brothers_begin_from() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.write_file(BOX, "f", b"at the fork")
        await node.state.fork(BOX, ForkRequest(count=2, sandbox_ids=("sbx-first", "sbx-second")))
        await node.write_file("sbx-second", "f", b"later")
    await host.runtime.instance("sbx-first-g0").end_init("killed while no node ran")
    async with host.node() as node:
        assert (await node.inspect("sbx-first")).state is SandboxState.FAILED
        await node.rollback("sbx-second")
        assert [chunk async for chunk in node.read_file("sbx-second", "f")] == [b"at the fork"]
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


async def test_what_nobody_claims_is_discarded() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        name = (await node.state.checkpoint(BOX)).checkpoint_id
    await host.journal.delete_sandbox("sbx-never")
    host.layers.create("sbx-stray-g0", quota_bytes=None)
    async with host.node() as node:
        await check_no_leak(host, node)
        assert [each.checkpoint_id for each in await node.state.list_checkpoints(BOX)] == [name]
        assert (await node.rollback(BOX, snapshot=name)).generation == 1
    await host.journal.delete_sandbox(BOX)
    async with host.node() as node:
        await check_no_leak(host, node)
    assert host.layers.names() == frozenset()


async def test_background_processes_are_found_again_with_their_output(tmp_path: Path) -> None:
    host = MemoryHost(spool_dir=tmp_path / "spool")
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        request = CommandRequest(argv=("sh", "-c", "echo first; cat"), keep_stdin_open=True, timeout_s=None)
        living = await node.start_process(BOX, request)
        await wait_for_output(node, living.process_id, b"first")
        ended = await node.start_process(BOX, sh("echo done; exit 3"))
        await node.wait_process(BOX, ended.process_id)
    async with host.node() as node:
        states = {each.process_id: each.state for each in await node.list_processes(BOX)}
        assert states == {living.process_id: ProcessState.RUNNING, ended.process_id: ProcessState.EXITED}
        result = await node.wait_process(BOX, ended.process_id)
        assert (result.status.exit_code, result.stdout) == (3, b"done\n")
        async with node.attach(BOX, living.process_id) as stream:
            await stream.write(b"second")
            await wait_for_output(node, living.process_id, b"first\nsecond")
            await stream.close_stdin()
        assert (await node.wait_process(BOX, living.process_id)).stdout == b"first\nsecond"
        await node.stop(BOX)
    assert list((tmp_path / "spool").iterdir()) == []


async def test_a_process_that_ended_while_no_node_ran_keeps_its_status() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        request = CommandRequest(argv=("sh", "-c", "cat; exit 9"), keep_stdin_open=True, timeout_s=None)
        started = await node.start_process(BOX, request)
    process = await host.runtime.instance("sbx-box-g0").reattach(started.process_id)
    assert process is not None
    await process.close_stdin()
    await process.wait()
    async with host.node() as node:
        assert (await node.wait_process(BOX, started.process_id, timeout_s=60)).status.exit_code == 9


async def test_a_process_of_which_nothing_is_left_is_unknown() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        started = await node.start_process(BOX, sh("sleep 600"))
    await host.runtime.instance("sbx-box-g0").end_orphans(frozenset())
    async with host.node() as node:
        assert (await node.list_processes(BOX))[0].state is ProcessState.UNKNOWN
        with pytest.raises(UnknownOutcomeError):
            await node.wait_process(BOX, started.process_id, timeout_s=1)


async def test_closing_ends_foreground_commands_with_an_error_that_may_be_retried_and_keeps_the_sandbox() -> None:
    host = MemoryHost()
    errors: list[BaseException] = []

    async def run(node: Node) -> None:
        try:
            await node.run(BOX, CommandRequest(argv=("sleep", "600")))
        except NodeUnavailableError as error:
            errors.append(error)

    async with anyio.create_task_group() as group, host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        group.start_soon(run, node)
        while not node._core.registry.find(BOX).running().operations:
            await anyio.lowlevel.checkpoint()
        await node.aclose()
        with pytest.raises(NodeUnavailableError):
            await node.create(SandboxSpec())
    assert len(errors) == 1
    async with host.node() as node:
        assert (await node.inspect(BOX)).state is SandboxState.READY
        assert (await node.statistics(BOX)).processes == 1


async def test_closing_tells_who_listens_to_a_background_process_and_leaves_it_running() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        started = await node.start_process(BOX, sh("sleep 600"))
        async with node.attach(BOX, started.process_id) as stream:
            await node.aclose()
            event = await anext(stream)
            assert isinstance(event, ErrorEvent)
            assert event.code == "node_unavailable"
    async with host.node() as node:
        assert (await node.list_processes(BOX))[0].state is ProcessState.RUNNING


async def test_shutdown_can_destroy_everything() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.shutdown(destroy=True)
    assert await host.runtime.instances() == frozenset()
    assert host.layers.names() == frozenset()


async def test_a_node_without_sandboxes_waits_for_removals_when_it_ends_and_one_with_some_does_not() -> None:
    host = MemoryHost()
    waited: list[float] = []
    host.layers.wait_removed = lambda timeout_s: waited.append(timeout_s) or True  # type: ignore[func-returns-value, method-assign]
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
    assert not waited
    async with host.node() as node:
        await node.shutdown(destroy=True)
    assert len(waited) == 1


async def test_an_error_in_the_block_of_a_node_comes_out_as_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        async with MemoryHost().node():
            raise ZeroDivisionError
