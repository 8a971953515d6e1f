"""Which manifests and chunks snapshots need, and deleting the manifests that none does.

A manifest goes one way, as packs do: named or young, *doomed* (a tombstone stands beside it, and no save relies on it
any more), deleted, no sooner than the grace period after its tombstone and only if no root names it then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dsec.base.errors import SnapshotNotFoundError, StateCorruptedError
from dsec.state import snapshot_objects as objects
from dsec.state.manifest import chunks_of
from dsec.state.snapshot_objects import DOOMED, MANIFESTS, MERGED, ROOTS, Root
from dsec.stores.chunks import ChunkId, ChunkRepository
from dsec.stores.objects import ObjectStore


async def roots(store: ObjectStore) -> AsyncIterator[Root]:
    """Yield every root.

    Raises:
        StateCorruptedError: one does not verify, so that what it needs is not known.
    """
    async for info in store.list(ROOTS):
        snapshot = info.key.removeprefix(ROOTS)
        if not objects.is_snapshot_id(snapshot):
            continue
        try:
            yield await objects.get_root(store, snapshot)
        except SnapshotNotFoundError:
            continue  # Removed meanwhile, or the list is stale.


async def named_manifests(store: ObjectStore) -> set[str]:
    """Return the manifests that some root needs."""
    named: set[str] = set()
    async for root in roots(store):
        merged = await objects.get_merged(store, root.info.snapshot_id)
        named.update(root.chain if merged is None else [merged])
    return named


async def reachable_chunks(store: ObjectStore) -> set[ChunkId]:
    """Return every chunk that a manifest names, also one that no root names: a save may be under way on it.

    Raises:
        StateCorruptedError: a manifest that a root needs cannot be read.
    """
    named = await named_manifests(store)
    there = {info.key.removeprefix(MANIFESTS) async for info in store.list(MANIFESTS)}
    found: set[ChunkId] = set()
    for name in sorted(named | there):
        try:
            manifest = await objects.get_manifest(store, name)
        except StateCorruptedError:
            if name in named:
                raise
            continue  # Deleted meanwhile, or damaged: nothing can begin on it.
        found.update(map(ChunkId, chunks_of(manifest.entries)))
        found.update(ChunkId(extent.chunk) for extent in manifest.exported or ())
    found.discard(ChunkId(b""))
    return found


async def collect_manifests(store: ObjectStore, chunks: ChunkRepository) -> int:
    """Delete manifests doomed at least the grace period ago that no root names, and doom others. Return how many
    were deleted."""
    now_s = await chunks.store_time_s()
    tombstones = {info.key.removeprefix(DOOMED): info.modified_at_s async for info in store.list(DOOMED)}
    manifests = {info.key.removeprefix(MANIFESTS): info.modified_at_s async for info in store.list(MANIFESTS)}
    named = await named_manifests(store)  # Not before the tombstones' age is known.
    deleted = 0
    for name, since_s in sorted(tombstones.items()):
        if name not in named and now_s - since_s >= chunks.grace_s:
            await store.delete([MANIFESTS + name])
            await store.delete([DOOMED + name])
            deleted += 1
    for name, since_s in sorted(manifests.items()):
        if name not in named and name not in tombstones and now_s - since_s >= chunks.grace_s:
            await store.put(DOOMED + name, b"", if_absent=True)
    await _delete_pointers(store)
    return deleted


async def _delete_pointers(store: ObjectStore) -> None:
    """Delete what a merge wrote for a snapshot that was removed meanwhile."""
    async for info in store.list(MERGED):
        if await store.head(ROOTS + info.key.removeprefix(MERGED)) is None:
            await store.delete([info.key])
