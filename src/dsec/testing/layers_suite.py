"""What every driver of writable layers must do: the conformance suite of its port.

A test module subclasses `WritableLayersSuite` (or `LayersOnDiskSuite`, for drivers whose layers are directories) and
gives the fixture `subject`. What a driver says it cannot do must fail with `CapabilityMissingError`.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    DsecError,
    InvalidRequestError,
    NotFoundError,
    SnapshotNotFoundError,
)
from dsec.linux import inodes
from dsec.model.capability import Capability
from dsec.state.port import WritableLayer, WritableLayers

QUOTA_BYTES = 8 << 20
PATIENCE_S = 120.0


class Guest(Protocol):
    """What a sandbox does to its layer; a fake keeps content elsewhere than on disk."""

    def write(self, layer: WritableLayer, name: str, data: bytes) -> None: ...

    def read(self, layer: WritableLayer) -> dict[str, bytes]: ...


class GuestOnDisk:
    """Files in the layer's upper directory."""

    def write(self, layer: WritableLayer, name: str, data: bytes) -> None:
        (layer.upper / name).write_bytes(data)

    def read(self, layer: WritableLayer) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in layer.upper.iterdir() if path.is_file()}


@dataclass(frozen=True)
class Subject:
    """A store under test and the guest that writes to its layers."""

    layers: WritableLayers
    guest: Guest

    def can(self, capability: Capability) -> bool:
        return any(report.capability is capability and report.available for report in self.layers.capabilities())


class WritableLayersSuite:
    """Tests that hold for every driver, the fake included."""

    def test_reports_every_capability_with_a_reason(self, subject: Subject) -> None:
        reports = {report.capability: report for report in subject.layers.capabilities()}
        assert set(reports) == {Capability.DISK_QUOTA, Capability.CONSTANT_TIME_ROLLBACK, Capability.CHECKPOINT}
        assert all(report.reason for report in reports.values())
        assert all(report.available or report.resolution for report in reports.values())

    def test_created_layer_is_empty_and_found_by_name(self, subject: Subject) -> None:
        layer = subject.layers.create("a-1", quota_bytes=None)
        assert subject.guest.read(layer) == {}
        assert subject.layers.get("a-1") == layer
        assert subject.layers.names() == {"a-1"}

    def test_unknown_layer_is_none(self, subject: Subject) -> None:
        assert subject.layers.get("none") is None

    def test_taken_name_is_refused_and_what_has_it_stays(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        subject.guest.write(layer, "f", b"kept")
        with pytest.raises(AlreadyExistsError):
            subject.layers.create("a", quota_bytes=None)
        assert subject.guest.read(layer) == {"f": b"kept"}

    def test_discard_is_idempotent_and_frees_the_name(self, subject: Subject) -> None:
        subject.guest.write(subject.layers.create("a", quota_bytes=None), "f", b"old")
        subject.layers.discard("a")
        subject.layers.discard("a")
        subject.layers.discard("never")
        assert subject.layers.names() == frozenset()
        assert subject.layers.get("a") is None
        assert subject.guest.read(subject.layers.create("a", quota_bytes=None)) == {}

    def test_branch_begins_with_the_checkpoint_and_goes_its_own_way(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        subject.guest.write(layer, "f", b"one")
        if not subject.can(Capability.CHECKPOINT):
            with pytest.raises(CapabilityMissingError):
                subject.layers.checkpoint("a", "point")
            with pytest.raises(CapabilityMissingError):
                subject.layers.branch("point", "b", quota_bytes=None)
            assert subject.layers.names() == {"a"}
            return
        subject.layers.checkpoint("a", "point")
        subject.guest.write(layer, "f", b"two")
        branch = subject.layers.branch("point", "b", quota_bytes=None)
        subject.guest.write(branch, "g", b"branch")
        assert subject.guest.read(branch) == {"f": b"one", "g": b"branch"}
        assert subject.guest.read(layer) == {"f": b"two"}
        assert subject.layers.names() == {"a", "point", "b"}
        other = subject.layers.branch("point", "c", quota_bytes=None)
        assert subject.guest.read(other) == {"f": b"one"}

    def test_checkpoint_outlives_its_layer(self, subject: Subject) -> None:
        if not subject.can(Capability.CHECKPOINT):
            return
        subject.guest.write(subject.layers.create("a", quota_bytes=None), "f", b"one")
        subject.layers.checkpoint("a", "point")
        subject.layers.discard("a")
        assert subject.guest.read(subject.layers.branch("point", "b", quota_bytes=None)) == {"f": b"one"}
        subject.layers.discard("point")
        assert subject.layers.names() == {"b"}

    def test_layers_and_checkpoints_share_their_names(self, subject: Subject) -> None:
        if not subject.can(Capability.CHECKPOINT):
            return
        subject.layers.create("a", quota_bytes=None)
        with pytest.raises(AlreadyExistsError):
            subject.layers.checkpoint("a", "a")
        subject.layers.checkpoint("a", "point")
        with pytest.raises(AlreadyExistsError):
            subject.layers.checkpoint("a", "point")
        with pytest.raises(AlreadyExistsError):
            subject.layers.create("point", quota_bytes=None)
        with pytest.raises(AlreadyExistsError):
            subject.layers.branch("point", "a", quota_bytes=None)

    def test_unknown_checkpoint_is_refused_and_leaves_nothing(self, subject: Subject) -> None:
        expected = SnapshotNotFoundError if subject.can(Capability.CHECKPOINT) else CapabilityMissingError
        with pytest.raises(expected):
            subject.layers.branch("none", "b", quota_bytes=None)
        assert subject.layers.names() == frozenset()

    def test_checkpoint_of_unknown_layer_is_refused(self, subject: Subject) -> None:
        with pytest.raises(DsecError):
            subject.layers.checkpoint("none", "point")
        assert subject.layers.names() == frozenset()

    def test_quota_that_cannot_be_enforced_is_refused(self, subject: Subject) -> None:
        if subject.can(Capability.DISK_QUOTA):
            assert subject.layers.create("a", quota_bytes=QUOTA_BYTES).name == "a"
            return
        with pytest.raises(CapabilityMissingError):
            subject.layers.create("a", quota_bytes=QUOTA_BYTES)
        assert subject.layers.names() == frozenset()

    def test_used_bytes_follow_what_is_written(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        before = subject.layers.used_bytes("a")
        subject.guest.write(layer, "f", os.urandom(1 << 20))
        assert 1 << 20 <= subject.layers.used_bytes("a") - before <= 2 << 20


class LayersOnDiskSuite(WritableLayersSuite):
    """Tests that hold for drivers whose layers are directories."""

    def test_directories_have_the_owner_and_modes_that_overlayfs_needs(self, subject: Subject) -> None:
        before = os.umask(0o077)
        try:
            layer = subject.layers.create("a", quota_bytes=None)
        finally:
            os.umask(before)
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (layer.upper, layer.work, layer.upper.parent)}
        assert modes == {layer.upper: 0o755, layer.work: 0o700, layer.upper.parent: 0o755}
        assert {(path.stat().st_uid, path.stat().st_gid) for path in modes} == {(os.geteuid(), os.getegid())}
        assert stat.S_IMODE(layer.upper.parents[2].stat().st_mode) == 0o700

    @pytest.mark.parametrize("name", ["", "..", "a/b", "../a", "-a", "a\0", "a b", "ü", "a" * 200])
    def test_names_that_are_no_names_are_refused(self, subject: Subject, name: str) -> None:
        with pytest.raises(InvalidRequestError):
            subject.layers.create(name, quota_bytes=None)
        with pytest.raises(InvalidRequestError):
            subject.layers.discard(name)

    def test_work_directory_of_a_branch_is_empty(self, subject: Subject) -> None:
        if not subject.can(Capability.CHECKPOINT):
            return
        layer = subject.layers.create("a", quota_bytes=None)
        (layer.work / "work").mkdir(mode=0)
        (layer.work / "index").mkdir()
        (layer.work / "index" / "left").write_bytes(b"x")
        subject.layers.checkpoint("a", "point")
        branch = subject.layers.branch("point", "b", quota_bytes=None)
        assert list(branch.work.iterdir()) == []
        assert stat.S_IMODE(branch.work.stat().st_mode) == 0o700

    def test_branch_equals_the_checkpoint_in_everything(self, subject: Subject) -> None:
        if not subject.can(Capability.CHECKPOINT):
            return
        layer = subject.layers.create("a", quota_bytes=None)
        write_hostile_content(layer.upper, Path("/etc/passwd"))
        subject.layers.checkpoint("a", "point")
        branch = subject.layers.branch("point", "b", quota_bytes=None)
        assert describe(branch.upper) == describe(layer.upper)

    def test_hostile_content_is_removed_and_nothing_outside_is_touched(self, subject: Subject, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.mkdir()
        (victim / "precious").write_bytes(b"data")
        layer = subject.layers.create("a", quota_bytes=None)
        write_hostile_content(layer.upper, victim)
        root = layer.upper.parents[2]
        subject.layers.discard("a")
        self.wait_removed(subject)
        assert (victim / "precious").read_bytes() == b"data"
        assert leftovers(root) == []

    def test_path_deeper_than_any_limit_is_removed(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        root = layer.upper.parents[2]
        dig(layer.upper, 3000)
        assert subject.layers.used_bytes("a") >= 0
        subject.layers.discard("a")
        self.wait_removed(subject)
        assert leftovers(root) == []

    @pytest.mark.slow
    def test_fifty_thousand_files_are_discarded(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        root = layer.upper.parents[2]
        for directory in range(10):
            (layer.upper / str(directory)).mkdir()
            make_empty_files(layer.upper / str(directory), 5000)
        subject.layers.discard("a")
        assert subject.layers.names() == frozenset()
        self.wait_removed(subject)
        assert leftovers(root) == []

    def wait_removed(self, subject: Subject) -> None:
        """Wait until the driver has removed what was discarded."""
        wait = getattr(subject.layers, "wait_removed", None)
        assert wait is not None
        assert wait(PATIENCE_S)


class QuotaSuite:
    """Tests for drivers that enforce a quota on disk."""

    def test_writing_past_the_quota_fails_and_the_layer_stays_within(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=QUOTA_BYTES)
        other = subject.layers.create("b", quota_bytes=QUOTA_BYTES)
        with pytest.raises(OSError, match="quota exceeded") as caught:
            write_past_the_quota(layer)
        assert caught.value.errno == 122  # EDQUOT: ENOSPC would be the volume's.
        assert QUOTA_BYTES // 2 < subject.layers.used_bytes("a") <= QUOTA_BYTES
        subject.guest.write(other, "f", bytes(1 << 20))
        assert getattr(subject.layers, "is_full")() is False  # noqa: B009 - the port does not have it.

    def test_full_layer_can_be_cleaned_up_by_its_guest(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=QUOTA_BYTES)
        with pytest.raises(OSError, match="quota exceeded"):
            write_past_the_quota(layer)
        (layer.upper / "f").unlink()
        (layer.upper / "g").write_bytes(os.urandom(QUOTA_BYTES // 2))

    def test_files_without_content_count_too(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=1 << 20)
        with pytest.raises(OSError, match="quota exceeded"):
            make_empty_files(layer.upper, 50_000)
        subject.layers.discard("a")
        assert subject.layers.names() == frozenset()

    def test_quota_that_is_changed_binds_at_once_and_takes_nothing(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=QUOTA_BYTES)
        with pytest.raises(OSError, match="quota exceeded"):
            write_past_the_quota(layer)
        subject.layers.limit("a", 2 * QUOTA_BYTES)
        (layer.upper / "g").write_bytes(os.urandom(QUOTA_BYTES // 2))
        subject.layers.limit("a", QUOTA_BYTES)
        with pytest.raises(OSError, match="quota exceeded"):
            (layer.upper / "h").write_bytes(os.urandom(QUOTA_BYTES // 2))
        assert len((layer.upper / "g").read_bytes()) == QUOTA_BYTES // 2
        with pytest.raises(NotFoundError):
            subject.layers.limit("none", QUOTA_BYTES)

    def test_branch_is_limited_too(self, subject: Subject) -> None:
        subject.layers.create("a", quota_bytes=None)
        subject.layers.checkpoint("a", "point")
        branch = subject.layers.branch("point", "b", quota_bytes=QUOTA_BYTES)
        with pytest.raises(OSError, match="quota exceeded"):
            write_past_the_quota(branch)


def write_past_the_quota(layer: WritableLayer) -> None:
    """Write four times the suite's quota, in pieces."""
    with (layer.upper / "f").open("wb", 0) as file:
        for _ in range(4 * QUOTA_BYTES >> 20):
            file.write(os.urandom(1 << 20))


def make_empty_files(directory: Path, count: int) -> None:
    """Make files with long names and no content."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in range(count):
            os.close(os.open(f"{number:0100}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
    finally:
        os.close(fd)


def write_hostile_content(upper: Path, outside: Path) -> None:
    """Fill a layer with what a hostile guest would."""
    (upper / "link").symlink_to(outside)
    (upper / "up").symlink_to("../../../../../../../..")
    (upper / "loop").symlink_to("loop")
    (upper / "closed").mkdir()
    (upper / "closed" / "f").write_bytes(b"x")
    (upper / "closed").chmod(0)
    (upper / "plain").write_bytes(b"content")
    os.link(upper / "plain", upper / "hard")
    os.utime(upper / "plain", ns=(1, 2))
    Path(os.fsdecode(os.fsencode(upper) + b"/\xff\xfe\n")).write_bytes(b"name")
    os.mkfifo(upper / "fifo")
    os.mknod(upper / "socket", stat.S_IFSOCK | 0o600)
    if os.geteuid() == 0:
        _write_as_root(upper)
    dig(upper, 40, name="d" * 100)


def _write_as_root(upper: Path) -> None:
    os.mknod(upper / "disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    os.mknod(upper / "whiteout", stat.S_IFCHR, os.makedev(0, 0))
    os.chown(upper / "plain", 4242, 4243)
    (upper / "plain").chmod(0o4755)
    os.setxattr(upper / "closed", "trusted.overlay.opaque", b"y")


def protect(directory: Path) -> None:
    """Make a file and its directory immutable and append-only (needs root and a file system that knows it)."""
    directory.mkdir()
    file = directory / "f"
    file.write_bytes(b"x")
    for path, flag in ((file, inodes.IMMUTABLE), (directory, inodes.APPEND)):
        fd = os.open(path, os.O_RDONLY)
        assert inodes.change_flags(fd, add=flag)
        os.close(fd)


def dig(directory: Path, depth: int, *, name: str = "d") -> None:
    """Make directories in directories, deeper than a path can say."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def leftovers(root: Path) -> list[Path]:
    """Return what a store of layers still holds in directories that should be empty."""
    tops = [root / name for name in ("staging", "trash", "removing")] + list(root.glob("branching-*"))
    return [path for top in tops for path in top.iterdir()]


def describe(root: Path) -> dict[str, tuple[object, ...]]:
    """Return owner, mode, size, time, device, link target, attributes and content of everything below `root`."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files, fd in os.fwalk(root):
        for name in [*names, *files, "."]:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            path = f"/proc/self/fd/{fd}/{name}"
            content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
            target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(status.st_mode) else ""
            keys = os.listxattr(path, follow_symlinks=False)
            attributes = {key: os.getxattr(path, key, follow_symlinks=False) for key in keys}
            links = status.st_nlink if stat.S_ISREG(status.st_mode) else 0
            found[os.path.relpath(os.path.join(directory, name), root)] = (
                status.st_uid, status.st_gid, status.st_mode, status.st_mtime_ns, status.st_rdev, links, target,
                content, attributes,
            )  # fmt: skip
    return found
