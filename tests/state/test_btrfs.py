"""Subvolumes on a real volume in a loop file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.base.errors import CapabilityMissingError, HostDiskFullError, InvalidRequestError
from dsec.base.units import MIB
from dsec.linux import btrfs
from dsec.model.capability import Capability
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.volume import StateVolume, open_volume
from dsec.testing.layers_suite import GuestOnDisk, LayersOnDiskSuite, QuotaSuite, Subject, leftovers, protect

pytestmark = pytest.mark.root


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
        with pytest.raises(HostDiskFullError):
            layers.create("b", quota_bytes=None)
        assert layers.names() == {"a"}
        layers.discard("a")
        assert layers.wait_removed(60)
        _sync(own_state / "volume")
        assert layers.create("b", quota_bytes=None).name == "b"
    finally:
        layers.close()


def _sync(path: Path) -> None:
    """Wait until the kernel has freed what was destroyed."""
    fd = os.open(path, os.O_RDONLY)
    try:
        btrfs.wait_destroyed(fd)
    finally:
        os.close(fd)


@pytest.mark.slow
def test_no_qgroup_outlives_what_it_counted(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=256 * MIB)
    layers = BtrfsWritableLayers(volume)
    layer = layers.create("a", quota_bytes=16 * MIB)
    (layer.upper / "f").write_bytes(os.urandom(MIB))
    layers.checkpoint("a", "point")
    layers.discard("a")
    assert layers.wait_removed(60)
    layers.discard("point")
    assert layers.wait_removed(60)
    layers.close()
    _sync(volume.path)
    layers = BtrfsWritableLayers(volume)
    layers.create("b", quota_bytes=None)
    layers.discard("b")
    assert layers.wait_removed(60)
    _sync(volume.path)
    fd = os.open(volume.path, os.O_RDONLY)
    remaining = btrfs.qgroups(btrfs.file_system_id(fd))
    os.close(fd)
    layers.close()
    assert remaining <= {5}
