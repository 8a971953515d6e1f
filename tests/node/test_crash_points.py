"""A node is killed at every step of every operation: what it had to keep is there, and nothing is left."""

from __future__ import annotations

import pytest

from dsec.base.errors import AlreadyExistsError
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import CheckpointRequest, ForkRequest
from dsec.node.node import Node
from dsec.testing.crash_points import Case, check_every_step

pytestmark = pytest.mark.anyio
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


CASES = [
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
