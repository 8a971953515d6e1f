"""The chunk repository: content, cut into chunks by whoever writes it, stored once in an object store that nodes share.

Format: docs/formats/chunk-packs.md. The theory in short:

- A chunk is named by the BLAKE3 of its content, so that what is stored twice is stored once, and what is read is
  checked. Chunks are grouped into *packs*, because an object store charges by the request and a folder by the fsync: a
  thousand small files become one or two objects. A pack's index stands at its end and verifies.
- Manifests of others name chunks, never packs. So a chunk may be moved into another pack, or stand in two, and nobody
  need be told.
- A pack goes one way: *live*, *doomed* (a tombstone names it; nobody relies on it any more for new content, everybody
  may read it), *deleted*, no sooner than the grace period after it was doomed. There is no way back, so that no two
  collectors can disagree. Whoever deletes a pack first copies what is reachable and stands in no live pack.
- What a writer found already stored, it has seen in a live pack within the last quarter of the grace period; a writer
  whose manifest is published within half of it can therefore not lose what it relies on. Deleting begins by asking
  for what is reachable *after* the tombstone has become old enough, and lists may be stale by half a grace period.
- The index on local disk is a cache: everything in it can be had again from the packs.

Killed at any instruction, a writer leaves at most packs that no manifest names: garbage, never an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio.to_thread
import msgspec

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import CapabilityMissingError, ObjectNotFoundError, StateCorruptedError
from dsec.stores import chunks_collection, chunks_reading
from dsec.stores.chunks_catalog import Catalog
from dsec.stores.chunks_pack import chunk_id
from dsec.stores.chunks_values import (
    DEFAULT_GRACE_S,
    MAXIMUM_CHUNK_BYTES,
    ChunkId,
    CollectionReport,
    Pieces,
    Problem,
    Reachable,
    RepositoryStatistics,
    StoredBytes,
    VerificationReport,
)
from dsec.stores.chunks_writing import ChunkWriter, open_writer
from dsec.stores.objects import ObjectStore

__all__ = [
    "DEFAULT_GRACE_S",
    "MAXIMUM_CHUNK_BYTES",
    "ChunkId",
    "ChunkRepository",
    "ChunkWriter",
    "CollectionReport",
    "Pieces",
    "Problem",
    "Reachable",
    "RepositoryStatistics",
    "StoredBytes",
    "VerificationReport",
    "chunk_id",
    "open_chunks",
]

_FORMAT = "chunks/format.json"
_VERSION = 1


class ChunkRepository:
    """The chunks of one object store. Make it with `open_chunks`; safe to use from many tasks of one event loop."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def grace_s(self) -> float:
        """The repository's grace period."""
        return self._catalog.grace_s

    def writer(self) -> AbstractAsyncContextManager[ChunkWriter]:
        """Open a writing session: ``async with repository.writer() as writer: ...``. Left without `flush`, what it
        sent is garbage that a collection removes.
        """
        return open_writer(self._catalog)

    def read(self, ids: Iterable[ChunkId]) -> AsyncGenerator[bytes, None]:
        """Yield the contents of `ids`, in their order, each verified. Ranges that lie together are asked for as one,
        several at a time; memory is bounded. Close the iterator (`contextlib.aclosing`) when it is left early.

        Raises:
            StateCorruptedError: a chunk is in no pack that can be read, or does not verify in any; names it and the
                pack.
            StoreUnavailableError: the store does not answer, after retries.
        """
        return chunks_reading.read_in_order(self._catalog, ids)

    def read_any_order(self, ids: Iterable[ChunkId]) -> AsyncGenerator[tuple[ChunkId, bytes], None]:
        """Yield each distinct chunk of `ids` once, in the order in which they lie in the store: the fastest way to
        restore. Raises as `read`.
        """
        return chunks_reading.read_as_stored(self._catalog, ids)

    async def learn(self, packs: Iterable[str]) -> None:
        """Read the indices of packs by name that are not known yet; those that do not exist any more are passed over.
        Call it with `StoredBytes.packs` from a manifest before reading what it names.
        """
        await self._catalog.learn(packs)

    async def missing(self, ids: Iterable[ChunkId]) -> Sequence[ChunkId]:
        """Return those of `ids` that stand in no pack that this node can find."""
        asked = list(ids)
        found = await self._catalog.locate(asked)
        if len(found) < len(set(asked)):
            await self._catalog.refresh()
            found = await self._catalog.locate(asked)
        return [chunk for chunk in dict.fromkeys(asked) if chunk not in found]

    async def refresh(self) -> None:
        """Learn of packs that other nodes wrote, doomed or deleted. Done by itself when a chunk is not found, and by a
        writer when the last time is long ago.
        """
        await self._catalog.refresh()

    async def collect(
        self, reachable: Reachable, *, minimum_live_share: float = 0.5, dry_run: bool = False
    ) -> CollectionReport:
        """Delete packs that were doomed at least the grace period ago, saving what is reachable in them first; then
        doom packs of that age which hold less than `minimum_live_share` of reachable bytes, or are small and many.

        Safe beside writers, readers and other collectors, on this node and others. Killed or cancelled at any point,
        the next one goes on. `reachable` is called once, at the right moment. With `dry_run`, say what would be done.
        """
        return await chunks_collection.collect(self._catalog, reachable, minimum_live_share, dry_run=dry_run)

    async def store_time_s(self) -> float:
        """Return the time by the store's clock, with which alone the times of its objects may be compared."""
        return await chunks_collection.store_time(self._catalog)

    async def verify(self) -> VerificationReport:
        """Read every pack and check its index and each chunk. Changes nothing."""
        return await chunks_collection.verify(self._catalog)

    async def statistics(self) -> RepositoryStatistics:
        """Say what the repository holds, by the index on this node."""
        return await self._catalog.in_thread(self._catalog.index.statistics)


@asynccontextmanager
async def open_chunks(
    store: ObjectStore,
    *,
    cache_dir: Path | None = None,
    grace_s: float = DEFAULT_GRACE_S,
    clock: Clock = SystemClock(),
) -> AsyncIterator[ChunkRepository]:
    """Open the chunk repository of `store`; one that is not there begins to be.

    Args:
        store: where it is; the caller closes it.
        cache_dir: directory for the index of this process; None: in memory.
        grace_s: grace period of a repository that begins now; one that exists has its own.
        clock: time.

    Raises:
        CapabilityMissingError: the repository was written in a later format.
        StateCorruptedError: its description cannot be read.
    """
    grace_s = await _grace_of(store, grace_s)
    # One cache directory may serve several stores; each has its own file.
    name = f"chunks-{hashlib.sha256(store.url.encode()).hexdigest()[:16]}.sqlite"
    path = None if cache_dir is None else cache_dir / name
    catalog = await anyio.to_thread.run_sync(lambda: Catalog(store, path, grace_s, clock))
    try:
        yield ChunkRepository(catalog)
    finally:
        catalog.index.close()


class _Format(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    grace_s: float


async def _grace_of(store: ObjectStore, wanted_s: float) -> float:
    """Return the grace period of a repository, and describe one that begins now."""
    for _ in range(2):
        try:
            return _read_format(store.url, await store.get(_FORMAT)).grace_s
        except ObjectNotFoundError:
            described = msgspec.json.encode(_Format(version=_VERSION, grace_s=wanted_s))
            await store.put(_FORMAT, described, if_absent=True)
    return _read_format(store.url, await store.get(_FORMAT)).grace_s


def _read_format(url: str, data: bytes) -> _Format:
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("version")
        if version != _VERSION:
            raise CapabilityMissingError(
                f"the chunks of {url} are in format {version}; this program knows format {_VERSION}",
                resolution="use the DSec version that wrote them, or a later one",
            )
        return msgspec.json.decode(data, type=_Format)
    except msgspec.DecodeError as error:
        raise StateCorruptedError(f"{url}/{_FORMAT} cannot be read", detail=str(error)) from error
