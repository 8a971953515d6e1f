"""Subvolumes on a real volume in a loop file."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dsec.base.errors import AlreadyExistsError, CapabilityMissingError, HostDiskFullError, InvalidRequestError
from dsec.base.units import MIB
from dsec.linux import btrfs, mounts
from dsec.model.capability import Capability
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.port import WritableLayer
from dsec.state.volume import StateVolume, open_volume
from dsec.testing.layers_suite import GuestOnDisk, LayersOnDiskSuite, QuotaSuite, Subject, leftovers, protect

pytestmark = pytest.mark.root


@contextmanager
def overlay(lower: Path, layer: WritableLayer, target: Path) -> Iterator[Path]:
    target.mkdir()
    mounts.mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={layer.upper},workdir={layer.work}")
    try:
        yield target
    finally:
        mounts.unmount(target)


class TestBtrfs(LayersOnDiskSuite, QuotaSuite):
    @pytest.fixture
    def subject(self, volume: StateVolume) -> Iterator[Subject]:
        layers = BtrfsWritableLayers(volume)
        yield Subject(layers, GuestOnDisk())
        for name in layers.names():
            layers.discard(name)
        assert layers.wait_removed(60)
        layers.close()

    def test_everything_is_available(self, subject: Subject) -> None:
        assert all(map(subject.can, (Capability.DISK_QUOTA, Capability.CONSTANT_TIME_ROLLBACK, Capability.CHECKPOINT)))

    def test_immutable_files_are_removed(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        protect(layer.upper / "protected")
        subject.layers.discard("a")
        self.wait_removed(subject)
        assert leftovers(layer.upper.parents[2]) == []

    def test_branch_may_write_a_whole_quota_whatever_its_checkpoint_holds(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=8 * MIB)
        (layer.upper / "f").write_bytes(os.urandom(6 * MIB))
        subject.layers.checkpoint("a", "point")
        branch = subject.layers.branch("point", "b", quota_bytes=8 * MIB)
        assert subject.layers.used_bytes("b") < MIB
        (branch.upper / "g").write_bytes(os.urandom(6 * MIB))
        assert subject.layers.used_bytes("b") >= 6 * MIB

    def test_quota_too_small_for_the_layer_itself_is_refused(self, subject: Subject) -> None:
        with pytest.raises(InvalidRequestError):
            subject.layers.create("a", quota_bytes=1000)
        assert subject.layers.names() == frozenset()

    def test_branch_of_a_live_overlay_shows_what_the_sandbox_saw(self, subject: Subject, tmp_path: Path) -> None:
        lower = tmp_path / "lower"
        (lower / "dir").mkdir(parents=True)
        (lower / "gone").write_bytes(b"x")
        (lower / "dir" / "f").write_bytes(b"x")
        layer = subject.layers.create("a", quota_bytes=8 * MIB)
        with overlay(lower, layer, tmp_path / "first") as root:
            (root / "gone").unlink()
            shutil.rmtree(root / "dir")
            (root / "dir").mkdir()
            (root / "dir" / "new").write_bytes(b"y")
            with (root / "unlinked").open("wb") as held:
                held.write(b"z")
                (root / "unlinked").unlink()
                subject.layers.checkpoint("a", "point")
            (root / "later").write_bytes(b"w")
            branch = subject.layers.branch("point", "b", quota_bytes=8 * MIB)
            with overlay(lower, branch, tmp_path / "second") as seen:
                assert sorted(path.relative_to(seen).as_posix() for path in seen.rglob("*")) == ["dir", "dir/new"]
                (seen / "own").write_bytes(b"v")
            assert not (root / "own").exists()

    def test_layer_in_use_can_be_discarded(self, subject: Subject, tmp_path: Path) -> None:
        layer = subject.layers.create("a", quota_bytes=8 * MIB)
        (tmp_path / "lower").mkdir()
        with overlay(tmp_path / "lower", layer, tmp_path / "root") as root:
            (root / "f").write_bytes(b"x")
            subject.layers.discard("a")
            self.wait_removed(subject)
            assert subject.layers.create("a", quota_bytes=8 * MIB).name == "a"

    def test_of_many_threads_one_gets_the_name(self, subject: Subject) -> None:
        def attempt(_: int) -> bool:
            try:
                subject.layers.create("a", quota_bytes=8 * MIB)
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attempt, range(64))) == 1
        assert subject.layers.names() == {"a"}

    def test_nested_subvolume_is_removed_with_its_layer(self, subject: Subject) -> None:
        layer = subject.layers.create("a", quota_bytes=None)
        fd = os.open(layer.upper, os.O_RDONLY)
        btrfs.create_subvolume(fd, "nested")
        os.close(fd)
        (layer.upper / "nested" / "f").write_bytes(b"x")
        subject.layers.discard("a")
        self.wait_removed(subject)
        assert leftovers(layer.upper.parents[2]) == []


@pytest.mark.slow
def test_without_quotas_a_quota_is_refused_and_usage_is_walked(own_state: Path) -> None:
    layers = BtrfsWritableLayers(open_volume(own_state, size_bytes=256 * MIB), quota=False)
    try:
        with pytest.raises(CapabilityMissingError):
            layers.create("a", quota_bytes=8 * MIB)
        layer = layers.create("a", quota_bytes=None)
        (layer.upper / "f").write_bytes(os.urandom(MIB))
        fd = os.open(layer.upper / "f", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        assert MIB <= layers.used_bytes("a") < 2 * MIB
    finally:
        layers.close()


@pytest.mark.slow
def test_classic_quota_groups_that_are_on_are_used_and_said(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=256 * MIB)
    fd = os.open(volume.path, os.O_RDONLY)
    btrfs.enable_quota(fd, btrfs.QuotaMode.CLASSIC)
    os.close(fd)
    layers = BtrfsWritableLayers(volume)
    try:
        quota = next(report for report in layers.capabilities() if report.capability is Capability.DISK_QUOTA)
        assert quota.available
        assert "classic" in quota.reason
        layer = layers.create("a", quota_bytes=8 * MIB)
        with pytest.raises(OSError, match="quota exceeded"):
            (layer.upper / "f").write_bytes(os.urandom(32 * MIB))
    finally:
        layers.close()


@pytest.mark.slow
def test_full_volume_is_the_hosts_fault_and_leaves_nothing_half_made(own_state: Path) -> None:
    layers = BtrfsWritableLayers(open_volume(own_state, size_bytes=256 * MIB))
    try:
        layer = layers.create("a", quota_bytes=2 << 30)
        with pytest.raises(OSError, match="No space left") as caught:
            (layer.upper / "f").write_bytes(bytes(300 * MIB))
        assert caught.value.errno == errno.ENOSPC
        assert layers.is_full()
        with pytest.raises(HostDiskFullError) as refused:
            layers.create("b", quota_bytes=None)
        assert refused.value.retryable
        assert layers.names() == {"a"}
        layers.discard("a")
        assert layers.wait_removed(60)
        assert _create_once_there_is_room(layers, own_state / "volume").name == "b"
    finally:
        layers.close()


def _create_once_there_is_room(layers: BtrfsWritableLayers, path: Path) -> WritableLayer:
    """Repeat what a caller may repeat. The kernel takes 10 s until it gives up an empty data block group."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        _sync(path)
        try:
            return layers.create("b", quota_bytes=None)
        except HostDiskFullError:
            continue
    raise AssertionError("the room never came back")


def _sync(path: Path) -> None:
    """Wait until the kernel has freed what was destroyed."""
    fd = os.open(path, os.O_RDONLY)
    try:
        btrfs.wait_destroyed(fd)
    finally:
        os.close(fd)


def _discard_layer_and_checkpoint(layers: BtrfsWritableLayers) -> None:
    layer = layers.create("a", quota_bytes=16 * MIB)
    (layer.upper / "f").write_bytes(os.urandom(MIB))
    layers.checkpoint("a", "point")
    layers.discard("a")
    assert layers.wait_removed(60)
    layers.discard("point")
    assert layers.wait_removed(60)


def _wait_no_qgroup(volume: StateVolume) -> None:
    """Wait until no qgroup but the file system's own is left.

    The kernel has freed a subvolume before it looks at the qgroup, and the store looks again only after a while: for
    neither is there anything to wait on.
    """
    deadline = time.monotonic() + 60
    _sync(volume.path)
    fd = os.open(volume.path, os.O_RDONLY)
    file_system = btrfs.file_system_id(fd)
    os.close(fd)
    while not (remaining := btrfs.qgroups(file_system)) <= {5}:
        assert time.monotonic() < deadline, remaining
        time.sleep(0.02)


@pytest.mark.slow
def test_no_qgroup_outlives_what_it_counted_for_long_though_nothing_else_is_discarded(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=256 * MIB)
    with closing(BtrfsWritableLayers(volume)) as layers:
        _discard_layer_and_checkpoint(layers)
        _wait_no_qgroup(volume)


@pytest.mark.slow
def test_qgroups_that_an_earlier_process_left_go_though_nothing_else_is_discarded(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=256 * MIB)
    with closing(BtrfsWritableLayers(volume)) as layers:
        _discard_layer_and_checkpoint(layers)
    with closing(BtrfsWritableLayers(volume)):
        _wait_no_qgroup(volume)


def commits(volume: Path) -> int:
    fd = os.open(volume, os.O_RDONLY)
    try:
        stats = Path(f"/sys/fs/btrfs/{btrfs.file_system_id(fd)}/commit_stats").read_text()
    finally:
        os.close(fd)
    return int(stats.split()[1])


def test_branches_that_are_made_at_once_share_commits(own_state: Path) -> None:
    layers = BtrfsWritableLayers(open_volume(own_state, size_bytes=512 * MIB))
    layers.create("parent", quota_bytes=None)
    layers.checkpoint("parent", "point")
    at_once = 12
    gate = threading.Barrier(at_once)

    def branch(number: int) -> None:
        gate.wait()
        layers.branch("point", f"child-{number}", quota_bytes=16 * MIB)

    before = commits(own_state / "volume")
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(branch, range(at_once)))
    assert commits(own_state / "volume") - before < at_once
    assert layers.names() == {"parent", "point", *(f"child-{number}" for number in range(at_once))}
    layers.close()


def test_checkpoints_that_are_made_at_once_share_commits_and_hold_nobody_up(own_state: Path) -> None:
    layers = BtrfsWritableLayers(open_volume(own_state, size_bytes=512 * MIB))
    at_once = 12
    for number in range(at_once):
        (layers.create(f"layer-{number}", quota_bytes=None).upper / "file").write_text(str(number))
    gate = threading.Barrier(at_once)

    def freeze(number: int) -> None:
        gate.wait()
        layers.checkpoint(f"layer-{number}", f"point-{number}")

    before = commits(own_state / "volume")
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(freeze, range(at_once)))
    assert commits(own_state / "volume") - before < at_once
    assert [(layers.frozen_upper(f"point-{n}") / "file").read_text() for n in range(at_once)] == list(
        map(str, range(at_once))
    )
    for name in layers.names():
        layers.discard(name)
    assert layers.wait_removed(30.0)
    assert layers.names() == frozenset()
    layers.close()


def test_a_checkpoint_of_an_earlier_version_is_read_and_discarded(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=512 * MIB)
    layers = BtrfsWritableLayers(volume)
    (layers.create("layer", quota_bytes=None).upper / "file").write_text("x")
    source, parent = (os.open(volume.path / name, os.O_RDONLY) for name in ("layers/layer", "checkpoints"))
    btrfs.snapshot(source, parent, "point", read_only=True)
    os.close(source)
    os.close(parent)
    assert (layers.frozen_upper("point") / "file").read_text() == "x"
    assert (layers.branch("point", "child", quota_bytes=None).upper / "file").read_text() == "x"
    layers.discard("point")
    assert layers.names() == {"layer", "child"}
    layers.close()


def test_a_branch_that_a_killed_process_left_half_made_is_gone_after_the_next_open(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=512 * MIB)
    layers = BtrfsWritableLayers(volume)
    layers.create("parent", quota_bytes=None)
    layers.checkpoint("parent", "point")
    source, beside = (os.open(volume.path / name, os.O_RDONLY) for name in ("checkpoints/point/point", "branching-3"))
    btrfs.snapshot(source, beside, "half", limit_bytes=16 * MIB)
    os.close(source)
    os.close(beside)
    layers.close()
    layers = BtrfsWritableLayers(volume)
    assert layers.wait_removed(30.0)
    assert not list((volume.path / "branching-3").iterdir())
    assert layers.names() == {"parent", "point"}
    layers.close()
