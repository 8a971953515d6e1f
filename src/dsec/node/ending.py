"""The ends of a sandbox: stop, remove, failure. All come to the same taking apart, which may be repeated.

A sandbox from a pool that is stopped in good order is not taken apart: its processes end, and its berth goes back.
"""

from __future__ import annotations

import shutil

import msgspec
import structlog

from dsec.base.errors import DsecError, PlatformError, SandboxExitedError, SandboxNotFoundError
from dsec.lifecycle.machine import Event
from dsec.model.sandbox import SandboxInfo, SandboxState
from dsec.node.core import Core, shielded
from dsec.node.sandbox import Generation, Sandbox, instance_name
from dsec.node.state.checkpoints import drop_all

_log = structlog.get_logger(__name__)
_OVER = frozenset({SandboxState.STOPPED, SandboxState.FAILED})


async def take_apart(core: Core, sandbox: Sandbox, error: DsecError) -> None:
    """End everything that exists of a sandbox: operations, processes, instance, layers, host ids. Idempotent.

    The slot is freed last, when no process can hold an id of it any more.
    """
    core.prefetches.ended(sandbox.sandbox_id)
    end_use(core, sandbox, error)
    record = sandbox.record
    if sandbox.generation is not None:
        await sandbox.generation.instance.terminate()
        sandbox.instances.discard(sandbox.generation.instance.instance_id)
        sandbox.generation = None
    for name in sorted(sandbox.instances):
        await core.parts.runtime.discard(name)
        sandbox.instances.discard(name)
    for name in sorted(sandbox.layers):
        core.parts.layers.discard(name)
    sandbox.layers.clear()
    await drop_all(core, sandbox)
    remove_spool(core, record.sandbox_id, record.generation)
    if sandbox.holds_slot:
        # A failed sandbox is taken apart again when it is removed: by then another may have its ids.
        core.slots.release(record.slot)
        sandbox.holds_slot = False
    if sandbox.arrival is not None:
        sandbox.arrival.set()  # Its owner stopped it while it was on its way, or it stays where it was.
    if record.pool and core.pools is not None:
        core.pools.gone(record)


def end_use(core: Core, sandbox: Sandbox, error: DsecError) -> None:
    """End what uses the current generation with `error`, without touching its processes."""
    if sandbox.watch_scope is not None:
        sandbox.watch_scope.cancel()
        sandbox.watch_scope = None
    if sandbox.generation is not None:
        sandbox.generation.end(error)
    for process in sandbox.processes.values():
        process.end(error)
    for session in sandbox.sessions.values():
        session.over = True
        core.supervisor.start(f"let go of {session.session_id}", session.release)
    sandbox.processes = {}
    sandbox.sessions = {}


def remove_spool(core: Core, sandbox_id: str, generation: int) -> None:
    if core.parts.spool_dir is not None:
        shutil.rmtree(core.parts.spool_dir / instance_name(sandbox_id, generation), ignore_errors=True)


async def stop(core: Core, sandbox: Sandbox, cause: str = "stopped on request") -> SandboxInfo:
    """Destroy a sandbox; it waits for no other operation on it. Once begun it finishes, also for a cancelled caller."""
    if sandbox.transition_scope is not None:
        sandbox.transition_scope.cancel()
    async with sandbox.transition:
        if sandbox.moved is not None:
            raise sandbox.moved
        if sandbox.forgotten and sandbox.state is not SandboxState.STOPPED:
            # Its creation was under way and was undone on our behalf.
            stopped = msgspec.structs.replace(sandbox.record, state=SandboxState.STOPPED, cause=cause)
            sandbox.record = stopped
        if sandbox.state is not SandboxState.STOPPED:
            with shielded(core.settings.end_timeout_s, f"stopping {sandbox.sandbox_id}"):
                await _stop(core, sandbox, cause)
        return core.info(sandbox)


async def _stop(core: Core, sandbox: Sandbox, cause: str) -> None:
    core.prefetches.ended(sandbox.sandbox_id)
    # Of a sandbox that failed the first cause counts; that of one that lives tells of something else.
    kept = sandbox.record.cause if sandbox.record.cause_code else cause
    pools = core.pools
    goes_back = pools is not None and pools.is_recyclable(sandbox)
    # Announced before anything of it ends, also where its berth goes back: a node that dies in between goes on with it.
    await core.move(sandbox, Event.STOP_BEGAN, cause=kept)
    if pools is not None and goes_back:
        try:
            await pools.take_back(sandbox, kept)
            return
        except DsecError as error:
            _log.warning("not_taken_back", sandbox_id=sandbox.sandbox_id, error=str(error))
    await take_apart(core, sandbox, SandboxExitedError(f"{sandbox.sandbox_id} was stopped", detail=kept))
    await core.parts.journal.delete_processes(sandbox.sandbox_id)
    await core.move(sandbox, Event.STOPPED)


async def remove(core: Core, sandbox_id: str) -> None:
    """Stop a sandbox if needed and forget it. One that moved is not removed: who asks is told where it is."""
    sandbox = core.registry.get(sandbox_id)
    if sandbox is None:
        core.registry.check_not_moved(sandbox_id)
        if core.registry.was_known(sandbox_id):
            return
        core.registry.check_own(sandbox_id)
        raise SandboxNotFoundError(
            f"this node never had a sandbox {sandbox_id[:80]!r}", resolution="`dsec sandbox ls -a` shows those it has"
        )
    await stop(core, sandbox, "removed")
    async with sandbox.transition:
        if not sandbox.forgotten:
            with shielded(core.settings.end_timeout_s, f"removing {sandbox_id}"):
                await core.parts.journal.delete_sandbox(sandbox_id)
                core.registry.forget(sandbox)


async def fail(core: Core, sandbox: Sandbox, error: DsecError) -> None:
    """Record why a sandbox failed and free what it held. The caller holds `sandbox.transition`."""
    changes = {"cause": error.brief, "cause_code": error.code}
    try:
        await core.move(sandbox, Event.FAILED, **changes)
    except PlatformError as journal_error:
        # A sandbox without processes must not look alive because the journal cannot be written; a restart finds out
        # anew.
        _log.error("failure_not_journalled", sandbox_id=sandbox.sandbox_id, error=str(journal_error))
        sandbox.record = msgspec.structs.replace(sandbox.record, state=SandboxState.FAILED, **changes)
    _log.warning("sandbox_failed", sandbox_id=sandbox.sandbox_id, cause=error.brief)
    await take_apart(core, sandbox, sandbox.unusable())


async def _watch(core: Core, sandbox: Sandbox, generation: Generation) -> None:
    cause = await generation.instance.wait_exited()
    error = SandboxExitedError(f"its processes ended: {cause or 'the cause is not known'}")
    generation.end(error)
    async with sandbox.transition:
        if sandbox.generation is not generation or sandbox.state in _OVER:
            return
        sandbox.watch_scope = None
        with shielded(core.settings.end_timeout_s, f"cleaning up after {sandbox.sandbox_id}"):
            await fail(core, sandbox, error)


def watch(core: Core, sandbox: Sandbox) -> None:
    """Begin to wait for the death of the sandbox's init, which fails the sandbox."""
    generation = sandbox.running()
    sandbox.watch_scope = core.supervisor.start(
        f"watch {sandbox.sandbox_id}", lambda: _watch(core, sandbox, generation)
    )
