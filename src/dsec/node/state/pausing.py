"""Pausing: a sandbox stands still, and its memory goes to the node's swap file.

Order of a pause: room in swap is claimed while the sandbox still runs, so that one whose memory has no room runs on as
if nothing had been asked; its processes are frozen; the journal says `paused`, which is what was promised; only then
does its memory travel. That takes seconds for a GiB, is bounded in time of its own, and may end at any point with less
given back: whoever needs the sandbox running ends it and does not wait. Killed in between, the next node freezes or
thaws as recorded and gives back what is left. To pause what is paused gives back what is still there.

Order of a resume: processes are thawed, and the journal says `ready`. Meanwhile and afterwards the kernel is told to
read everything back, which it does side by side: a process that touches what is still on its way waits for that page
alone, and one that touches little does not wait for the rest. Measured with 64 and 400 MiB: to read ahead first is
no better for a command that touches all, and adds 0.1 to 0.4 s to one that touches nothing.

While a sandbox is paused the timeouts of its commands stand still (`dsec.node.running_time`); its lifetime does not.

Source: the chapter, section 11.2.3; process_madvise(2); Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec
import structlog

from dsec.base.errors import CapabilityMissingError, DsecError, InvalidStateError
from dsec.base.units import format_size
from dsec.lifecycle.machine import Event, next_state
from dsec.model.capability import Capability
from dsec.model.event import EventKind
from dsec.model.sandbox import SandboxState
from dsec.node.core import Core, shielded
from dsec.node.sandbox import Generation, Sandbox
from dsec.node.validation import require_capability

if TYPE_CHECKING:
    from dsec.node.lifetimes import Lifetimes

_READING_S = 10.0
"""How long the kernel is told to read ahead; what is not read then is read when it is touched."""
_WORTH_BYTES = 1 << 20
"""With less than this left in memory a paused sandbox has given back what it has."""
_KEEP = "pause with keep_memory (--keep-memory), which freezes only"

_log = structlog.get_logger(__name__)


async def pause(core: Core, sandbox: Sandbox, *, keep_memory: bool = False) -> int:
    """Freeze a sandbox and give its memory back; return how many bytes that were.

    Args:
        core: the node.
        sandbox: what is paused. One that is paused already gives back what it still holds.
        keep_memory: freeze only.

    Raises:
        SwapFullError: its memory does not fit; it is as it was before.
        CapabilityMissingError: nothing can be frozen here, or memory cannot be given back; it is as it was before.
        InvalidStateError: its state cannot be paused.
    """
    require_capability(Capability.PAUSE, "pausing", core.reports)
    if not keep_memory:
        _require_swap(core)
    async with sandbox.transition:
        if sandbox.state is SandboxState.PAUSED:
            return 0 if keep_memory else await _give_back_rest(core, sandbox)
        generation = sandbox.running()
        _paused_state(sandbox)
        if keep_memory:
            await _freeze(core, sandbox, generation, keep_memory=True)
            return 0
        async with AsyncExitStack() as stack:
            room = _Room(core, stack)
            async with core.freezes:
                await room.make(generation)
                await _freeze(core, sandbox, generation, room)
            return await _release(core, sandbox, generation)


async def pause_at_expiry(core: Core, sandbox: Sandbox, *, only_if_idle: bool) -> None:
    """Freeze a sandbox because its lifetime says so; its memory is given back in the background.

    Nobody waits who could be told that this is not possible: then the memory stays, and an event says why.
    """
    require_capability(Capability.PAUSE, "pausing", core.reports)
    async with sandbox.transition:
        if sandbox.state is SandboxState.PAUSED or (only_if_idle and sandbox.active):
            return
        await _freeze(core, sandbox, sandbox.running())
    give_back_later(core, sandbox)


def give_back_later(core: Core, sandbox: Sandbox, *, adopted: bool = False) -> None:
    """Give back in the background what a paused sandbox still holds, unless it is to keep it.

    Args:
        core: the node.
        sandbox: what was paused.
        adopted: by an earlier node, which may have died while the limit of its swap was raised for this.
    """

    async def work() -> None:
        try:
            async with sandbox.transition:
                if sandbox.state is not SandboxState.PAUSED or sandbox.record.keeps_memory:
                    return
                _require_swap(core)
                if adopted:
                    await sandbox.running().instance.limit(sandbox.record.spec.resources)
                await _give_back_rest(core, sandbox)
        except DsecError as error:
            _say_kept(core, sandbox, f"{error.code}: {error.brief}")

    core.supervisor.start(f"give back memory of {sandbox.sandbox_id}", work)


def _say_kept(core: Core, sandbox: Sandbox, why: str) -> None:
    _log.warning("memory_kept", sandbox_id=sandbox.sandbox_id, why=why)
    core.recorder.add(EventKind.MEMORY_KEPT, sandbox_id=sandbox.sandbox_id, text=why)


async def resume(core: Core, sandbox: Sandbox, lifetimes: Lifetimes) -> None:
    """Thaw a sandbox. One whose maximum passed stays paused until it is extended or stopped."""
    with sandbox.needed_running():
        async with sandbox.transition:
            if sandbox.state is not SandboxState.PAUSED:
                if sandbox.generation is None:
                    raise sandbox.unusable()
                return
            deadline = sandbox.record.deadline_boot_s
            if deadline is not None and deadline <= core.now_boot_s():
                raise InvalidStateError(
                    f"{sandbox.sandbox_id} is paused and its maximum lifetime is over", resolution="extend its lifetime"
                )
            with shielded(core.settings.end_timeout_s, f"resuming {sandbox.sandbox_id}"):
                await _thaw(core, sandbox, sandbox.running())
            sandbox.idle_since_boot_s = core.now_boot_s()
            lifetimes.watch(sandbox)


async def _thaw(core: Core, sandbox: Sandbox, generation: Generation) -> None:
    await generation.instance.resume()
    if not sandbox.record.keeps_memory:
        generation.reading = core.supervisor.start(
            f"read back memory of {sandbox.sandbox_id}", lambda: _read_ahead(core, generation)
        )
    now = core.now_boot_s()
    paused_s = now - sandbox.running_s(now)  # All of it, this time's included.
    await core.move(sandbox, Event.RESUMED, paused_s=paused_s, paused_boot_s=None, keeps_memory=False)
    generation.time.go()


async def _read_ahead(core: Core, generation: Generation) -> None:
    # The end of the instance ends it, too, and is no news here.
    with suppress(DsecError):
        async with core.readings:
            await generation.instance.prefetch(_READING_S)


def _paused_state(sandbox: Sandbox) -> SandboxState:
    """Return the state of a sandbox once it is paused; the machine raises for one that cannot be."""
    return next_state(sandbox.state, Event.PAUSED, sandbox_id=sandbox.sandbox_id)


async def _freeze(
    core: Core, sandbox: Sandbox, generation: Generation, room: _Room | None = None, *, keep_memory: bool = False
) -> None:
    """Freeze and record. Memory says `paused` first, so that operations that come now wait and then resume it. What the
    guest made since room was claimed for it has to fit, too."""
    before = sandbox.record
    if generation.reading is not None:
        generation.reading.cancel()
    sandbox.record = msgspec.structs.replace(
        before, state=_paused_state(sandbox), paused_boot_s=core.now_boot_s(), keeps_memory=keep_memory
    )
    done = False
    try:
        with shielded(core.settings.end_timeout_s, f"pausing {sandbox.sandbox_id}"):
            await generation.instance.pause()
            generation.time.stop()
            if room is not None:
                await room.make(generation)
            await core.parts.journal.put_sandbox(sandbox.record)
        done = True
    finally:
        if not done:
            sandbox.record = before
            generation.time.go()
            await generation.instance.resume()


# -- memory ---------------------------------------------------------------------------------------------------------


def _require_swap(core: Core) -> None:
    try:
        require_capability(Capability.SWAP_FILE, "pausing", core.reports)
    except CapabilityMissingError as error:
        raise CapabilityMissingError(
            error.brief, detail=error.detail, resolution=f"{error.resolution}; {_KEEP}"
        ) from error


async def _needed_bytes(generation: Generation) -> int:
    """Return how much swap an instance's memory needs."""
    needed = await generation.instance.swappable_bytes()
    if needed is None:
        raise CapabilityMissingError(
            "the memory of this sandbox cannot be given back",
            detail="it is not accounted, or the kernel gives none back on request (cgroup v2: since Linux 5.19)",
            resolution=_KEEP,
        )
    return needed


class _Room:
    """Room in swap for one instance's memory, claimed until `stack` ends."""

    def __init__(self, core: Core, stack: AsyncExitStack) -> None:
        self._core, self._stack = core, stack
        self._claimed_bytes: int | None = None

    async def make(self, generation: Generation) -> None:
        """Claim what is needed now, beside what was claimed before; in a thread, since the file may have to be made."""
        missing = await _needed_bytes(generation) - (self._claimed_bytes or 0)
        if self._claimed_bytes is not None and missing <= 0:
            return
        assert self._core.parts.swap is not None
        claim = self._core.parts.swap.claim(missing)
        await anyio.to_thread.run_sync(self._stack.enter_context, claim)
        self._claimed_bytes = missing + (self._claimed_bytes or 0)


async def _give_back_rest(core: Core, sandbox: Sandbox) -> int:
    """Give back what a paused sandbox holds; the caller holds its transition."""
    generation = sandbox.running()
    if ((await generation.instance.statistics()).memory_bytes or 0) < _WORTH_BYTES:
        return 0
    async with AsyncExitStack() as stack:
        await _Room(core, stack).make(generation)
        if sandbox.record.keeps_memory:
            await core.put(sandbox, keeps_memory=False)
        return await _release(core, sandbox, generation)


async def _release(core: Core, sandbox: Sandbox, generation: Generation) -> int:
    """Give back what can be given back in time, unless the sandbox is needed meanwhile."""
    if sandbox.awaited:
        return 0
    released, limit_s = 0, core.settings.release_timeout_s
    with anyio.CancelScope() as scope:
        sandbox.release_scope = sandbox.transition_scope = scope
        try:
            async with core.releases:
                with anyio.move_on_after(limit_s) as limited:
                    needed = await generation.instance.swappable_bytes() or 0
                    released = await generation.instance.release_memory()
            if limited.cancelled_caught:
                _say_kept(core, sandbox, f"giving it back took longer than {limit_s:g} s")
            elif released < needed / 2:
                _say_kept(core, sandbox, f"the kernel gave {format_size(released)} of {format_size(needed)} back")
        finally:
            sandbox.release_scope = sandbox.transition_scope = None
    return released
