"""Know when a server that was started for somebody's command is no longer needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast

import anyio

from dsec.base.clock import Clock
from dsec.service.port import SandboxService

S = TypeVar("S")


class _Noticing(Generic[S]):
    """A service that passes every operation on and notices that it was asked for."""

    def __init__(self, watched: Watched[S]) -> None:
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        self._watched.touch()
        return getattr(self._watched.inner, name)


class Watched(Generic[S]):
    """A service and the time of its last use.

    Args:
        inner: the service.
        clock: read on every operation.
        is_busy: tells whether it has something to look after, though nobody asks.
    """

    def __init__(self, inner: S, clock: Clock, is_busy: Callable[[S], Awaitable[bool]]) -> None:
        self.inner = inner
        self._clock = clock
        self._is_busy = is_busy
        self._used_at_s = clock.boot_s()
        self.service = cast(S, _Noticing(self))

    def touch(self) -> None:
        """Note that somebody uses the service now."""
        self._used_at_s = self._clock.boot_s()

    async def wait_idle(self, limit_s: float) -> None:
        """Wait until for `limit_s` nobody has asked for anything and there was nothing to look after."""
        while True:
            if await self._is_busy(self.inner):
                self.touch()
            rest_s = self._used_at_s + limit_s - self._clock.boot_s()
            if rest_s <= 0:
                return
            await anyio.sleep(min(rest_s, limit_s / 4, 15.0))


async def has_sandboxes(node: SandboxService) -> bool:
    """Tell whether a node has sandboxes to look after."""
    return bool(await node.list())
