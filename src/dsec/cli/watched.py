"""Know when a node that was started for somebody's command is no longer needed."""

from __future__ import annotations

from typing import Any, cast

import anyio

from dsec.base.clock import Clock
from dsec.service.port import SandboxService


class _Noticing:
    """A service that passes every operation on and notices that it was asked for."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        self._watched.touch()
        return getattr(self._watched.inner, name)


class Watched:
    """A service and the time of its last use.

    Args:
        inner: the service.
        clock: read on every operation.
    """

    def __init__(self, inner: SandboxService, clock: Clock) -> None:
        self.inner = inner
        self._clock = clock
        self._used_at_s = clock.boot_s()
        self.service = cast(SandboxService, _Noticing(self))

    def touch(self) -> None:
        """Note that somebody uses the service now."""
        self._used_at_s = self._clock.boot_s()

    async def wait_idle(self, limit_s: float) -> None:
        """Wait until for `limit_s` nobody has asked for anything and there was no sandbox to look after."""
        while True:
            if await self.inner.list():
                self.touch()
            rest_s = self._used_at_s + limit_s - self._clock.boot_s()
            if rest_s <= 0:
                return
            await anyio.sleep(min(rest_s, limit_s / 4, 15.0))
