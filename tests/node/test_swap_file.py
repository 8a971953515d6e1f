"""The node's swap file: made once, found again, refused when full, and gone when it is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsec.base.errors import CapabilityMissingError, HostDiskFullError, StateCorruptedError, SwapFullError
from dsec.linux import inodes, statfs
from dsec.linux.probe_swap import swap_file as swap_probe
from dsec.linux.swap import swap_table
from dsec.model.capability import Capability
from dsec.node.state import swap
from dsec.node.state.swap import SwapFile
from dsec.testing.releasing import unmount_when_free

MIB = 1 << 20
SIZE = 4 * MIB


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A place for a swap file, empty again afterwards."""
    where = tmp_path / "swap"
    yield where
    SwapFile(where, 0).remove()
    assert not where.exists()
    assert str(where) not in [area.path for area in swap_table()]


def refuse(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_size_of_nothing_is_no_swap(path: Path) -> None:
    with pytest.raises(CapabilityMissingError, match="swap_bytes is 0"), SwapFile(path, 0).claim(1):
        pass
    assert not path.exists()


def test_file_system_that_cannot_carry_swap_is_named_and_keeps_no_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap, "swap_on", refuse(22))
    with pytest.raises(CapabilityMissingError, match="ext4, XFS"), SwapFile(path, SIZE).claim(1):
        pass
    assert list(path.parent.iterdir()) == []


def test_full_disk_leaves_no_part(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse(28))
    with pytest.raises(HostDiskFullError, match="no room"), SwapFile(path, SIZE).claim(1):
        pass
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "directory", "second_name"])
def test_what_is_not_the_nodes_own_file_is_refused(path: Path, kind: str) -> None:
    other = path.parent / "other"
    if kind == "link":
        path.symlink_to(other)
    elif kind == "directory":
        path.mkdir()
    else:
        other.write_bytes(b"precious")
        os.link(other, path)
    with pytest.raises(StateCorruptedError, match="move it away"), SwapFile(path, SIZE).claim(1):
        pass
    if path.is_dir():
        path.rmdir()
    assert kind != "second_name" or other.read_bytes() == b"precious"


def test_what_a_killed_node_had_begun_to_make_goes_at_the_next_start(path: Path) -> None:
    path.write_bytes(b"whole, and perhaps on")
    path.with_name("swap.part").write_bytes(b"left by a killed node")
    SwapFile(path, SIZE).tidy()
    assert [entry.name for entry in path.parent.iterdir()] == ["swap"]


def test_removing_what_is_not_there_is_no_error(path: Path) -> None:
    SwapFile(path, SIZE).remove()


def usable(path: Path) -> SwapFile:
    """Return a swap file that is on."""
    file = SwapFile(path, SIZE)
    try:
        with file.claim(1):
            return file
    except CapabilityMissingError as error:
        pytest.skip(str(error))


@pytest.mark.root
def test_file_is_made_when_it_is_first_needed_and_removed_with_what_was_left(path: Path) -> None:
    path.with_name("swap.part").write_bytes(b"left by a killed node")
    file = SwapFile(path, SIZE)
    assert file.area() is None
    file = usable(path)
    area = file.area()
    assert area is not None
    assert 0 < area.free_bytes < SIZE
    assert [entry.name for entry in path.parent.iterdir()] == ["swap"]
    assert path.stat().st_mode & 0o777 == 0o600
    file.remove()
    assert file.area() is None


@pytest.mark.root
def test_what_others_claim_is_not_promised_twice(path: Path) -> None:
    file = usable(path)
    with file.claim(3 * MIB):
        with pytest.raises(SwapFullError, match="do not fit"), file.claim(2 * MIB):
            pass
        with file.claim(MIB // 2):
            pass
    with file.claim(2 * MIB):
        pass


@pytest.mark.root
def test_next_node_uses_the_file_that_is_on_whatever_size_it_would_make(path: Path) -> None:
    usable(path)
    inode = path.stat().st_ino
    following = SwapFile(path, 2 * SIZE)
    with following.claim(1):
        assert path.stat().st_ino == inode
    with pytest.raises(SwapFullError), following.claim(SIZE):
        pass


@pytest.mark.root
def test_file_that_is_off_is_used_when_whole_and_made_anew_when_not(path: Path) -> None:
    usable(path)
    swap.swap_off(path)
    inode = path.stat().st_ino
    usable(path)
    assert path.stat().st_ino == inode
    swap.swap_off(path)
    larger = SwapFile(path, 2 * SIZE)
    with larger.claim(SIZE):
        assert path.stat().st_size == 2 * SIZE


def test_file_never_takes_more_than_a_quarter_of_the_free_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = 8 * SIZE
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free_bytes, f_frsize=1))
    monkeypatch.setattr(swap, "swap_on", refuse(22))
    sizes: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda descriptor, offset, size: sizes.append(size))
    for wanted in (16 * SIZE, SIZE):
        with pytest.raises(CapabilityMissingError), SwapFile(path, wanted).claim(1):
            pass
    assert sizes == [2 * SIZE, SIZE]
    free_bytes = MIB
    with pytest.raises(HostDiskFullError, match="quarter"), SwapFile(path, SIZE).claim(1):
        pass


def test_report_says_whether_there_can_be_swap_and_makes_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "is_host_root", lambda: True)
    report = SwapFile(path, SIZE).report()
    assert (report.capability, report.available) == (Capability.SWAP_FILE, True)
    assert "made when first needed" in report.reason
    assert "swap_bytes is 0" in SwapFile(path, 0).report().reason
    monkeypatch.setattr(statfs, "file_system_type", lambda _: statfs.TMPFS)
    assert "tmpfs" in SwapFile(path, SIZE).report().reason
    monkeypatch.setattr(swap, "is_host_root", lambda: False)
    refused = SwapFile(path, SIZE).report()
    assert not refused.available
    assert "root" in refused.resolution
    assert not path.exists()


@pytest.mark.root
def test_report_of_a_file_that_is_on_says_how_full_it_is(path: Path) -> None:
    usable(path)
    assert "used in" in SwapFile(path, 0).report().reason


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """A btrfs of its own."""
    disk, mounted = tmp_path / "disk", tmp_path / "m"
    mounted.mkdir()
    with disk.open("wb") as file:
        file.truncate(256 * MIB)
    for command in (["mkfs.btrfs", "-q", str(disk)], ["mount", "-o", "loop", str(disk), str(mounted)]):
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("this host has no btrfs")
    yield mounted
    unmount_when_free(mounted)


@pytest.mark.root
@pytest.mark.slow
def test_file_in_btrfs_is_not_copied_on_write_and_its_neighbours_can_be_snapshotted(btrfs: Path) -> None:
    file = SwapFile(btrfs / "swap", SIZE)
    with file.claim(1):
        assert file.area() is not None
        descriptor = os.open(file.path, os.O_RDONLY)
        assert inodes.flags(descriptor) & inodes.NOCOW
        os.close(descriptor)
        for command in (["create", "a"], ["snapshot", "a", "b"]):
            subprocess.run(["btrfs", "subvolume", *command], cwd=btrfs, check=True, capture_output=True)
        # What holds it is the subvolume it lies in.
        refused = subprocess.run(
            ["btrfs", "subvolume", "snapshot", ".", "c"], cwd=btrfs, check=False, capture_output=True
        )
        assert refused.returncode != 0
    file.remove()
    assert swap_probe(btrfs).present


@pytest.mark.root
def test_probe_leaves_nothing_and_names_a_file_system_that_cannot(tmp_path: Path) -> None:
    assert swap_probe(tmp_path / "not" / "yet").seen.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    mounted = tmp_path / "tmpfs"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], check=True)
    try:
        finding = swap_probe(mounted)
        assert list(mounted.iterdir()) == []
    finally:
        unmount_when_free(mounted)
    assert not finding.present
    assert "Invalid argument" in finding.seen


KILLED = """
import os, sys
from pathlib import Path
from dsec.node.state import swap
step = sys.argv[2]
real = getattr(os, step, None) or getattr(swap, step)
def die(*args):
    if sys.argv[3] == "after":
        real(*args)
    os.kill(os.getpid(), 9)
setattr(os if hasattr(os, step) else swap, step, die)
with swap.SwapFile(Path(sys.argv[1]), 4 << 20).claim(1):
    pass
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["posix_fallocate", "format_swap", "rename", "swap_on"])
def test_node_killed_while_making_it_leaves_what_the_next_can_use(path: Path, step: str, when: str) -> None:
    usable(path).remove()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), step, when], check=False, timeout=60)
    assert killed.returncode == -9
    usable(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["swap"]
