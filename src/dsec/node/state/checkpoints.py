"""Checkpoints: frozen copies of a writable layer, made while commands run, and the tree they form.

Order: the journal announces the checkpoint; the export hook runs, if the image has one; what the sandbox wrote is
written out while its processes run on; then they are frozen, the layer is copied, and they are thawed, whatever came
of it; last the journal says `saved`, and that the sandbox's present state now begins here. Until then everything is
undone by an error, a cancellation or, when the node was killed, by the next start, which also thaws.

**What is in it.** All that a write(2) or a store into a mapped file had done before the freeze, also what was not
on disk: the copy shares the page cache's content by writing it out first. The freeze makes the copy one instant of all
files. Writes from outside (the files API) are not held up: one that is under way may be in it in part.

**What it costs.** The copy itself is of constant time. What was written and is not yet on disk has to get there, at the
speed of the disk; that part happens before the freeze. A sandbox that is paused stands still already and stays so.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import msgspec
import structlog

from dsec.base.errors import (
    AlreadyExistsError,
    HostDiskFullError,
    InvalidRequestError,
    LimitExceededError,
    PlatformError,
    RuntimeFailedError,
    SandboxExitedError,
    SnapshotNotFoundError,
)
from dsec.base.ids import new_id
from dsec.model.capability import Capability
from dsec.model.sandbox import SandboxState
from dsec.model.state import CheckpointInfo, CheckpointRequest
from dsec.node.core import Core, shielded
from dsec.node.sandbox import Sandbox
from dsec.node.state import hooks
from dsec.node.state.saved_layers import frozen_name
from dsec.node.validation import require_capability
from dsec.runtimes.port import Instance
from dsec.stores.port import CheckpointRecord

_log = structlog.get_logger(__name__)
PREFIX = "ckp"
FREEZE_LIMIT_S = 5.0
"""The kernel freezes in microseconds what runs or sleeps; a process that waits for the disk has to come back first."""
_THAWS = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


async def checkpoint(
    core: Core, sandbox: Sandbox, request: CheckpointRequest, *, automatic: bool = False
) -> CheckpointInfo:
    """Save the present state. A stop ends it early; everybody else waits.

    Args:
        core: the node.
        sandbox: what is saved.
        request: how.
        automatic: nobody asked for this checkpoint: it is made for a snapshot.
    """
    require_capability(Capability.CHECKPOINT, "a checkpoint", core.reports)
    _check_name(request.name)
    async with sandbox.transition:
        sandbox.running()
        _check_admitted(core, sandbox, request.name)
        record = CheckpointRecord(
            checkpoint_id=new_id(PREFIX, core.parts.random_bytes),
            sandbox_id=sandbox.sandbox_id,
            layer=frozen_name(sandbox.sandbox_id, core.parts.random_bytes),
            name=request.name,
            parent=sandbox.record.current,
            generation=sandbox.record.generation,
            created_wall_s=core.parts.clock.wall_s(),
            automatic=automatic,
        )
        await _make_or_undo(core, sandbox, record, run_hook=request.hooks)
        return describe(core, sandbox, sandbox.checkpoints[record.checkpoint_id])


async def _make_or_undo(core: Core, sandbox: Sandbox, record: CheckpointRecord, *, run_hook: bool) -> None:
    core.saved.claim(record.layer)
    saved = False
    try:
        with anyio.CancelScope() as scope:
            sandbox.transition_scope = scope
            await core.parts.journal.exchange(checkpoints=[record])
            await _make(core, sandbox, record, run_hook=run_hook)
            saved = True
        if not saved:
            raise SandboxExitedError(f"{sandbox.sandbox_id} was stopped while it was saved")
    finally:
        sandbox.transition_scope = None
        if not saved:
            with shielded(core.settings.end_timeout_s, f"undoing a checkpoint of {sandbox.sandbox_id}"):
                # With the sandbox's record: a commit that nobody waited for may have moved it already.
                await core.parts.journal.exchange(sandbox.record, dropped=[record])
                core.saved.release(record.layer)


async def _make(core: Core, sandbox: Sandbox, record: CheckpointRecord, *, run_hook: bool) -> None:
    exported = await hooks.export_state(core, sandbox, record.layer) if run_hook and hooks.has_export(sandbox) else None
    written = core.parts.layers.used_bytes(sandbox.record.layer)
    frozen_s = await freeze_copy(core, sandbox, record.layer)
    with shielded(core.settings.end_timeout_s, f"recording a checkpoint of {sandbox.sandbox_id}"):
        record = msgspec.structs.replace(
            record, frozen_s=frozen_s, written_bytes=written, exported_bytes=exported, saved=True
        )
        moved = msgspec.structs.replace(sandbox.record, current=record.checkpoint_id)
        await core.parts.journal.exchange(moved, checkpoints=[record])
        sandbox.record = moved
        sandbox.checkpoints[record.checkpoint_id] = record


async def freeze_copy(core: Core, sandbox: Sandbox, layer: str) -> float:
    """Make a frozen copy of the sandbox's writable layer and return how long its processes stood still for it.

    The caller holds the sandbox's transition, and has claimed `layer`.
    """
    source = sandbox.record.layer
    await anyio.to_thread.run_sync(core.parts.layers.settle, source)
    with shielded(core.settings.end_timeout_s, f"saving {sandbox.sandbox_id}"):
        began_s = anyio.current_time()
        async with _standing_still(sandbox) as was_running:
            await anyio.to_thread.run_sync(core.parts.layers.checkpoint, source, layer)
        return anyio.current_time() - began_s if was_running else 0.0


@asynccontextmanager
async def _standing_still(sandbox: Sandbox) -> AsyncIterator[bool]:
    """Freeze what runs while the block runs, and say whether it ran."""
    instance = sandbox.running().instance
    if sandbox.state is SandboxState.PAUSED:
        yield False
        return
    try:
        await freeze(sandbox)
        yield True
    finally:
        await thaw(instance)


async def freeze(sandbox: Sandbox) -> None:
    """Let the processes of a sandbox stand still. Whoever calls thaws them, also after an error.

    Raises:
        RuntimeFailedError: some did not come to stand.
    """
    with anyio.move_on_after(FREEZE_LIMIT_S) as scope:
        await sandbox.running().instance.pause()
    if scope.cancelled_caught:
        raise RuntimeFailedError(
            f"{sandbox.sandbox_id} could not be frozen within {FREEZE_LIMIT_S:g} s",
            resolution="try again when its processes do not wait for the disk",
        )


async def thaw(instance: Instance) -> None:
    """Thaw, more than once if need be: nobody else would."""
    for _ in range(_THAWS - 1):
        try:
            await instance.resume()
            return
        except PlatformError as error:
            _log.error("not_thawed", instance_id=instance.instance_id, error=str(error))
    await instance.resume()


def describe(core: Core, sandbox: Sandbox, record: CheckpointRecord) -> CheckpointInfo:
    """Say what a checkpoint is."""
    branches = (
        each.sandbox_id
        for each in core.registry
        if each.generation is not None and each.record.forked_from == record.checkpoint_id
    )
    return CheckpointInfo(
        checkpoint_id=record.checkpoint_id,
        sandbox_id=record.sandbox_id,
        name=record.name,
        parent=record.parent,
        generation=record.generation - sandbox.record.first_generation,
        created_at_s=record.created_wall_s,
        frozen_s=record.frozen_s,
        written_bytes=record.written_bytes,
        exported_bytes=record.exported_bytes,
        is_current=sandbox.record.current == record.checkpoint_id,
        branches=tuple(sorted(branches)),
    )


def list_all(core: Core, sandbox: Sandbox) -> Sequence[CheckpointInfo]:
    """Describe the checkpoints of a sandbox, the oldest first."""
    return [describe(core, sandbox, record) for record in sandbox.checkpoints.values()]


def find(core: Core, sandbox: Sandbox, reference: str) -> CheckpointRecord:
    """Return the checkpoint of this id or name.

    Raises:
        SnapshotNotFoundError: there is none, and why.
    """
    record = sandbox.checkpoints.get(reference)
    named = [each for each in sandbox.checkpoints.values() if reference and each.name == reference]
    if record is not None or named:
        return record if record is not None else named[0]
    owner = _owner(core, reference)
    shown = repr(reference[:80])
    if owner is not None and owner != sandbox.sandbox_id:
        brief = f"{shown} is a checkpoint of another sandbox than {sandbox.sandbox_id}"
    elif owner is not None:
        brief = f"the checkpoint {shown} of {sandbox.sandbox_id} was removed"
    else:
        brief = f"{sandbox.sandbox_id} never had a checkpoint {shown}"
    raise SnapshotNotFoundError(
        brief, resolution=f"`dsec sandbox checkpoints --id {sandbox.sandbox_id}` shows those it has"
    )


def _owner(core: Core, checkpoint_id: str) -> str | None:
    """Return whose checkpoint this is or was; None when nobody ever had it."""
    living = (each.sandbox_id for each in core.registry if checkpoint_id in each.checkpoints)
    return next(living, None) or core.removed_checkpoints.get(checkpoint_id)


async def remove(core: Core, sandbox: Sandbox, reference: str) -> None:
    """Forget a checkpoint; what began from it begins from its parent now."""
    async with sandbox.transition:
        if sandbox.moved is not None:
            raise sandbox.moved
        if reference not in sandbox.checkpoints and core.removed_checkpoints.get(reference) == sandbox.sandbox_id:
            return
        record = find(core, sandbox, reference)
        orphans = [
            msgspec.structs.replace(each, parent=record.parent)
            for each in sandbox.checkpoints.values()
            if each.parent == record.checkpoint_id
        ]
        is_current = sandbox.record.current == record.checkpoint_id
        moved = msgspec.structs.replace(sandbox.record, current=record.parent) if is_current else sandbox.record
        with shielded(core.settings.end_timeout_s, f"removing a checkpoint of {sandbox.sandbox_id}"):
            await core.parts.journal.exchange(moved, checkpoints=orphans, dropped=[record])
            sandbox.record = moved
            sandbox.checkpoints.update({each.checkpoint_id: each for each in orphans})
            del sandbox.checkpoints[record.checkpoint_id]
            core.remember_removed_checkpoint(record)
            core.saved.release(record.layer)


async def drop_all(core: Core, sandbox: Sandbox) -> None:
    """Forget everything that was saved of a sandbox that has ended. Idempotent."""
    records = list(sandbox.checkpoints.values())
    if records:
        try:
            await core.parts.journal.exchange(dropped=records)
        except PlatformError as error:
            # The next start drops them: their sandbox is over.
            _log.error("checkpoints_not_dropped", sandbox_id=sandbox.sandbox_id, error=str(error))
        for record in records:
            core.remember_removed_checkpoint(record)
    core.saved.release_all_of(sandbox)


def _check_name(name: str) -> None:
    if name and (not _NAME.fullmatch(name) or name.startswith(f"{PREFIX}-")):
        raise InvalidRequestError(
            f"{name[:80]!r} cannot name a checkpoint",
            resolution="use letters, digits, dots, dashes and underscores, at most 128, and no id for a name",
        )


def _check_admitted(core: Core, sandbox: Sandbox, name: str) -> None:
    if name and any(record.name == name for record in sandbox.checkpoints.values()):
        raise AlreadyExistsError(
            f"{sandbox.sandbox_id} has a checkpoint named {name!r}",
            resolution="choose another name, or remove it: "
            f"dsec sandbox checkpoints --id {sandbox.sandbox_id} --remove {name}",
        )
    if len(sandbox.checkpoints) >= core.settings.maximum_checkpoints:
        raise LimitExceededError(
            f"{sandbox.sandbox_id} has {len(sandbox.checkpoints)} checkpoints, as many as are allowed",
            resolution=f"remove some (dsec sandbox checkpoints --id {sandbox.sandbox_id} --remove CHECKPOINT), "
            "or raise maximum_checkpoints",
        )
    check_room(core)


def check_room(core: Core) -> None:
    """Refuse to save more when the disk is nearly full: what is saved cannot be written again to another place."""
    free = core.parts.host.free_disk_bytes()
    if free < core.settings.minimum_free_disk_bytes:
        raise HostDiskFullError(
            "there is too little room on the host to save anything",
            detail=f"{free} bytes are free, {core.settings.minimum_free_disk_bytes} are kept in reserve",
            resolution="remove checkpoints or sandboxes that are not needed",
        )
