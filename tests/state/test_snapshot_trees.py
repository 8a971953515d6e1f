"""Snapshots of real trees that a hostile or unlucky guest made, on btrfs and on plain directories."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.base.errors import HostDiskFullError, LimitExceededError, StateCorruptedError, UnsupportedFileError
from dsec.base.units import MIB
from dsec.images.listing import read_xattrs, walk
from dsec.linux import mounts
from dsec.linux.inodes import attribute_names
from dsec.state import btrfs_inodes, btrfs_touched
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.btrfs_touched import BtrfsTree
from dsec.state.diff import difference
from dsec.state.directory import DirectoryWritableLayers
from dsec.state.manifest import MAXIMUM_PATH_BYTES, File, SnapshotHeader
from dsec.state.port import WritableLayer
from dsec.state.snapshots import SnapshotStore
from dsec.state.volume import StateVolume
from dsec.stores.chunks import open_chunks
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.tree_edits import describe

pytestmark = [pytest.mark.root, pytest.mark.anyio]
HEADER = SnapshotHeader(sandbox_id="sbx-1")


class Subject:
    """One layer, its frozen states, and a store."""

    def __init__(self, layers: BtrfsWritableLayers, snapshots: SnapshotStore) -> None:
        self.layers = layers
        self.snapshots = snapshots
        self.name = secrets.token_hex(6)
        self.made: list[str] = []
        self.layer = self.create()

    @property
    def upper(self) -> Path:
        return self.layer.upper

    def create(self) -> WritableLayer:
        return self.layers.create(self.new_name(), quota_bytes=None)

    def new_name(self) -> str:
        self.made.append(f"{self.name}-{len(self.made)}")
        return self.made[-1]

    def freeze(self) -> str:
        name = self.new_name()
        self.layers.checkpoint(self.layer.name, name)
        return name

    def roll_back(self, frozen: str) -> None:
        self.layer = self.layers.branch(frozen, self.new_name(), quota_bytes=None)

    async def save(self, frozen: str, parent: str | None = None, base: str | None = None) -> str:
        with self.layers.open_frozen(frozen) as tree:
            if base is None:
                return (await self.snapshots.save(tree, HEADER)).snapshot_id
            with self.layers.open_frozen(base) as older:
                assert difference(tree, older).by_hint
                return (await self.snapshots.save(tree, HEADER, parent=parent, base=older)).snapshot_id

    async def restore(self, snapshot: str) -> Path:
        restored = self.create()
        with self.layers.open_new(restored.name) as target:
            await self.snapshots.restore_into(await self.snapshots.load(snapshot), target)
        return restored.upper


@pytest.fixture
async def subject(volume: StateVolume) -> AsyncIterator[Subject]:
    layers = BtrfsWritableLayers(volume)
    store = MemoryObjectStore()
    async with open_chunks(store) as chunks:
        made = Subject(layers, SnapshotStore(store, chunks))
        yield made
        for name in made.made:
            layers.discard(name)
        layers.close()


async def test_inodes_of_two_branches_that_have_one_number_are_not_taken_for_one(subject: Subject) -> None:
    clean = subject.freeze()
    (subject.upper / "x").write_bytes(secrets.token_bytes(300_000))
    number = (subject.upper / "x").stat().st_ino
    first = subject.freeze()
    parent = await subject.save(first)
    subject.roll_back(clean)
    with (subject.upper / "x").open("wb") as file:
        file.truncate(300_000)
    assert (subject.upper / "x").stat().st_ino == number
    second = subject.freeze()
    restored = await subject.restore(await subject.save(second, parent, first))
    assert describe(restored) == describe(subject.layers.frozen_upper(second))


async def test_what_a_rollback_undid_is_noticed_against_a_base_from_before_it(subject: Subject) -> None:
    (subject.upper / "deep").mkdir()
    (subject.upper / "deep" / "file").write_bytes(b"clean")
    clean = subject.freeze()
    (subject.upper / "deep" / "file").write_bytes(b"dirty")
    first = subject.freeze()
    parent = await subject.save(first)
    subject.roll_back(clean)
    (subject.upper / "other").write_bytes(b"o")
    second = subject.freeze()
    restored = await subject.restore(await subject.save(second, parent, first))
    assert (restored / "deep" / "file").read_bytes() == b"clean"
    assert describe(restored) == describe(subject.layers.frozen_upper(second))


async def test_a_sparse_file_stays_sparse_and_costs_what_it_holds(subject: Subject) -> None:
    with (subject.upper / "sparse").open("wb") as file:
        file.seek(3 << 30)
        file.write(b"here")
        file.truncate(4 << 30)
    frozen = subject.freeze()
    parent = await subject.save(frozen)
    with (subject.upper / "sparse").open("r+b") as file:
        file.seek(1 << 30)
        file.write(b"and there")
    after = subject.freeze()
    snapshot = await subject.save(after, parent, frozen)
    assert (await subject.snapshots.find(snapshot)).stored_bytes < 8000
    restored = (await subject.restore(snapshot)) / "sparse"
    assert restored.stat().st_size == 4 << 30
    assert restored.stat().st_blocks * 512 < MIB
    with restored.open("rb") as file:
        file.seek(1 << 30)
        assert file.read(9) == b"and there"
        file.seek(3 << 30)
        assert file.read(4) == b"here"


async def test_a_file_with_several_names_is_followed_by_hint(subject: Subject) -> None:
    (subject.upper / "one").write_bytes(secrets.token_bytes(200_000))
    (subject.upper / "two").hardlink_to(subject.upper / "one")
    (subject.upper / "still").write_bytes(b"s")
    (subject.upper / "also").hardlink_to(subject.upper / "still")
    frozen = subject.freeze()
    parent = await subject.save(frozen)
    with (subject.upper / "two").open("r+b") as file:
        file.write(b"changed")
    (subject.upper / "three").hardlink_to(subject.upper / "one")
    (subject.upper / "one").unlink()
    after = subject.freeze()
    snapshot = await subject.save(after, parent, frozen)
    assert (await subject.snapshots.find(snapshot)).stored_bytes < 8000
    assert describe(await subject.restore(snapshot)) == describe(subject.layers.frozen_upper(after))


async def test_after_rollbacks_the_trees_still_tell_what_was_touched(subject: Subject) -> None:
    (subject.upper / "same").write_bytes(secrets.token_bytes(50_000))
    first = subject.freeze()
    parent = await subject.save(first)
    last = first
    for step in range(3):
        (subject.upper / f"lost-{step}").write_bytes(b"l")
        subject.roll_back(last)
        (subject.upper / f"kept-{step}").write_bytes(b"k")
        last = subject.freeze()
    (subject.upper / "now").write_bytes(b"n")
    after = subject.freeze()
    with subject.layers.open_frozen(after) as tree, subject.layers.open_frozen(first) as older:
        assert isinstance(tree, BtrfsTree)
        assert isinstance(older, BtrfsTree)
        touched = tree.touched_in_trees(older)
    assert touched is not None
    assert touched.new == {b"", b"kept-0", b"kept-1", b"kept-2", b"now"}
    restored = await subject.restore(await subject.save(after, parent, first))
    assert describe(restored) == describe(subject.layers.frozen_upper(after))


async def test_a_renamed_directory_stores_names_and_no_content(subject: Subject) -> None:
    (subject.upper / "old" / "deep").mkdir(parents=True)
    for number in range(50):
        (subject.upper / "old" / "deep" / str(number)).write_bytes(secrets.token_bytes(20_000))
    frozen = subject.freeze()
    parent = await subject.save(frozen)
    (subject.upper / "old").rename(subject.upper / "new")
    after = subject.freeze()
    snapshot = await subject.save(after, parent, frozen)
    assert (await subject.snapshots.find(snapshot)).stored_bytes < 8000
    assert describe(await subject.restore(snapshot)) == describe(subject.layers.frozen_upper(after))


async def test_paths_longer_than_the_kernel_resolves_come_back_and_the_longest_are_refused(subject: Subject) -> None:
    def nest(count: int) -> None:
        fd = os.open(subject.upper, os.O_RDONLY | os.O_DIRECTORY)
        for _ in range(count):
            name = b"d" * 250
            os.mkdir(name, dir_fd=fd)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.link("file", "link", src_dir_fd=fd, dst_dir_fd=fd)
        os.close(fd)

    nest(40)
    snapshot = await subject.save(subject.freeze())
    tree = (await subject.snapshots.load(snapshot)).tree
    restored = subject.create()
    with subject.layers.open_new(restored.name) as target:
        await subject.snapshots.restore_into(await subject.snapshots.load(snapshot), target)
    frozen = subject.new_name()
    subject.layers.checkpoint(restored.name, frozen)
    assert (await subject.snapshots.load(await subject.save(frozen))).tree == tree
    subject.layer = subject.create()
    nest(MAXIMUM_PATH_BYTES // 250 + 1)
    with pytest.raises(LimitExceededError):
        await subject.save(subject.freeze())


async def test_links_in_the_way_are_never_followed(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"the host's")
    (subject.upper / "away").symlink_to(tmp_path)
    (subject.upper / "file").symlink_to(tmp_path / "secret")
    restored = await subject.restore(await subject.save(subject.freeze()))
    assert (restored / "away").readlink() == tmp_path
    with subject.layers.open_frozen(subject.freeze()) as tree:
        assert tree.look(b"away/secret") is None
        with pytest.raises(OSError, match=r".*"), tree.open(b"file"):
            pass


async def test_a_device_is_refused(subject: Subject) -> None:
    os.mknod(subject.upper / "disk", stat.S_IFBLK | 0o600, os.makedev(8, 0))
    with pytest.raises(UnsupportedFileError, match="disk"):
        await subject.save(subject.freeze())


async def test_more_attributes_than_the_kernel_lists_are_refused_by_whoever_reads_them(subject: Subject) -> None:
    file = subject.upper / "file"
    file.touch()
    for number in range(1000):
        os.setxattr(file, f"user.{number:0100}", b"")
    with pytest.raises(LimitExceededError, match="file"):
        await subject.save(subject.freeze())
    with tree_fd(subject.upper) as top, pytest.raises(LimitExceededError, match="file"):
        list(map(read_xattrs, walk(top)))
    with tree_fd(file) as fd, pytest.raises(LimitExceededError):
        attribute_names(fd)


@contextmanager
def tree_fd(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


async def test_a_hint_with_more_paths_than_is_worth_it_is_none(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = subject.freeze()
    for number in range(50):
        (subject.upper / f"{number:0100}").touch()
    after = subject.freeze()
    with subject.layers.open_frozen(after) as tree, subject.layers.open_frozen(before) as base:
        assert isinstance(tree, BtrfsTree)
        assert tree.touched_since(base) is not None
        for module in (btrfs_inodes, btrfs_touched):
            monkeypatch.setattr(module, "MAXIMUM_HINT_BYTES", 1000)
        assert tree.touched_since(base) is None
        assert len(difference(tree, base).entries) >= 50


async def test_a_chunk_shorter_than_its_manifest_says_is_refused(subject: Subject) -> None:
    (subject.upper / "file").write_bytes(secrets.token_bytes(100_000))
    snapshot = await subject.snapshots.load(await subject.save(subject.freeze()))
    entry = snapshot.tree[b"file"]
    assert isinstance(entry, File)
    first = entry.extents[0]
    longer = type(first)(first.start, first.length, first.chunk, 90_000)
    snapshot.tree[b"file"] = File(entry.status, entry.size, (longer,))
    restored = subject.create()
    with pytest.raises(StateCorruptedError, match="chunk"), subject.layers.open_new(restored.name) as target:
        await subject.snapshots.restore_into(snapshot, target)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    directory.mkdir()
    mounts.mount("tmpfs", directory, "tmpfs", 0, "size=40m")
    yield directory
    mounts.unmount(directory, detach=True)


@contextmanager
def directory_layers(root: Path) -> Iterator[DirectoryWritableLayers]:
    layers = DirectoryWritableLayers(root / "layers")
    yield layers
    layers.close()


async def test_a_full_disk_is_said_and_all_that_was_restored_can_be_discarded(
    subject: Subject, small_disk: Path
) -> None:
    (subject.upper / "large").write_bytes(secrets.token_bytes(MIB) * 44)
    snapshot = await subject.snapshots.load(await subject.save(subject.freeze()))
    with directory_layers(small_disk) as layers:
        free = os.statvfs(small_disk).f_bavail
        layers.create("restored", quota_bytes=None)
        with pytest.raises(HostDiskFullError), layers.open_new("restored") as target:
            await subject.snapshots.restore_into(snapshot, target)
        assert os.statvfs(small_disk).f_bavail > free // 2  # The reserve is still there.
        layers.discard("restored")
        assert layers.wait_removed(10)
        assert os.statvfs(small_disk).f_bavail >= free - 16
