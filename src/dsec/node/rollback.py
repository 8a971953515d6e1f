"""Rollback: the next generation on a fresh writable layer, or on one that begins from a checkpoint.

Order: the journal says `rolling_back`; the new layer is made; the old instance is ended, and the new one launched
meanwhile; when every process of the old one is seen to be gone, the journal says `ready`. Until the old instance ends
everything can be undone; after that the way is only forward, and a node that died in between, with both instances there
in part or in whole, goes it when it starts again. The old layer is discarded in the background.

While both exist the new one is its init alone, since nobody is given it before the old one is gone, and the old one
has been killed. So a sandbox never uses more than its limits and one init, although both control groups carry them.
"""

from __future__ import annotations

import anyio
import msgspec

from dsec.base.errors import DsecError, RuntimeFailedError, SandboxExitedError, SnapshotNotFoundError
from dsec.base.ids import random_body
from dsec.lifecycle.machine import Event
from dsec.model.capability import Capability
from dsec.model.sandbox import SandboxInfo, SandboxState
from dsec.node.core import Core, shielded
from dsec.node.ending import end_use, fail, remove_spool, watch
from dsec.node.sandbox import Sandbox, instance_of
from dsec.node.together import together
from dsec.node.validation import require_capability
from dsec.stores.port import SandboxRecord

_CHECKPOINT_MARK = "-C"
"""Stands between a sandbox's id and the rest of a checkpoint's name; the capital cannot stand in any sandbox id."""


def checkpoint_owner(name: str) -> str | None:
    """Return the id of the sandbox whose checkpoint has this name; None for the name of another layer."""
    owner, mark, _ = name.partition(_CHECKPOINT_MARK)
    return owner if mark else None


async def checkpoint(core: Core, sandbox: Sandbox) -> str:
    """Freeze a copy of the writable layer and return its name, for `rollback`."""
    require_capability(Capability.CHECKPOINT, "a checkpoint", core.reports)
    async with sandbox.transition:
        sandbox.running()
        name = f"{sandbox.sandbox_id}{_CHECKPOINT_MARK}{random_body(6, core.parts.random_bytes)}"
        core.parts.layers.checkpoint(sandbox.record.layer, name)
        sandbox.checkpoints.add(name)
        return name


async def rollback(core: Core, sandbox: Sandbox, snapshot: str | None) -> SandboxInfo:
    """Roll back. It finishes although its caller is cancelled; only a stop ends it early."""
    if snapshot is not None and snapshot not in sandbox.checkpoints:
        raise SnapshotNotFoundError(f"{sandbox.sandbox_id} has no checkpoint {snapshot[:80]!r}")
    async with sandbox.transition:
        if sandbox.generation is None:
            raise sandbox.unusable()
        failure: DsecError = RuntimeFailedError("its rollback was interrupted or took too long")
        with anyio.CancelScope(shield=True) as scope:
            scope.deadline = anyio.current_time() + core.settings.rollback_timeout_s
            sandbox.transition_scope = scope
            try:
                await _roll_back(core, sandbox, snapshot)
                return core.info(sandbox)
            except DsecError as error:
                failure = error
            finally:
                sandbox.transition_scope = None
        if sandbox.state is SandboxState.ROLLING_BACK:
            await _fail(core, sandbox, failure)
        raise failure


async def _roll_back(core: Core, sandbox: Sandbox, snapshot: str | None) -> None:
    if sandbox.state is SandboxState.PAUSED:
        # A frozen instance is ended as it is; only the record passes through `ready`.
        await core.move(sandbox, Event.RESUMED)
    await core.move(sandbox, Event.ROLLBACK_BEGAN, rollback_to=snapshot)
    old = sandbox.record
    new = next_generation(old)
    sandbox.layers.add(new.layer)
    try:
        make_layer(core, old, new.layer)
    except DsecError:
        # Nothing of the old generation was touched: the sandbox is what it was.
        await core.move(sandbox, Event.ROLLED_BACK, rollback_to=None)
        raise
    await _replace(core, sandbox, new)
    core.supervisor.start(f"discard {old.layer}", lambda: _discard(core, sandbox, old))


async def _replace(core: Core, sandbox: Sandbox, new: SandboxRecord) -> None:
    old = sandbox.running().instance
    end_use(core, sandbox, SandboxExitedError(f"{sandbox.sandbox_id} was rolled back"))
    # Both are known by name from here on: whatever fails, they are taken apart.
    sandbox.instances.add(instance_of(new))
    sandbox.generation = None

    async def end_old() -> None:
        await old.terminate()
        sandbox.instances.discard(old.instance_id)
        await core.parts.journal.delete_processes(sandbox.sandbox_id)

    sandbox.generation = await together(lambda: core.launch(new), end_old)
    await core.move(sandbox, Event.ROLLED_BACK, generation=new.generation, layer=new.layer, rollback_to=None)
    watch(core, sandbox)


def next_generation(old: SandboxRecord) -> SandboxRecord:
    """The record of the generation that a rollback leads to."""
    new = msgspec.structs.replace(old, generation=old.generation + 1)
    return msgspec.structs.replace(new, layer=instance_of(new))


def make_layer(core: Core, old: SandboxRecord, name: str) -> None:
    """Make the writable layer of the next generation."""
    quota_bytes = old.spec.resources.disk_bytes
    if old.rollback_to is None:
        core.parts.layers.create(name, quota_bytes=quota_bytes)
    else:
        core.parts.layers.branch(old.rollback_to, name, quota_bytes=quota_bytes)


async def _discard(core: Core, sandbox: Sandbox, old: SandboxRecord) -> None:
    """Discard the layer of an earlier generation; what fails here is tried again when the sandbox ends."""
    core.parts.layers.discard(old.layer)
    sandbox.layers.discard(old.layer)
    remove_spool(core, old.sandbox_id, old.generation)


async def _fail(core: Core, sandbox: Sandbox, error: DsecError) -> None:
    failure = error if isinstance(error, RuntimeFailedError) else RuntimeFailedError(error.brief, detail=error.detail)
    with shielded(core.settings.end_timeout_s, f"cleaning up after {sandbox.sandbox_id}"):
        await fail(core, sandbox, failure)
