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

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NewType

from dsec.base.clock import Clock, SystemClock
from dsec.model.value import Value
from dsec.stores.objects import ObjectStore

ChunkId = NewType("ChunkId", bytes)
"""BLAKE3 of a chunk's content: 32 raw bytes."""

MAXIMUM_CHUNK_BYTES = 4 << 20
"""Longest chunk, uncompressed."""

DEFAULT_GRACE_S = 86_400.0
"""How long a doomed pack is kept, and how young a pack must be not to be doomed."""

Pieces = Iterable[bytes] | AsyncIterable[bytes]
"""Contents of chunks, one each, of 1 to `MAXIMUM_CHUNK_BYTES` bytes; cutting is the caller's."""

Reachable = Callable[[], Awaitable[Set[ChunkId]]]
"""Tells every chunk that some manifest names, as of the moment it is called, not before."""


class StoredBytes(Value, frozen=True):
    """What one writer stored.

    Attributes:
        chunks: pieces that were given.
        content_bytes: bytes of them.
        new_chunks: chunks that the store did not hold.
        stored_bytes: bytes of the packs written, indices included.
        objects: packs written.
        packs: every pack in which a given chunk stands, old or new. A manifest that keeps them as a hint
            (`ChunkRepository.learn`) can be read on a node that has not listed the store, or sees a stale list.
    """

    chunks: int = 0
    content_bytes: int = 0
    new_chunks: int = 0
    stored_bytes: int = 0
    objects: int = 0
    packs: tuple[str, ...] = ()


class CollectionReport(Value, frozen=True):
    """What a collection did.

    Attributes:
        packs: packs found.
        doomed: packs that it doomed; a collection after the grace period deletes them.
        waiting: doomed packs whose grace period runs.
        deleted: packs deleted.
        freed_bytes: bytes of those.
        copied_bytes: bytes of packs written to save what was reachable in them.
        damaged: packs that were due and hold reachable chunks that do not verify; they stay.
    """

    packs: int
    doomed: int = 0
    waiting: int = 0
    deleted: int = 0
    freed_bytes: int = 0
    copied_bytes: int = 0
    damaged: tuple[str, ...] = ()


class Problem(Value, frozen=True):
    """Something that `ChunkRepository.verify` found.

    Attributes:
        pack: name of the pack.
        chunk: the chunk, hexadecimal; empty: the pack as a whole.
        brief: what is wrong.
    """

    pack: str
    chunk: str
    brief: str


class VerificationReport(Value, frozen=True):
    """What `ChunkRepository.verify` found.

    Attributes:
        packs, chunks: how many were read.
        read_bytes: bytes of them.
        problems: what does not verify.
    """

    packs: int
    chunks: int
    read_bytes: int
    problems: tuple[Problem, ...] = ()


class RepositoryStatistics(Value, frozen=True):
    """What a repository holds, by the index on this node.

    Attributes:
        packs: packs, doomed ones included.
        doomed: doomed packs.
        pack_bytes: bytes of all packs.
        chunks: distinct chunks.
        content_bytes: bytes of the distinct chunks, uncompressed.
    """

    packs: int
    doomed: int
    pack_bytes: int
    chunks: int
    content_bytes: int


class ChunkWriter:
    """One writing session, made by `ChunkRepository.writer`. Several may run at once; each has one user."""

    async def add(self, pieces: Pieces) -> list[ChunkId]:
        """Take chunks and return their ids, in the order of `pieces`.

        What the store does not hold is compressed where that pays, grouped into packs and sent while more is taken;
        nothing is promised before `flush`. Cancelled, the session can only be left.

        Raises:
            InvalidRequestError: a piece is empty or longer than `MAXIMUM_CHUNK_BYTES`.
            StoreUnavailableError, HostDiskFullError: the store refused, after retries.
        """
        raise NotImplementedError

    async def flush(self) -> StoredBytes:
        """Return once every chunk given so far is durable, and say what the session has stored since it began.

        Publish what names the chunks within half the grace period.
        """
        raise NotImplementedError


class ChunkRepository:
    """The chunks of one object store. Make it with `open_chunks`; safe to use from many tasks of one event loop."""

    def writer(self) -> AbstractAsyncContextManager[ChunkWriter]:
        """Open a writing session: ``async with repository.writer() as writer: ...``. Left without `flush`, what it
        sent is garbage that a collection removes.
        """
        raise NotImplementedError

    def read(self, ids: Iterable[ChunkId]) -> AsyncIterator[bytes]:
        """Yield the contents of `ids`, in their order, each verified. Ranges that lie together are asked for as one,
        several at a time; memory is bounded. Close the iterator (`contextlib.aclosing`) when it is left early.

        Raises:
            StateCorruptedError: a chunk is in no pack that can be read, or does not verify in any; names it and the
                pack.
            StoreUnavailableError: the store does not answer, after retries.
        """
        raise NotImplementedError

    def read_any_order(self, ids: Iterable[ChunkId]) -> AsyncIterator[tuple[ChunkId, bytes]]:
        """Yield each distinct chunk of `ids` once, in the order in which they lie in the store: the fastest way to
        restore. Raises as `read`.
        """
        raise NotImplementedError

    async def learn(self, packs: Iterable[str]) -> None:
        """Read the indices of packs by name that are not known yet; those that do not exist any more are passed over.
        Call it with `StoredBytes.packs` from a manifest before reading what it names.
        """
        raise NotImplementedError

    async def missing(self, ids: Iterable[ChunkId]) -> Sequence[ChunkId]:
        """Return those of `ids` that stand in no pack that this node can find."""
        raise NotImplementedError

    async def refresh(self) -> None:
        """Learn of packs that other nodes wrote, doomed or deleted. Done by itself when a chunk is not found, and by a
        writer when the last time is long ago.
        """
        raise NotImplementedError

    async def collect(self, reachable: Reachable, *, minimum_live_share: float = 0.5) -> CollectionReport:
        """Delete packs that were doomed at least the grace period ago, saving what is reachable in them first; then
        doom packs of that age which hold less than `minimum_live_share` of reachable bytes, or are small and many.

        Safe beside writers, readers and other collectors, on this node and others. Killed or cancelled at any point,
        the next one goes on. `reachable` is called once, at the right moment.
        """
        raise NotImplementedError

    async def verify(self) -> VerificationReport:
        """Read every pack and check its index and each chunk. Changes nothing."""
        raise NotImplementedError

    async def statistics(self) -> RepositoryStatistics:
        """Say what the repository holds, by the index on this node."""
        raise NotImplementedError


def open_chunks(
    store: ObjectStore,
    *,
    cache_dir: Path | None = None,
    grace_s: float = DEFAULT_GRACE_S,
    clock: Clock = SystemClock(),
) -> AbstractAsyncContextManager[ChunkRepository]:
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
    raise NotImplementedError
