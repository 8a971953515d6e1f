"""Pauses with real processes and a real swap file: memory is given back, and nothing that a guest holds is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import CapabilityMissingError, SwapFullError
from dsec.model.capability import Capability
from dsec.model.event import EventKind
from dsec.model.process import CommandRequest, OutputEvent, ProcessState
from dsec.model.sandbox import ExpiryAction, Lifetime, Resources, SandboxSpec, SandboxState
from dsec.model.state import JobAction, JobReport
from dsec.sdk.pools import pools_of
from dsec.sdk.state import state_of
from dsec.service.port import CommandStream, SandboxService
from dsec.testing.leaks import swap_of
from dsec.testing.node_process import NodeProcess

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

MIB = 1 << 20
BOX = "sbx-box"
PATIENCE_S = 60.0
LIMITS = Resources(memory_bytes=256 * MIB, swap_bytes=0, pids=50, cpu_millis=2000)
TRUE = CommandRequest(argv=("true",))
HOLDS_MEMORY = """$| = 1; $x = ""; $x .= pack("N", $_) x 1024 for 1 .. 16384; print "ready\n";
while (<STDIN>) { print "sum ", unpack("%32N*", $x), "\n" }"""
SUM = b"sum %d\n" % (sum(range(1, 16385)) * 1024 % (1 << 32))
HOLDER = CommandRequest(argv=("perl", "-e", HOLDS_MEMORY), keep_stdin_open=True, timeout_s=600)
"""Holds 64 MiB of numbers and adds them up for each line it reads."""


@pytest.fixture
def make_node(state_dir: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Return a function that starts the next node of the state directory, with settings."""
    nodes: list[NodeProcess] = []

    def make(**settings: str) -> NodeProcess:
        node = NodeProcess(state_dir, {f"DSEC_{name.upper()}": value for name, value in settings.items()})
        nodes.append(node)
        node.start()
        return node

    yield make
    for node in nodes:
        node.kill()


async def create(service: SandboxService, name: str = BOX, **fields: object) -> str:
    spec = SandboxSpec(image="guest", resources=LIMITS, **fields)  # type: ignore[arg-type]
    return (await service.create(spec, sandbox_id=name)).sandbox_id


async def line(stream: CommandStream) -> bytes:
    said = b""
    with anyio.fail_after(PATIENCE_S):
        while not said.endswith(b"\n"):
            event = await anext(stream)
            assert isinstance(event, OutputEvent)
            said += event.data
    return said


async def ask(stream: CommandStream) -> bytes:
    await stream.write(b"\n")
    return await line(stream)


@asynccontextmanager
async def holder(service: SandboxService, name: str = BOX) -> AsyncIterator[CommandStream]:
    async with service.stream(name, HOLDER) as stream:
        assert await line(stream) == b"ready\n"
        yield stream


async def memory(service: SandboxService, name: str = BOX) -> tuple[int, int]:
    usage = await service.statistics(name)
    assert usage.memory_bytes is not None
    assert usage.swap_bytes is not None
    return usage.memory_bytes, usage.swap_bytes


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while True:
            if await condition():
                return
            await anyio.sleep(0.02)


async def read(service: SandboxService, path: str) -> bytes:
    return b"".join([chunk async for chunk in service.read_file(BOX, path)])


async def test_nothing_is_lost_over_many_pauses_and_streams_go_on(make_node: Callable[..., NodeProcess]) -> None:
    async with make_node().service() as service:
        await create(service)
        async with holder(service) as stream:
            for number in range(4):
                # Through both doors, and at the last moment: a command's writes and the files API's.
                await service.run(BOX, CommandRequest(argv=("sh", "-c", f"echo {number} >> /home/user/run")))
                await service.write_file(BOX, "/home/user/api", b"%d\n" % number, append=True)
                before, _ = await memory(service)
                assert (await service.pause(BOX)).state is SandboxState.PAUSED
                after, swapped = await memory(service)
                assert before > 64 * MIB
                assert after < before / 10
                assert swapped > 60 * MIB
                if number % 2:
                    assert (await service.resume(BOX)).state is SandboxState.READY
                assert await read(service, "/home/user/run") == b"".join(b"%d\n" % each for each in range(number + 1))
                assert await read(service, "/home/user/api") == await read(service, "/home/user/run")
                assert await ask(stream) == SUM
                assert (await service.inspect(BOX)).state is SandboxState.READY
        await service.remove(BOX)


async def test_a_resume_that_was_told_has_happened(make_node: Callable[..., NodeProcess]) -> None:
    async with make_node().service() as service:
        await create(service)
        request = CommandRequest(argv=("sh", "-c", "while :; do echo x >> /tmp/ticks; sleep 0.01; done"))
        await service.start_process(BOX, request)
        await until(lambda: _exists(service, "/tmp/ticks"))

        async def ticks() -> int:
            usage = await service.stat_file(BOX, "/tmp/ticks")
            return usage.size_bytes

        for _ in range(5):
            await service.pause(BOX)
            await service.resume(BOX)
            assert (await service.inspect(BOX)).state is SandboxState.READY
            before = await ticks()
            await until(lambda before=before: _is_more(ticks, before))  # type: ignore[misc]
        await service.remove(BOX)


async def _is_more(ticks: Callable[[], Awaitable[int]], before: int) -> bool:
    return await ticks() > before


async def test_a_request_during_the_pause_does_not_wait_for_the_memory(make_node: Callable[..., NodeProcess]) -> None:
    async with make_node().service() as service:
        await create(service)
        async with holder(service) as stream:
            for _ in range(3):
                async with anyio.create_task_group() as group:
                    group.start_soon(service.pause, BOX)
                    await until(lambda: _is(service, SandboxState.PAUSED))
                    assert (await service.run(BOX, TRUE)).status.exit_code == 0
                assert await ask(stream) == SUM
        await service.remove(BOX)


async def _is(service: SandboxService, state: SandboxState) -> bool:
    return (await service.inspect(BOX)).state is state


async def test_the_timeout_of_a_command_stands_still(make_node: Callable[..., NodeProcess]) -> None:
    async with make_node().service() as service:
        await create(service)
        results = []

        async def run() -> None:
            script = "touch /tmp/begun; sleep 1; echo done"
            results.append(await service.run(BOX, CommandRequest(argv=("sh", "-c", script), timeout_s=5.0)))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await until(lambda: _exists(service, "/tmp/begun"))
            await service.pause(BOX)
            await anyio.sleep(5.5)
            await service.resume(BOX)
        assert (results[0].stdout, results[0].status.timed_out) == (b"done\n", False)
        await service.remove(BOX)


async def _exists(service: SandboxService, path: str) -> bool:
    return path.rsplit("/", 1)[1] in [info.path.rsplit("/", 1)[1] for info in await service.list_files(BOX, "/tmp")]


async def test_memory_without_room_leaves_the_guest_running(
    make_node: Callable[..., NodeProcess], state_dir: Path
) -> None:
    async with make_node(swap_bytes="16MiB").service() as service:
        await create(service)
        async with holder(service) as stream:
            with pytest.raises(SwapFullError, match="do not fit"):
                await service.pause(BOX)
            assert await ask(stream) == SUM
            assert (await service.pause(BOX, keep_memory=True)).state is SandboxState.PAUSED
            assert (await memory(service))[1] == 0
            assert await ask_when_resumed(service, stream) == SUM
        await service.remove(BOX)
    assert swap_of(state_dir)


async def ask_when_resumed(service: SandboxService, stream: CommandStream) -> bytes:
    await service.resume(BOX)
    return await ask(stream)


async def test_without_swap_a_pause_says_so_and_a_lifetime_keeps_the_memory(
    make_node: Callable[..., NodeProcess], state_dir: Path
) -> None:
    async with make_node(swap_bytes="0").service() as service:
        reports = {each.capability: each for each in await service.capabilities()}
        assert "swap_bytes is 0" in reports[Capability.SWAP_FILE].reason
        await create(service, lifetime=Lifetime(idle_timeout_s=0.2, on_expiry=ExpiryAction.PAUSE))
        with pytest.raises(CapabilityMissingError, match="swap_file"):
            await service.pause(BOX)
        await until(lambda: _is(service, SandboxState.PAUSED))

        async def is_told() -> bool:
            events = await pools_of(service).events()
            return any((each.kind, each.sandbox_id) == (EventKind.MEMORY_KEPT, BOX) for each in events)

        await until(is_told)
        await service.remove(BOX)
    assert not (state_dir / "swap").exists()


async def test_a_pause_at_expiry_gives_the_memory_back_and_keeps_the_last_write(
    make_node: Callable[..., NodeProcess],
) -> None:
    async with make_node().service() as service:
        await create(service)
        await service.start_process(BOX, HOLDER)
        await until(lambda: _holds(service))
        await service.write_file(BOX, "/home/user/last", b"late")
        await service.extend(BOX, Lifetime(idle_timeout_s=0.1, on_expiry=ExpiryAction.PAUSE))

        async def is_given_back() -> bool:
            return (await memory(service))[1] > 60 * MIB

        await until(is_given_back)
        assert await _is(service, SandboxState.PAUSED)
        assert await read(service, "/home/user/last") == b"late"
        await service.remove(BOX)


async def _holds(service: SandboxService) -> bool:
    return (await memory(service))[0] > 64 * MIB


@pytest.mark.parametrize("when", ["while it travels", "afterwards"])
async def test_the_next_node_finds_the_memory_of_a_killed_one(
    make_node: Callable[..., NodeProcess], state_dir: Path, when: str
) -> None:
    first = make_node()
    async with first.service() as service:
        await create(service)
        process = (await service.start_process(BOX, HOLDER)).process_id
        await until(lambda: _holds(service))
        async with anyio.create_task_group() as group:
            group.start_soon(_pause_or_die, service)
            if when == "while it travels":
                # Not until it is told to be paused: the node says so while it is still about to write that down.
                await until(lambda: _is_travelling(service))
                first.kill()
        first.kill()
    async with make_node().service() as service:
        assert await _is(service, SandboxState.PAUSED)

        async def is_given_back() -> bool:
            held, swapped = await memory(service)
            return swapped > 60 * MIB and held < 8 * MIB

        await until(is_given_back)
        assert len(swap_of(state_dir)) == 1
        async with service.attach(BOX, process) as stream:
            assert await line(stream) == b"ready\n"
            assert await ask(stream) == SUM
        assert (await service.list_processes(BOX))[0].state is ProcessState.RUNNING
        await service.remove(BOX)


async def _is_travelling(service: SandboxService) -> bool:
    return (await memory(service))[1] > 0


async def _pause_or_die(service: SandboxService) -> None:
    try:
        await service.pause(BOX)
    except Exception:  # noqa: BLE001 - Its node may be killed under it.
        return


async def test_a_job_gives_back_what_fits_and_names_the_rest(make_node: Callable[..., NodeProcess]) -> None:
    async with make_node(swap_bytes="180MiB").service() as service:
        for name, size in (("sbx-a", 1), ("sbx-large", 3), ("sbx-b", 1)):
            await create(service, name, metadata={"job": "rl"})
            argv = ("perl", "-e", HOLDS_MEMORY.replace("16384", str(size * 16384)))
            await service.start_process(name, CommandRequest(argv=argv, keep_stdin_open=True, timeout_s=None))
            await until(lambda name=name, size=size: _holds_more(service, name, size * 64 * MIB))  # type: ignore[misc]
        report = await _pause_job(service)
        assert report.changed == ("sbx-a", "sbx-b")
        assert [(failure.sandbox_id, failure.code) for failure in report.failed] == [("sbx-large", "swap_full")]
        assert report.released_bytes > 120 * MIB
        assert (await service.inspect(report.failed[0].sandbox_id)).state is SandboxState.READY
        await service.remove(report.failed[0].sandbox_id)
        again = await _pause_job(service)
        assert (again.changed, len(again.unchanged), again.failed) == ((), 2, ())
        for name in report.changed:
            await service.remove(name)


async def _holds_more(service: SandboxService, name: str, size_bytes: int) -> bool:
    return (await memory(service, name))[0] > size_bytes


async def _pause_job(service: SandboxService) -> JobReport:
    async with state_of(service).change_job("rl", JobAction.PAUSE) as events:
        async for event in events:
            if isinstance(event, JobReport):
                return event
    raise AssertionError("no report came")


KILLED_AT = (20, 150, 300, 350, 400, 450, 500, 600, 1000)
"""Lines of the node's own code, from the first request of a pause on; the last ones are after it."""


async def test_a_node_killed_at_many_lines_of_a_pause_leaves_a_guest_that_is_whole(
    make_node: Callable[..., NodeProcess], state_dir: Path
) -> None:
    """One guest, and one node after another that dies at a line of its pause, the next some lines later."""
    first = make_node()
    async with first.service() as service:
        await create(service)
        process = (await service.start_process(BOX, HOLDER)).process_id
        await until(lambda: _holds(service))
    first.kill()
    node, found = NodeProcess(state_dir), set()
    try:
        for asked, lines in enumerate((*KILLED_AT, None), 1):
            assert node.start(die_after_lines=lines)
            async with node.service() as service:
                found.add((await service.inspect(BOX)).state)
                async with service.attach(BOX, process) as stream:
                    await stream.write(b"\n")
                    said = b""
                    while said.count(SUM) < asked:  # An attachment begins with what was said before.
                        said += await line(stream)
                if lines is None:
                    await service.remove(BOX)
                    break
                node.arm()
                await _pause_or_die(service)
            node.kill()
    finally:
        node.kill()
    assert found == {SandboxState.READY, SandboxState.PAUSED}
