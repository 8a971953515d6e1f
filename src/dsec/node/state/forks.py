"""Forks: n children of a sandbox at once, all or none.

Order: the ids, the ranges of host ids and the node's admission are taken for all children before anything is waited
for. The parent stands still for the moment in which its layer is copied to a hidden fork point, or a checkpoint serves
as one. One transaction of the journal announces all children (`creating`); their layers are branches of the fork point
and their instances are launched side by side; one transaction makes all of them `ready`. So after an error, a
cancellation, a stop of one of them or a `kill -9` at any instruction all children exist or none.

The fork point stays for as long as a child lives: it is what a child's rollback to its clean state leads to.

The ids of the children are idempotency keys, as in a creation: who asks again with them is given the same children, and
who asks meanwhile waits for the outcome.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import (
    AlreadyExistsError,
    DsecError,
    InvalidRequestError,
    InvalidStateError,
    LimitExceededError,
    SandboxExitedError,
)
from dsec.base.ids import check_sandbox_id, new_sandbox_id
from dsec.lifecycle.machine import Event, next_state
from dsec.model.capability import Capability
from dsec.model.event import EventKind
from dsec.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from dsec.model.state import ForkRequest
from dsec.node.core import Core, shielded
from dsec.node.creation import undo
from dsec.node.ending import watch
from dsec.node.lifetimes import Lifetimes
from dsec.node.sandbox import Generation, Sandbox, instance_name
from dsec.node.state import checkpoints, hooks
from dsec.node.state.identity import MACHINE_ID_FILE, child_spec, new_machine_id
from dsec.node.state.saved_layers import frozen_name
from dsec.node.validation import check_seed, check_spec, require_capability
from dsec.stores.port import SandboxRecord

_AT_ONCE = 4 * (os.cpu_count() or 1)
"""Children that are made side by side; the runtime has its own, lower bound for the launches among them."""
_UNSETTLED = frozenset({SandboxState.PENDING, SandboxState.CREATING})
_LIVE = frozenset({SandboxState.READY, SandboxState.PAUSED, SandboxState.ROLLING_BACK, SandboxState.MIGRATING})


@dataclass(frozen=True, slots=True)
class _Plan:
    """Children that are asked for: the spec as a creation would be asked for it, and the one that is enforced."""

    sandbox_id: str
    requested: SandboxSpec
    spec: SandboxSpec


@dataclass(frozen=True, slots=True)
class _Point:
    """Where children begin."""

    layer: str
    checkpoint_id: str


async def fork(core: Core, lifetimes: Lifetimes, parent: Sandbox, request: ForkRequest) -> Sequence[SandboxInfo]:
    """Make children of a sandbox and return them in the order of their numbers.

    Raises:
        SnapshotNotFoundError: there is no such checkpoint.
        AlreadyExistsError: a given id is that of something else.
        NodeUnavailableError, HostDiskFullError, HostOutOfMemoryError: the node does not take that many.
        HookFailedError: a hook of the image failed, in the parent (which goes on) or in a child.
        SandboxExitedError: a child was stopped meanwhile.
    """
    require_capability(Capability.CHECKPOINT, "a fork", core.reports)
    _check(core, request)
    origin = None if request.checkpoint is None else checkpoints.find(core, parent, request.checkpoint).checkpoint_id
    plans = _plans(core, parent, request)
    while any(_was_made(core, plan) for plan in plans):
        busy = [child for plan in plans if (child := core.registry.get(plan.sandbox_id)) is not None]
        unsettled = next((child for child in busy if child.state in _UNSETTLED), None)
        if unsettled is None:
            return _existing(core, parent, plans, origin)
        await unsettled.settled.wait()
    children = _reserve(core, parent, plans)
    await _make_or_undo(core, parent, children, origin)
    for child in children:
        lifetimes.watch(child)
        watch(core, child)
    return [core.info(child) for child in children]


def _check(core: Core, request: ForkRequest) -> None:
    most = core.settings.maximum_fork
    if request.count < 1:
        raise InvalidRequestError(f"count is {request.count}; it must be at least 1")
    if request.count > most:
        raise LimitExceededError(f"count is {request.count}; at most {most} are allowed", resolution="fork in parts")
    for name, given in (("sandbox_ids", request.sandbox_ids), ("seeds", request.seeds)):
        if given and len(given) != request.count:
            raise InvalidRequestError(f"{name} holds {len(given)} values for {request.count} children")
    if len(set(request.sandbox_ids)) != len(request.sandbox_ids):
        raise InvalidRequestError("sandbox_ids names a child twice")
    for seed in request.seeds:
        check_seed(seed)
    for sandbox_id in request.sandbox_ids:
        if core.registry.moved_to(check_sandbox_id(sandbox_id)) is None:  # A child that went on is a child still.
            core.registry.check_own(sandbox_id)


def _was_made(core: Core, plan: _Plan) -> bool:
    return core.registry.get(plan.sandbox_id) is not None or core.registry.moved_to(plan.sandbox_id) is not None


def _plans(core: Core, parent: Sandbox, request: ForkRequest) -> list[_Plan]:
    record = parent.record
    ids = request.sandbox_ids or tuple(
        new_sandbox_id(core.parts.node_id, core.parts.random_bytes) for _ in range(request.count)
    )
    plans = [
        _Plan(
            sandbox_id,
            child_spec(record.requested, request, number, hostname=None),
            child_spec(record.spec, request, number, hostname=sandbox_id),
        )
        for number, sandbox_id in enumerate(ids, 1)
    ]
    check_spec(plans[0].requested)  # They differ in their seeds alone.
    return plans


def _existing(core: Core, parent: Sandbox, plans: list[_Plan], origin: str | None) -> list[SandboxInfo]:
    """Return the children that an equal request made."""
    found: list[SandboxInfo] = []
    for plan in plans:
        child = core.registry.get(plan.sandbox_id)
        if child is None and (place := core.registry.moved_to(plan.sandbox_id)) is not None:
            found.append(_elsewhere(parent, plan, place.node))
            continue
        if child is None:
            raise AlreadyExistsError(
                f"{plan.sandbox_id} does not exist, but other children of this request do",
                resolution="choose other ids, or remove the others first",
            )
        made_from = (child.record.parent, child.record.forked_from, child.record.requested)
        if made_from != (parent.sandbox_id, origin or "", plan.requested):
            raise AlreadyExistsError(
                f"{plan.sandbox_id} exists and is no child of this fork", resolution="choose other ids"
            )
        if child.state not in _LIVE:
            raise InvalidStateError(
                f"{plan.sandbox_id} was forked before and is {child.state.value}",
                detail=child.record.cause,
                resolution="choose other ids, or remove it first",
            )
        found.append(core.info(child))
    return found


def _elsewhere(parent: Sandbox, plan: _Plan, node: str) -> SandboxInfo:
    """What is known here of a child that was moved to another node: its own node knows better."""
    return SandboxInfo(
        sandbox_id=plan.sandbox_id,
        state=SandboxState.READY,
        spec=plan.spec,
        created_at_s=parent.record.created_wall_s,
        node=node,
        parent=parent.sandbox_id,
    )


def _reserve(core: Core, parent: Sandbox, plans: list[_Plan]) -> list[Sandbox]:
    """Take ids, slots and admission for all children. Nothing is awaited here."""
    parent.running()
    core.admit(count=len(plans))
    checkpoints.check_room(core)
    slots: list[int] = []
    try:
        for _ in plans:
            slots.append(core.slots.take())
    except DsecError:
        for slot in slots:
            core.slots.release(slot)
        raise
    children = [
        Sandbox(_record(core, parent.record, plan, slot), core.now_boot_s())
        for plan, slot in zip(plans, slots, strict=True)
    ]
    for child in children:
        core.registry.add(child)
        child.transition.acquire_nowait()
    return children


def _record(core: Core, parent: SandboxRecord, plan: _Plan, slot: int) -> SandboxRecord:
    maximum_s = plan.spec.lifetime.maximum_s
    return SandboxRecord(
        sandbox_id=plan.sandbox_id,
        state=SandboxState.PENDING,
        requested=plan.requested,
        spec=plan.spec,
        image_config=parent.image_config,
        layer_paths=parent.layer_paths,
        slot=slot,
        layer=instance_name(plan.sandbox_id, 0),
        created_wall_s=core.parts.clock.wall_s(),
        boot_id=core.parts.boot_id,
        deadline_boot_s=None if maximum_s is None else core.now_boot_s() + maximum_s,
        parent=parent.sandbox_id,
        snapshot=parent.snapshot,
    )


async def _make_or_undo(core: Core, parent: Sandbox, children: list[Sandbox], origin: str | None) -> None:
    made = False
    try:
        with anyio.CancelScope() as scope:
            for child in children:
                child.transition_scope = scope
            async with _fork_point(core, parent, origin) as point:
                await _make(core, children, point)
            made = True
        if not made:
            raise SandboxExitedError(f"a child of {parent.sandbox_id} was stopped while it was forked")
    finally:
        for child in children:
            child.transition_scope = None
        try:
            if not made:
                await _undo_all(core, children)
        finally:
            for child in children:
                child.transition.release()
                child.settled.set()


async def _undo_all(core: Core, children: list[Sandbox]) -> None:
    """Undo every child, although one of them resists."""
    errors: list[DsecError] = []
    for child in children:
        try:
            with shielded(core.settings.end_timeout_s, f"undoing {child.sandbox_id}"):
                await undo(core, child)
        except DsecError as error:
            errors.append(error)
    if errors:
        raise errors[0]


@asynccontextmanager
async def _fork_point(core: Core, parent: Sandbox, origin: str | None) -> AsyncIterator[_Point]:
    """Freeze the parent's files as they are, or take a checkpoint; keep either while the block runs."""
    if origin is not None:
        layer = checkpoints.find(core, parent, origin).layer
        with core.saved.held(layer):
            yield _Point(layer, origin)
        return
    layer = frozen_name(parent.sandbox_id, core.parts.random_bytes)
    with core.saved.held(layer):
        async with parent.transition:
            parent.running()
            if hooks.has_export(parent):
                await hooks.export_state(core, parent, layer)
            await checkpoints.freeze_copy(core, parent, layer)
        yield _Point(layer, "")


async def _make(core: Core, children: list[Sandbox], point: _Point) -> None:
    for child in children:
        child.record = msgspec.structs.replace(
            child.record,
            state=next_state(child.state, Event.CREATE_BEGAN, sandbox_id=child.sandbox_id),
            origin=point.layer,
            forked_from=point.checkpoint_id,
        )
        core.saved.claim(point.layer)
        child.holds_origin = True
    began_s = core.now_boot_s()
    await core.parts.journal.exchange(*(child.record for child in children))
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    await _side_by_side([partial(_bring_up, core, child, limiter) for child in children])
    with shielded(core.settings.end_timeout_s, "recording the children of a fork"):
        ready = [msgspec.structs.replace(child.record, state=SandboxState.READY) for child in children]
        await core.parts.journal.exchange(*ready)
        for child, record in zip(children, ready, strict=True):
            child.record = record
            duration_s = core.now_boot_s() - began_s
            core.recorder.add(EventKind.CREATED, sandbox_id=child.sandbox_id, duration_s=duration_s)


async def _side_by_side(works: list[Callable[[], Awaitable[None]]]) -> None:
    """Do all, or end all with the first error."""
    errors: list[DsecError] = []

    async def one(work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except DsecError as error:
            errors.append(error)
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for work in works:
                group.start_soon(one, work)
    except BaseExceptionGroup as several:
        # What is no error of ours ended all of them, and goes on as it was raised.
        raise several.exceptions[0] from None
    if errors:
        raise errors[0]


async def _bring_up(core: Core, child: Sandbox, limiter: anyio.CapacityLimiter) -> None:
    record = child.record
    async with limiter:
        await anyio.to_thread.run_sync(_branch, core, record)
        child.generation = await core.launch(record)
        await renew_machine_id(core, child.generation)
        await hooks.import_state(core, record, child.generation, record.origin)


def _branch(core: Core, record: SandboxRecord) -> None:
    core.parts.layers.branch(record.origin, record.layer, quota_bytes=record.spec.resources.disk_bytes)


async def renew_machine_id(core: Core, generation: Generation) -> None:
    """Give a child a machine id of its own where its files have one. A link is left alone: what it means is the
    guest's affair, and whatever it leads to is not what programs call the machine id."""
    content = new_machine_id(core.parts.random_bytes)
    await generation.instance.files.put(MACHINE_ID_FILE, content, permissions=0o444, only_over_file=True)
