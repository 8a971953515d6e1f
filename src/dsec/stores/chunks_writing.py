"""Writing chunks: hash, ask whether the store holds them, compress, group into packs, send while more is taken.

Memory: at most one batch, one pack being filled and two being sent, about 32 MiB for one writer.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from dsec.base.errors import DeadlineExceededError, DsecError, InvalidRequestError
from dsec.stores.chunks_catalog import Catalog, new_pack_name
from dsec.stores.chunks_index import Location
from dsec.stores.chunks_pack import (
    MAXIMUM_ENTRIES,
    PackEntry,
    StoredChunk,
    build_pack,
    chunk_id,
    encode_chunk,
)
from dsec.stores.chunks_values import MAXIMUM_CHUNK_BYTES, ChunkId, Pieces, StoredBytes

PACK_BYTES = 8 << 20
_BATCH_BYTES = 2 << 20
_BATCH_PIECES = 512
_SENT_AT_ONCE = 2


class ChunkWriter:
    """One writing session, made by `ChunkRepository.writer`. Several may run at once; each has one user."""

    def __init__(self, catalog: Catalog, group: TaskGroup) -> None:
        self._catalog = catalog
        self._group = group
        self._sending = anyio.CapacityLimiter(_SENT_AT_ONCE)
        self._idle = anyio.Condition()
        self._in_flight = 0
        self._failure: DsecError | None = None
        self._began_s = catalog.clock.boot_s()
        self._filling = _Filling()
        self._mine: set[ChunkId] = set()
        self._packs: set[str] = set()
        self._chunks = self._content_bytes = self._new_chunks = self._stored_bytes = self._objects = 0

    async def add(self, pieces: Pieces) -> list[ChunkId]:
        """Take chunks and return their ids, in the order of `pieces`.

        What the store does not hold is compressed where that pays, grouped into packs and sent while more is taken;
        nothing is promised before `flush`. Cancelled, the session can only be left.

        Raises:
            InvalidRequestError: a piece is empty or longer than `MAXIMUM_CHUNK_BYTES`.
            StoreUnavailableError, HostDiskFullError: the store refused, after retries.
        """
        ids: list[ChunkId] = []
        async for batch in _batches(pieces):
            ids += await self._add_batch(batch)
        return ids

    async def send(self) -> tuple[str, ...]:
        """Begin to send what is left, and return the names of the packs in which everything given so far stands once
        `flush` has returned: so that what tells of it can be written meanwhile. Raises as `add`.
        """
        await self._send()
        return tuple(sorted(self._packs))

    async def flush(self) -> StoredBytes:
        """Return once every chunk given so far is durable, and say what the session has stored since it began.

        Publish what names the chunks within half the grace period.

        Raises:
            DeadlineExceededError: the session has lasted longer than a quarter of the grace period, so that what it
                relies on may be deleted.
            StoreUnavailableError, HostDiskFullError: the store refused, after retries.
        """
        await self._send()
        async with self._idle:
            while self._in_flight > 0 and self._failure is None:
                await self._idle.wait()
        self._raise_failure()
        lasted_s = self._catalog.clock.boot_s() - self._began_s
        if self._catalog.grace_s > 0 and lasted_s > self._catalog.grace_s / 4:
            raise DeadlineExceededError(
                f"writing chunks took {lasted_s:.0f} s, more than a quarter of the store's grace period",
                resolution="write in smaller sessions",
            )
        return StoredBytes(
            chunks=self._chunks,
            content_bytes=self._content_bytes,
            new_chunks=self._new_chunks,
            stored_bytes=self._stored_bytes,
            objects=self._objects,
            packs=tuple(sorted(self._packs)),
        )

    async def _add_batch(self, batch: list[bytes]) -> list[ChunkId]:
        self._raise_failure()
        looked = await self._catalog.in_thread(lambda: self._look(batch))
        self._chunks += len(batch)
        self._content_bytes += sum(map(len, batch))
        wanted, encoded = looked.wanted, looked.encoded
        if encoded is None:
            for chunk in await self._relied_on(looked.known):
                del wanted[chunk]
            encoded = await self._catalog.in_thread(lambda: _encoded(wanted))
        self._mine.update(wanted)
        self._new_chunks += len(wanted)
        for each in encoded:
            self._filling.take(each)
            if self._filling.is_full:
                await self._send()
        return looked.ids

    def _look(self, batch: list[bytes]) -> _Looked:
        """Hash a batch, look for it in the index, and compress it at once if nothing of it is known: each turn of a
        thread costs as much as hashing a chunk."""
        ids = [chunk_id(piece) for piece in batch]
        wanted = {chunk: piece for chunk, piece in zip(ids, batch, strict=True) if chunk not in self._mine}
        known = self._catalog.index.locate(wanted)
        return _Looked(ids, wanted, known, None if known else _encoded(wanted))

    async def _relied_on(self, known: Mapping[ChunkId, Sequence[Location]]) -> list[ChunkId]:
        """Return which of some chunks stand in packs that can be relied on."""
        live = {spot.pack for spots in known.values() for spot in spots if not spot.doomed}
        trusted = await self._catalog.trusted(live)
        found: list[ChunkId] = []
        for chunk, spots in known.items():
            pack = next((spot.pack for spot in spots if spot.pack in trusted), None)
            if pack is not None:
                self._packs.add(pack)
                found.append(chunk)
        return found

    async def _send(self) -> None:
        """Send the pack that is being filled, in the background; wait while two are under way."""
        if not self._filling.chunks:
            return
        filled, self._filling = self._filling, _Filling()
        async with self._idle:
            while self._in_flight >= _SENT_AT_ONCE and self._failure is None:
                await self._idle.wait()
            self._in_flight += 1
        self._raise_failure()
        name = new_pack_name()
        self._packs.add(name)
        self._group.start_soon(self._put, name, filled)

    async def _put(self, name: str, filled: _Filling) -> None:
        try:
            data = await self._catalog.in_thread(lambda: build_pack(filled.chunks))
            await self._catalog.put(name, data, filled.entries())
            self._objects += 1
            self._stored_bytes += len(data)
        except DsecError as error:
            self._failure = error  # Raised where the writer is next used; a group of one error tells nobody more.
        finally:
            self._in_flight -= 1
            with anyio.CancelScope(shield=True):
                async with self._idle:
                    self._idle.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


@dataclass(slots=True)
class _Looked:
    """A batch that was looked for.

    Attributes:
        ids: its chunks.
        wanted: contents that this session has not given to the store yet.
        known: where those stand already, by the index.
        encoded: what is to be stored; None: that depends on which packs can be relied on.
    """

    ids: list[ChunkId]
    wanted: dict[ChunkId, bytes]
    known: Mapping[ChunkId, Sequence[Location]]
    encoded: list[StoredChunk] | None


def _encoded(wanted: Mapping[ChunkId, bytes]) -> list[StoredChunk]:
    return [encode_chunk(*item) for item in wanted.items()]


@dataclass(slots=True)
class _Filling:
    """A pack being filled."""

    chunks: list[StoredChunk] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= PACK_BYTES or len(self.chunks) >= MAXIMUM_ENTRIES

    def take(self, chunk: StoredChunk) -> None:
        self.chunks.append(chunk)
        self.size_bytes += len(chunk.body)

    def entries(self) -> list[PackEntry]:
        entries, start = [], 0
        for each in self.chunks:
            entries.append(PackEntry(each.chunk, start, len(each.body), each.content_bytes, each.encoding))
            start += len(each.body)
        return entries


@asynccontextmanager
async def open_writer(catalog: Catalog) -> AsyncIterator[ChunkWriter]:
    """Open a writing session; leaving it ends what it is sending."""
    await catalog.refresh_now_and_then()
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        try:
            yield ChunkWriter(catalog, group)
        except Exception as error:  # noqa: BLE001 - raised again below, outside the group, so that it stays itself.
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _batches(pieces: Pieces) -> AsyncIterator[list[bytes]]:
    batch: list[bytes] = []
    size_bytes = 0
    async for piece in _each(pieces):
        if not 0 < len(piece) <= MAXIMUM_CHUNK_BYTES:
            raise InvalidRequestError(
                f"a chunk has {len(piece)} bytes", resolution=f"cut content into pieces of 1 to {MAXIMUM_CHUNK_BYTES}"
            )
        batch.append(piece)
        size_bytes += len(piece)
        if size_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


async def _each(pieces: Pieces) -> AsyncIterator[bytes]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece
