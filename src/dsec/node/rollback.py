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

from dsec.base.errors import DsecError, HookFailedError, RuntimeFailedError, SandboxExitedError, StateMismatchError
from dsec.lifecycle.machine import Event
from dsec.model.sandbox import SandboxInfo, SandboxState
from dsec.node.core import Core, shielded
from dsec.node.ending import end_use, fail, remove_spool, watch
from dsec.node.sandbox import Sandbox, instance_of
from dsec.node.state import checkpoints
from dsec.node.state.fingerprints import check
from dsec.node.state.hooks import import_state
from dsec.node.together import together
from dsec.stores.port import CheckpointRecord, SandboxRecord, Tenancy


async def rollback(
    core: Core, sandbox: Sandbox, checkpoint: str | None, *, because: DsecError | None = None
) -> SandboxInfo:
    """Roll back. It finishes although its caller is cancelled; only a stop ends it early.

    Args:
        core: the node.
        sandbox: what is rolled back.
        checkpoint: id or name of the checkpoint to go back to; None: the clean state.
        because: why it is done without being asked for; commands under way end with it, and the record tells of it.

    Raises:
        SnapshotNotFoundError: there is no such checkpoint. Nothing was done.
        HookFailedError: the image's import hook failed in the new generation, and so the sandbox has.
        RuntimeFailedError: the sandbox failed.
    """
    async with sandbox.transition:
        if sandbox.generation is None:
            raise sandbox.unusable()
        target = None if checkpoint is None else checkpoints.find(core, sandbox, checkpoint)
        failure: DsecError = RuntimeFailedError("its rollback was interrupted or took too long")
        with anyio.CancelScope(shield=True) as scope:
            scope.deadline = anyio.current_time() + core.settings.rollback_timeout_s
            sandbox.transition_scope = scope
            try:
                await _roll_back(core, sandbox, target, because)
                return core.info(sandbox)
            except DsecError as error:
                failure = error
            finally:
                sandbox.transition_scope = None
                if sandbox.state is SandboxState.ROLLING_BACK:
                    # Also for an error that is none of ours: nobody would ever end this state.
                    await _fail(core, sandbox, failure)
        raise failure


async def _roll_back(core: Core, sandbox: Sandbox, target: CheckpointRecord | None, because: DsecError | None) -> None:
    if sandbox.state is SandboxState.PAUSED:
        # A frozen instance is ended as it is; only the record passes through `ready`.
        await core.move(sandbox, Event.RESUMED, paused_boot_s=None, keeps_memory=False)
    before = sandbox.record
    # Why it is done is told from here on: a node that goes the rest of the way after a kill knows it from the journal.
    await core.move(
        sandbox,
        Event.ROLLBACK_BEGAN,
        rollback_to=None if target is None else target.layer,
        cause="" if because is None else f"rolled back: {because.brief}",
    )
    old = sandbox.record
    new = next_generation(old)
    sandbox.layers.add(new.layer)
    try:
        make_layer(core, old, new.layer)
    except DsecError:
        # Nothing of the old generation was touched: the sandbox is what it was.
        await core.move(sandbox, Event.ROLLED_BACK, rollback_to=None, cause=before.cause)
        raise
    await _replace(core, sandbox, new, because)
    core.supervisor.start(f"discard {old.layer}", lambda: _discard(core, sandbox, old))


async def _replace(core: Core, sandbox: Sandbox, new: SandboxRecord, because: DsecError | None) -> None:
    old = sandbox.running().instance
    end_use(core, sandbox, because or SandboxExitedError(f"{sandbox.sandbox_id} was rolled back"))
    # Both are known by name from here on: whatever fails, they are taken apart.
    sandbox.instances.add(instance_of(new))
    sandbox.generation = None

    async def end_old() -> None:
        await old.terminate()
        sandbox.instances.discard(old.instance_id)
        await core.parts.journal.delete_processes(sandbox.sandbox_id)

    sandbox.generation = await together(lambda: core.launch(new), end_old)
    await complete(core, sandbox, new)
    watch(core, sandbox)


async def complete(core: Core, sandbox: Sandbox, new: SandboxRecord) -> None:
    """Give the new generation, which runs alone now, what was exported for it, and let the sandbox be ready."""
    old = sandbox.record
    if new.tenancy is Tenancy.OCCUPIED:  # Of what nobody has, its pool looks itself.
        await check(core, new, sandbox.running(), from_checkpoint=old.rollback_to is not None)
    await import_state(core, new, sandbox.running(), old.rollback_to or old.origin)
    current = next((each for each in sandbox.checkpoints.values() if each.layer == old.rollback_to), None)
    await core.move(
        sandbox,
        Event.ROLLED_BACK,
        generation=new.generation,
        layer=new.layer,
        rollback_to=None,
        current=None if current is None else current.checkpoint_id,
    )


def next_generation(old: SandboxRecord) -> SandboxRecord:
    """The record of the generation that a rollback leads to."""
    new = msgspec.structs.replace(old, generation=old.generation + 1)
    return msgspec.structs.replace(new, layer=instance_of(new))


def make_layer(core: Core, old: SandboxRecord, name: str) -> None:
    """Make the writable layer of the next generation."""
    quota_bytes = old.spec.resources.disk_bytes
    source = old.rollback_to or old.origin
    if source:
        core.parts.layers.branch(source, name, quota_bytes=quota_bytes)
    else:
        core.parts.layers.create(name, quota_bytes=quota_bytes)


async def _discard(core: Core, sandbox: Sandbox, old: SandboxRecord) -> None:
    """Discard the layer of an earlier generation; what fails here is tried again when the sandbox ends."""
    core.parts.layers.discard(old.layer)
    sandbox.layers.discard(old.layer)
    remove_spool(core, old.sandbox_id, old.generation)


async def _fail(core: Core, sandbox: Sandbox, error: DsecError) -> None:
    is_told = isinstance(error, RuntimeFailedError | HookFailedError | StateMismatchError)
    failure = error if is_told else RuntimeFailedError(error.brief, detail=error.detail)
    with shielded(core.settings.end_timeout_s, f"cleaning up after {sandbox.sandbox_id}"):
        await fail(core, sandbox, failure)
