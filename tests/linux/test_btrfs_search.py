"""What the trees of btrfs tell."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.base.units import MIB
from dsec.linux import btrfs
from dsec.linux.btrfs_search import (
    EXTENT_DATA,
    INODE_ITEM,
    INODE_REF,
    Search,
    Segment,
    path_of,
    read_inode,
    read_names,
    read_segment,
    subvolume_info,
    subvolume_of,
)
from dsec.state.volume import destroy_volume, open_volume

pytestmark = pytest.mark.root
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
BUFFER_BYTES = 64 << 10


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    state = tmp_path_factory.mktemp("state")
    yield open_volume(state, size_bytes=512 * MIB).path
    destroy_volume(state)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def subvolume(root: Path) -> Path:
    name = f"sub-{len(list(root.iterdir()))}"
    with opened(root) as fd:
        btrfs.create_subvolume(fd, name)
    return root / name


def snapshot(subvolume: Path, name: str) -> Path:
    with opened(subvolume) as source, opened(subvolume.parent) as parent:
        btrfs.snapshot(source, parent, name, read_only=True)
    return subvolume.parent / name


def changed(frozen: Path, since: int) -> dict[bytes, int]:
    """Return the names of inodes changed after a transaction, and the transaction in which each was made."""
    found: dict[bytes, int] = {}
    with opened(frozen) as fd:
        made_in = 0
        for item in Search(fd, buffer_bytes=BUFFER_BYTES).changed_inodes(since + 1):
            if item.kind == INODE_ITEM:
                made_in = read_inode(item).generation
            else:
                found.update((name, made_in) for _, name in read_names(item))
    return found


def test_what_was_changed_since_a_snapshot_is_told_and_nothing_else(subvolume: Path) -> None:
    for number in range(50):
        (subvolume / f"same-{number}").write_bytes(b"same")
    (subvolume / "written").write_bytes(b"before")
    (subvolume / "renamed").write_bytes(b"r")
    before = snapshot(subvolume, f"{subvolume.name}-before")
    (subvolume / "written").write_bytes(b"after")
    (subvolume / "renamed").rename(subvolume / "name")
    (subvolume / "made").write_bytes(b"m")
    (subvolume / "also").hardlink_to(subvolume / "made")
    after = snapshot(subvolume, f"{subvolume.name}-after")
    with opened(before) as fd:
        since = subvolume_info(fd).made_in
    found = changed(after, since)
    # The top's own name is `..`, in itself.
    assert found.keys() - {b".."} == {b"written", b"name", b"made", b"also"}
    assert {name for name, made_in in found.items() if made_in > since} == {b"made", b"also"}


def test_snapshots_of_one_subvolume_say_so(subvolume: Path) -> None:
    one, two = snapshot(subvolume, f"{subvolume.name}-1"), snapshot(subvolume, f"{subvolume.name}-2")
    with opened(subvolume) as live, opened(one) as first, opened(two) as second:
        mine, infos = subvolume_info(live), [subvolume_info(first), subvolume_info(second)]
    assert {info.parent_uuid for info in infos} == {mine.uuid}
    assert not any(mine.parent_uuid)
    assert infos[0].made_in <= infos[1].made_in
    assert infos[0].made_at_ns <= infos[1].made_at_ns


def test_a_subvolume_is_found_by_its_uuid_while_it_is_there(subvolume: Path) -> None:
    frozen = snapshot(subvolume, f"{subvolume.name}-frozen")
    with opened(subvolume) as live, opened(frozen) as fd, opened(subvolume.parent) as parent:
        info = subvolume_info(live)
        assert subvolume_of(fd, info.uuid) == info
        assert subvolume_of(fd, subvolume_info(fd).uuid) == subvolume_info(fd)
        btrfs.destroy_subvolume(parent, subvolume.name)
        assert subvolume_of(fd, info.uuid) is None
        assert subvolume_of(fd, bytes(16)) is None


def test_a_directory_is_found_by_its_number(subvolume: Path) -> None:
    (subvolume / "a" / "b c").mkdir(parents=True)
    with opened(subvolume) as fd:
        assert path_of(fd, (subvolume / "a" / "b c").stat().st_ino) == b"a/b c"
        assert path_of(fd, fd_inode(fd)) == b""
        with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
            path_of(fd, 1 << 40)


def fd_inode(fd: int) -> int:
    return os.fstat(fd).st_ino


def test_contents_that_lie_at_one_place_are_the_same_and_holes_are_zeros(subvolume: Path) -> None:
    content = os.urandom(64 << 10)
    with (subvolume / "file").open("wb") as file:
        file.write(content)
        file.seek(1 << 20)
        file.write(content)
    before = snapshot(subvolume, f"{subvolume.name}-before")
    with (subvolume / "file").open("r+b") as file:
        file.seek(8 << 10)
        file.write(b"x" * 4096)
    after = snapshot(subvolume, f"{subvolume.name}-after")
    number = (subvolume / "file").stat().st_ino
    old, new = ({each.start: each for each in segments(path, number)} for path in (before, after))
    assert old[1 << 20] == new[1 << 20]
    assert new[8 << 10].end == 12 << 10
    assert new[8 << 10].place != old[0].place
    assert new[12 << 10].place == old[0].place == new[0].place


def segments(path: Path, number: int) -> list[Segment]:
    with opened(path) as fd:
        search = Search(fd, buffer_bytes=BUFFER_BYTES)
        return [read_segment(item) for item in search.items({EXTENT_DATA}, first=number, last=number)]


def test_a_search_goes_on_where_its_buffer_was_full(subvolume: Path) -> None:
    names = {f"file-{number:04}".encode() for number in range(2000)}
    for name in names:
        (subvolume / name.decode()).touch()
    frozen = snapshot(subvolume, f"{subvolume.name}-frozen")
    with opened(frozen) as fd:
        items = Search(fd, buffer_bytes=16 << 10).items({INODE_REF}, first=257, last=(1 << 64) - 1)
        assert {name for item in items for _, name in read_names(item)} == names
