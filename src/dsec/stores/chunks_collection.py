"""Deleting packs that nothing needs, and checking all of them (the theory stands in `dsec.stores.chunks`)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Set
from dataclasses import dataclass

from dsec.base.errors import ObjectNotFoundError, StateCorruptedError, StoreUnavailableError
from dsec.stores.chunks_catalog import CLOCK, DOOMED, PACKS, Catalog
from dsec.stores.chunks_pack import PackEntry, decode_chunk
from dsec.stores.chunks_values import ChunkId, CollectionReport, Problem, Reachable, VerificationReport
from dsec.stores.chunks_writing import open_writer

SMALL_BYTES = 1 << 20
MANY = 16
"""So many packs below `SMALL_BYTES` are worth being made into one."""
_READ_BYTES = 8 << 20


@dataclass(slots=True)
class _Swept:
    deleted: int = 0
    freed_bytes: int = 0
    copied_bytes: int = 0
    damaged: tuple[str, ...] = ()


async def collect(
    catalog: Catalog, reachable: Reachable, minimum_live_share: float, *, dry_run: bool = False
) -> CollectionReport:
    """Sweep what was doomed long enough ago, then doom what is hardly needed."""
    await catalog.refresh()
    now_s = await store_time(catalog)
    tombstones = {info.key.removeprefix(DOOMED): info.modified_at_s async for info in catalog.store.list(DOOMED)}
    packs = {info.key.removeprefix(PACKS): info async for info in catalog.store.list(PACKS)}
    due = [pack for pack, since_s in sorted(tombstones.items()) if now_s - since_s >= catalog.grace_s]
    live = await reachable()  # Not before the tombstones' age is known: invariant 3 of the format.
    if dry_run:
        sizes = [packs[pack].size_bytes for pack in due if pack in packs]
        swept = _Swept(deleted=len(sizes), freed_bytes=sum(sizes))
    else:
        swept = await _sweep(catalog, due, live)
    old = {
        pack: info.size_bytes
        for pack, info in packs.items()
        if pack not in tombstones and now_s - info.modified_at_s >= catalog.grace_s
    }
    condemned = await _condemned(catalog, old, live, minimum_live_share)
    for pack in condemned if not dry_run else ():
        await catalog.doom(pack)
    return CollectionReport(
        packs=len(packs),
        doomed=len(condemned),
        waiting=len(tombstones) - len(due),
        deleted=swept.deleted,
        freed_bytes=swept.freed_bytes,
        copied_bytes=swept.copied_bytes,
        damaged=swept.damaged,
    )


async def store_time(catalog: Catalog) -> float:
    """Return the time by the store's clock, with which alone the times of objects may be compared."""
    key = f"{CLOCK}{secrets.token_hex(16)}"
    await catalog.store.put(key, b"")
    try:
        info = await catalog.store.head(key)
    finally:
        await catalog.store.delete([key])
    if info is None:
        raise StoreUnavailableError(f"{catalog.store.url} acknowledged an object and does not hold it")
    return info.modified_at_s


async def _sweep(catalog: Catalog, due: Iterable[str], live: Set[ChunkId]) -> _Swept:
    """Save what is reachable in packs that are due, then delete them: the pack first, its tombstone after it."""
    swept = _Swept()
    for pack in due:
        info = await catalog.store.head(PACKS + pack)
        if info is not None:
            try:
                swept.copied_bytes += await _save(catalog, pack, info.size_bytes, live)
            except StateCorruptedError:
                swept.damaged += (pack,)
                continue
            except ObjectNotFoundError:
                pass  # Another collector was faster.
            await catalog.store.delete([PACKS + pack])
            swept.deleted += 1
            swept.freed_bytes += info.size_bytes
        await catalog.forget([pack])
        await catalog.store.delete([DOOMED + pack])
    return swept


async def _save(catalog: Catalog, pack: str, size_bytes: int, live: Set[ChunkId]) -> int:
    """Store again what is reachable in a pack, unless a live pack holds it; return the bytes written."""
    needed = [entry for entry in await catalog.fetch_index(pack, size_bytes) if entry.chunk in live]
    if not needed:
        return 0
    async with open_writer(catalog) as writer:
        for entry in needed:
            await writer.add([await _fetch(catalog, pack, entry)])
        return (await writer.flush()).stored_bytes


async def _fetch(catalog: Catalog, pack: str, entry: PackEntry) -> bytes:
    try:
        return await _fetch_once(catalog, pack, entry)
    except StateCorruptedError:
        return await _fetch_once(catalog, pack, entry)  # It may have been damaged on the way.


async def _fetch_once(catalog: Catalog, pack: str, entry: PackEntry) -> bytes:
    data = await catalog.store.get_range(PACKS + pack, entry.start, entry.stored_bytes)
    return decode_chunk(entry, data, pack)


async def _condemned(catalog: Catalog, old: dict[str, int], live: Set[ChunkId], minimum_live_share: float) -> list[str]:
    """Return packs to doom: of a chunk that stands in several live packs, only the first counts."""
    counted: set[ChunkId] = set()
    condemned: list[str] = []
    small: list[str] = []
    for pack, size_bytes in sorted(old.items()):
        if pack in catalog.damaged:
            continue  # What it holds is unknown: a person decides.
        entries = await catalog.in_thread(lambda pack=pack: catalog.index.entries(pack))  # type: ignore[misc]
        mine = [entry for entry in entries if entry.chunk in live and entry.chunk not in counted]
        if sum(entry.stored_bytes for entry in mine) < minimum_live_share * size_bytes or not mine:
            condemned.append(pack)
            continue
        counted.update(entry.chunk for entry in mine)
        if size_bytes < SMALL_BYTES:
            small.append(pack)
    return condemned + (small if len(small) >= MANY else [])


async def verify(catalog: Catalog) -> VerificationReport:
    """Read every pack and check it."""
    packs = chunks = read_bytes = 0
    problems: list[Problem] = []
    async for info in catalog.store.list(PACKS):
        pack = info.key.removeprefix(PACKS)
        packs += 1
        try:
            entries = await catalog.fetch_index(pack, info.size_bytes)
        except ObjectNotFoundError:
            continue  # Deleted meanwhile.
        except StateCorruptedError as error:
            problems.append(Problem(pack=pack, chunk="", brief=error.brief))
            continue
        chunks += len(entries)
        read_bytes += info.size_bytes
        problems += await _verify_chunks(catalog, pack, entries)
    return VerificationReport(packs=packs, chunks=chunks, read_bytes=read_bytes, problems=tuple(problems))


async def _verify_chunks(catalog: Catalog, pack: str, entries: list[PackEntry]) -> list[Problem]:
    problems: list[Problem] = []
    for some in _in_parts(entries):
        start, end = some[0].start, some[-1].start + some[-1].stored_bytes
        try:
            data = await catalog.store.get_range(PACKS + pack, start, end - start)
        except ObjectNotFoundError:
            return problems
        problems += await catalog.in_thread(lambda: _check(pack, some, data))  # noqa: B023 - awaited at once.
    return problems


def _in_parts(entries: list[PackEntry]) -> Iterable[list[PackEntry]]:
    part: list[PackEntry] = []
    for entry in entries:
        part.append(entry)
        if entry.start + entry.stored_bytes - part[0].start >= _READ_BYTES:
            yield part
            part = []
    if part:
        yield part


def _check(pack: str, entries: list[PackEntry], data: bytes) -> list[Problem]:
    problems = []
    for entry in entries:
        begin = entry.start - entries[0].start
        try:
            decode_chunk(entry, data[begin : begin + entry.stored_bytes], pack)
        except StateCorruptedError as error:
            problems.append(Problem(pack=pack, chunk=entry.chunk.hex(), brief=error.detail))
    return problems
