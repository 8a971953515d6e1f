"""Time in which the processes of a sandbox run: it stands still while the sandbox is paused.

The timeout of a command is meant for what the command does, and a paused one does nothing. So the deadlines of commands
are taken away while their sandbox is paused, and set again with what was left of them when it goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class RunningTime:
    """The clock of one generation.

    Args:
        stands: it does not run yet: its sandbox is paused.
    """

    __slots__ = ("_left_s", "_scopes", "stands")

    def __init__(self, *, stands: bool = False) -> None:
        self.stands = stands
        self._scopes: set[anyio.CancelScope] = set()
        self._left_s: dict[anyio.CancelScope, float] = {}

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """Cancel the block after so many seconds of this clock."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            self._begin(scope, seconds)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
                self._left_s.pop(scope, None)

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds of this clock."""
        with self.limit(seconds):
            await anyio.sleep_forever()

    def stop(self) -> None:
        """Stand still. Idempotent."""
        if self.stands:
            return
        self.stands = True
        now = anyio.current_time()
        for scope in self._scopes:
            self._left_s[scope] = max(0.0, scope.deadline - now)
            scope.deadline = math.inf

    def go(self) -> None:
        """Go on. Idempotent."""
        if not self.stands:
            return
        self.stands = False
        left_s, self._left_s = self._left_s, {}
        for scope, seconds in left_s.items():
            self._begin(scope, seconds)

    def _begin(self, scope: anyio.CancelScope, seconds: float) -> None:
        if self.stands:
            self._left_s[scope] = seconds
        else:
            scope.deadline = anyio.current_time() + seconds
