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
from dataclasses import dataclass

from dsec.base.clock import Clock, SystemClock
from dsec.model.state import SnapshotInfo
from dsec.state.manifest import SnapshotHeader, Tree
from dsec.state.trees import FrozenTree, NewTree
from dsec.stores.chunks import ChunkId, ChunkRepository, CollectionReport
from dsec.stores.objects import ObjectStore

MERGE_DEPTH = 20
"""A chain of more deltas than this is to be merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that was loaded and verified, chunks excepted.

    Attributes:
        info: as a list shows it.
        header: what is needed beside files.
        tree: its entries.
    """

    info: SnapshotInfo
    header: SnapshotHeader
    tree: Tree


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

    async def save(
        self,
        tree: FrozenTree,
        header: SnapshotHeader,
        *,
        exported: bytes | None = None,
        parent: str | None = None,
        base: FrozenTree | None = None,
        began_s: float | None = None,
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
            began_s: boot time at which the checkpoint was taken, for `SnapshotInfo.duration_s`; None: now.

        Raises:
            LimitExceededError: the tree is larger than a snapshot may be.
            StoreUnavailableError, HostDiskFullError: the store does not take it, after retries.
        """
        raise NotImplementedError

    async def find(self, snapshot: str) -> SnapshotInfo:
        """Describe a snapshot by id or name; of several with that name, the newest.

        Raises:
            SnapshotNotFoundError: there is none.
            StateCorruptedError: its root does not verify.
        """
        raise NotImplementedError

    async def list(self) -> Sequence[SnapshotInfo]:
        """Return all snapshots whose roots can be read, oldest first."""
        raise NotImplementedError

    async def load(self, snapshot: str) -> Snapshot:
        """Read a snapshot's manifests by its id or name.

        Raises:
            SnapshotNotFoundError: there is none.
            StateCorruptedError: a manifest of its chain is missing or does not verify; names it.
            StoreUnavailableError: the store does not answer, after retries.
        """
        raise NotImplementedError

    async def exported(self, snapshot: Snapshot) -> bytes | None:
        """Return what the export hook gave when the snapshot was made; None: none ran. Raises as `restore_into`."""
        raise NotImplementedError

    async def restore_into(self, snapshot: Snapshot, target: NewTree) -> None:
        """Fill a new tree with a snapshot's files. Whoever opened the tree publishes it, or discards it on any error.

        Raises:
            StateCorruptedError: a chunk is missing or does not verify; names it.
            HostDiskFullError: the volume of writable layers has no room.
            StoreUnavailableError: the store does not answer, after retries.
        """
        raise NotImplementedError

    async def remove(self, snapshot_id: str) -> None:
        """Remove a snapshot by its id. Others that were made on it stay whole. Idempotent."""
        raise NotImplementedError

    async def merge(self, snapshot_id: str) -> bool:
        """Write the complete manifest of a snapshot whose chain is long; return whether there was something to do.
        Its id stays the same, and so does what it restores to.

        Raises:
            SnapshotNotFoundError, StateCorruptedError, StoreUnavailableError: as `load`.
        """
        raise NotImplementedError

    async def verify(self, snapshot_id: str, *, contents: bool = False) -> SnapshotReport:
        """Check a snapshot's chain, and that every chunk is in the store; with `contents`, read them all."""
        raise NotImplementedError

    async def reachable(self) -> set[ChunkId]:
        """Return every chunk that a manifest in the store names, for `ChunkRepository.collect`.

        Raises:
            StateCorruptedError: a manifest cannot be read, so that what it needs is not known.
        """
        raise NotImplementedError

    async def collect(self, *, minimum_live_share: float = 0.5) -> CollectionReport:
        """Delete manifests and packs that no snapshot needs, after their grace period."""
        raise NotImplementedError
