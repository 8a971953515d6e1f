"""Restores: a sandbox from a snapshot, whichever node made it; all or nothing, once for each id.

Order: the snapshot's metadata is read and verified, and the image's layers are found; then the id, a range of host ids
and the node's admission are taken. The journal announces the sandbox (`creating`); its files are written into a layer
that nobody sees, and frozen; the writable layer branches off that copy, and from there on it goes as with a fork's
child. The journal says `ready` last. An error, a cancellation, a stop or a `kill -9` before that leaves nothing.

The frozen copy stays for as long as the sandbox lives: it is its clean state, and the base of its next snapshot. What
is in it does not count against the quota; what the sandbox writes does.

The sandbox has the files, image, limits and seed of the snapshot. Its id, host name, machine id and clocks are its own.
"""

from __future__ import annotations

import math
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    HostDiskFullError,
    InvalidRequestError,
    InvalidStateError,
)
from dsec.base.ids import check_sandbox_id, new_sandbox_id
from dsec.base.units import format_size
from dsec.lifecycle.machine import Event
from dsec.model.capability import Capability
from dsec.model.event import EventKind
from dsec.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from dsec.model.state import RestoreRequest
from dsec.node.core import Core
from dsec.node.creation import ENDED, UNSETTLED, bring_in
from dsec.node.lifetimes import Lifetimes
from dsec.node.sandbox import Sandbox, instance_name
from dsec.node.state import hooks
from dsec.node.state.forks import renew_machine_id
from dsec.node.state.saved_layers import frozen_name
from dsec.node.validation import check_spec, require_capability, resolve_spec
from dsec.state.snapshots import Snapshot, SnapshotStore
from dsec.stores.port import SandboxRecord

_MAXIMUM_TIMEOUT_S = 86_400.0


async def restore(core: Core, lifetimes: Lifetimes, reference: str, request: RestoreRequest) -> SandboxInfo:
    """Make a sandbox from a snapshot; see `dsec.service.state.StateService.restore`."""
    require_capability(Capability.CHECKPOINT, "a restore", core.reports)
    if not (math.isfinite(request.timeout_s) and 0 < request.timeout_s <= _MAXIMUM_TIMEOUT_S):
        raise InvalidRequestError(
            f"timeout_s is {request.timeout_s}; it must be above 0 and at most {_MAXIMUM_TIMEOUT_S:.0f}"
        )
    given = request.sandbox_id
    chosen = check_sandbox_id(given) if given else new_sandbox_id(core.parts.node_id, core.parts.random_bytes)
    core.registry.check_own(chosen)
    with anyio.move_on_after(request.timeout_s):
        return await _restore_once(core, lifetimes, reference, request, chosen)
    raise DeadlineExceededError(
        f"{chosen} was not ready within {request.timeout_s:g} s; what had begun was undone", resolution="give it longer"
    )


async def _restore_once(
    core: Core, lifetimes: Lifetimes, reference: str, request: RestoreRequest, sandbox_id: str
) -> SandboxInfo:
    store = await core.durable.store()
    snapshot: Snapshot | None = None
    while True:
        existing = core.registry.get(sandbox_id)
        if existing is not None and existing.state in UNSETTLED:
            await existing.settled.wait()
        elif existing is not None:
            return await _existing(core, store, existing, reference, request)
        elif snapshot is None:
            snapshot = await store.load(reference)
            await core.mounts.ready_layers(snapshot.header.layers)
        else:
            # Nothing is awaited between the look at the registry and the place in it.
            return await _restore(core, lifetimes, store, snapshot, request, sandbox_id)


async def _existing(
    core: Core, store: SnapshotStore, existing: Sandbox, reference: str, request: RestoreRequest
) -> SandboxInfo:
    """Return the sandbox that an equal request made."""
    record = existing.record
    made_from = record.snapshot if not record.parent else ""
    if made_from and made_from != reference:
        # By a name that others bear by now, too.
        of_that_name = {info.snapshot_id for info in await store.list_all() if info.name == reference}
        made_from = reference if made_from in of_that_name else ""
    if not made_from or not _is_asked(record.requested, request):
        raise AlreadyExistsError(
            f"{existing.sandbox_id} exists and does not come from this request",
            resolution="choose another id, or remove it first",
        )
    if existing.state in ENDED:
        raise InvalidStateError(
            f"{existing.sandbox_id} was restored before and is {existing.state.value}",
            detail=record.cause,
            resolution="choose another id, or remove it first",
        )
    return core.info(existing)


def _is_asked(requested: SandboxSpec, request: RestoreRequest) -> bool:
    """Whether a sandbox is what the request would make of its snapshot."""
    return (
        requested.env.items() >= request.env.items()
        and requested.metadata.items() >= request.metadata.items()
        and request.seed in (None, requested.seed)
    )


async def _restore(
    core: Core,
    lifetimes: Lifetimes,
    store: SnapshotStore,
    snapshot: Snapshot,
    request: RestoreRequest,
    sandbox_id: str,
) -> SandboxInfo:
    """Restore. Nothing is awaited before the id is taken in the registry."""
    header = snapshot.header
    requested = _changed(header.requested, request, hostname=None)
    check_spec(requested)
    spec = resolve_spec(_changed(header.spec, request, hostname=sandbox_id), sandbox_id, core.settings, core.reports)
    # The store may be written by others: what is enforced is checked like what is asked for.
    check_spec(spec)
    paths = core.parts.images.mount_layers(header.layers)
    _check_room(core, snapshot)
    core.admit()
    record = _record(core, snapshot, requested, spec, paths, sandbox_id)
    sandbox = Sandbox(record, core.now_boot_s())
    return await bring_in(core, lifetimes, sandbox, lambda: _bring_up(core, sandbox, store, snapshot))


def _changed(spec: SandboxSpec, request: RestoreRequest, *, hostname: str | None) -> SandboxSpec:
    return msgspec.structs.replace(
        spec,
        env={**spec.env, **request.env},
        metadata={**spec.metadata, **request.metadata},
        seed=spec.seed if request.seed is None else request.seed,
        hostname=hostname,
    )


def _check_room(core: Core, snapshot: Snapshot) -> None:
    """Refuse what will not fit before anything is fetched. Files may be sparse: what counts is what is written."""
    free = core.parts.host.free_disk_bytes() - core.settings.minimum_free_disk_bytes
    if snapshot.data_bytes > free:
        raise HostDiskFullError(
            f"{snapshot.info.snapshot_id} holds {format_size(snapshot.data_bytes)}, "
            f"and the host has room for {format_size(max(free, 0))}",
            resolution="remove sandboxes or checkpoints that are not needed, or restore it on another node",
        )


def _record(
    core: Core,
    snapshot: Snapshot,
    requested: SandboxSpec,
    spec: SandboxSpec,
    paths: tuple[Path, ...],
    sandbox_id: str,
) -> SandboxRecord:
    maximum_s = spec.lifetime.maximum_s
    return SandboxRecord(
        sandbox_id=sandbox_id,
        state=SandboxState.PENDING,
        requested=requested,
        spec=spec,
        image_config=snapshot.header.image_config,
        layer_paths=tuple(map(str, paths)),
        slot=core.slots.take(),
        layer=instance_name(sandbox_id, 0),
        created_wall_s=core.parts.clock.wall_s(),
        boot_id=core.parts.boot_id,
        deadline_boot_s=None if maximum_s is None else core.now_boot_s() + maximum_s,
        origin=frozen_name(sandbox_id, core.parts.random_bytes),
        snapshot=snapshot.info.snapshot_id,
    )


async def _bring_up(core: Core, sandbox: Sandbox, store: SnapshotStore, snapshot: Snapshot) -> None:
    core.saved.claim(sandbox.record.origin)
    sandbox.holds_origin = True
    await core.move(sandbox, Event.CREATE_BEGAN)
    record, began_s = sandbox.record, core.now_boot_s()
    await _fill(core, record, store, snapshot)
    quota = record.spec.resources.disk_bytes
    await anyio.to_thread.run_sync(lambda: core.parts.layers.branch(record.origin, record.layer, quota_bytes=quota))
    sandbox.generation = await core.launch(record)
    await renew_machine_id(core, sandbox.generation)
    await hooks.import_state(core, record, sandbox.generation, record.origin)
    await core.move(sandbox, Event.CREATED)
    core.recorder.add(EventKind.CREATED, sandbox_id=record.sandbox_id, duration_s=core.now_boot_s() - began_s)


async def _fill(core: Core, record: SandboxRecord, store: SnapshotStore, snapshot: Snapshot) -> None:
    """Make the frozen copy that the sandbox begins from, and keep what the export hook gave."""
    layers = core.parts.layers
    filling = frozen_name(record.sandbox_id, core.parts.random_bytes)
    try:
        await anyio.to_thread.run_sync(lambda: layers.create(filling, quota_bytes=None))
        with layers.open_new(filling) as target:
            await store.restore_into(snapshot, target)
        await anyio.to_thread.run_sync(layers.checkpoint, filling, record.origin)
    finally:
        layers.discard(filling)
    exported = await store.exported(snapshot)
    if exported is not None:
        await anyio.to_thread.run_sync(core.parts.exports.put, record.origin, exported)
