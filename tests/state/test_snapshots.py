"""Snapshots in an object store: what they promise, and every fault of a store."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from blake3 import blake3

from dsec.base.clock import ManualClock
from dsec.base.errors import (
    DsecError,
    LimitExceededError,
    SnapshotNotFoundError,
    StateCorruptedError,
    StoreUnavailableError,
)
from dsec.model.files import FileKind
from dsec.model.state import SnapshotInfo
from dsec.state import diff
from dsec.state import snapshots as snapshots_module
from dsec.state.manifest import SnapshotHeader
from dsec.state.memory_trees import MemoryEntry, MemoryFrozenTree, MemoryNewTree
from dsec.state.snapshots import SnapshotStore
from dsec.stores.chunks import open_chunks
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.faulty_store import Faults, FaultyObjectStore

pytestmark = pytest.mark.anyio
GRACE_S = 1000.0
Files = dict[str, bytes]


def tree_of(files: Files) -> MemoryFrozenTree:
    entries = {"/": MemoryEntry(FileKind.DIRECTORY, 0o755)}
    entries.update({f"/{name}": MemoryEntry(FileKind.FILE, 0o644, content=content) for name, content in files.items()})
    return MemoryFrozenTree(entries)


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass
class Subject:
    """One node's view of a store, over which faults can be set."""

    snapshots: SnapshotStore
    store: FaultyObjectStore
    clock: ManualClock
    last: tuple[str, Files] | None = None
    saved: list[SnapshotInfo] = field(default_factory=list)

    async def save(self, files: Files, *, name: str = "", exported: bytes | None = None) -> SnapshotInfo:
        """Save some files, as an increment on what was saved last."""
        self.clock.advance(1)
        header = SnapshotHeader(sandbox_id="sbx-1", name=name, created_at_s=self.clock.wall_s())
        parent, base = (None, None) if self.last is None else (self.last[0], tree_of(self.last[1]))
        info = await self.snapshots.save(tree_of(files), header, exported=exported, parent=parent, base=base)
        self.last = info.snapshot_id, files
        self.saved.append(info)
        return info

    async def restore(self, snapshot: str) -> Files:
        entries: dict[str, MemoryEntry] = {}
        await self.snapshots.restore_into(await self.snapshots.load(snapshot), MemoryNewTree(entries))
        return {path[1:]: entry.content for path, entry in entries.items() if entry.kind is FileKind.FILE}

    async def keys(self, prefix: str) -> list[str]:
        return [info.key async for info in self.store.inner.list(prefix)]


@asynccontextmanager
async def opened(store: MemoryObjectStore, clock: ManualClock) -> AsyncIterator[Subject]:
    faulty = FaultyObjectStore(store)
    async with open_chunks(faulty, grace_s=GRACE_S, clock=clock) as chunks:
        yield Subject(SnapshotStore(faulty, chunks, clock=clock), faulty, clock)


@pytest.fixture
async def subject() -> AsyncIterator[Subject]:
    clock = ManualClock()
    async with opened(MemoryObjectStore(clock=clock), clock) as made:
        yield made


async def chain(subject: Subject, length: int = 4) -> list[Files]:
    """Save a chain in which each member changes a block of a large file, adds a file and removes one."""
    files: Files = {"large": noise(0, 300_000), "same": noise(1, 5000)}
    states = []
    for number in range(length):
        content = files["large"]
        files = {
            **files,
            "large": content[:40_960] + noise(10 + number, 4096) + content[45_056:],
            f"new-{number}": noise(100 + number, 2000),
        }
        files.pop(f"new-{number - 2}", None)
        states.append(files)
        await subject.save(files)
    return states


# -- what they promise ------------------------------------------------------------------------------------------------


async def test_each_member_of_a_chain_restores_to_what_it_was_and_stores_only_what_changed(subject: Subject) -> None:
    states = await chain(subject)
    for info, files in zip(subject.saved, states, strict=True):
        assert await subject.restore(info.snapshot_id) == files
    assert [info.depth for info in subject.saved] == [0, 1, 2, 3]
    assert [info.parent for info in subject.saved] == [None, *(info.snapshot_id for info in subject.saved[:-1])]
    assert all(info.stored_bytes < 8000 for info in subject.saved[1:])
    assert [info.files for info in subject.saved] == [len(files) for files in states]
    assert [info.content_bytes for info in subject.saved] == [sum(map(len, files.values())) for files in states]


async def test_another_node_restores_by_id_although_its_lists_are_stale(subject: Subject) -> None:
    other_store = FaultyObjectStore(subject.store.inner)
    await other_store.make_lists_stale()
    states = await chain(subject)
    async with open_chunks(other_store, clock=subject.clock) as chunks:
        other = Subject(SnapshotStore(other_store, chunks), other_store, subject.clock)
        assert await other.restore(subject.saved[-1].snapshot_id) == states[-1]


async def test_of_several_snapshots_with_a_name_the_newest_is_meant(subject: Subject) -> None:
    await subject.save({"one": b"1"}, name="mine")
    await subject.save({"two": b"2"}, name="mine")
    await subject.save({"three": b"3"}, name="other")
    assert await subject.restore("mine") == {"two": b"2"}
    assert [info.name for info in await subject.snapshots.list_all()] == ["mine", "mine", "other"]


@pytest.mark.parametrize("reference", ["nothing", "snp-" + "0" * 32, "", "../../etc/passwd", "snp-x/../y"])
async def test_what_does_not_exist_is_not_found(subject: Subject, reference: str) -> None:
    with pytest.raises(SnapshotNotFoundError):
        await subject.snapshots.load(reference)
    with pytest.raises(SnapshotNotFoundError):
        await subject.snapshots.find(reference)


async def test_a_merge_changes_neither_id_nor_content_and_happens_once(subject: Subject) -> None:
    states = await chain(subject)
    last = subject.saved[-1].snapshot_id
    assert await subject.snapshots.merge(last)
    assert not await subject.snapshots.merge(last)
    assert (await subject.snapshots.find(last)).depth == 0
    assert [info.depth for info in await subject.snapshots.list_all()] == [0, 1, 2, 0]
    assert await subject.restore(last) == states[-1]
    child = await subject.save({**states[-1], "child": b"x"})
    assert child.depth == 1
    assert await subject.restore(child.snapshot_id) == {**states[-1], "child": b"x"}


async def test_a_damaged_merge_is_passed_over(subject: Subject) -> None:
    states = await chain(subject)
    last = subject.saved[-1].snapshot_id
    await subject.snapshots.merge(last)
    name = (await subject.store.inner.get(f"merged/{last}")).decode()
    subject.store.faults = Faults(corrupts=lambda key: key == f"manifests/{name}")
    assert await subject.restore(last) == states[-1]


async def test_exported_state_comes_back(subject: Subject) -> None:
    state = noise(7, 2_500_000)
    info = await subject.save({"a": b"1"}, exported=state)
    child = await subject.save({"a": b"2"})
    empty = await subject.save({"a": b"3"}, exported=b"")
    assert info.exported_bytes == len(state)
    assert await subject.snapshots.exported(await subject.snapshots.load(info.snapshot_id)) == state
    assert await subject.snapshots.exported(await subject.snapshots.load(child.snapshot_id)) is None
    assert await subject.snapshots.exported(await subject.snapshots.load(empty.snapshot_id)) == b""


async def test_a_removed_parent_leaves_its_children_whole_and_nothing_that_they_need_is_collected(
    subject: Subject,
) -> None:
    states = await chain(subject)
    for info in subject.saved[:-1]:
        await subject.snapshots.remove(info.snapshot_id)
        await subject.snapshots.remove(info.snapshot_id)
    for _ in range(6):
        subject.clock.advance(GRACE_S + 1)
        await subject.snapshots.collect()
    assert await subject.restore(subject.saved[-1].snapshot_id) == states[-1]
    assert len(await subject.snapshots.list_all()) == 1
    with pytest.raises(SnapshotNotFoundError):
        await subject.snapshots.load(subject.saved[0].snapshot_id)


async def test_when_all_are_removed_everything_is_collected_but_not_before_its_time(subject: Subject) -> None:
    await chain(subject)
    await subject.snapshots.merge(subject.saved[-1].snapshot_id)
    for info in subject.saved:
        await subject.snapshots.remove(info.snapshot_id)
    await subject.snapshots.collect()
    assert len(await subject.keys("manifests/")) == 5
    for _ in range(6):
        subject.clock.advance(GRACE_S + 1)
        await subject.snapshots.collect()
    left = [info.key async for info in subject.store.inner.list()]
    assert left == ["chunks/format.json"]


async def test_a_save_does_not_begin_on_a_manifest_that_is_about_to_go(subject: Subject) -> None:
    await subject.save({"a": noise(1, 9000)})
    assert subject.last is not None
    await subject.snapshots.remove(subject.last[0])
    info = await subject.save({"a": noise(1, 9000), "b": b"2"})
    assert info.parent is None
    subject.clock.advance(GRACE_S + 1)
    await subject.store.inner.put(f"doomed-{(await _manifest_of(subject, info))}", b"")
    after = await subject.save({"a": noise(1, 9000), "b": b"3"})
    assert after.parent is None
    assert await subject.restore(after.snapshot_id) == {"a": noise(1, 9000), "b": b"3"}


async def _manifest_of(subject: Subject, info: SnapshotInfo) -> str:
    part = info.snapshot_id.removeprefix("snp-")
    return next(key for key in await subject.keys("manifests/") if key.startswith(f"manifests/{part}"))


# -- faults of the store ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["chunks/packs/", "manifests/", "snapshots/"])
@pytest.mark.parametrize("action", ["put", "head"])
async def test_a_store_that_does_not_answer_leaves_no_snapshot(subject: Subject, prefix: str, action: str) -> None:
    await chain(subject, 2)
    subject.store.faults = Faults(fails=lambda did, key: did == action and key.startswith(prefix))
    with pytest.raises(StoreUnavailableError):
        await subject.save({"lost": noise(9, 5000)})
    subject.store.faults = Faults()
    whole = {info.snapshot_id for info in await subject.snapshots.list_all()}
    assert {info.snapshot_id for info in subject.saved} <= whole
    for snapshot in whole:  # A root whose answer was lost is that of a whole snapshot.
        assert not (await subject.snapshots.verify(snapshot, contents=True)).problems
    assert await subject.restore((await subject.save({"found": b"1"})).snapshot_id) == {"found": b"1"}


@pytest.mark.parametrize("prefix", ["chunks/packs/", "manifests/", "snapshots/", "merged/"])
async def test_a_store_that_loses_what_it_acknowledged_is_found_out(subject: Subject, prefix: str) -> None:
    await chain(subject, 2)
    subject.store.faults = Faults(loses=lambda key: key.startswith(prefix))
    last = subject.saved[-1].snapshot_id
    act = subject.snapshots.merge(last) if prefix == "merged/" else subject.save({"lost": noise(9, 5000)})
    with pytest.raises(StoreUnavailableError, match="does not hold it"):
        await act
    subject.store.faults = Faults()
    assert [info.snapshot_id for info in await subject.snapshots.list_all()] == [
        info.snapshot_id for info in subject.saved
    ]


@pytest.mark.parametrize("how", ["corrupts", "truncates"])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
async def test_a_damaged_manifest_anywhere_in_a_chain_is_named(subject: Subject, how: str, number: int) -> None:
    await chain(subject)
    key = await _manifest_of(subject, subject.saved[number])
    setattr(subject.store.faults, how, lambda asked: asked == key)
    await _is_named(subject, key)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
async def test_a_missing_manifest_anywhere_in_a_chain_is_named(subject: Subject, number: int) -> None:
    await chain(subject)
    key = await _manifest_of(subject, subject.saved[number])
    await subject.store.inner.delete([key])
    await _is_named(subject, key)
    with pytest.raises(StateCorruptedError):
        await subject.snapshots.reachable()  # What it needs is not known: nothing may be collected.


async def _is_named(subject: Subject, key: str) -> None:
    last = subject.saved[-1].snapshot_id
    with pytest.raises(StateCorruptedError, match=key):
        await subject.snapshots.load(last)
    report = await subject.snapshots.verify(last)
    assert key in report.problems[0]
    assert len(await subject.snapshots.list_all()) == len(subject.saved)


@pytest.mark.parametrize("how", ["corrupts", "truncates"])
async def test_a_damaged_root_is_named_and_does_not_hide_the_others(subject: Subject, how: str) -> None:
    await chain(subject)
    key = f"snapshots/{subject.saved[1].snapshot_id}"
    setattr(subject.store.faults, how, lambda asked: asked == key)
    with pytest.raises(StateCorruptedError, match=key):
        await subject.snapshots.find(subject.saved[1].snapshot_id)
    assert len(await subject.snapshots.list_all()) == 3
    with pytest.raises(StateCorruptedError, match=key):
        await subject.snapshots.reachable()


@pytest.mark.parametrize("field", ["files", "content_bytes", "stored_bytes", "depth", "exported_bytes", "extents"])
async def test_a_root_with_numbers_that_cannot_be_shown_does_not_hide_the_others(subject: Subject, field: str) -> None:
    good = await subject.save({"a": b"1"})
    forged = await subject.save({"a": b"2"})
    _, _, document = (await subject.store.inner.get(f"snapshots/{forged.snapshot_id}")).partition(b"\n")
    root = json.loads(document)
    (root if field == "extents" else root["info"])[field] = 1 << 70
    document = json.dumps(root).encode()
    data = blake3(document).hexdigest().encode() + b"\n" + document
    await subject.store.inner.put(f"snapshots/{forged.snapshot_id}", data)
    assert await subject.snapshots.list_all() == [good]
    with pytest.raises(StateCorruptedError, match="does not verify"):
        await subject.snapshots.find(forged.snapshot_id)


async def test_a_missing_chunk_is_named_and_nothing_is_finished(subject: Subject) -> None:
    await chain(subject)
    await subject.store.inner.delete(await subject.keys("chunks/packs/"))
    entries: dict[str, MemoryEntry] = {}
    last = subject.saved[-1].snapshot_id
    with pytest.raises(StateCorruptedError, match="chunk"):
        await subject.snapshots.restore_into(await subject.snapshots.load(last), MemoryNewTree(entries))
    assert not entries
    assert "chunk" in (await subject.snapshots.verify(last)).problems[0]


async def test_a_damaged_chunk_is_named_by_a_restore_and_by_a_verification(subject: Subject) -> None:
    await chain(subject)
    subject.store.faults = Faults(corrupts=lambda key: key.startswith("chunks/packs/"))
    last = subject.saved[-1].snapshot_id
    with pytest.raises(StateCorruptedError, match="chunk"):
        await subject.restore(last)
    report = await subject.snapshots.verify(last, contents=True)
    assert report.problems
    assert all("chunk" in problem for problem in report.problems)


@pytest.mark.parametrize("strike", range(1, 40))
async def test_whatever_call_fails_first_a_snapshot_is_whole_or_not_there(subject: Subject, strike: int) -> None:
    states = await chain(subject, 2)
    count = 0

    def fails(action: str, key: str) -> bool:
        nonlocal count
        count += action in ("put", "delete")
        return count >= strike

    subject.store.faults = Faults(fails_after=fails)
    wanted = {**states[-1], "third": noise(5, 200_000)}
    try:
        await subject.save(wanted)
        await subject.snapshots.merge(subject.saved[-1].snapshot_id)
        await subject.snapshots.remove(subject.saved[0].snapshot_id)
    except DsecError:
        pass
    subject.store.faults = Faults()
    for info in await subject.snapshots.list_all():
        assert await subject.restore(info.snapshot_id) in [*states, wanted]


async def test_more_names_than_a_manifest_holds_are_refused_while_they_are_gathered(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff, "MAXIMUM_MANIFEST_BYTES", 10_000)
    few = {"a" * 200 + str(number): b"" for number in range(40)}
    await subject.save(few)
    with pytest.raises(LimitExceededError, match="names and attributes"):
        await subject.save({**few, **{"b" * 200 + str(number): b"" for number in range(60)}})
    assert await subject.restore(subject.saved[0].snapshot_id) == few


async def test_a_long_description_makes_no_delta_so_that_a_chain_stays_small(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "_MAXIMUM_DELTA_BYTES", 5000)
    await subject.save({"a": b"1"})
    assert (await subject.save({"a": b"2"})).depth == 1
    many = {"b" * 200 + str(number): b"" for number in range(40)}
    assert (await subject.save(many)).depth == 0
    assert await subject.restore(subject.saved[-1].snapshot_id) == many


class _EnoughError(Exception):
    pass


@pytest.mark.parametrize("base", [None, {"a": noise(1, 4 << 20)}])
async def test_a_comparison_ends_when_nobody_waits_for_it(base: Files | None) -> None:
    """Also in the middle of a file: shared extents cost a guest nothing, and whoever reads them everything."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise _EnoughError

    tree = tree_of({"a": noise(2, 4 << 20), "b": b""})
    with pytest.raises(_EnoughError):
        diff.difference(tree, None if base is None else tree_of(base), check=check)
