"""Creation: all or nothing, within a deadline, once for each id.

The sandbox id is the idempotency key. Whoever asks first creates; whoever asks meanwhile waits for the outcome, and
takes over when it was undone, since the first caller's cancellation is not the second one's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    ImageNotFoundError,
    InvalidRequestError,
    InvalidStateError,
    SandboxExitedError,
)
from dsec.base.ids import check_sandbox_id, new_sandbox_id
from dsec.images.port import MountedImage
from dsec.lifecycle.machine import Event
from dsec.model.event import EventKind
from dsec.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from dsec.node.core import Core, shielded
from dsec.node.ending import take_apart, watch
from dsec.node.lifetimes import Lifetimes
from dsec.node.sandbox import Sandbox, instance_name
from dsec.node.state.fingerprints import learn
from dsec.node.validation import check_spec, resolve_spec
from dsec.pools.shape import task_of
from dsec.stores.port import SandboxRecord

if TYPE_CHECKING:
    from dsec.node.pools.live import LivePool

UNSETTLED = frozenset({SandboxState.PENDING, SandboxState.CREATING})
ENDED = frozenset({SandboxState.STOPPING, SandboxState.STOPPED, SandboxState.FAILED})
_MAXIMUM_TIMEOUT_S = 3600.0
_NO_SLOT = -1


async def ensure_images(core: Core, spec: SandboxSpec) -> None:
    """Make the images of a spec that are not there and can be made.

    It happens before the create deadline counts: a first build takes longer, and everybody who asks meanwhile waits for
    the same one.
    """
    for name in (spec.image, *spec.layers):
        try:
            core.parts.images.get(name)
        except ImageNotFoundError:
            if core.parts.ensure_image is None:
                raise
            await anyio.to_thread.run_sync(core.parts.ensure_image, name)


async def load_image(core: Core, spec: SandboxSpec, *, pool: str = "") -> MountedImage:
    """Make the layers of a spec readable, and tell how long that took."""
    began_s = core.now_boot_s()
    await ensure_images(core, spec)
    names = (spec.image, *spec.layers)
    await core.mounts.ready(names)
    image = core.parts.images.mount(names)
    core.recorder.add(EventKind.IMAGE_LOADED, pool=pool, duration_s=core.now_boot_s() - began_s, text=spec.image)
    return image


async def create(
    core: Core, lifetimes: Lifetimes, spec: SandboxSpec, sandbox_id: str | None, timeout_s: float
) -> SandboxInfo:
    """Create a sandbox, or return the one that an equal request created."""
    check_spec(spec)
    if not 0 < timeout_s <= _MAXIMUM_TIMEOUT_S:
        raise InvalidRequestError(f"timeout_s is {timeout_s}; it must be above 0 and at most {_MAXIMUM_TIMEOUT_S:.0f}")
    chosen = check_sandbox_id(sandbox_id) if sandbox_id else new_sandbox_id(core.parts.node_id, core.parts.random_bytes)
    core.registry.check_own(chosen)
    with core.recorder.creation(chosen, task_of(spec.metadata)):
        with anyio.move_on_after(timeout_s):
            if core.registry.get(chosen) is None:
                await core.mounts.ready((spec.image, *spec.layers))
            while (existing := core.registry.get(chosen)) is not None:
                _check_same(existing, spec)
                if existing.state not in UNSETTLED:
                    return core.info(existing)
                await existing.settled.wait()
            return await _create(core, lifetimes, spec, chosen)
        raise DeadlineExceededError(
            f"{chosen} was not ready within {timeout_s:g} s; what had begun was undone",
            detail=""
            if core.pools is None
            else core.pools.standing(resolve_spec(spec, chosen, core.settings, core.reports)),
            resolution="try again",
        )


def _check_same(existing: Sandbox, spec: SandboxSpec) -> None:
    if existing.moved is not None:
        raise existing.moved
    if existing.record.requested != spec:
        raise AlreadyExistsError(
            f"{existing.sandbox_id} exists with another spec", resolution="choose another id, or remove it first"
        )
    if existing.state in ENDED:
        raise InvalidStateError(
            f"{existing.sandbox_id} was created before and is {existing.state.value}",
            detail=existing.record.cause,
            resolution="choose another id, or remove it first",
        )


async def _create(core: Core, lifetimes: Lifetimes, spec: SandboxSpec, sandbox_id: str) -> SandboxInfo:
    """Create. Nothing is awaited before the id is taken in the registry."""
    core.admission.check_not_draining()
    resolved = resolve_spec(spec, sandbox_id, core.settings, core.reports)
    image = core.parts.images.mount((spec.image, *spec.layers))
    pool = None if core.pools is None else core.pools.find(resolved)
    if pool is None:
        core.admit()
    slot = core.slots.take() if pool is None else _NO_SLOT
    sandbox = Sandbox(_record(core, spec, resolved, sandbox_id, image, slot), core.now_boot_s())
    if pool is None:
        return await bring_in(core, lifetimes, sandbox)
    return await bring_in(core, lifetimes, sandbox, lambda: _come_from_pool(core, pool, sandbox, image))


async def bring_in(
    core: Core, lifetimes: Lifetimes, sandbox: Sandbox, how: Callable[[], Awaitable[None]] | None = None
) -> SandboxInfo:
    """Take the id of a new sandbox, bring it up as `bring_up_or_undo` does, and look after it from then on."""
    core.registry.add(sandbox)
    core.prefetches.began(sandbox.sandbox_id, (sandbox.record.spec.image, *sandbox.record.spec.layers))
    # A cancellation that already waits must find us where we undo: nothing may be awaited before.
    sandbox.transition.acquire_nowait()
    try:
        await bring_up_or_undo(core, sandbox, how)
    finally:
        sandbox.transition.release()
        sandbox.settled.set()
    lifetimes.watch(sandbox)
    watch(core, sandbox)
    return core.info(sandbox)


def _record(
    core: Core, spec: SandboxSpec, resolved: SandboxSpec, sandbox_id: str, image: MountedImage, slot: int
) -> SandboxRecord:
    maximum_s = resolved.lifetime.maximum_s
    return SandboxRecord(
        sandbox_id=sandbox_id,
        state=SandboxState.PENDING,
        requested=spec,
        spec=resolved,
        image_config=image.info.config,
        layer_paths=tuple(map(str, image.layer_paths)),
        slot=slot,
        layer=instance_name(sandbox_id, 0),
        created_wall_s=core.parts.clock.wall_s(),
        boot_id=core.parts.boot_id,
        deadline_boot_s=None if maximum_s is None else core.now_boot_s() + maximum_s,
    )


async def bring_up_or_undo(core: Core, sandbox: Sandbox, how: Callable[[], Awaitable[None]] | None = None) -> None:
    """Bring a sandbox up, by default by launching it; leave nothing behind when that fails or is cancelled."""
    ready = False
    try:
        with anyio.CancelScope() as scope:
            sandbox.transition_scope = scope
            await (_bring_up(core, sandbox) if how is None else how())
            ready = True
        if not ready:
            raise SandboxExitedError(f"{sandbox.sandbox_id} was stopped while it was created")
    finally:
        sandbox.transition_scope = None
        if not ready:
            with shielded(core.settings.end_timeout_s, f"undoing {sandbox.sandbox_id}"):
                await undo(core, sandbox)


async def _bring_up(core: Core, sandbox: Sandbox) -> None:
    await core.move(sandbox, Event.CREATE_BEGAN)
    record = sandbox.record
    began_s = core.now_boot_s()
    core.parts.layers.create(record.layer, quota_bytes=record.spec.resources.disk_bytes)
    sandbox.generation = await core.launch(record)
    await learn(core, record, sandbox.generation)
    await core.move(sandbox, Event.CREATED)
    core.recorder.add(
        EventKind.CREATED, pool=record.pool, sandbox_id=record.sandbox_id, duration_s=core.now_boot_s() - began_s
    )


async def _come_from_pool(core: Core, pool: LivePool, sandbox: Sandbox, image: MountedImage) -> None:
    """Take what a pool has ready, or wait for it. A pool that is taken away meanwhile leaves it to us."""
    assert core.pools is not None
    if await core.pools.serve(pool, sandbox, image):
        return
    core.admit()
    sandbox.record = msgspec.structs.replace(sandbox.record, slot=core.slots.take())
    await _bring_up(core, sandbox)


async def undo(core: Core, sandbox: Sandbox) -> None:
    """Leave nothing behind.

    What cannot be removed now keeps its place in the registry as failed, so that `remove` tries again; the journal
    still says `creating`, so that a restart does.
    """
    gone = False
    try:
        await take_apart(core, sandbox, SandboxExitedError(f"the creation of {sandbox.sandbox_id} was undone"))
        gone = True
    finally:
        if not gone:
            sandbox.record = msgspec.structs.replace(
                sandbox.record,
                state=SandboxState.FAILED,
                cause="its creation could not be undone",
                cause_code="runtime_failed",
            )
    core.registry.forget(sandbox)
    await core.parts.journal.delete_sandbox(sandbox.sandbox_id)
