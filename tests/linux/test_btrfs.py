"""The btrfs calls on a real file system in a loop file."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.base.units import MIB
from dsec.linux import btrfs, btrfs_search
from dsec.state.volume import destroy_volume, open_volume

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def root_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(open_volume(tmp_path, size_bytes=256 * MIB).path, os.O_RDONLY)
    yield fd
    os.close(fd)
    destroy_volume(tmp_path)


def opened(parent_fd: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent_fd)


def write_all(fd: int, size_bytes: int) -> None:
    """Write from the start, going on after a short write as `write(2)` asks."""
    done = 0
    while done < size_bytes:
        done += os.pwrite(fd, os.urandom(size_bytes - done), done)


def test_read_only_snapshot_keeps_what_was_and_refuses_writes(root_fd: int) -> None:
    btrfs.create_subvolume(root_fd, "a")
    source = opened(root_fd, "a")
    os.mkdir("before", dir_fd=source)
    btrfs.snapshot(source, root_fd, "frozen", read_only=True)
    os.mkdir("after", dir_fd=source)
    frozen = opened(root_fd, "frozen")
    assert os.listdir(frozen) == ["before"]
    with pytest.raises(OSError, match="Read-only"):
        os.mkdir("x", dir_fd=frozen)
    btrfs.make_writable(frozen)
    os.mkdir("x", dir_fd=frozen)
    os.close(frozen)
    os.close(source)


_FIEMAP, _DELAYED = 0xC020660B, 0x4
_EXTENTS = 512


def unwritten_bytes(fd: int) -> int:
    """Return how much of a file has no place on disk yet (Documentation/filesystems/fiemap.rst)."""
    buffer = bytearray(struct.pack("=QQLLLL", 0, 1 << 62, 0, 0, _EXTENTS, 0) + bytes(_EXTENTS * 56))
    fcntl.ioctl(fd, _FIEMAP, buffer)
    (count,) = struct.unpack_from("=L", buffer, 20)
    extents = (struct.unpack_from("=QQQ16xL12x", buffer, 32 + 56 * number) for number in range(count))
    return sum(length for _, _, length, flags in extents if flags & _DELAYED)


def test_one_subvolume_is_written_out_and_nothing_is_made(root_fd: int) -> None:
    files = []
    for name in ("a", "b"):
        btrfs.create_subvolume(root_fd, name)
        parent = opened(root_fd, name)
        files.append(os.open("file", os.O_RDWR | os.O_CREAT, dir_fd=parent))
        write_all(files[-1], 4 * MIB)
        os.close(parent)
    source = opened(root_fd, "a")
    btrfs.write_out(source, root_fd, "a")
    # Of the other one the kernel may have written what it liked.
    assert unwritten_bytes(files[0]) == 0
    assert sorted(os.listdir(f"/proc/self/fd/{root_fd}")) == ["a", "b"]
    with pytest.raises(FileNotFoundError, match="a snapshot has it now"):
        btrfs.write_out(source, root_fd, "free")
    for fd in (source, *files):
        os.close(fd)


def test_taken_and_missing_names_are_errors(root_fd: int) -> None:
    btrfs.create_subvolume(root_fd, "a")
    with pytest.raises(FileExistsError):
        btrfs.create_subvolume(root_fd, "a")
    with pytest.raises(FileNotFoundError):
        btrfs.destroy_subvolume(root_fd, "b")


def test_ids_are_of_the_subvolume_that_holds_a_descriptor(root_fd: int) -> None:
    btrfs.create_subvolume(root_fd, "a")
    os.mkdir("plain", dir_fd=root_fd)
    a, plain = opened(root_fd, "a"), opened(root_fd, "plain")
    assert btrfs.subvolume_id(a) >= btrfs.FIRST_SUBVOLUME_ID
    assert btrfs.subvolume_id(plain) == btrfs.subvolume_id(root_fd) == 5
    os.close(a)
    os.close(plain)


@pytest.mark.parametrize("mode", [btrfs.QuotaMode.SIMPLE, btrfs.QuotaMode.CLASSIC])
def test_quota_modes_are_switched_on_and_told_apart(root_fd: int, mode: btrfs.QuotaMode) -> None:
    assert btrfs.quota_mode(root_fd) is btrfs.QuotaMode.OFF
    btrfs.enable_quota(root_fd, mode)
    assert btrfs.quota_mode(root_fd) is mode
    btrfs.enable_quota(root_fd, btrfs.QuotaMode.OFF)
    assert btrfs.quota_mode(root_fd) is btrfs.QuotaMode.OFF


def test_limit_can_be_changed_afterwards_and_usage_is_seen_before_it_is_on_disk(root_fd: int) -> None:
    btrfs.enable_quota(root_fd, btrfs.QuotaMode.SIMPLE)
    btrfs.create_subvolume(root_fd, "a", limit_bytes=MIB)
    a = opened(root_fd, "a")
    fd = os.open("f", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=a)
    with pytest.raises(OSError, match="quota"):
        write_all(fd, 4 * MIB)
    btrfs.limit_subvolume(a, 64 * MIB)
    write_all(fd, 4 * MIB)
    usage = btrfs.qgroup_usage(btrfs.file_system_id(root_fd), btrfs.subvolume_id(a))
    assert usage is not None
    assert usage.referenced_bytes + usage.reserved_bytes >= 4 * MIB
    os.close(fd)
    os.close(a)


_SUBVOL_SYNC_WAIT, _COUNT = 0x40109441, 2


def queued(fd: int) -> int:
    """Return how many destroyed subvolumes the kernel's cleaner has not begun to free."""
    answer = fcntl.ioctl(fd, _SUBVOL_SYNC_WAIT, struct.pack("=QII", 0, _COUNT, 0))
    return int(struct.unpack("=QII", answer)[2])


def test_who_waits_for_what_was_destroyed_waits_for_what_is_being_freed_too(root_fd: int) -> None:
    btrfs.create_subvolume(root_fd, "a")
    a = opened(root_fd, "a")
    identity = btrfs.subvolume_id(a)
    for number in range(3000):  # Each takes a leaf: enough for the commits of who waits to come while they are freed.
        os.setxattr(a, f"user.{number}", bytes(12_000))
    os.close(a)
    btrfs.wait_commit(root_fd, btrfs.start_commit(root_fd))
    btrfs.destroy_subvolume(root_fd, "a")
    assert btrfs_search.destroyed_subvolumes(root_fd) == {identity}
    btrfs.wait_commit(root_fd, btrfs.start_commit(root_fd))
    ends_at = time.monotonic() + 60
    while queued(root_fd):
        assert time.monotonic() < ends_at
    btrfs.wait_destroyed(root_fd)
    assert btrfs_search.destroyed_subvolumes(root_fd) == frozenset()


def test_qgroup_goes_with_its_subvolume(root_fd: int) -> None:
    btrfs.enable_quota(root_fd, btrfs.QuotaMode.SIMPLE)
    btrfs.create_subvolume(root_fd, "a", limit_bytes=MIB)
    a = opened(root_fd, "a")
    identity = btrfs.subvolume_id(a)
    os.close(a)
    assert identity in btrfs.qgroups(btrfs.file_system_id(root_fd))
    btrfs.destroy_subvolume(root_fd, "a")
    btrfs.wait_destroyed(root_fd)
    assert btrfs.remove_qgroup(root_fd, identity)
    assert identity not in btrfs.qgroups(btrfs.file_system_id(root_fd))
    assert btrfs.qgroup_usage(btrfs.file_system_id(root_fd), identity) is None
