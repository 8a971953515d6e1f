"""The crash tests find what they look for: nodes that are broken on purpose do not pass them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dsec.lifecycle.machine import Event
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest
from dsec.node import creation, ending, recovery, rollback
from dsec.node.core import Core
from dsec.node.node import Node
from dsec.node.recovery import Recovery
from dsec.node.sandbox import Sandbox
from dsec.node.state import forks
from dsec.runtimes.memory import MemoryInstance
from dsec.stores.port import SandboxRecord
from dsec.testing.crash_points import Case, check_every_step

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
BOX = "sbx-box"
CHILDREN = ("sbx-child1", "sbx-child2")


async def branched(node: Node) -> None:
    await node.create(SandboxSpec(), sandbox_id=BOX)
    await node.write_file(BOX, "f", b"one")
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.write_file(BOX, "f", b"two")


async def nothing(node: Node) -> None:
    return None


async def create(node: Node) -> None:
    await node.create(SandboxSpec(), sandbox_id=BOX)


async def checkpoint(node: Node) -> None:
    if not any(info.name == "two" for info in await node.state.list_checkpoints(BOX)):
        await node.state.checkpoint(BOX, CheckpointRequest(name="two"))


async def fork(node: Node) -> None:
    await node.state.fork(BOX, ForkRequest(count=2, sandbox_ids=CHILDREN))


CREATE = Case(name="create", prepare=nothing, act=create)
CHECKPOINT = Case(name="checkpoint", prepare=branched, act=checkpoint)
ROLLBACK = Case(name="rollback", prepare=branched, act=lambda node: node.rollback(BOX), repeats=False)
TO_ONE = Case(name="to-one", prepare=branched, act=lambda node: node.rollback(BOX, snapshot="one"), repeats=False)
FORK = Case(name="fork", prepare=branched, act=fork)
STOP = Case(name="stop", prepare=branched, act=lambda node: node.stop(BOX))
Break = Callable[[pytest.MonkeyPatch], None]


def an_effect_before_its_announcement(patch: pytest.MonkeyPatch) -> None:
    """A rollback ends the old generation, and tells of it only when the new one runs."""
    move = Core.move

    async def late(core: Core, sandbox: Sandbox, event: Event, **changes: Any) -> None:
        if event is Event.ROLLBACK_BEGAN:
            sandbox.record = msgspec.structs.replace(sandbox.record, state=SandboxState.ROLLING_BACK, **changes)
        else:
            await move(core, sandbox, event, **changes)

    patch.setattr(Core, "move", late)


def a_stop_that_is_not_announced(patch: pytest.MonkeyPatch) -> None:
    async def stop(core: Core, sandbox: Sandbox, cause: str) -> None:
        await ending.take_apart(core, sandbox, sandbox.unusable())
        await core.move(sandbox, Event.STOP_BEGAN, cause=cause)
        await core.move(sandbox, Event.STOPPED)

    patch.setattr(ending, "_stop", stop)


def a_record_before_its_effect(patch: pytest.MonkeyPatch) -> None:
    """A sandbox is recorded as ready before it is launched."""

    async def bring_up(core: Core, sandbox: Sandbox) -> None:
        await core.move(sandbox, Event.CREATE_BEGAN)
        core.parts.layers.create(sandbox.record.layer, quota_bytes=None)
        await core.move(sandbox, Event.CREATED)
        sandbox.generation = await core.launch(sandbox.record)

    patch.setattr(creation, "_bring_up", bring_up)


def what_nobody_claims_stays(patch: pytest.MonkeyPatch) -> None:
    async def keep(self: Recovery) -> None:
        return None

    patch.setattr(Recovery, "_discard_unclaimed", keep)


def a_removal_that_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The layer of the generation before a rollback is never discarded."""

    async def forget(core: Core, sandbox: Sandbox, old: SandboxRecord) -> None:
        sandbox.layers.discard(old.layer)

    patch.setattr(rollback, "_discard", forget)


def an_announcement_that_stays(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was cut off stays in the journal."""

    async def keep(self: Recovery, content: Any) -> None:
        for record in content.checkpoints:
            self._checkpoints[record.sandbox_id].append(record)

    patch.setattr(Recovery, "_read_checkpoints", keep)


def nobody_thaws(patch: pytest.MonkeyPatch) -> None:
    """A node that died while a sandbox stood still for its copy leaves it so."""
    adopt = Recovery._adopt

    async def stay(instance: MemoryInstance) -> None:
        return None

    async def without_thaw(self: Recovery, sandbox: Sandbox) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(MemoryInstance, "resume", stay)
            await adopt(self, sandbox)

    patch.setattr(Recovery, "_adopt", without_thaw)


def children_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """The children of a fork become ready each in a transaction of its own."""
    make = forks._make

    async def split(core: Core, children: list[Sandbox], point: Any) -> None:
        journal = core.parts.journal
        exchange = journal.exchange

        async def each(*records: SandboxRecord, **others: Any) -> None:
            for record in records:
                await exchange(record, **others)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(journal), "exchange", lambda self, *a, **k: each(*a, **k), raising=False)
            await make(core, children, point)

    patch.setattr(forks, "_make", split)


def a_checkpoint_that_is_lost_on_the_way(patch: pytest.MonkeyPatch) -> None:
    """A rollback that a kill cuts off forgets where it was to lead."""
    layer = recovery.make_layer

    def clean(core: Core, old: SandboxRecord, name: str) -> None:
        layer(core, msgspec.structs.replace(old, rollback_to=None), name)

    patch.setattr(recovery, "make_layer", clean)


def a_claim_that_is_not_taken_again(patch: pytest.MonkeyPatch) -> None:
    """After a restart nobody remembers that checkpoints are needed."""
    patch.setattr(Recovery, "_adopt_saved", lambda self, sandbox: None)


def a_parent_that_is_made_up(patch: pytest.MonkeyPatch) -> None:
    """The tree of checkpoints is not what was saved: each begins from the clean state after a restart."""
    adopt = Recovery._adopt_saved

    def flat(self: Recovery, sandbox: Sandbox) -> None:
        adopt(self, sandbox)
        for key, record in sandbox.checkpoints.items():
            sandbox.checkpoints[key] = msgspec.structs.replace(record, parent=None)

    patch.setattr(Recovery, "_adopt_saved", flat)


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (an_effect_before_its_announcement, ROLLBACK),
        (a_stop_that_is_not_announced, STOP),
        (a_record_before_its_effect, CREATE),
        (what_nobody_claims_stays, CREATE),
        (what_nobody_claims_stays, CHECKPOINT),
        (what_nobody_claims_stays, FORK),
        (a_removal_that_is_forgotten, ROLLBACK),
        (an_announcement_that_stays, CHECKPOINT),
        (nobody_thaws, CHECKPOINT),
        (nobody_thaws, FORK),
        (children_one_by_one, FORK),
        (a_checkpoint_that_is_lost_on_the_way, TO_ONE),
        (a_claim_that_is_not_taken_again, CHECKPOINT),
        (a_parent_that_is_made_up, CHECKPOINT),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else value.__name__,
)
async def test_a_node_that_is_broken_on_purpose_is_found_out(
    broken: Break, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        await check_every_step(case)


@pytest.mark.parametrize("case", [CREATE, CHECKPOINT, ROLLBACK, TO_ONE, FORK, STOP], ids=lambda case: case.name)
async def test_one_that_is_not_broken_passes(case: Case) -> None:
    assert await check_every_step(case) >= 2
