"""Pausing gives memory back, or says why not; nothing that was promised depends on how far it came."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import anyio.lowlevel
import msgspec
import pytest

from dsec.base.errors import CapabilityMissingError, InvalidStateError, RuntimeFailedError, SwapFullError
from dsec.base.units import MIB
from dsec.model.capability import Capability
from dsec.model.event import EventKind, NodeEvent
from dsec.model.process import CommandRequest, ExitEvent, OutputEvent, ProcessState
from dsec.model.sandbox import ExpiryAction, Lifetime, SandboxInfo, SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, JobAction, JobReport
from dsec.node.node import Node
from dsec.runtimes.memory import MemoryInstance
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"
SIZE = 64 * MIB
TRUE = CommandRequest(argv=("true",))
PAUSED, READY = SandboxState.PAUSED, SandboxState.READY


@pytest.fixture
def host() -> MemoryHost:
    return MemoryHost()


@pytest.fixture
async def node(host: MemoryHost) -> AsyncIterator[Node]:
    async with host.node() as node:
        await create(host, node)
        yield node


async def create(host: MemoryHost, node: Node, name: str = BOX, **fields: object) -> MemoryInstance:
    """Create a sandbox whose guest holds memory."""
    await node.create(msgspec.structs.replace(SandboxSpec(), **fields), sandbox_id=name)
    instance = host.runtime.instance(f"{name}-g0")
    instance.memory_bytes = SIZE
    return instance


def guest(host: MemoryHost) -> MemoryInstance:
    return host.runtime.instance(f"{BOX}-g0")


def held(host: MemoryHost) -> tuple[int, int]:
    return guest(host).memory_bytes, guest(host).swap_bytes


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()


# -- giving back -------------------------------------------------------------------------------------------------------


async def test_a_pause_gives_the_memory_back_and_a_resume_reads_it_ahead(host: MemoryHost, node: Node) -> None:
    assert (await node.pause(BOX)).state is PAUSED
    assert held(host) == (0, SIZE)
    assert host.swap is not None
    assert host.swap.claimed_bytes == 0
    assert (await node.resume(BOX)).state is READY
    assert held(host) == (SIZE, 0)
    await until(lambda: guest(host).prefetched == 1)


async def test_a_pause_ends_the_reading_ahead_of_the_resume_before_it(
    host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def read(timeout_s: float) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    monkeypatch.setattr(guest(host), "prefetch", read)
    await node.pause(BOX)
    await node.resume(BOX)
    await begun.wait()
    await node.pause(BOX)
    assert ended.is_set()
    await node.resume(BOX)
    await node.remove(BOX)


async def test_memory_that_does_not_fit_leaves_the_sandbox_as_it_was(host: MemoryHost, node: Node) -> None:
    assert host.swap is not None
    host.swap.size_bytes = SIZE - 1
    with pytest.raises(SwapFullError):
        await node.pause(BOX)
    assert (await node.inspect(BOX)).state is READY
    assert not guest(host).paused
    assert host.swap.claimed_bytes == 0
    assert (await node.run(BOX, TRUE)).status.exit_code == 0
    assert (await node.pause(BOX, keep_memory=True)).state is PAUSED


async def test_without_swap_a_pause_is_refused_unless_the_memory_may_stay(host: MemoryHost) -> None:
    host.swap = None
    async with host.node() as node:
        await create(host, node)
        with pytest.raises(CapabilityMissingError, match="swap_file") as refused:
            await node.pause(BOX)
        assert "--keep-memory" in refused.value.resolution
        assert not guest(host).paused
        report = next(each for each in await node.capabilities() if each.capability is Capability.SWAP_FILE)
        assert not report.available
        assert (await node.pause(BOX, keep_memory=True)).state is PAUSED
        assert guest(host).paused
        assert held(host) == (SIZE, 0)


async def test_where_the_kernel_gives_nothing_back_the_sandbox_runs_on(
    host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown() -> None:
        return None

    monkeypatch.setattr(guest(host), "swappable_bytes", unknown)
    with pytest.raises(CapabilityMissingError, match="cannot be given back"):
        await node.pause(BOX)
    assert not guest(host).paused


async def test_what_is_paused_with_its_memory_gives_it_back_when_asked_again(host: MemoryHost, node: Node) -> None:
    await node.pause(BOX, keep_memory=True)
    await node.pause(BOX, keep_memory=True)
    assert held(host) == (SIZE, 0)
    assert host.swap is not None
    host.swap.size_bytes = 1
    with pytest.raises(SwapFullError):
        await node.pause(BOX)
    assert (await node.inspect(BOX)).state is PAUSED
    host.swap.size_bytes = SIZE
    await node.pause(BOX)
    assert held(host) == (0, SIZE)


async def test_asking_again_costs_nothing(host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.pause(BOX)

    async def never() -> int:
        raise AssertionError("asked to give back what it does not have")

    monkeypatch.setattr(guest(host), "release_memory", never)
    assert (await node.pause(BOX)).state is PAUSED


async def test_giving_back_is_bounded_in_time(host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = msgspec.structs.replace(host.settings, release_timeout_s=0.01)
    monkeypatch.setattr(node._core, "settings", settings)
    monkeypatch.setattr(guest(host), "release_memory", anyio.sleep_forever)
    assert (await node.pause(BOX)).state is PAUSED
    assert [event.sandbox_id for event in await node.pools.events() if event.kind is EventKind.MEMORY_KEPT] == [BOX]
    assert (await node.run(BOX, TRUE)).status.exit_code == 0


async def test_a_guest_that_grows_while_it_is_frozen_has_to_fit_as_well(
    host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.swap is not None
    host.swap.size_bytes = 2 * SIZE
    instance, freeze = guest(host), guest(host).pause

    async def grow(size_bytes: int) -> None:
        await freeze()
        instance.memory_bytes = size_bytes

    monkeypatch.setattr(instance, "pause", lambda: grow(2 * SIZE + 1))
    with pytest.raises(SwapFullError):
        await node.pause(BOX)
    assert not instance.paused
    assert host.swap.claimed_bytes == 0
    instance.memory_bytes = SIZE
    monkeypatch.setattr(instance, "pause", lambda: grow(2 * SIZE))
    await node.pause(BOX)
    assert held(host) == (0, 2 * SIZE)


async def test_a_kernel_that_gives_little_back_is_told_of(
    host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def little() -> int:
        return MIB

    monkeypatch.setattr(guest(host), "release_memory", little)
    await node.pause(BOX)
    assert [event.text for event in await node.pools.events() if event.kind is EventKind.MEMORY_KEPT] == [
        "the kernel gave 1.0 MiB of 64.0 MiB back"
    ]


# -- who needs it meanwhile --------------------------------------------------------------------------------------------


class Slow:
    """A release of memory that goes on until it is ended."""

    def __init__(self, host: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended = anyio.Event(), anyio.Event()
        monkeypatch.setattr(guest(host), "release_memory", self._release)

    async def _release(self) -> int:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.ended.set()
        return 0


@pytest.fixture
def slow(host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(host, monkeypatch)


async def _run(node: Node) -> object:
    return await node.run(BOX, TRUE)


async def _resume(node: Node) -> object:
    return await node.resume(BOX)


async def _rollback(node: Node) -> object:
    return await node.rollback(BOX)


async def _read(node: Node) -> object:
    return await node.list_files(BOX, "/")


@pytest.mark.parametrize("needs", [_run, _resume, _rollback, _read])
async def test_who_needs_the_sandbox_does_not_wait_for_its_memory(
    node: Node, slow: Slow, needs: Callable[[Node], Awaitable[object]]
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(node.pause, BOX)
        await slow.begun.wait()
        assert (await node.inspect(BOX)).state is PAUSED
        with anyio.fail_after(60):
            await needs(node)
        assert slow.ended.is_set()
    assert (await node.inspect(BOX)).state is READY


async def test_a_stop_does_not_wait_for_the_memory(host: MemoryHost, node: Node, slow: Slow) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(node.pause, BOX)
        await slow.begun.wait()
        with anyio.fail_after(60):
            await node.remove(BOX)
    await check_no_leak(host, node)


async def test_a_caller_that_leaves_finds_the_sandbox_paused(node: Node, slow: Slow) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(node.pause, BOX)
        await slow.begun.wait()
        group.cancel_scope.cancel()
    assert (await node.inspect(BOX)).state is PAUSED
    assert (await node.run(BOX, TRUE)).status.exit_code == 0


async def test_resumes_and_pauses_at_the_same_time_end_in_one_of_both(host: MemoryHost, node: Node) -> None:
    for _ in range(5):
        async with anyio.create_task_group() as group:
            for action in (node.pause, node.resume, node.pause, node.resume):
                group.start_soon(action, BOX)
        info = await node.inspect(BOX)
        assert guest(host).paused is (info.state is PAUSED)
    await node.resume(BOX)
    assert (await node.resume(BOX)).state is READY
    assert (await node.run(BOX, TRUE)).status.exit_code == 0


async def test_a_freeze_that_fails_leaves_it_running_with_its_claim_returned(
    host: MemoryHost, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck() -> None:
        raise RuntimeFailedError("stuck")

    monkeypatch.setattr(guest(host), "pause", stuck)
    with pytest.raises(RuntimeFailedError):
        await node.pause(BOX)
    assert host.swap is not None
    assert host.swap.claimed_bytes == 0
    assert not node._core.registry.find(BOX).running().time.stands
    assert (await node.run(BOX, TRUE)).status.exit_code == 0


async def _checkpoint(node: Node) -> object:
    return await node.state.checkpoint(BOX, CheckpointRequest(hooks=False))


async def _fork(node: Node) -> object:
    return await node.state.fork(BOX, ForkRequest(count=2))


@pytest.mark.parametrize("other", [_rollback, _checkpoint, _fork])
async def test_a_pause_waits_for_what_changes_the_sandbox_and_then_happens(
    node: Node, other: Callable[[Node], Awaitable[object]]
) -> None:
    infos: list[SandboxInfo] = []

    async def pause() -> None:
        infos.append(await node.pause(BOX))

    async with anyio.create_task_group() as group:
        group.start_soon(other, node)
        await anyio.lowlevel.checkpoint()
        group.start_soon(pause)
    assert infos[0].state is PAUSED
    assert (await node.run(BOX, TRUE)).status.exit_code == 0


async def test_what_is_over_cannot_be_paused(node: Node) -> None:
    await node.stop(BOX)
    for keep_memory in (False, True):
        with pytest.raises(InvalidStateError):
            await node.pause(BOX, keep_memory=keep_memory)


# -- time and streams --------------------------------------------------------------------------------------------------


async def test_a_stream_stays_open_and_goes_on_after_the_resume(node: Node) -> None:
    request = CommandRequest(argv=("cat",), keep_stdin_open=True, timeout_s=600)
    async with node.stream(BOX, request) as stream:
        for word in (b"one", b"two", b"three"):
            await node.pause(BOX)
            await node.resume(BOX)
            await stream.write(word)
            event = await anext(stream)
            assert isinstance(event, OutputEvent)
            assert event.data == word
        await stream.close_stdin()
        last = await anext(stream)
        assert isinstance(last, ExitEvent)
        assert (last.status.exit_code, last.status.timed_out) == (0, False)


async def test_the_timeout_of_a_command_stands_still(node: Node) -> None:
    sandbox = node._core.registry.find(BOX)
    async with anyio.create_task_group() as group:
        group.start_soon(node.run, BOX, CommandRequest(argv=("sleep", "600"), timeout_s=100.0))
        await until(lambda: bool(sandbox.running().operations))
        (operation,) = sandbox.running().operations
        await node.pause(BOX, keep_memory=True)
        assert operation.scope.deadline == math.inf
        await node.resume(BOX)
        assert 90 < operation.scope.deadline - anyio.current_time() <= 100
        group.cancel_scope.cancel()


async def test_the_timeout_of_a_background_process_stands_still_also_across_restarts(host: MemoryHost) -> None:
    async with host.node() as node:
        await create(host, node, lifetime=Lifetime(idle_timeout_s=None, maximum_s=None))
        request = CommandRequest(argv=("sleep", "600"), timeout_s=100.0)
        process = (await node.start_process(BOX, request)).process_id
        host.clock.advance(60.0)
        await node.pause(BOX)
    for _ in range(2):
        host.clock.advance(1000.0)
        async with host.node() as node:
            assert (await node.list_processes(BOX))[0].state is ProcessState.RUNNING
    async with host.node() as node:
        await node.resume(BOX)
        host.clock.advance(39.0)
    async with host.node() as node:
        await anyio.lowlevel.checkpoint()
        assert (await node.list_processes(BOX))[0].state is ProcessState.RUNNING
        host.clock.advance(2.0)
    async with host.node() as node:
        assert (await node.wait_process(BOX, process, timeout_s=5)).status.timed_out


# -- lifetimes ---------------------------------------------------------------------------------------------------------


async def expire(host: MemoryHost, node: Node) -> None:
    lifetime = Lifetime(idle_timeout_s=10.0, on_expiry=ExpiryAction.PAUSE)
    await create(host, node, lifetime=lifetime)
    host.clock.advance(10.1)
    await node.expire_due()
    assert (await node.inspect(BOX)).state is PAUSED


async def test_a_lifetime_that_pauses_gives_the_memory_back_in_the_background(host: MemoryHost) -> None:
    async with host.node() as node:
        await expire(host, node)
        await until(lambda: held(host) == (0, SIZE))


@pytest.mark.parametrize("swap_bytes", [None, 1])
async def test_a_lifetime_that_pauses_keeps_memory_that_has_no_room_and_an_event_says_so(
    host: MemoryHost, swap_bytes: int | None
) -> None:
    if swap_bytes is None:
        host.swap = None
    else:
        assert host.swap is not None
        host.swap.size_bytes = swap_bytes
    async with host.node() as node:
        await expire(host, node)
        kept: list[NodeEvent] = []
        with anyio.fail_after(60):
            while not kept:
                await anyio.lowlevel.checkpoint()
                kept = [event for event in await node.pools.events() if event.kind is EventKind.MEMORY_KEPT]
        assert (kept[0].sandbox_id, held(host)) == (BOX, (SIZE, 0))
        assert kept[0].text.startswith("swap_full" if swap_bytes else "capability_missing")
        assert (await node.run(BOX, TRUE)).status.exit_code == 0


# -- jobs --------------------------------------------------------------------------------------------------------------


async def pause_job(node: Node, *, keep_memory: bool = False) -> JobReport:
    async with node.state.change_job("rl", JobAction.PAUSE, keep_memory=keep_memory) as events:
        async for event in events:
            if isinstance(event, JobReport):
                return event
    raise AssertionError("no report came")


async def test_pausing_a_job_names_those_that_did_not_fit_and_asking_again_does_what_is_left(host: MemoryHost) -> None:
    async with host.node() as node:
        for number in range(6):
            await create(host, node, f"sbx-{number}", metadata={"job": "rl"})
        assert host.swap is not None
        host.swap.size_bytes = 4 * SIZE
        report = await pause_job(node)
        assert len(report.changed) == 4
        assert report.released_bytes == 4 * SIZE
        assert [failure.code for failure in report.failed] == ["swap_full"] * 2
        running = {failure.sandbox_id for failure in report.failed}
        assert {info.sandbox_id for info in await node.list() if info.state is READY} == running
        host.swap.size_bytes = 6 * SIZE
        again = await pause_job(node)
        assert (set(again.changed), again.released_bytes, again.failed) == (running, 2 * SIZE, ())
        assert (await pause_job(node)).released_bytes == 0


async def test_a_job_paused_with_its_memory_gives_it_back_when_asked_again(host: MemoryHost) -> None:
    async with host.node() as node:
        for number in range(3):
            await create(host, node, f"sbx-{number}", metadata={"job": "rl"})
        assert (await pause_job(node, keep_memory=True)).released_bytes == 0
        again = await pause_job(node)
        assert (again.changed, len(again.unchanged), again.released_bytes) == ((), 3, 3 * SIZE)


async def test_all_of_a_job_stand_still_before_their_memory_has_travelled(
    host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host.node() as node:
        names = [f"sbx-{number}" for number in range(15)]
        go_on = anyio.Event()

        async def release() -> int:
            await go_on.wait()
            return SIZE

        for name in names:
            monkeypatch.setattr(await create(host, node, name, metadata={"job": "rl"}), "release_memory", release)
        async with node.state.change_job("rl", JobAction.PAUSE) as events:
            await until(lambda: all(host.runtime.instance(f"{name}-g0").paused for name in names))
            go_on.set()
            told = [event async for event in events]
        assert isinstance(told[-1], JobReport)
        assert told[-1].released_bytes == 15 * SIZE


# -- restarts ----------------------------------------------------------------------------------------------------------


async def test_the_next_node_gives_back_what_a_killed_one_had_not(host: MemoryHost) -> None:
    async with host.node() as node:
        await create(host, node)
        await node.pause(BOX, keep_memory=True)
        sandbox = node._core.registry.find(BOX)
        await node._core.put(sandbox, keeps_memory=False)
    async with host.node() as node:
        await until(lambda: held(host) == (0, SIZE))
        assert (await node.run(BOX, TRUE)).status.exit_code == 0


async def test_the_next_node_leaves_memory_that_was_to_be_kept(host: MemoryHost) -> None:
    async with host.node() as node:
        await create(host, node)
        await node.pause(BOX, keep_memory=True)
    async with host.node() as node:
        await anyio.wait_all_tasks_blocked()
        assert held(host) == (SIZE, 0)
        await node.resume(BOX)
        assert guest(host).prefetched == 0


@pytest.mark.parametrize("paused_before", [False, True])
async def test_a_node_killed_at_any_step_of_a_pause_leaves_it_running_or_paused_and_the_next_does_the_rest(
    paused_before: bool,
) -> None:
    struck: list[str] = []
    for step in range(1, 50):
        host, faults = MemoryHost(), Faults(kill_at=step)
        faults.armed = False

        async def act(node: Node, host: MemoryHost = host, faults: Faults = faults) -> None:
            await create(host, node)
            if paused_before:
                await node.pause(BOX, keep_memory=True)
            faults.armed = True
            await node.pause(BOX)

        was_killed = await killed(host, faults, act)
        async with host.node() as node:
            await until(lambda host=host: guest(host).memory_bytes in (0, SIZE))  # type: ignore[misc]
            state = (await node.inspect(BOX)).state
            assert guest(host).paused is (state is PAUSED)
            if state is PAUSED and not node._core.registry.find(BOX).record.keeps_memory:
                await until(lambda host=host: held(host) == (0, SIZE))  # type: ignore[misc]
            await node.pause(BOX)
            assert held(host) == (0, SIZE)
            assert host.swap is not None
            assert (await node.run(BOX, TRUE)).status.exit_code == 0
            await node.remove(BOX)
            await check_no_leak(host, node)
        if not was_killed:
            break
        struck.append(faults.struck)
    expected = {"claim", "put_sandbox", "release_memory"} | (set() if paused_before else {"pause"})
    assert {name.split()[1] for name in struck} == expected
