"""A node is killed at every step of every operation: what it had to keep is there, and nothing is left."""

from __future__ import annotations

import pytest

from dsec.base.errors import AlreadyExistsError
from dsec.images.memory import MemoryImages
from dsec.model.image import ImageConfig, StateHooks
from dsec.model.pool import PoolChange
from dsec.model.process import CommandRequest, ProcessState
from dsec.model.sandbox import DiskFullAction, Resources, SandboxSpec
from dsec.model.state import (
    CheckpointRequest,
    ForkRequest,
    JobAction,
    JobReport,
    PackRequest,
    RestoreRequest,
    SnapshotRequest,
)
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.crash_points import Action, Case, check_every_step, settle
from dsec.testing.memory_node import MemoryHost

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
BOX = "sbx-box"
CHILDREN = ("sbx-child1", "sbx-child2")


async def nothing(node: Node) -> None:
    return None


async def create(node: Node) -> None:
    await node.create(SandboxSpec(seed=7), sandbox_id=BOX)


async def branched(node: Node) -> None:
    """A neighbour, and a sandbox with two checkpoints, one upon the other, and a file written since."""
    await node.create(SandboxSpec(), sandbox_id="sbx-neighbour")
    await node.write_file("sbx-neighbour", "f", b"neighbour")
    await create(node)
    await node.write_file(BOX, "f", b"one")
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.write_file(BOX, "f", b"two")
    await node.state.checkpoint(BOX, CheckpointRequest(name="two"))
    await node.write_file(BOX, "f", b"three")


async def paused(node: Node) -> None:
    await branched(node)
    await node.pause(BOX)


async def stopped(node: Node) -> None:
    await branched(node)
    await node.stop(BOX)


async def checkpoint(node: Node) -> None:
    try:
        await node.state.checkpoint(BOX, CheckpointRequest(name="three"))
    except AlreadyExistsError:
        # A caller who does not know whether it happened asks by name.
        names = [info.name for info in await node.state.list_checkpoints(BOX)]
        assert names.count("three") == 1


async def rollback(node: Node) -> None:
    await node.rollback(BOX)


async def rollback_to_one(node: Node) -> None:
    await node.rollback(BOX, snapshot="one")


async def remove_checkpoint(node: Node) -> None:
    if any(info.name == "one" for info in await node.state.list_checkpoints(BOX)):
        await node.state.remove_checkpoint(BOX, "one")


async def fork(node: Node) -> None:
    await node.state.fork(BOX, ForkRequest(count=2, sandbox_ids=CHILDREN))


async def fork_from_one(node: Node) -> None:
    await node.state.fork(BOX, ForkRequest(count=2, checkpoint="one", sandbox_ids=CHILDREN))


async def pause(node: Node) -> None:
    await node.pause(BOX)


async def resume(node: Node) -> None:
    await node.resume(BOX)


async def stop(node: Node) -> None:
    await node.stop(BOX)


async def remove(node: Node) -> None:
    await node.remove(BOX)


# -- what hooks carry, what runs, and what a pool has ---------------------------------------------------------------

IMPATIENT = NodeSettings(runtime="memory", end_timeout_s=1.0, rollback_timeout_s=1.0)
"""A node that is dead still waits for what it had begun, as no real one can."""


def impatient() -> MemoryHost:
    return MemoryHost(settings=IMPATIENT)


def hooked() -> MemoryHost:
    """A host whose image carries the state of its processes."""
    hooks = StateHooks(export_state=("cat", "f"), import_state=("sh", "-c", "cat > imported"))
    images = MemoryImages()
    base = images.get("python")
    images.add_image("hooked", [layer.digest for layer in base.layers], ImageConfig(hooks=hooks), source="test")
    return MemoryHost(images=images, settings=IMPATIENT)


async def branched_with_hooks(node: Node) -> None:
    await node.create(SandboxSpec(image="hooked", workdir="/home/user"), sandbox_id=BOX)
    await node.write_file(BOX, "f", b"one")
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.write_file(BOX, "f", b"two")


SLEEPS = CommandRequest(argv=("sleep", "600"), timeout_s=None)


async def busy(node: Node) -> None:
    """One process that runs, and one that has ended."""
    await branched(node)
    await node.start_process(BOX, SLEEPS)
    ended = await node.start_process(BOX, CommandRequest(argv=("true",), timeout_s=None))
    await node.wait_process(BOX, ended.process_id)


async def start_process(node: Node) -> None:
    await node.start_process(BOX, CommandRequest(argv=("sleep", "601"), timeout_s=None))


async def end_processes(node: Node) -> None:
    await node.end_processes(BOX)


async def kill_process(node: Node) -> None:
    for info in await node.list_processes(BOX):
        if info.state is ProcessState.RUNNING:
            await node.signal_process(BOX, info.process_id, 9)
            await node.wait_process(BOX, info.process_id)


POOL = PoolChange(floor=1, maximum=2, spreads=0.0, concurrency_share=0.0)


async def from_a_pool(node: Node) -> None:
    await node.pools.set_pool(SandboxSpec(), POOL)
    await settle()
    await create(node)
    await node.write_file(BOX, "f", b"mine")
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.start_process(BOX, SLEEPS)


async def be_the_next_tenant(node: Node) -> None:
    """Whoever comes next is served, and sees nothing of who was there before."""
    await node.create(SandboxSpec(), sandbox_id="sbx-next")
    assert not await node.list_files("sbx-next", "/home/user")
    assert not await node.list_processes("sbx-next")
    await node.remove("sbx-next")


JOB = {"job": "train"}


async def a_job(node: Node) -> None:
    for name in CHILDREN:
        await node.create(SandboxSpec(metadata=JOB), sandbox_id=name)


def change_job(action: JobAction) -> Action:
    async def act(node: Node) -> None:
        async with node.state.change_job("train", action) as events:
            async for event in events:
                assert not (isinstance(event, JobReport) and event.failed), event

    return act


def pause_one(name: str) -> Action:
    async def act(node: Node) -> None:
        await node.pause(name)

    return act


def resume_one(name: str) -> Action:
    async def act(node: Node) -> None:
        await node.resume(name)

    return act


async def a_paused_job(node: Node) -> None:
    await a_job(node)
    await change_job(JobAction.PAUSE)(node)


QUOTA = 65_536


async def full(node: Node) -> None:
    """A sandbox that asked to be rolled back when it is full, and is; with a checkpoint of when it was not."""
    spec = SandboxSpec(resources=Resources(disk_bytes=QUOTA), on_disk_full=DiskFullAction.ROLLBACK)
    await node.create(spec, sandbox_id=BOX)
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.write_file(BOX, "f", bytes(QUOTA - 100))


async def look_at_full_disks(node: Node) -> None:
    await node._disk_full.look()


# -- what is durable ------------------------------------------------------------------------------------------------


async def snapshot(node: Node) -> None:
    await node.state.snapshot(BOX, SnapshotRequest(name="kept"))


async def snapshot_without_a_base(node: Node) -> None:
    """It is durable, and the node died before it noted so: the next one has another base."""
    await snapshot(node)
    for info in await node.state.list_checkpoints(BOX):
        if not info.name:
            await node.state.remove_checkpoint(BOX, info.checkpoint_id)


async def snapshot_of_one(node: Node) -> None:
    if not any(info.name == "kept" for info in await node.state.list_snapshots()):
        await node.state.snapshot(BOX, SnapshotRequest(name="kept", checkpoint="one"))


async def saved(node: Node) -> None:
    await branched(node)
    await snapshot_of_one(node)


async def restore(node: Node) -> None:
    await node.state.restore("kept", RestoreRequest(sandbox_id=CHILDREN[0]))


async def remove_snapshot(node: Node) -> None:
    for info in await node.state.list_snapshots():
        await node.state.remove_snapshot(info.snapshot_id)


async def pack(node: Node) -> None:
    try:
        await node.state.pack(BOX, PackRequest(name="packed"))
    except AlreadyExistsError:
        pass


CASES = [
    Case(name="snapshot", prepare=branched, act=snapshot, between=(snapshot_without_a_base,), repeats=False),
    Case(name="snapshot-of-checkpoint", prepare=branched, act=snapshot_of_one),
    Case(name="restore", prepare=saved, act=restore),
    Case(name="remove-snapshot", prepare=saved, act=remove_snapshot),
    Case(name="pack", prepare=branched, act=pack),
    Case(name="checkpoint-with-hooks", host=hooked, prepare=branched_with_hooks, act=checkpoint),
    Case(name="rollback-with-hooks", host=hooked, prepare=branched_with_hooks, act=rollback_to_one, repeats=False),
    Case(name="fork-with-hooks", host=hooked, prepare=branched_with_hooks, act=fork),
    Case(name="start-process", prepare=branched, act=start_process, repeats=False),
    Case(name="end-processes", prepare=busy, act=end_processes),
    Case(name="kill-process", host=impatient, prepare=busy, act=kill_process),
    Case(name="checkpoint-busy", prepare=busy, act=checkpoint),
    Case(name="rollback-busy", prepare=busy, act=rollback, repeats=False),
    Case(name="stop-busy", prepare=busy, act=stop),
    Case(name="recycle", prepare=from_a_pool, act=stop, probe=be_the_next_tenant),
    Case(
        name="recycle-and-forget",
        prepare=from_a_pool,
        act=remove,
        between=(stop,),
        repeats=False,
        probe=be_the_next_tenant,
    ),
    Case(
        name="pause-job",
        prepare=a_job,
        act=change_job(JobAction.PAUSE),
        between=tuple(map(pause_one, CHILDREN)),
    ),
    Case(
        name="resume-job",
        prepare=a_paused_job,
        act=change_job(JobAction.RESUME),
        between=tuple(map(resume_one, CHILDREN)),
    ),
    Case(name="rollback-of-a-full-disk", prepare=full, act=look_at_full_disks),
    Case(name="create", prepare=nothing, act=create),
    Case(name="checkpoint", prepare=branched, act=checkpoint),
    Case(name="checkpoint-paused", prepare=paused, act=checkpoint),
    Case(name="rollback", prepare=branched, act=rollback, repeats=False),
    Case(name="rollback-paused", prepare=paused, act=rollback, between=(resume,), repeats=False),
    Case(name="rollback-to-checkpoint", prepare=branched, act=rollback_to_one, repeats=False),
    Case(name="remove-checkpoint", prepare=branched, act=remove_checkpoint),
    Case(name="fork", prepare=branched, act=fork),
    Case(name="fork-paused", prepare=paused, act=fork),
    Case(name="fork-from-checkpoint", prepare=branched, act=fork_from_one),
    Case(name="pause", prepare=branched, act=pause),
    Case(name="resume", prepare=paused, act=resume),
    Case(name="stop", prepare=branched, act=stop),
    Case(name="remove", prepare=branched, act=remove, between=(stop,), repeats=False),
    Case(name="remove-stopped", prepare=stopped, act=remove),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_node_killed_at_any_step_leaves_the_sandbox_as_before_or_as_asked(case: Case) -> None:
    steps = await check_every_step(case)
    assert steps >= 2, "the ports were not watched"
