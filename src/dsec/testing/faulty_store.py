"""An object store with the faults of real ones, for tests of whoever relies on a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from dsec.base.errors import HostDiskFullError, StoreUnavailableError
from dsec.stores.objects import DEFAULT_TIMEOUT_S, ObjectInfo, ObjectStore


@dataclass(slots=True, kw_only=True)
class Faults:
    """Which calls go wrong, and how. Each rule is asked with the action and the key; the default does no harm.

    Attributes:
        fails: raises `StoreUnavailableError` and does nothing.
        fails_after: raises it after having done what was asked: the answer was lost.
        loses: acknowledges a put and keeps nothing.
        is_full: refuses a put with `HostDiskFullError`.
        truncates: leaves the second half of a read out.
        corrupts: inverts a byte in the middle of a read.
        stale_lists: lists show what was there when this was set, whatever happened since.
    """

    fails: Callable[[str, str], bool] = lambda action, key: False
    fails_after: Callable[[str, str], bool] = lambda action, key: False
    loses: Callable[[str], bool] = lambda key: False
    is_full: Callable[[str], bool] = lambda key: False
    truncates: Callable[[str], bool] = lambda key: False
    corrupts: Callable[[str], bool] = lambda key: False
    stale_lists: bool = False


@dataclass(slots=True)
class FaultyObjectStore:
    """Wrap a store. Implements `dsec.stores.objects.ObjectStore`; without faults it passes the conformance suite.

    Attributes:
        inner: the store that works.
        faults: replaced at will.
        calls: action and key of every call, in order.
    """

    inner: ObjectStore
    faults: Faults = field(default_factory=Faults)
    calls: list[tuple[str, str]] = field(default_factory=list)
    url: str = field(init=False)
    _remembered: list[ObjectInfo] | None = None

    def __post_init__(self) -> None:
        self.url = self.inner.url

    async def make_lists_stale(self) -> None:
        """From now on, lists show what is there now."""
        self._remembered = [info async for info in self.inner.list()]
        self.faults.stale_lists = True

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        self._before("put", key)
        if self.faults.is_full(key):
            raise HostDiskFullError(f"put {self.url}/{key}: the disk is full")
        if self.faults.loses(key):
            return True
        done = await self.inner.put(key, data, if_absent=if_absent, timeout_s=timeout_s)
        self._after("put", key)
        return done

    async def get(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        self._before("get", key)
        return self._read(key, await self.inner.get(key, timeout_s=timeout_s))

    async def get_range(self, key: str, start: int, length: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        self._before("get", key)
        return self._read(key, await self.inner.get_range(key, start, length, timeout_s=timeout_s))

    async def head(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ObjectInfo | None:
        self._before("head", key)
        return await self.inner.head(key, timeout_s=timeout_s)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        self._before("list", prefix)
        if self.faults.stale_lists and self._remembered is not None:
            for info in self._remembered:
                if info.key.startswith(prefix):
                    yield info
            return
        async for info in self.inner.list(prefix):
            yield info

    async def delete(self, keys: Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        for key in keys:
            self._before("delete", key)
        await self.inner.delete(keys, timeout_s=timeout_s)
        for key in keys:
            self._after("delete", key)

    async def aclose(self) -> None:
        await self.inner.aclose()

    def _before(self, action: str, key: str) -> None:
        self.calls.append((action, key))
        if self.faults.fails(action, key):
            raise StoreUnavailableError(f"{self.url} did not {action} {key!r} within its deadline")

    def _after(self, action: str, key: str) -> None:
        if self.faults.fails_after(action, key):
            raise StoreUnavailableError(f"{self.url} did not answer to {action} {key!r}")

    def _read(self, key: str, data: bytes) -> bytes:
        if self.faults.truncates(key):
            data = data[: len(data) // 2]
        if self.faults.corrupts(key) and data:
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
        return data
