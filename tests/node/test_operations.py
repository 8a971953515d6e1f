"""Corners of operations that the conformance suite cannot reach from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from dsec.base.errors import (
    CommandNotFoundError,
    DsecError,
    HostDiskFullError,
    InvalidRequestError,
    LimitExceededError,
    NodeUnavailableError,
    SandboxExitedError,
    SandboxNotFoundError,
    SnapshotNotFoundError,
)
from dsec.model.process import CommandRequest, ProcessState, SessionCommand, SessionRequest
from dsec.model.sandbox import Resources, SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.runtimes.memory_process import MemoryProcess
from dsec.runtimes.port import Process, SpawnRequest
from dsec.testing.faults import check_no_leak
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"
SLEEP = CommandRequest(argv=("sleep", "600"), timeout_s=None)


@pytest.fixture
def host() -> MemoryHost:
    settings = NodeSettings(maximum_sandboxes=2, maximum_processes_kept=2, maximum_sessions=1)
    return MemoryHost(settings=settings)


@pytest.fixture
async def node(host: MemoryHost) -> AsyncIterator[Node]:
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        yield node


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_the_node_admits_no_more_than_it_may(host: MemoryHost, node: Node) -> None:
    await node.create(SandboxSpec(), sandbox_id="sbx-second")
    with pytest.raises(NodeUnavailableError):
        await node.create(SandboxSpec())
    await node.stop("sbx-second")
    host.host.disk_bytes = 0
    with pytest.raises(HostDiskFullError):
        await node.create(SandboxSpec())
    await check_no_leak(host, node)


async def test_slots_are_reused_from_the_lowest(host: MemoryHost, node: Node) -> None:
    await node.create(SandboxSpec(), sandbox_id="sbx-second")
    first = host.runtime.used_host_ids["sbx-box-g0"]
    await node.stop(BOX)
    await node.create(SandboxSpec(), sandbox_id="sbx-third")
    assert host.runtime.used_host_ids["sbx-third-g0"] == first


async def test_the_death_of_init_fails_the_sandbox_and_names_the_guest(host: MemoryHost, node: Node) -> None:
    errors: list[DsecError] = []

    async def run() -> None:
        try:
            await node.run(BOX, CommandRequest(argv=("sleep", "600")))
        except DsecError as error:
            errors.append(error)

    generation = node._core.registry.find(BOX).running()
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: generation.operations)
        await host.runtime.instance("sbx-box-g0").end_init("out of memory")
    assert [type(error) for error in errors] == [SandboxExitedError]
    await until(lambda: node._core.registry.find(BOX).generation is None)
    info = await node.inspect(BOX)
    assert info.state is SandboxState.FAILED
    assert "out of memory" in info.cause
    with pytest.raises(SandboxExitedError, match="out of memory"):
        await node.run(BOX, CommandRequest(argv=("true",)))
    await check_no_leak(host, node)


async def test_a_missing_program_that_shows_after_the_start_is_told(
    host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What prevents a start may be raised by the first read: by `run`, a stream and a session alike."""
    instance = host.runtime.instance("sbx-box-g0")
    spawn = instance.spawn

    async def late(request: SpawnRequest) -> Process:
        process = await spawn(SpawnRequest(process_id=request.process_id, argv=("true",), stdin=True, control_fd=True))

        async def missing() -> None:
            raise CommandNotFoundError("late")

        process.read = process.wait = process.read_control = missing  # type: ignore[method-assign, assignment]
        return process

    monkeypatch.setattr(instance, "spawn", late)
    with pytest.raises(CommandNotFoundError, match="late"):
        await node.run(BOX, CommandRequest(argv=("missing",)))
    with pytest.raises(CommandNotFoundError, match="late"):
        async with node.stream(BOX, CommandRequest(argv=("missing",))) as stream:
            await anext(stream)
    with pytest.raises(CommandNotFoundError, match="no shell"):
        await node.open_session(BOX, SessionRequest())


async def test_ended_processes_make_room_and_running_ones_do_not(node: Node) -> None:
    first = await node.start_process(BOX, CommandRequest(argv=("true",), timeout_s=None))
    await node.wait_process(BOX, first.process_id)
    await node.start_process(BOX, SLEEP)
    await node.start_process(BOX, SLEEP)
    assert first.process_id not in {each.process_id for each in await node.list_processes(BOX)}
    with pytest.raises(LimitExceededError):
        await node.start_process(BOX, SLEEP)


async def test_a_background_process_has_its_own_timeout(node: Node) -> None:
    request = CommandRequest(argv=("sh", "-c", "echo begun; sleep 600 & sleep 600"), timeout_s=0.05)
    started = await node.start_process(BOX, request)
    result = await node.wait_process(BOX, started.process_id, timeout_s=60)
    assert result.status.timed_out
    assert result.stdout == b"begun\n"
    assert (await node.statistics(BOX)).processes == 1


async def test_signals_reach_a_background_process_and_nine_takes_its_daemons(node: Node) -> None:
    started = await node.start_process(BOX, CommandRequest(argv=("sh", "-c", "sleep 600 & exit 0"), timeout_s=None))
    assert (await node.wait_process(BOX, started.process_id, timeout_s=60)).status.exit_code == 0
    await node.signal_process(BOX, started.process_id, 9)
    assert (await node.statistics(BOX)).processes == 1
    polite = await node.start_process(BOX, SLEEP)
    await node.signal_process(BOX, polite.process_id, 15)
    assert (await node.wait_process(BOX, polite.process_id, timeout_s=60)).status.signal == 15
    assert [each.state for each in await node.list_processes(BOX)] == [ProcessState.EXITED] * 2
    with pytest.raises(InvalidRequestError):
        await node.signal_process(BOX, polite.process_id, 0)


async def test_sessions_are_bounded_and_those_that_are_over_make_room(node: Node) -> None:
    session = await node.open_session(BOX, SessionRequest())
    with pytest.raises(LimitExceededError):
        await node.open_session(BOX, SessionRequest())
    await node.run_in_session(BOX, session.session_id, SessionCommand(script="exit 0"))
    await node.open_session(BOX, SessionRequest())


async def test_a_rollback_lets_go_of_the_descriptors_of_sessions(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    close = MemoryProcess.close

    async def noted(process: MemoryProcess) -> None:
        closed.append(process.process_id)
        await close(process)

    monkeypatch.setattr(MemoryProcess, "close", noted)
    session = await node.open_session(BOX, SessionRequest())
    shell = node._core.registry.find(BOX).sessions[session.session_id]._process.process_id
    await node.rollback(BOX)
    await until(lambda: shell in closed)


async def test_cancelling_a_script_closes_its_session(node: Node) -> None:
    session = await node.open_session(BOX, SessionRequest())
    generation = node._core.registry.find(BOX).running()
    async with anyio.create_task_group() as group:
        group.start_soon(node.run_in_session, BOX, session.session_id, SessionCommand(script="sleep 600"))
        await until(lambda: generation.operations)
        group.cancel_scope.cancel()
    assert (await node.statistics(BOX)).processes == 1


async def test_a_rollback_to_a_checkpoint_brings_its_files_back(node: Node) -> None:
    await node.write_file(BOX, "kept", b"1")
    name = (await node.state.checkpoint(BOX)).checkpoint_id
    await node.write_file(BOX, "lost", b"2")
    await node.rollback(BOX, snapshot=name)
    assert [info.name for info in await node.list_files(BOX, "/home/user")] == ["kept"]
    with pytest.raises(SnapshotNotFoundError):
        await node.rollback(BOX, snapshot="sbx-other-g0")


async def test_a_stop_ends_a_rollback_that_hangs(host: MemoryHost, node: Node) -> None:
    launched = anyio.Event()

    async def hangs(request: object) -> None:
        launched.set()
        await anyio.sleep_forever()

    host.runtime.launch = hangs  # type: ignore[method-assign, assignment]
    errors: list[DsecError] = []

    async def roll_back() -> None:
        try:
            await node.rollback(BOX)
        except DsecError as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(roll_back)
        await launched.wait()
        assert (await node.stop(BOX)).state is SandboxState.STOPPED
    assert len(errors) == 1
    await check_no_leak(host, node)


async def test_a_rollback_goes_on_when_its_caller_is_cancelled(node: Node) -> None:
    sandbox = node._core.registry.find(BOX)
    async with anyio.create_task_group() as group:
        group.start_soon(node.rollback, BOX)
        await until(lambda: sandbox.state is SandboxState.ROLLING_BACK)
        group.cancel_scope.cancel()
    assert (await node.inspect(BOX)).state is SandboxState.READY
    assert (await node.inspect(BOX)).generation == 1


async def test_operations_wait_for_a_rollback_under_way(node: Node) -> None:
    sandbox = node._core.registry.find(BOX)
    outputs: list[bytes] = []

    async def run() -> None:
        await until(lambda: sandbox.state is SandboxState.ROLLING_BACK)
        outputs.append((await node.run(BOX, CommandRequest(argv=("echo", "after")))).stdout)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: True)
        await node.rollback(BOX)
    assert outputs == [b"after\n"]


async def test_rolling_back_a_paused_sandbox_leaves_it_ready(node: Node) -> None:
    await node.pause(BOX)
    assert (await node.rollback(BOX)).state is SandboxState.READY
    assert (await node.run(BOX, CommandRequest(argv=("echo", "x")))).stdout == b"x\n"


async def test_removed_ids_are_known_over_a_restart(host: MemoryHost) -> None:
    async with host.node() as node:
        await node.create(SandboxSpec(), sandbox_id=BOX)
        await node.remove(BOX)
        await node.remove(BOX)
    async with host.node() as next_node:
        await next_node.remove(BOX)
        with pytest.raises(SandboxNotFoundError):
            await next_node.remove("sbx-nobody")


async def test_the_quota_is_the_writable_layers(host: MemoryHost, node: Node) -> None:
    info = await node.create(SandboxSpec(resources=Resources(disk_bytes=100_000)), sandbox_id="sbx-small")
    with pytest.raises(DsecError) as caught:
        await node.write_file(info.sandbox_id, "big", b"x" * 200_000)
    assert caught.value.code == "sandbox_disk_full"
    usage = (await node.statistics(info.sandbox_id)).writable
    assert usage is not None
    assert (usage.used_bytes, usage.quota_bytes) == (0, 100_000)
