"""Looking after an object store of snapshots: what it holds, whether it is whole, and what nothing needs any more.

Everything here may run beside nodes that save, restore and collect; nothing is locked. What a check finds wrong is
named together with the snapshots that need it, so that a person knows what is lost and what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

from dsec.base.errors import DsecError, StateCorruptedError
from dsec.model.value import Value
from dsec.state.snapshot_contents import needed_chunks
from dsec.state.snapshot_objects import MANIFESTS, ROOTS, is_snapshot_id
from dsec.state.snapshots import SnapshotStore
from dsec.stores.chunks import ChunkId, ChunkRepository, CollectionReport, Problem, VerificationReport
from dsec.stores.objects import ObjectStore

Say = Callable[[str], None]
_NAMED_SNAPSHOTS = 20


class StoreProblem(Value, frozen=True):
    """Something that is missing or wrong.

    Attributes:
        what: in words, with the name of the object or chunk.
        snapshots: those that cannot be restored for it, at most 20; empty: none needs it.
        affected: how many they are.
    """

    what: str
    snapshots: tuple[str, ...] = ()
    affected: int = 0


class StoreCheck(Value, frozen=True):
    """What a check found.

    Attributes:
        snapshots: how many were looked at.
        packs, chunks, read_bytes: of contents that were read; 0 where only what names them was.
        problems: what is wrong.
    """

    snapshots: int
    packs: int = 0
    chunks: int = 0
    read_bytes: int = 0
    problems: tuple[StoreProblem, ...] = ()


class StoreStatistics(Value, frozen=True):
    """What a store holds.

    Attributes:
        snapshots: how many can be read.
        content_bytes: what they would take one by one, without sharing and compression.
        manifests, manifest_bytes: objects that say what is in them.
        packs, pack_bytes: objects that hold contents, those to be deleted included.
        doomed: packs that wait for their deletion.
        chunks, chunk_bytes: distinct pieces of content, uncompressed.
    """

    snapshots: int
    content_bytes: int
    manifests: int
    manifest_bytes: int
    packs: int
    pack_bytes: int
    doomed: int
    chunks: int
    chunk_bytes: int

    @property
    def stored_bytes(self) -> int:
        return self.manifest_bytes + self.pack_bytes


class StoreCare:
    """A store of snapshots and who looks after it.

    Args:
        store: the store.
        chunks: its chunks.
        say: hears what is being done.
    """

    def __init__(self, store: ObjectStore, chunks: ChunkRepository, say: Say = lambda line: None) -> None:
        self._store, self._chunks, self._say = store, chunks, say
        self._snapshots = SnapshotStore(store, chunks)

    async def check(self, *, contents: bool = True) -> StoreCheck:
        """Verify every snapshot's chain and that its chunks are there; with `contents`, read every pack too."""
        await self._chunks.refresh()
        found = await self._read_all() if contents else VerificationReport(packs=0, chunks=0, read_bytes=0)
        lost: dict[str, list[str]] = {_in_words(bad): [] for bad in found.problems}
        damaged = {bad.chunk: _in_words(bad) for bad in found.problems if bad.chunk and await self._is_lost(bad.chunk)}
        ids = await self._ids()
        for number, snapshot in enumerate(ids, 1):
            self._say(f"snapshot {number} of {len(ids)}")
            report = await self._snapshots.verify(snapshot)
            for problem in (*report.problems, *await self._needed(snapshot, damaged)):
                lost.setdefault(problem, []).append(snapshot)
        return StoreCheck(
            snapshots=len(ids),
            packs=found.packs,
            chunks=found.chunks,
            read_bytes=found.read_bytes,
            problems=_told(lost),
        )

    async def _read_all(self) -> VerificationReport:
        self._say("reading every pack")
        return await self._chunks.verify()

    async def _is_lost(self, chunk: str) -> bool:
        """Whether a damaged chunk stands nowhere else."""
        try:
            async with aclosing(self._chunks.read_any_order([ChunkId(bytes.fromhex(chunk))])) as contents:
                async for _ in contents:
                    pass
        except StateCorruptedError:
            return True
        return False

    async def _needed(self, snapshot: str, damaged: Mapping[str, str]) -> list[str]:
        """Return which of the damaged chunks a snapshot needs, in words."""
        if not damaged:
            return []
        try:
            loaded = await self._snapshots.load(snapshot)
        except DsecError:
            return []  # Removed since it was verified, or damaged itself, which was said.
        needed = {chunk.hex() for chunk in needed_chunks(loaded.tree.values())}
        needed.update(extent.chunk.hex() for extent in loaded.exported_extents or ())
        return [words for chunk, words in damaged.items() if chunk in needed]

    async def statistics(self) -> StoreStatistics:
        """Count what is there."""
        self._say("reading what is listed")
        await self._chunks.refresh()
        held = await self._chunks.statistics()
        infos = await self._snapshots.list_all()
        manifests = [info.size_bytes async for info in self._store.list(MANIFESTS)]
        return StoreStatistics(
            snapshots=len(infos),
            content_bytes=sum(info.content_bytes for info in infos),
            manifests=len(manifests),
            manifest_bytes=sum(manifests),
            packs=held.packs,
            pack_bytes=held.pack_bytes,
            doomed=held.doomed,
            chunks=held.chunks,
            chunk_bytes=held.content_bytes,
        )

    async def collect(self, *, dry_run: bool = False) -> CollectionReport:
        """Delete what no snapshot needs and its grace period is over for; with `dry_run`, say what would be done.

        Raises:
            StateCorruptedError: a manifest cannot be read, so that what it needs is not known. Nothing was deleted.
        """
        self._say("asking every manifest what it needs")
        if dry_run:
            return await self._chunks.collect(self._snapshots.reachable, dry_run=True)
        return await self._snapshots.collect()

    async def _ids(self) -> list[str]:
        keys = [info.key.removeprefix(ROOTS) async for info in self._store.list(ROOTS)]
        return [key for key in keys if is_snapshot_id(key)]


def _in_words(problem: Problem) -> str:
    if not problem.chunk:
        return problem.brief
    return f"chunk {problem.chunk} in pack {problem.pack}: {problem.brief}"


def _told(problems: Mapping[str, Sequence[str]]) -> tuple[StoreProblem, ...]:
    return tuple(
        StoreProblem(what=what, snapshots=tuple(sorted(needing)[:_NAMED_SNAPSHOTS]), affected=len(needing))
        for what, needing in sorted(problems.items())
    )
