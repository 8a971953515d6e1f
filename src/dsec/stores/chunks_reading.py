"""Reading chunks: what lies together is asked for as one range, several ranges at a time, each chunk verified.

Reading goes by windows of 8 MiB of content, one of which is in memory: a window is read whole and then handed out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import anyio

from dsec.base.errors import ObjectNotFoundError, StateCorruptedError
from dsec.stores.at_once import each_at_once
from dsec.stores.chunks_catalog import PACKS, Catalog
from dsec.stores.chunks_index import Location
from dsec.stores.chunks_pack import PackEntry, decode_chunk
from dsec.stores.chunks_values import ChunkId

_WINDOW_BYTES = 8 << 20
_IDS_AT_ONCE = 4096
_GAP_BYTES = 64 << 10
"""Bytes between two chunks that are read along and thrown away: cheaper than another request."""
_RANGE_BYTES = 4 << 20
_RANGES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class _Range:
    pack: str
    entries: Sequence[PackEntry]

    @property
    def start(self) -> int:
        return self.entries[0].start

    @property
    def length(self) -> int:
        return self.entries[-1].start + self.entries[-1].stored_bytes - self.start


async def read_in_order(catalog: Catalog, ids: Iterable[ChunkId]) -> AsyncGenerator[bytes, None]:
    """Yield contents in the order of `ids`."""
    for some in _some(ids):
        found = await find(catalog, some)
        async with aclosing(_windows(catalog, _split(some, found))) as windows:
            async for window, contents in windows:
                for chunk in window:
                    yield contents[chunk]


async def read_as_stored(catalog: Catalog, ids: Iterable[ChunkId]) -> AsyncGenerator[tuple[ChunkId, bytes], None]:
    """Yield each distinct chunk once, pack by pack."""
    distinct = list(dict.fromkeys(ids))
    found = await find(catalog, distinct)
    distinct.sort(key=lambda chunk: (found[chunk].pack, found[chunk].entry.start))
    async with aclosing(_windows(catalog, _split(distinct, found))) as windows:
        async for _, contents in windows:
            for item in contents.items():
                yield item


async def find(catalog: Catalog, ids: Sequence[ChunkId]) -> dict[ChunkId, Location]:
    """Return where to read each chunk, having looked for what is unknown.

    Raises:
        StateCorruptedError: a chunk is in no known pack.
    """
    found = await catalog.locate(ids)
    if any(chunk not in found for chunk in ids):
        await catalog.refresh()
        found = await catalog.locate(ids)
    for chunk in ids:
        if chunk not in found:
            raise _missing(catalog, chunk)
    return {chunk: spots[0] for chunk, spots in found.items()}


async def _windows(
    catalog: Catalog, windows: Iterator[tuple[list[ChunkId], dict[ChunkId, Location]]]
) -> AsyncGenerator[tuple[list[ChunkId], dict[ChunkId, bytes]], None]:
    """Read window after window. A window is read whole before it is handed out, its ranges side by side."""
    for order, places in windows:
        yield order, await _read_window(catalog, places)


async def _read_window(catalog: Catalog, places: dict[ChunkId, Location]) -> dict[ChunkId, bytes]:
    contents: dict[ChunkId, bytes] = {}
    limiter = anyio.CapacityLimiter(_RANGES_AT_ONCE)
    ranges = {str(number): each for number, each in enumerate(_ranges(places.values()))}

    async def one(number: str) -> None:
        async with limiter:
            contents.update(await _read_range(catalog, ranges[number]))

    await each_at_once(list(ranges), one)
    return {chunk: contents[chunk] for chunk in places}


async def _read_range(catalog: Catalog, wanted: _Range) -> dict[ChunkId, bytes]:
    try:
        data = await catalog.store.get_range(PACKS + wanted.pack, wanted.start, wanted.length)
        return await catalog.in_thread(lambda: _decode(wanted, data))
    except ObjectNotFoundError:
        await catalog.forget([wanted.pack])  # Deleted by a collector, or lost.
    except StateCorruptedError:
        pass  # On the way, or in the store: one by one, from wherever a copy is.
    return {entry.chunk: await _read_alone(catalog, entry.chunk, wanted.pack) for entry in wanted.entries}


def _decode(wanted: _Range, data: bytes) -> dict[ChunkId, bytes]:
    contents = {}
    for entry in wanted.entries:
        begin = entry.start - wanted.start
        contents[entry.chunk] = decode_chunk(entry, data[begin : begin + entry.stored_bytes], wanted.pack)
    return contents


async def _read_alone(catalog: Catalog, chunk: ChunkId, pack: str) -> bytes:
    """Read one chunk from any pack that holds it, those included that others wrote meanwhile."""
    failure: StateCorruptedError = _missing(catalog, chunk, f"pack {pack}, where it stood, is gone")
    for attempt in range(2):
        if attempt > 0:
            await catalog.refresh()
        for spot in (await catalog.locate([chunk])).get(chunk, []):
            try:
                data = await catalog.store.get_range(PACKS + spot.pack, spot.entry.start, spot.entry.stored_bytes)
                return decode_chunk(spot.entry, data, spot.pack)
            except ObjectNotFoundError:
                await catalog.forget([spot.pack])
            except StateCorruptedError as error:
                failure = error
    raise failure


def _ranges(places: Iterable[Location]) -> Iterator[_Range]:
    """Group chunks that lie together."""
    group: list[PackEntry] = []
    pack = ""
    for spot in sorted(places, key=lambda spot: (spot.pack, spot.entry.start)):
        end = group[-1].start + group[-1].stored_bytes if group else 0
        joins = spot.pack == pack and spot.entry.start - end <= _GAP_BYTES
        if group and not (joins and spot.entry.start + spot.entry.stored_bytes - group[0].start <= _RANGE_BYTES):
            yield _Range(pack, group)
            group = []
        pack = spot.pack
        group.append(spot.entry)
    if group:
        yield _Range(pack, group)


def _split(
    ids: Iterable[ChunkId], found: dict[ChunkId, Location]
) -> Iterator[tuple[list[ChunkId], dict[ChunkId, Location]]]:
    order: list[ChunkId] = []
    places: dict[ChunkId, Location] = {}
    size_bytes = 0
    for chunk in ids:
        order.append(chunk)
        if chunk not in places:
            places[chunk] = found[chunk]
            size_bytes += found[chunk].entry.content_bytes
        if size_bytes >= _WINDOW_BYTES:
            yield order, places
            order, places, size_bytes = [], {}, 0
    if order:
        yield order, places


def _some(ids: Iterable[ChunkId]) -> Iterator[list[ChunkId]]:
    batch: list[ChunkId] = []
    for chunk in ids:
        batch.append(chunk)
        if len(batch) >= _IDS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _missing(catalog: Catalog, chunk: ChunkId, detail: str = "") -> StateCorruptedError:
    damaged = ", ".join(sorted(catalog.damaged)[:3])
    return StateCorruptedError(
        f"chunk {chunk.hex()} is in no pack of {catalog.store.url}",
        detail=detail or (f"the indices of these packs do not verify: {damaged}" if damaged else ""),
        resolution="bring the missing packs back from a copy of the store",
    )
