"""What guests and callers do to saved state at the worst moment, on real btrfs and real processes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    DsecError,
    HookFailedError,
    NodeUnavailableError,
    SandboxDiskFullError,
    SandboxExitedError,
    SandboxNotFoundError,
)
from dsec.base.units import MIB
from dsec.model.image import ImageConfig, StateHooks
from dsec.model.pool import PoolChange
from dsec.model.process import CommandRequest
from dsec.model.sandbox import DiskFullAction, Resources, SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, RestoreRequest, SnapshotRequest
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.leaks import Leaks

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]
HOME = "/home/user"
SPEC = SandboxSpec(
    image="guest", workdir=HOME, resources=Resources(memory_bytes=128 * MIB, disk_bytes=64 * MIB, pids=64)
)
PATIENCE_S = 60.0
FILES = 10_000
GUST = 3000
# It waits for a word after each gust, so that a host that is slow to save does not find all of it done.
STORM = f"""for (my $i = 1; $i <= {FILES}; $i++) {{
    if ($i > 1 and $i % {GUST} == 1) {{ select(undef, undef, undef, 0.001) until -e "go$i"; }}
    open(my $f, '>', "s/$i") or die; print $f "$i\\n" x 20; close $f; }}"""
COUNT = r"""opendir(my $d, "s") or die; my @n = sort { $a <=> $b } grep { /^\d+$/ } readdir $d; my @l;
for my $i (@n[-3, -2]) { open(my $f, '<', "s/$i") or die; my @x = <$f>; push @l, scalar @x; }
print "$n[-1] ", scalar @n, " @l\n";"""


@asynccontextmanager
async def node_of(state_dir: Path, **settings: int) -> AsyncIterator[Node]:
    """A node that has nothing any more when the block ends."""
    async with open_node(msgspec.structs.replace(NodeSettings(state_dir=str(state_dir)), **settings)) as node:
        yield node
        await node.shutdown(destroy=True)
        await nothing_is_left(state_dir)


async def nothing_is_left(state_dir: Path) -> None:
    ends_at = anyio.current_time() + PATIENCE_S
    while left := Leaks.read(state_dir).described():
        assert anyio.current_time() < ends_at, left
        await anyio.sleep(0.02)


async def sh(node: Node, sandbox_id: str, script: str) -> str:
    result = await node.run(sandbox_id, CommandRequest(argv=("sh", "-c", script)))
    assert result.status.exit_code == 0, result
    return result.stdout.decode()


async def outcome(call: Callable[[], Awaitable[object]], results: list[object]) -> None:
    """Make a call and note what came of it."""
    try:
        results.append(await call())
    except DsecError as error:
        results.append(error)


async def count(node: Node, box: str) -> list[int]:
    """The highest number among the files, how many there are, and the lines of the two before the last."""
    result = await node.run(box, CommandRequest(argv=("perl", "-e", COUNT)))
    assert result.status.exit_code == 0, result
    return [int(word) for word in result.stdout.split()]


async def test_a_checkpoint_in_a_storm_of_10000_new_files_has_a_beginning_of_it_without_gaps(state_dir: Path) -> None:
    async with node_of(state_dir) as node:
        box = (await node.create(SPEC)).sandbox_id
        await sh(node, box, "mkdir s")
        storm = await node.start_process(box, CommandRequest(argv=("perl", "-e", STORM), timeout_s=None))
        points: list[str] = []
        while len(points) < 3:
            await sh(node, box, f"until [ -e s/{len(points) * GUST + 10} ]; do sleep 0.002; done")
            points.append((await node.state.checkpoint(box)).checkpoint_id)
            await sh(node, box, f"touch go{len(points) * GUST + 1}")
        assert (await node.wait_process(box, storm.process_id)).status.exit_code == 0
        assert await count(node, box) == [FILES, FILES, 20, 20]
        before = 0
        for point in points:
            await node.rollback(box, snapshot=point)
            newest, number, *lines = await count(node, box)
            # The last may be on its way; all before it are there, and whole.
            assert newest == number > before
            assert lines == [20, 20]
            before = newest


async def test_many_restores_at_once_of_which_some_fail_leave_no_orphans(state_dir: Path) -> None:
    async with node_of(state_dir, maximum_sandboxes=6) as node:
        box = (await node.create(SPEC)).sandbox_id
        await node.write_file(box, "f", b"saved" * 10_000)
        saved = (await node.state.snapshot(box, SnapshotRequest(name="s"))).snapshot_id
        results: list[object] = []
        # Nine with ids of their own for five places, and three who ask for the same one.
        ids = [*(f"sbx-r{number}" for number in range(9)), "sbx-same", "sbx-same", "sbx-same"]
        async with anyio.create_task_group() as group:
            for sandbox_id in ids:
                request = RestoreRequest(sandbox_id=sandbox_id)
                group.start_soon(outcome, lambda request=request: node.state.restore(saved, request), results)
        made = {info.sandbox_id for info in await node.list()} - {box}
        told = {each.sandbox_id for each in results if not isinstance(each, DsecError)}  # type: ignore[attr-defined]
        assert made == told
        assert 1 <= len(made) <= 5
        assert all(isinstance(each, NodeUnavailableError) for each in results if isinstance(each, DsecError)), results
        for name in made:
            assert b"".join([chunk async for chunk in node.read_file(name, "f")]) == b"saved" * 10_000
        running = {name.rsplit("-g", 1)[0] for name in Leaks.read(state_dir).run_entries}
        assert running == made | {box}


async def test_ends_in_the_middle_of_forks_and_checkpoints_leave_all_or_nothing(state_dir: Path) -> None:
    chance = random.Random(7)
    async with node_of(state_dir) as node:
        for number in range(6):
            box = f"sbx-p{number}"
            children = [f"sbx-c{number}x{index}" for index in range(3)]
            await node.create(SPEC, sandbox_id=box)
            await node.state.checkpoint(box, CheckpointRequest(name="one"))
            request = ForkRequest(count=3, sandbox_ids=tuple(children), checkpoint=chance.choice([None, "one"]))
            victim = chance.choice([box, children[1]])
            wait_s = chance.uniform(0.0, 0.12)
            results: list[object] = []
            removed: list[object] = []

            async def end(victim: str = victim, wait_s: float = wait_s, removed: list[object] = removed) -> None:
                await anyio.sleep(wait_s)
                try:
                    await node.remove(victim)
                    removed.append(victim)
                except SandboxNotFoundError:
                    pass  # It is not there yet.

            async with anyio.create_task_group() as group:
                group.start_soon(outcome, lambda b=box, r=request: node.state.fork(b, r), results)
                group.start_soon(outcome, lambda b=box: node.state.checkpoint(b), [])
                group.start_soon(end)
            there = {info.sandbox_id for info in await node.list()}
            expected = set() if isinstance(results[0], DsecError) else set(children) - set(removed)
            assert there & set(children) == expected, results
            for name in there:
                await node.remove(name)


async def test_pausing_and_resuming_twice_is_doing_it_once_and_a_stream_goes_on(state_dir: Path) -> None:
    async with node_of(state_dir, swap_bytes=64 * MIB) as node:
        box = (await node.create(SPEC)).sandbox_id
        request = CommandRequest(
            argv=("sh", "-c", "i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.01; done")
        )
        async with node.stream(box, request) as stream:
            await anext(stream)
            for _ in range(2):
                assert (await node.pause(box)).state is SandboxState.PAUSED
            for _ in range(2):
                assert (await node.resume(box)).state is SandboxState.READY
            events = [event async for event in stream]
        heard = b"".join(getattr(event, "data", b"") for event in events).split()
        assert heard[-1] == b"39"
        await node.pause(box)
        await node.remove(box)


async def hooked(node: Node, image: str, timeout_s: float) -> str:
    """Make a sandbox whose own files are its hooks, of an image that gives them so long."""
    hooks = StateHooks(
        export_state=("sh", "./export"), import_state=("sh", "./import"), timeout_s=timeout_s, maximum_bytes=MIB
    )
    images = node._core.parts.images
    layers = [layer.digest for layer in images.get("guest").layers]
    images.add_image(image, layers, ImageConfig(hooks=hooks, workdir=HOME), source="test")
    return (await node.create(msgspec.structs.replace(SPEC, image=image))).sandbox_id


async def test_hooks_that_hang_fail_or_write_gigabytes_cost_the_operation_and_nothing_else(state_dir: Path) -> None:
    """The sandbox's own files say what its hooks do."""
    async with node_of(state_dir) as node:
        # One waits as long as a loaded host may need, and the other for what never ends.
        patient, hasty = await hooked(node, "patient", timeout_s=60.0), await hooked(node, "hasty", timeout_s=0.6)
        for box in (patient, hasty):
            await sh(node, box, "echo 'echo state' > export; echo 'cat > imported' > import")
        good = await node.state.checkpoint(patient, CheckpointRequest(name="good"))
        assert good.exported_bytes == len("state\n")
        for box, export, why in (
            (hasty, "exec sleep 1000", "did not end"),
            (hasty, "sleep 1000 & exec sleep 1000", "did not end"),
            (patient, "exit 3", "status 3"),
            (patient, "exec cat /dev/zero", "wrote more"),
            (patient, "kill -9 $$", "137|9"),
        ):
            await node.write_file(box, "export", export.encode())
            with pytest.raises(HookFailedError, match=why):
                await node.state.checkpoint(box)
            with pytest.raises(HookFailedError, match=why):
                await node.state.fork(box, ForkRequest(count=2))
            assert [info.name for info in await node.state.list_checkpoints(patient)] == ["good"]
            assert not await node.state.list_checkpoints(hasty)
            assert (await sh(node, box, "echo alive")) == "alive\n"
        assert not [process for process in Leaks.read(state_dir).processes if "sleep 1000" in process]
        assert len(await node.list()) == 2
        await node.rollback(patient, snapshot="good")
        assert (await sh(node, patient, "cat imported")) == "state\n"
        await node.write_file(hasty, "import", b"exec sleep 1000")
        await node.state.checkpoint(hasty, CheckpointRequest(name="bad", hooks=False))
        await node.write_file(hasty, "export", b"echo state")
        with pytest.raises(HookFailedError, match="did not end"):
            await node.state.fork(hasty, ForkRequest(count=2))
        assert len(await node.list()) == 2
        for image in ("patient", "hasty"):
            node._core.parts.images.remove(image)


@pytest.mark.parametrize("action", list(DiskFullAction), ids=lambda action: action.value)
async def test_a_full_writable_layer_is_an_error_or_a_forced_rollback_as_asked(
    state_dir: Path, action: DiskFullAction
) -> None:
    resources = msgspec.structs.replace(SPEC.resources, disk_bytes=8 * MIB)
    spec = msgspec.structs.replace(SPEC, resources=resources, on_disk_full=action)
    async with node_of(state_dir) as node:
        box = (await node.create(spec)).sandbox_id
        await node.write_file(box, "kept", b"x")
        results: list[object] = []
        waiting = "touch begun; sleep 1; echo on" if action is DiskFullAction.ERROR else "touch begun; sleep 1000"
        async with anyio.create_task_group() as group:
            # A program inside that meets the quota, and one that waits meanwhile.
            group.start_soon(
                outcome, lambda: node.run(box, CommandRequest(argv=("sh", "-c", waiting), timeout_s=None)), results
            )
            await sh(node, box, "until [ -e begun ]; do sleep 0.01; done")
            await sh(node, box, "cat /dev/zero > filler; true") if action is DiskFullAction.ERROR else None
            if action is DiskFullAction.ROLLBACK:
                with pytest.raises((SandboxDiskFullError, SandboxExitedError)):
                    await sh(node, box, "cat /dev/zero > filler; sleep 1000")
        if action is DiskFullAction.ERROR:
            assert getattr(results[0], "stdout", None) == b"on\n"
            assert (await node.inspect(box)).generation == 0
            await sh(node, box, "rm filler; sync; echo again > more")
        else:
            assert isinstance(results[0], SandboxDiskFullError)
            assert (await sh(node, box, "echo fresh")) == "fresh\n"
            info = await node.inspect(box)
            assert (info.generation, info.state) == (1, SandboxState.READY)
            assert "reached its quota" in info.cause
            assert not await node.list_files(box, HOME)


async def test_a_fork_of_a_sandbox_from_a_pool_is_a_sandbox_of_its_own(state_dir: Path) -> None:
    async with node_of(state_dir) as node:
        await node.pools.set_pool(SPEC, PoolChange(floor=1, maximum=2, spreads=0.0, concurrency_share=0.0))
        box = (await node.create(SPEC)).sandbox_id
        await node.write_file(box, "f", b"parent")
        (child,) = await node.state.fork(box)
        await node.remove(box)
        assert b"".join([chunk async for chunk in node.read_file(child.sandbox_id, "f")]) == b"parent"
        await node.write_file(child.sandbox_id, "f", b"child")
        await node.rollback(child.sandbox_id)
        assert b"".join([chunk async for chunk in node.read_file(child.sandbox_id, "f")]) == b"parent"
        other = (await node.create(SPEC)).sandbox_id
        assert not await node.list_files(other, HOME)
        await node.remove(child.sandbox_id)
