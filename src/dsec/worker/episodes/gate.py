"""The gate through which a loop passes before each thing it does, so that it can be made to stand still and kept.

What began before the gate was closed is waited for, except commands: these are frozen with their sandbox, and their
time stands still. So whoever closes the gate and then pauses the sandbox knows that nothing happens any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Gate:
    """Open at first. The loop passes it or works behind it; others hold and release it."""

    def __init__(self) -> None:
        self._opened = anyio.Event()
        self._opened.set()
        self._idle = anyio.Event()
        self._idle.set()
        self._working = 0

    @property
    def is_held(self) -> bool:
        """Whether nothing new may begin."""
        return not self._opened.is_set()

    async def passed(self) -> None:
        """Wait until the gate is open."""
        while self.is_held:
            await self._opened.wait()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Do something that is waited for when the gate is closed meanwhile."""
        await self.passed()
        self._working += 1
        if self._working == 1:
            self._idle = anyio.Event()
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                self._idle.set()

    async def hold(self) -> None:
        """Close the gate and wait until nothing is at work behind it. Idempotent; cancelling leaves it closed."""
        if not self.is_held:
            self._opened = anyio.Event()
        await self._idle.wait()

    def release(self) -> None:
        """Open the gate. Idempotent."""
        self._opened.set()
