"""Lifetimes: who is due, and what happens then.

Expiry is decided on boot time alone, so that a wall clock that jumps expires nothing. One heap holds when to look at
each sandbox next; an operation only moves the due time later, so that it need not touch the heap: the timer looks, sees
that it was early, and looks again later.
"""

from __future__ import annotations

import heapq
import math

import anyio
import msgspec
import structlog

from dsec.base.errors import DsecError
from dsec.model.sandbox import ExpiryAction, Lifetime, SandboxInfo, SandboxState
from dsec.node.core import Core
from dsec.node.ending import stop
from dsec.node.sandbox import Sandbox
from dsec.node.state import pausing
from dsec.node.validation import check_lifetime, require_pause

_log = structlog.get_logger(__name__)
_LONGEST_SLEEP_S = 60.0
"""The event loop's clock stops while the host is suspended and boot time does not: look at it now and then."""

_RETRY_S = 30.0
"""An expiry that failed is tried again; at once would be a busy loop."""


class Lifetimes:
    """The timer of all sandboxes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._heap: list[tuple[float, str]] = []
        self._earlier = anyio.Event()

    def watch(self, sandbox: Sandbox) -> None:
        """Look at a sandbox in time, also after its lifetime changed. Each has one entry, but for a moment."""
        due = self._next_look(sandbox)
        planned = sandbox.next_check_boot_s
        if due is not None and (planned is None or due < planned):
            self._plan(sandbox, due)

    def _plan(self, sandbox: Sandbox, when: float) -> None:
        sandbox.next_check_boot_s = when
        heapq.heappush(self._heap, (when, sandbox.sandbox_id))
        if self._heap[0][0] == when:
            self._earlier.set()

    def _next_look(self, sandbox: Sandbox) -> float | None:
        """When the sandbox could be due at the earliest."""
        due = sandbox.due_boot_s()
        if due is None or due == sandbox.record.deadline_boot_s or not sandbox.active:
            return due
        # It is busy: its idle time begins now at the earliest.
        idle_timeout_s = sandbox.record.spec.lifetime.idle_timeout_s or math.inf
        return min(self._core.now_boot_s() + idle_timeout_s, sandbox.record.deadline_boot_s or math.inf)

    async def run(self) -> None:
        """Expire sandboxes as they become due, for ever."""
        while True:
            await self.expire_due()
            self._earlier = anyio.Event()
            delay_s = self._heap[0][0] - self._core.now_boot_s() if self._heap else math.inf
            with anyio.move_on_after(min(max(delay_s, 0.0), _LONGEST_SLEEP_S) if self._heap else math.inf):
                await self._earlier.wait()

    async def expire_due(self) -> None:
        """Expire everything that is due now, side by side, and return when that is done."""
        now = self._core.now_boot_s()
        due: list[Sandbox] = []
        while self._heap and self._heap[0][0] <= now:
            when, sandbox_id = heapq.heappop(self._heap)
            sandbox = self._core.registry.get(sandbox_id)
            if sandbox is None or sandbox.next_check_boot_s != when:
                continue
            sandbox.next_check_boot_s = None
            if sandbox.generation is None:
                continue
            look = self._next_look(sandbox)
            if look is not None and look <= now:
                due.append(sandbox)
            else:
                self.watch(sandbox)
        if due:
            async with anyio.create_task_group() as group:
                for sandbox in due:
                    group.start_soon(self._expire, sandbox, now)

    async def _expire(self, sandbox: Sandbox, now: float) -> None:
        lifetime = sandbox.record.spec.lifetime
        deadline = sandbox.record.deadline_boot_s
        at_maximum = deadline is not None and deadline <= now
        cause = f"its maximum of {lifetime.maximum_s:g} s passed" if at_maximum else "it was idle for too long"
        try:
            if lifetime.on_expiry is ExpiryAction.PAUSE and sandbox.state is SandboxState.READY:
                await pausing.pause_at_expiry(self._core, sandbox, only_if_idle=not at_maximum)
                if not at_maximum:
                    self.watch(sandbox)
                return
            await stop(self._core, sandbox, cause)
        except DsecError as error:
            _log.error("expiry_failed", sandbox_id=sandbox.sandbox_id, error=str(error))
            self._plan(sandbox, now + _RETRY_S)

    async def extend(self, sandbox: Sandbox, lifetime: Lifetime) -> SandboxInfo:
        """Replace the lifetime; both clocks start again from now."""
        check_lifetime(lifetime)
        core = self._core
        require_pause(lifetime, core.reports)
        async with sandbox.transition:
            if sandbox.generation is None:
                raise sandbox.unusable()
            now = core.now_boot_s()
            record = msgspec.structs.replace(
                sandbox.record,
                spec=msgspec.structs.replace(sandbox.record.spec, lifetime=lifetime),
                deadline_boot_s=None if lifetime.maximum_s is None else now + lifetime.maximum_s,
                boot_id=core.parts.boot_id,
            )
            await core.parts.journal.put_sandbox(record)
            sandbox.record = record
            sandbox.idle_since_boot_s = now
            self.watch(sandbox)
            return core.info(sandbox)
