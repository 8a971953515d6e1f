"""How long to wait for a command's end: its timeout stands still while its sandbox is paused, and so must the deadline
of whoever waits for it, on both ends of a connection. Otherwise a pause of hours would end what it was meant to keep.

Only when the deadline has passed is the sandbox asked how long it was paused: the usual request pays for one timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dsec.base.errors import DsecError

_LEAST_S = 1.0
"""Time between two looks at a sandbox that is paused."""

WAITING = frozenset({"run", "run_in_session", "stream"})
"""Operations that end with a command that the node bounds in running time."""


class Patience:
    """Calls `end` when a deadline has passed, not counting the time in which a sandbox was paused.

    Args:
        deadline_s: seconds from now.
        paused_s: tells how long the sandbox was paused, all in all. What it was before now counts as well, for as much
            as has passed since: the wait is then longer than it had to be, and ends all the same.
        end: called once, unless it is closed before.
    """

    __slots__ = ("_began_s", "_deadline_s", "_end", "_look", "_loop", "_paused_s", "_timer")

    def __init__(self, deadline_s: float, paused_s: Callable[[], Awaitable[float]], end: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline_s, self._paused_s, self._end = deadline_s, paused_s, end
        self._began_s = self._loop.time()
        self._look: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(deadline_s, self._due)

    def close(self) -> None:
        """Wait no more. Idempotent."""
        self._timer.cancel()
        if self._look is not None:
            self._look.cancel()

    def _due(self) -> None:
        self._look = self._loop.create_task(self._ask())

    async def _ask(self) -> None:
        try:
            paused_s = await self._paused_s()
        except DsecError:
            paused_s = 0.0  # Who cannot be asked is not waited for.
        elapsed_s = self._loop.time() - self._began_s
        left_s = self._deadline_s + min(paused_s, elapsed_s) - elapsed_s
        if left_s <= 0:
            self._end()
        else:
            self._timer = self._loop.call_later(max(left_s, _LEAST_S), self._due)
