"""Durable snapshots: frozen trees as manifests and chunks in an object store, by content, restorable on any node.

Format and invariants: docs/formats/snapshots.md. The theory in short:

- A snapshot is a chain of manifests: a complete one and deltas on it. A delta costs what changed, in bytes, requests
  and time; nothing of the parent but its small root is read to write one. Restoring folds the chain, which is
  metadata alone, and then reads each chunk it needs, so that a long chain costs little more than a merged one.
- What changed is found by comparing two frozen trees: the one to save and the one that the parent was made from. The
  walk of both is authoritative; a driver that knows more (`FrozenTree.touched_since`) spares the walk.
- `snapshots/<id>` is put last and is the root: killed at any instruction, a save leaves garbage and no snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import DeadlineExceededError, DsecError, SnapshotNotFoundError, StateCorruptedError
from dsec.model.state import SnapshotInfo
from dsec.state import snapshot_objects as objects
from dsec.state.diff import Content, Difference, difference
from dsec.state.manifest import (
    MAXIMUM_EXTENTS,
    MAXIMUM_PACKS,
    Extent,
    File,
    Manifest,
    Patch,
    SnapshotHeader,
    Tree,
    fold,
)
from dsec.state.manifest_codec import encode_manifest, manifest_name
from dsec.state.snapshot_collection import collect_manifests, reachable_chunks
from dsec.state.snapshot_contents import finish_entry, needed_chunks, restore_contents, slice_of, store_contents
from dsec.state.snapshot_objects import Root
from dsec.state.trees import FrozenTree, NewTree
from dsec.stores.at_once import each_at_once
from dsec.stores.chunks import ChunkId, ChunkRepository, ChunkWriter, CollectionReport, StoredBytes
from dsec.stores.objects import ObjectStore

MERGE_DEPTH = 20
"""A chain of more deltas than this is to be merged."""
_MAXIMUM_DELTA_RANGES = 30_000
_MAXIMUM_DELTA_BYTES = 16 << 20
"""A delta of more ranges, or of a longer description, than this becomes a complete manifest, so that no chain grows
beyond all bounds."""
_EXPORT_CHUNK_BYTES = 1 << 20
_LONGEST_TRUST_S = 3600.0
_READ_AT_ONCE = 8
_NAMED_PROBLEMS = 100
_CHUNKS_AT_ONCE = 256
_PACKS, _MANIFEST = "packs", "manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that was loaded and verified, chunks excepted.

    Attributes:
        info: as a list shows it.
        header: what is needed beside files.
        tree: its entries.
        data_bytes: bytes that its files have on a disk; what nothing was written to takes no room.
        exported_extents, exported_bytes: where that is what the export hook gave; None: none ran.
    """

    info: SnapshotInfo
    header: SnapshotHeader
    tree: Tree
    data_bytes: int = 0
    exported_extents: tuple[Extent, ...] | None = None
    exported_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """What a verification found.

    Attributes:
        snapshot_id: which snapshot.
        problems: what is missing or wrong, in words that name the object or chunk; empty: all is well.
    """

    snapshot_id: str
    problems: tuple[str, ...] = ()


class SnapshotStore:
    """The snapshots of one object store. Safe to use from many tasks, and from many nodes at once.

    Args:
        store: where they are.
        chunks: the chunk repository of that store.
        clock: time.
    """

    def __init__(self, store: ObjectStore, chunks: ChunkRepository, *, clock: Clock = SystemClock()) -> None:
        self._store = store
        self._chunks = chunks
        self._clock = clock
        self._trusted_until: dict[str, float] = {}

    async def save(
        self,
        tree: FrozenTree,
        header: SnapshotHeader,
        *,
        exported: bytes | None = None,
        parent: str | None = None,
        base: FrozenTree | None = None,
        checkpointed_s: float | None = None,
    ) -> SnapshotInfo:
        """Make a frozen tree durable and return its snapshot once it is acknowledged and seen.

        Cancelled or failed, no snapshot was made, or (when the store's last answer was lost) the whole one.

        Args:
            tree: what to save; it is not changed and must stay open.
            header: what is needed beside files.
            exported: what the export hook gave.
            parent: id of the snapshot that `base` became. It becomes the parent if it is still there and its chain is
                not too long; otherwise a complete manifest is written.
            base: the frozen tree that `parent` was made from; without it a complete manifest is written, of which the
                store takes what it does not hold.
            checkpointed_s: boot time at which the checkpoint was taken, for `SnapshotInfo.duration_s`; None: now.

        Raises:
            LimitExceededError: the tree is larger than a snapshot may be.
            StoreUnavailableError, HostDiskFullError: the store does not take it, after retries.
        """
        began_s = self._clock.boot_s()
        on = await self._parent(parent) if parent is not None and base is not None else None
        found = await _difference(tree, base if on is not None else None)
        if on is not None and (on.extents > MAXIMUM_EXTENTS // 2 or _is_too_much_for_a_delta(found)):
            on, found = None, await _difference(tree, None)
        written = await self._store_contents(tree, header, exported, found, on)
        self._check_time(began_s)
        root = self._root(written, found, on)
        duration_s = self._clock.boot_s() - (began_s if checkpointed_s is None else checkpointed_s)
        info = msgspec.structs.replace(root.info, duration_s=duration_s)
        root = msgspec.structs.replace(root, info=info)
        await objects.put_seen(self._store, objects.ROOTS + info.snapshot_id, objects.encode_root(root))
        self._trust(root.chain[-1:], began_s)
        return info

    async def find(self, snapshot: str) -> SnapshotInfo:
        """Describe a snapshot by id or name; of several with that name, the newest.

        Raises:
            SnapshotNotFoundError: there is none.
            StateCorruptedError: its root does not verify.
        """
        if objects.is_snapshot_id(snapshot):
            return await self._described(await objects.get_root(self._store, snapshot))
        named = [info for info in await self.list_all() if info.name == snapshot and snapshot]
        if not named:
            raise objects.not_found(snapshot)
        return named[-1]

    async def list_all(self) -> Sequence[SnapshotInfo]:
        """Return all snapshots whose roots can be read, oldest first."""
        found: list[SnapshotInfo] = []
        limiter = anyio.CapacityLimiter(_READ_AT_ONCE)
        merged = {info.key.removeprefix(objects.MERGED) async for info in self._store.list(objects.MERGED)}

        async def one(snapshot: str) -> None:
            async with limiter:
                try:
                    info = (await objects.get_root(self._store, snapshot)).info
                except (SnapshotNotFoundError, StateCorruptedError):
                    return  # Removed meanwhile; or damaged, which `find` and `verify` tell of.
                found.append(msgspec.structs.replace(info, depth=0) if snapshot in merged else info)

        keys = [info.key.removeprefix(objects.ROOTS) async for info in self._store.list(objects.ROOTS)]
        await each_at_once([key for key in keys if objects.is_snapshot_id(key)], one)
        return sorted(found, key=lambda info: (info.created_at_s, info.snapshot_id))

    async def load(self, snapshot: str) -> Snapshot:
        """Read a snapshot's manifests by its id or name.

        Raises:
            SnapshotNotFoundError: there is none.
            StateCorruptedError: a manifest of its chain is missing or does not verify; names it.
            StoreUnavailableError: the store does not answer, after retries.
        """
        info = await self.find(snapshot)
        root = await objects.get_root(self._store, info.snapshot_id)
        chain, names = await self._chain(root)
        tree = await anyio.to_thread.run_sync(fold, chain, [objects.MANIFESTS + name for name in names])
        data_bytes = await anyio.to_thread.run_sync(_data_bytes, tree)
        await self._chunks.learn(pack for manifest in chain for pack in manifest.packs)
        return Snapshot(
            info=info,
            header=chain[-1].header,
            tree=tree,
            data_bytes=data_bytes,
            exported_extents=chain[-1].exported,
            exported_bytes=chain[-1].exported_bytes,
        )

    async def exported(self, snapshot: Snapshot) -> bytes | None:
        """Return what the export hook gave when the snapshot was made; None: none ran. Raises as `restore_into`."""
        if snapshot.exported_extents is None:
            return None
        state = bytearray(snapshot.exported_bytes)
        extents = [extent for extent in snapshot.exported_extents if extent.chunk]
        async with aclosing(self._chunks.read(ChunkId(extent.chunk) for extent in extents)) as contents:
            for extent in extents:
                content = await anext(contents)
                state[extent.start : extent.end] = slice_of(memoryview(content), extent, b"the exported state")
        return bytes(state)

    async def restore_into(self, snapshot: Snapshot, target: NewTree) -> None:
        """Fill a new tree with a snapshot's files. Whoever opened the tree publishes it, or discards it on any error.

        Raises:
            StateCorruptedError: a chunk is missing or does not verify; names it.
            HostDiskFullError: the volume of writable layers has no room.
            StoreUnavailableError: the store does not answer, after retries.
        """
        await restore_contents(snapshot.tree, self._chunks, target)

    async def remove(self, snapshot_id: str) -> None:
        """Remove a snapshot by its id. Others that were made on it stay whole. Idempotent."""
        if not objects.is_snapshot_id(snapshot_id):
            raise objects.not_found(snapshot_id)
        await self._store.delete([objects.ROOTS + snapshot_id])
        await self._store.delete([objects.MERGED + snapshot_id])

    async def merge(self, snapshot_id: str) -> bool:
        """Write the complete manifest of a snapshot whose chain is long; return whether there was something to do.
        Its id stays the same, and so does what it restores to.

        Raises:
            SnapshotNotFoundError, StateCorruptedError, StoreUnavailableError: as `load`.
        """
        root = await objects.get_root(self._store, snapshot_id)
        if len(root.chain) == 1 or await objects.get_merged(self._store, snapshot_id) is not None:
            return False
        chain = await objects.get_chain(self._store, root.chain)
        data = await anyio.to_thread.run_sync(_merged, chain, root.chain)
        name = manifest_name(data).hex()
        await objects.put_seen(self._store, objects.MANIFESTS + name, data)
        await objects.put_seen(self._store, objects.MERGED + snapshot_id, name.encode())
        return True

    async def verify(self, snapshot_id: str, *, contents: bool = False) -> SnapshotReport:
        """Check a snapshot's chain, and that every chunk is in the store; with `contents`, read them all."""
        try:
            snapshot = await self.load(snapshot_id)
        except StateCorruptedError as error:
            return SnapshotReport(snapshot_id=snapshot_id, problems=(_in_words(error),))
        ids = list(dict.fromkeys([*needed_chunks(snapshot.tree.values()), *_exported_chunks(snapshot)]))
        gone = set(await self._chunks.missing(ids))
        problems = [f"chunk {chunk.hex()} is in no pack" for chunk in gone]
        if contents:
            problems += await self._read_all([chunk for chunk in ids if chunk not in gone])
        return SnapshotReport(snapshot_id=snapshot_id, problems=tuple(sorted(problems)[:_NAMED_PROBLEMS]))

    async def reachable(self) -> set[ChunkId]:
        """Return every chunk that a manifest in the store names, for `ChunkRepository.collect`.

        Raises:
            StateCorruptedError: a manifest cannot be read, so that what it needs is not known.
        """
        return await reachable_chunks(self._store)

    async def collect(self, *, minimum_live_share: float = 0.5) -> CollectionReport:
        """Delete manifests and packs that no snapshot needs, after their grace period."""
        await collect_manifests(self._store, self._chunks)
        return await self._chunks.collect(self.reachable, minimum_live_share=minimum_live_share)

    # Saving.

    async def _parent(self, snapshot: str) -> _Parent | None:
        """Return what a delta can begin on; None: the parent is gone, going, damaged or long."""
        try:
            root = await objects.get_root(self._store, snapshot)
        except (SnapshotNotFoundError, StateCorruptedError):
            return None
        merged = await objects.get_merged(self._store, snapshot)
        chain = root.chain if merged is None else (merged,)
        now_s = self._clock.boot_s()
        unknown = tuple(name for name in chain if self._trusted_until.get(name, now_s) <= now_s)
        if len(chain) >= objects.MAXIMUM_CHAIN or await objects.missing(self._store, unknown):
            return None
        self._trust(unknown, now_s)
        return _Parent(root.info, chain, root.extents)

    def _trust(self, names: Sequence[str], since_s: float) -> None:
        """Note that some manifests were there, without a tombstone, at a time."""
        lasts_s = min(self._chunks.grace_s / 4, _LONGEST_TRUST_S)
        self._trusted_until.update((name, since_s + lasts_s) for name in names)

    async def _store_contents(
        self,
        tree: FrozenTree,
        header: SnapshotHeader,
        exported: bytes | None,
        found: Difference,
        on: _Parent | None,
    ) -> _Written:
        """Store what was found and the manifest that tells of it; both are durable then."""
        contents = [(path, entry) for path, entry in found.entries if isinstance(entry, Content)]
        async with self._chunks.writer() as writer:
            extents = await store_contents(tree, contents, writer)
            exported_extents = None if exported is None else _extents(exported, await writer.add(_pieces(exported)))
            packs = await writer.send()
            manifest = Manifest(
                header=header,
                parent=None if on is None else bytes.fromhex(on.chain[-1]),
                entries=tuple((path, finish_entry(entry, extents.get(path, ()))) for path, entry in found.entries),
                removed=tuple(found.removed) if on is not None else (),
                exported=exported_extents,
                exported_bytes=0 if exported is None else len(exported),
                packs=packs[:MAXIMUM_PACKS],
            )
            written = _Written(manifest)
            await each_at_once((_PACKS, _MANIFEST), partial(self._finish, writer, written))
        return written

    async def _finish(self, writer: ChunkWriter, written: _Written, part: str) -> None:
        """Wait for the last pack, or put the manifest meanwhile: before a root names it, nobody looks at it."""
        if part == _PACKS:
            written.stored = await writer.flush()
            return
        data = await anyio.to_thread.run_sync(encode_manifest, written.manifest)
        written.name, written.size_bytes = manifest_name(data), len(data)
        await objects.put_seen(self._store, objects.MANIFESTS + written.name.hex(), data)

    def _check_time(self, began_s: float) -> None:
        """Refuse to publish what may rely on something that was deleted meanwhile."""
        lasted_s = self._clock.boot_s() - began_s
        if 0 < self._chunks.grace_s / 4 < lasted_s:
            raise DeadlineExceededError(
                f"saving the snapshot took {lasted_s:.0f} s, more than a quarter of the store's grace period"
            )

    def _root(self, written: _Written, found: Difference, on: _Parent | None) -> Root:
        manifest, name = written.manifest, written.name
        header = manifest.header
        extents = sum(len(entry.extents) for _, entry in manifest.entries if isinstance(entry, (File, Patch)))
        info = SnapshotInfo(
            snapshot_id=objects.snapshot_id(name),
            name=header.name,
            metadata=header.metadata,
            sandbox_id=header.sandbox_id,
            image=header.spec.image,
            parent=None if on is None else on.info.snapshot_id,
            depth=0 if on is None else len(on.chain),
            created_at_s=header.created_at_s,
            # The top directory is in every tree.
            files=found.added_entries + (-1 if on is None else on.info.files),
            content_bytes=found.added_bytes + (0 if on is None else on.info.content_bytes),
            stored_bytes=written.stored.stored_bytes + written.size_bytes,
            exported_bytes=None if manifest.exported is None else manifest.exported_bytes,
        )
        chain = (*(() if on is None else on.chain), name.hex())
        # An extent laid over others cuts one in two at worst.
        return Root(info=info, chain=chain, extents=extents if on is None else on.extents + 2 * extents)

    # Reading.

    async def _described(self, root: Root) -> SnapshotInfo:
        if root.info.depth and await objects.get_merged(self._store, root.info.snapshot_id) is not None:
            return msgspec.structs.replace(root.info, depth=0)
        return root.info

    async def _chain(self, root: Root) -> tuple[list[Manifest], tuple[str, ...]]:
        """Return the manifests to fold, and their names: the merged one, where it can be read."""
        merged = await objects.get_merged(self._store, root.info.snapshot_id) if len(root.chain) > 1 else None
        if merged is not None:
            try:
                return await objects.get_chain(self._store, (merged,)), (merged,)
            except StateCorruptedError:
                pass  # The chain says the same, if it is still there; otherwise the error below names what is missing.
        return await objects.get_chain(self._store, root.chain), root.chain

    async def _read_all(self, ids: Sequence[ChunkId]) -> list[str]:
        problems: list[str] = []
        for first in range(0, len(ids), _CHUNKS_AT_ONCE):
            some = ids[first : first + _CHUNKS_AT_ONCE]
            if await self._problem(some):
                problems += filter(None, [await self._problem([chunk]) for chunk in some])
        return problems

    async def _problem(self, ids: Sequence[ChunkId]) -> str:
        try:
            async with aclosing(self._chunks.read(ids)) as contents:
                async for _ in contents:
                    pass
        except StateCorruptedError as error:
            return _in_words(error)
        return ""


@dataclass(frozen=True, slots=True)
class _Parent:
    """A snapshot to write a delta on."""

    info: SnapshotInfo
    chain: tuple[str, ...]
    extents: int


@dataclass(slots=True)
class _Written:
    """What a save wrote: the manifest with its name and size, and the chunks that the store had not."""

    manifest: Manifest
    name: bytes = b""
    size_bytes: int = 0
    stored: StoredBytes = field(default_factory=StoredBytes)


async def _difference(tree: FrozenTree, base: FrozenTree | None) -> Difference:
    """Compare in a thread, until the caller is cancelled."""
    return await anyio.to_thread.run_sync(partial(difference, tree, base, check=anyio.from_thread.check_cancelled))


def _is_too_much_for_a_delta(found: Difference) -> bool:
    ranges = sum(len(entry.ranges) for _, entry in found.entries if isinstance(entry, Content))
    return ranges > _MAXIMUM_DELTA_RANGES or found.described_bytes > _MAXIMUM_DELTA_BYTES


def _data_bytes(tree: Tree) -> int:
    files = (entry for entry in tree.values() if isinstance(entry, File))
    return sum(extent.length for file in files for extent in file.extents if extent.chunk)


def _pieces(content: bytes) -> list[bytes]:
    return [content[at : at + _EXPORT_CHUNK_BYTES] for at in range(0, len(content), _EXPORT_CHUNK_BYTES)]


def _extents(content: bytes, ids: Sequence[ChunkId]) -> tuple[Extent, ...]:
    """Return where each piece of `_pieces` is."""
    pieces = zip(ids, range(0, len(content), _EXPORT_CHUNK_BYTES), strict=True)
    return tuple(Extent(at, min(_EXPORT_CHUNK_BYTES, len(content) - at), chunk) for chunk, at in pieces)


def _exported_chunks(snapshot: Snapshot) -> list[ChunkId]:
    return [ChunkId(extent.chunk) for extent in snapshot.exported_extents or () if extent.chunk]


def _merged(chain: Sequence[Manifest], names: Sequence[str]) -> bytes:
    """Return the complete manifest that says the same as a chain."""
    tree = fold(chain, [objects.MANIFESTS + name for name in names])
    packs = sorted({pack for manifest in chain for pack in manifest.packs})
    last = chain[-1]
    return encode_manifest(
        Manifest(
            header=last.header,
            entries=tuple(tree.items()),
            exported=last.exported,
            exported_bytes=last.exported_bytes,
            packs=tuple(packs[:MAXIMUM_PACKS]),
        )
    )


def _in_words(error: DsecError) -> str:
    return f"{error.brief}: {error.detail}" if error.detail else error.brief
