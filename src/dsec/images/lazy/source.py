"""The port of chunk sources: where the chunks of layers come from.

Contract of every driver:

- `fetch` returns stored bytes (docs/formats/layer-manifest.md), whole or not at all. Drivers verify nothing and keep
  nothing: whoever asked verifies (`fetch_verified`), since no source is trusted.
- It may be called for many chunks at a time, from tasks of one event loop. Cancelling it leaves nothing behind.
- `blame` is told when what `fetch` gave did not verify. It does not wait and raises nothing: the next source is asked
  meanwhile. Most drivers do nothing then; one that stands for several peers notes which of them it was.
- Every call ends within its deadline. `StoreUnavailableError` says that asking again may help; `ObjectNotFoundError`
  that this source has not got the chunk, which says nothing about others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import anyio.to_thread

from dsec.base.errors import DsecError, ObjectNotFoundError, StateCorruptedError, StoreUnavailableError
from dsec.images.lazy.formats.stored import MAXIMUM_STORED_BYTES, ChunkRef, decode
from dsec.images.lazy.peers.landing import Land, Landing
from dsec.images.lazy.peers.report import PeersReport
from dsec.stores.objects import ObjectStore, PiecewiseObjectStore

DEFAULT_TIMEOUT_S = 30.0
PEERS = "peers"
"""Name of the source that stands for all peers. That they have not got a chunk is nothing to tell anybody."""


class ChunkSource(Protocol):
    """One place that has chunks of layers."""

    name: str
    """For errors and reports: a URL without secrets, or a node's id."""

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """Return a stored chunk as this source has it.

        Raises:
            ObjectNotFoundError: it has not got it.
            StoreUnavailableError: it does not answer within `timeout_s`, or answers with less than the whole.
        """

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """Take notice that what this source gave last as a chunk is something else. May be called from the event loop.

        Args:
            ref: what was asked for.
            error: what was found; a `StateCorruptedError`.
        """


@runtime_checkable
class PassingSource(Protocol):
    """A source of which what comes can be passed on to other nodes before it is whole."""

    async def fetch_passing(self, ref: ChunkRef, land: Land, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """Do as `ChunkSource.fetch`, with a landing for what comes; one of which nothing becomes is spoilt."""


class Neighbours(Protocol):
    """Other nodes that give chunks, and are given ours. Called from one event loop."""

    def source(self, layer: str) -> ChunkSource:
        """Return them as a source, named `PEERS`, of the chunks of the layer with this manifest."""

    async def came(self, layer: str, ref: ChunkRef, stored: bytes) -> None:
        """Take notice of a chunk that came, from whomever, and was verified."""

    def failed(self, ref: ChunkRef) -> None:
        """Take notice that a chunk did not come."""

    def passing(self, ref: ChunkRef) -> Land:
        """Return who makes landings for a chunk that is asked of an origin now."""

    def order(self, chunks: Sequence[ChunkRef]) -> Sequence[int]:
        """Return the numbers of a layer's chunks in an order of this node's own: nodes that all begin with the first
        have nothing to give to each other.
        """

    def report(self) -> PeersReport:
        """Say what was taken from them and given to them. May be called from any thread."""


class MemorySource:
    """Chunks in a mapping from name to stored bytes; the fake."""

    def __init__(self, stored: Mapping[str, bytes], name: str = "memory") -> None:
        self.name = name
        self._stored = stored

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        try:
            return self._stored[ref.id]
        except KeyError as error:
            raise ObjectNotFoundError(f"{self.name} has no chunk {ref.id[:12]}") from error

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """Nothing: it is a mapping."""


def chunk_key(name: str) -> str:
    """Return the key of a chunk in an object store."""
    return f"layers/chunks/{name[:2]}/{name}"


class ObjectSource:
    """Chunks in an object store, each an object of its own: a folder, or an S3-compatible service."""

    def __init__(self, store: ObjectStore) -> None:
        self.name = store.url
        self._store = store

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        # By a range, so that an object that somebody made long does not fill our memory.
        return await self._store.get_range(chunk_key(ref.id), 0, MAXIMUM_STORED_BYTES + 1, timeout_s=timeout_s)

    async def fetch_passing(self, ref: ChunkRef, land: Land, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        store = self._store
        if not isinstance(store, PiecewiseObjectStore):
            return await self.fetch(ref, timeout_s=timeout_s)
        landed = _Landed(land)
        try:
            return await store.get_pieces(
                chunk_key(ref.id), 0, MAXIMUM_STORED_BYTES + 1, landed.begin, timeout_s=timeout_s
            )
        except BaseException:
            landed.spoil()
            raise

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """Nothing: a store is asked again, and repaired by whoever published the chunk."""


class _Landed:
    """Puts what comes of one chunk where it is passed on from."""

    def __init__(self, land: Land) -> None:
        self._land = land
        self._landing: Landing | None = None
        self._at = 0

    def begin(self, size: int) -> Callable[[bytes], None]:
        """Begin, or begin again: what came before is spoilt."""
        self.spoil()
        self._at = 0
        self._landing = self._land(size) if size <= MAXIMUM_STORED_BYTES else None
        return self._take

    def _take(self, piece: bytes) -> None:
        at, self._at = self._at, self._at + len(piece)
        if self._landing is None:
            return
        if self._at > self._landing.size:  # More than was said: whoever asked finds out.
            self.spoil()
            self._landing = None
            return
        self._landing.view[at : self._at] = piece
        self._landing.came(self._at)

    def spoil(self) -> None:
        """Pass on no more of it."""
        if self._landing is not None:
            self._landing.spoil()


class BlobSource:
    """Chunks of one layer in one large object that is read by ranges."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.name = f"{store.url}/{key}"
        self._store = store
        self._key = key

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        data = await self._store.get_range(self._key, ref.blob_start, ref.stored_bytes, timeout_s=timeout_s)
        if len(data) != ref.stored_bytes:
            raise StoreUnavailableError(
                f"{self.name} gave {len(data)} of {ref.stored_bytes} bytes at {ref.blob_start}",
                resolution="see whether the object is whole, and whether the service honours ranges",
            )
        return data

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """Nothing: as with a store."""


def _nobody(source: str, error: DsecError) -> None:
    """Report to nobody."""


async def fetch_verified(
    sources: Sequence[ChunkSource],
    ref: ChunkRef,
    *,
    timeout_s: float,
    report: Callable[[str, DsecError], None] = _nobody,
    passed: Callable[[bytes], Awaitable[None]] | None = None,
    passing: Callable[[ChunkRef], Land] | None = None,
) -> bytes:
    """Return a chunk's content from the first source that has it, verified.

    Args:
        sources: asked one after the other.
        ref: what is wanted.
        timeout_s: for each of them.
        report: told the name of each source that failed and how, also when a later one has the chunk.
        passed: given the stored chunk as it came, once it is verified.
        passing: told what is asked of an origin that gives what can be passed on while it comes.

    Raises:
        StateCorruptedError: somebody gave something else, and nobody the chunk; names them.
        StoreUnavailableError: some source did not answer, and nobody else had it.
        ObjectNotFoundError: no source has it.
    """
    failures: list[DsecError] = []
    for source in sources:
        try:
            if passing is not None and isinstance(source, PassingSource):
                stored = await source.fetch_passing(ref, passing(ref), timeout_s=timeout_s)
            else:
                stored = await source.fetch(ref, timeout_s=timeout_s)
            content = await _verified(source, ref, stored)
        except (ObjectNotFoundError, StateCorruptedError, StoreUnavailableError) as error:
            failures.append(error)
            report(source.name, error)
        else:
            if passed is not None:
                await passed(stored)
            return content
    raise _worst(ref, failures)


async def _verified(source: ChunkSource, ref: ChunkRef, stored: bytes) -> bytes:
    """Return the content of what a source gave; blame the source where that is something else."""
    try:
        # Decoding and hashing 4 MiB takes milliseconds, in which others' answers would wait.
        return await anyio.to_thread.run_sync(decode, ref, stored, source.name)
    except StateCorruptedError as error:
        source.blame(ref, error)
        raise


def _worst(ref: ChunkRef, failures: Sequence[DsecError]) -> DsecError:
    """Return one error that tells what every source said, of the kind that matters most."""
    detail = "\n".join(f"{error.brief} ({error.detail.strip()})" if error.detail else error.brief for error in failures)
    sources = "its source" if len(failures) == 1 else f"any of {len(failures)} sources"
    brief = f"chunk {ref.id[:12]} cannot be had from {sources}"
    # What each says is to be done, such as to log in.
    known = "; ".join(dict.fromkeys(error.resolution for error in failures if error.resolution))
    for kind in (StateCorruptedError, StoreUnavailableError):
        if any(isinstance(error, kind) for error in failures):
            resolution = f"{known or 'see to the sources named above'}; it is tried again when read"
            return kind(brief, detail=detail, resolution=resolution)
    return ObjectNotFoundError(brief, detail=detail, resolution="convert the image again, and publish it there")
