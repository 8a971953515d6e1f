"""An object store whose every call waits to be let through: interleavings of whoever uses it, drawn one step at a time.

Several tasks use one store, each through its own `GatedStore`. A driver sees who waits before which call, lets one of
them through, moves the clock, or ends a task there as if its process had been killed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from dsec.base.clock import ManualClock
from dsec.stores.objects import DEFAULT_TIMEOUT_S, ObjectInfo, ObjectStore


@dataclass(eq=False, slots=True)
class Waiting:
    """A call that waits.

    Attributes:
        who: the task.
        action, key: what it is about to do.
        since_s: when it came here, in boot time.
        until_s: for a sleep, when it is over, in boot time.
    """

    who: str
    action: str
    key: str
    since_s: float
    until_s: float | None = None
    go: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True)
class Turnstile:
    """Where calls wait.

    Attributes:
        clock: everybody's.
        waiting: calls, in the order in which they came.
        under_way: calls that were let through and have not returned.
    """

    clock: ManualClock
    waiting: list[Waiting] = field(default_factory=list)
    under_way: int = 0

    async def pass_(self, who: str, action: str, key: str = "", until_s: float | None = None) -> None:
        """Wait to be let through."""
        call = Waiting(who, action, key, self.clock.boot_s(), until_s)
        self.waiting.append(call)
        try:
            await call.go.wait()
        finally:
            if call in self.waiting:
                self.waiting.remove(call)

    def let(self, call: Waiting) -> None:
        """Let a call through. A sleep ends with the clock at its end."""
        self.waiting.remove(call)
        if call.until_s is not None:
            self.clock.advance(max(0.0, call.until_s - self.clock.boot_s()))
        call.go.set()

    async def settle(self) -> None:
        """Wait until nobody does anything but wait."""
        for _ in range(100_000):
            before = list(self.waiting)
            for _ in range(4):
                await anyio.lowlevel.checkpoint()
            if self.under_way:
                await anyio.sleep(0.001)
            elif before == self.waiting:
                return

    def sleeper(self, who: str) -> Callable[[float], Awaitable[None]]:
        """Return what a task sleeps by."""

        async def sleep(duration_s: float) -> None:
            await self.pass_(who, "sleep", until_s=self.clock.boot_s() + duration_s)

        return sleep


@dataclass(slots=True)
class GatedStore:
    """A store as one task sees it. Implements `dsec.stores.objects.ObjectStore`.

    Times of objects are by the turnstile's clock, so that grace periods can pass on real stores too.
    """

    inner: ObjectStore
    turnstile: Turnstile
    who: str
    times: dict[str, float]
    url: str = "gated:"

    @contextmanager
    def _let(self) -> Iterator[None]:
        self.turnstile.under_way += 1
        try:
            yield
        finally:
            self.turnstile.under_way -= 1

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        await self.turnstile.pass_(self.who, "put", key)
        self.times.setdefault(key, self.turnstile.clock.wall_s())  # A real store may have it before we are told.
        with self._let():
            done = await self.inner.put(key, data, if_absent=if_absent, timeout_s=timeout_s)
        if done:
            self.times[key] = self.turnstile.clock.wall_s()
        return done

    async def get(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        await self.turnstile.pass_(self.who, "get", key)
        with self._let():
            return await self.inner.get(key, timeout_s=timeout_s)

    async def get_range(self, key: str, start: int, length: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        await self.turnstile.pass_(self.who, "get", key)
        with self._let():
            return await self.inner.get_range(key, start, length, timeout_s=timeout_s)

    async def head(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ObjectInfo | None:
        await self.turnstile.pass_(self.who, "head", key)
        with self._let():
            return self._timed(await self.inner.head(key, timeout_s=timeout_s))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        await self.turnstile.pass_(self.who, "list", prefix)
        with self._let():
            found = [info async for info in self.inner.list(prefix)]
        for info in found:
            timed = self._timed(info)
            assert timed is not None
            yield timed

    async def delete(self, keys: Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        await self.turnstile.pass_(self.who, "delete", keys[0])
        with self._let():
            await self.inner.delete(keys, timeout_s=timeout_s)

    async def aclose(self) -> None:
        """Nothing: the store belongs to the test."""

    def _timed(self, info: ObjectInfo | None) -> ObjectInfo | None:
        if info is None:
            return None
        return ObjectInfo(key=info.key, size_bytes=info.size_bytes, modified_at_s=self.times[info.key])
