"""Objects in memory: the fake that passes the conformance suite, for nodes in tests and for the faults built on it.

Plain Python instead of obstore's memory store, because its clock is a parameter: grace periods are tested by moving it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import anyio.lowlevel

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import ObjectNotFoundError
from dsec.stores.objects import DEFAULT_TIMEOUT_S, ObjectInfo, check_key, check_prefix, check_range


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    modified_at_s: float


class MemoryObjectStore:
    """Implements `dsec.stores.objects.ObjectStore`.

    Args:
        clock: the store's clock.
    """

    def __init__(self, *, clock: Clock = SystemClock()) -> None:
        self.url = "memory:"
        self._clock = clock
        self._objects: dict[str, _Object] = {}

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        check_key(key)
        await anyio.lowlevel.checkpoint()
        if if_absent and key in self._objects:
            return False
        self._objects[key] = _Object(bytes(data), self._clock.wall_s())
        return True

    async def get(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        await anyio.lowlevel.checkpoint()
        return self._find(key).data

    async def get_range(self, key: str, start: int, length: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        check_range(start, length)
        await anyio.lowlevel.checkpoint()
        return self._find(key).data[start : start + length]

    async def head(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ObjectInfo | None:
        check_key(key)
        await anyio.lowlevel.checkpoint()
        found = self._objects.get(key)
        return None if found is None else _described(key, found)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        await anyio.lowlevel.checkpoint()
        for key, found in sorted(self._objects.items()):
            if key.startswith(prefix):
                yield _described(key, found)

    async def delete(self, keys: Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        await anyio.lowlevel.checkpoint()
        for key in keys:
            self._objects.pop(check_key(key), None)

    async def aclose(self) -> None:
        """Nothing to let go of; the objects stay, so that a test may open the same store again."""

    def _find(self, key: str) -> _Object:
        found = self._objects.get(check_key(key))
        if found is None:
            raise ObjectNotFoundError(f"{self.url} holds no object {key!r}")
        return found


def _described(key: str, found: _Object) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=len(found.data), modified_at_s=found.modified_at_s)
