"""What a node knows of the packs of a repository, and how it comes to know it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from dsec.base.clock import Clock
from dsec.base.errors import ObjectNotFoundError, StateCorruptedError, StoreUnavailableError
from dsec.stores.at_once import each_at_once
from dsec.stores.chunks_index import ChunkIndex, Location
from dsec.stores.chunks_pack import TRAILER_BYTES, PackEntry, index_bytes, read_index
from dsec.stores.chunks_values import ChunkId
from dsec.stores.objects import ObjectStore

PACKS, DOOMED, CLOCK = "chunks/packs/", "chunks/doomed/", "chunks/clock/"
_REFRESH_S = 300.0
_LONGEST_TRUST_S = 3600.0
_TAIL_BYTES = 48 << 10
"""Read at first: the whole index of a pack with up to 1,198 chunks."""
_AT_ONCE = 8
_Result = TypeVar("_Result")


def new_pack_name() -> str:
    """Return a name that no other pack has, whoever writes it."""
    return secrets.token_hex(16)


class Catalog:
    """The packs of one repository.

    Args:
        store: where they are.
        index_file: the index's file; None: in memory.
        grace_s: the repository's grace period.
        clock: time.

    Attributes:
        damaged: packs whose index did not verify when it was read; asked again at each refresh.
    """

    def __init__(self, store: ObjectStore, index_file: Path | None, grace_s: float, clock: Clock) -> None:
        self.store = store
        self.grace_s = grace_s
        self.clock = clock
        self.damaged: set[str] = set()
        self.index = ChunkIndex(index_file)
        self._trusted_until: dict[str, float] = {}
        self._refreshed_at_s: float | None = None
        self._refreshing = anyio.Lock()
        self._threads = anyio.CapacityLimiter(2)

    async def in_thread(self, call: Callable[[], _Result]) -> _Result:
        """Run what blocks or computes for long, two at a time: index, hashes, compression."""
        return await anyio.to_thread.run_sync(call, limiter=self._threads)

    async def locate(self, ids: Iterable[ChunkId]) -> dict[ChunkId, list[Location]]:
        return await self.in_thread(lambda: self.index.locate(ids))

    async def trusted(self, packs: Iterable[str]) -> set[str]:
        """Return those packs on whose content a writer may rely: they exist and are not doomed, asked by name a short
        while ago. What is doomed or gone is noted.
        """
        now_s = self.clock.boot_s()
        asked = [pack for pack in set(packs) if self._trusted_until.get(pack, now_s) <= now_s]
        await self._each(asked, self._look_at)
        return {pack for pack in packs if self._trusted_until.get(pack, now_s) > now_s}

    async def _look_at(self, pack: str) -> None:
        began_s = self.clock.boot_s()
        info = await self.store.head(PACKS + pack)
        if info is None:
            await self.in_thread(lambda: self.index.forget([pack]))
        elif await self.store.head(DOOMED + pack) is not None:
            await self.in_thread(lambda: self.index.doom([pack]))
        else:
            self._trusted_until[pack] = began_s + min(self.grace_s / 4, _LONGEST_TRUST_S)

    async def put(self, name: str, data: bytes, entries: list[PackEntry]) -> None:
        """Store a pack under a name of `new_pack_name`, and make sure of it."""
        began_s = self.clock.boot_s()
        for _ in range(3):
            await self.store.put(PACKS + name, data)
            info = await self.store.head(PACKS + name)
            if info is not None and info.size_bytes == len(data):
                break
        else:
            raise _lost(self.store.url, name)
        await self.in_thread(lambda: self.index.add(name, len(data), entries))
        self._trusted_until[name] = began_s + min(self.grace_s / 4, _LONGEST_TRUST_S)

    async def forget(self, packs: Iterable[str]) -> None:
        names = list(packs)
        for name in names:
            self._trusted_until.pop(name, None)
        await self.in_thread(lambda: self.index.forget(names))

    async def doom(self, pack: str) -> None:
        """Write a pack's tombstone."""
        self._trusted_until.pop(pack, None)
        await self.store.put(DOOMED + pack, b"", if_absent=True)
        await self.in_thread(lambda: self.index.doom([pack]))

    async def learn(self, packs: Iterable[str]) -> None:
        known = await self.in_thread(self.index.packs)
        await self._each([pack for pack in set(packs) if pack not in known], self._learn_one)

    async def _learn_one(self, pack: str) -> None:
        info = await self.store.head(PACKS + pack)
        if info is not None:
            await self._read_index(pack, info.size_bytes)

    async def _read_index(self, pack: str, size_bytes: int) -> None:
        try:
            entries = await self.fetch_index(pack, size_bytes)
        except ObjectNotFoundError:
            return  # Deleted meanwhile.
        except StateCorruptedError:
            self.damaged.add(pack)
            return  # What it holds is missing where it is needed, and reported there and by `verify`.
        self.damaged.discard(pack)
        await self.in_thread(lambda: self.index.add(pack, size_bytes, entries))

    async def fetch_index(self, pack: str, size_bytes: int) -> list[PackEntry]:
        """Read a pack's index from the store.

        Raises:
            StateCorruptedError: it does not verify, read twice.
            ObjectNotFoundError: there is no such pack.
        """
        try:
            return await self._fetch_index(pack, size_bytes)
        except StateCorruptedError:
            return await self._fetch_index(pack, size_bytes)  # It may have been damaged on the way.

    async def _fetch_index(self, pack: str, size_bytes: int) -> list[PackEntry]:
        length = min(size_bytes, _TAIL_BYTES)
        if length < TRAILER_BYTES:
            raise StateCorruptedError(f"pack {pack} has {size_bytes} bytes: less than a trailer")
        tail = await self.store.get_range(PACKS + pack, size_bytes - length, length)
        needed = index_bytes(tail[-TRAILER_BYTES:], pack, size_bytes)
        if needed > length:
            tail = await self.store.get_range(PACKS + pack, size_bytes - needed, needed)
        return read_index(tail, pack, size_bytes)

    async def refresh(self, *, older_than_s: float = 0.0) -> None:
        """Learn what other nodes did, if the last time is so long ago."""
        asked_at_s = self.clock.boot_s()
        async with self._refreshing:
            last_s = self._refreshed_at_s
            if last_s is not None and (last_s > asked_at_s or (older_than_s and asked_at_s - last_s < older_than_s)):
                return
            began_s = self.clock.boot_s()
            await self._refresh()
            self._refreshed_at_s = began_s

    async def refresh_now_and_then(self) -> None:
        await self.refresh(older_than_s=_REFRESH_S)

    async def _refresh(self) -> None:
        known = await self.in_thread(self.index.packs)
        sizes = {info.key.removeprefix(PACKS): info.size_bytes async for info in self.store.list(PACKS)}
        doomed = {info.key.removeprefix(DOOMED) async for info in self.store.list(DOOMED)}

        async def read(pack: str) -> None:
            await self._read_index(pack, sizes[pack])

        async def look(pack: str) -> None:
            if await self.store.head(PACKS + pack) is None:  # A list may be stale; a head is not.
                await self.forget([pack])

        await self._each([pack for pack in sizes if pack not in known], read)
        await self._each([pack for pack in known if pack not in sizes], look)
        for pack in doomed:
            self._trusted_until.pop(pack, None)
        await self.in_thread(lambda: self.index.doom(doomed))

    async def _each(self, packs: list[str], act: Callable[[str], Awaitable[None]]) -> None:
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def one(pack: str) -> None:
            async with limiter:
                await act(pack)

        if len(packs) == 1:
            await one(packs[0])
            return
        await each_at_once(packs, one)


def _lost(url: str, pack: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{url} acknowledged pack {pack} and does not hold it", resolution="look at the service: it loses what it takes"
    )
