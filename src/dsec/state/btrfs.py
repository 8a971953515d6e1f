"""Writable layers as btrfs subvolumes: made, frozen, branched and discarded in constant time.

A layer is a subvolume with `upper` and `work`; a checkpoint is a read-only snapshot of it; a branch is a writable
snapshot of a checkpoint. A snapshot of a live overlay's upper directory is one that overlayfs accepts again: its
marks are ordinary extended attributes and whiteouts. The `work` directory that comes along is emptied, since
overlayfs begins it anew.

What a layer uses, with *simple* quotas: the extents that it wrote itself and that anything still holds. So a branch
begins at nothing, whatever its checkpoint holds, and may write a whole quota; and what a layer wrote before a
checkpoint counts against it until that checkpoint is discarded too, even when the layer has deleted the file: the
bytes are still there, and it wrote them. With *classic* quota groups (where a host's own btrfs has them on) a layer
is charged for all that it refers to, so that a branch begins at what its checkpoint holds.

A full quota answers EDQUOT, a full volume ENOSPC: `write(2)` in the sandbox tells which, and so does `is_full` here.

A checkpoint waits until what its layer wrote is on disk, about 0.7 s per GiB, and for one commit. So `settle` writes it
out while the sandbox runs on, without a commit, and `open_volume(unwritten_bytes=)` bounds how much that can be.
Copies that are made at once share commits when they are made in directories of their own (`Layout.branching_fd`): 100
took 84 ms with 8 threads, and 732 to 802 ms in one directory, whatever the threads (on a busy disk).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from dsec.base.errors import CapabilityMissingError, HostDiskFullError, InvalidRequestError
from dsec.base.units import MIB, format_size
from dsec.linux import btrfs, btrfs_stream
from dsec.linux.btrfs import QuotaMode
from dsec.model.capability import Capability, CapabilityReport
from dsec.state import layout, tree
from dsec.state.btrfs_touched import BtrfsTree
from dsec.state.port import WritableLayer
from dsec.state.receiving import receive_into
from dsec.state.trash import remove_tree
from dsec.state.trees import FrozenTree, NewTree
from dsec.state.volume import StateVolume

MINIMUM_QUOTA_BYTES = MIB
"""A layer's own directories take up to 48 KiB of tree nodes; overlayfs and the guest need some too."""

_STREAM_BYTES = 1 << 20
_SETTLING_ROUNDS = 2
"""The second is for what was written during the first, and costs nothing where that is nothing. A guest can write as
fast as the disk for ever; after this the rest is written out while it stands still."""


class BtrfsWritableLayers:
    """A `WritableLayers` on btrfs.

    Args:
        volume: where; on a volume of our own, quotas are switched on if they are not.
        quota: False leaves quotas as they are, off on a new volume.
    """

    driver = "btrfs"
    encoding = "btrfs-send-1"

    def __init__(self, volume: StateVolume, *, quota: bool = True) -> None:
        self._volume = volume
        self._fd = os.open(volume.path, tree.DIRECTORY)
        self._file_system = btrfs.file_system_id(self._fd)
        self._mode = self._quota_mode(quota)
        self._stale: deque[int] = deque()
        if volume.backing is not None:
            self._stale.extend(self._qgroups_without_subvolume())
        self._layout = layout.Layout(volume.path, self._remove, self._remove_stale_qgroups)

    def capabilities(self) -> tuple[CapabilityReport, ...]:
        constant = (Capability.CONSTANT_TIME_ROLLBACK, Capability.CHECKPOINT)
        snapshots = tuple(
            CapabilityReport(capability=capability, available=True, reason="btrfs snapshots") for capability in constant
        )
        return (self._quota_report(), *snapshots)

    def create(self, name: str, *, quota_bytes: int | None) -> WritableLayer:
        with self._making(name, quota_bytes) as staged:
            btrfs.create_subvolume(self._layout.staging_fd, staged, limit_bytes=quota_bytes)
            with self._staged(staged) as fd:
                layout.make_pair(fd)
            return self._layout.publish(staged, name)

    def branch(self, checkpoint: str, name: str, *, quota_bytes: int | None) -> WritableLayer:
        with self._layout.open_checkpoint(checkpoint) as source, self._making(name, quota_bytes) as staged:
            self._copy(source, staged, quota_bytes)
            with self._staged(staged) as fd:
                layout.renew_work(fd)
            return self._layout.publish(staged, name)

    def _copy(self, source_fd: int, staged: str, quota_bytes: int | None) -> None:
        """Make a writable copy in `staging`, beside others that are made at the same time."""
        beside = self._layout.branching_fd()
        btrfs.snapshot(source_fd, beside, staged, limit_bytes=quota_bytes)
        try:
            os.rename(staged, staged, src_dir_fd=beside, dst_dir_fd=self._layout.staging_fd)
        except OSError:
            self._layout.trash.put_unpublished(beside, staged)
            raise

    def settle(self, name: str) -> None:
        with self._layout.open_layer(name) as source:
            for _ in range(_SETTLING_ROUNDS):
                btrfs.write_out(source, self._layout.layers_fd, name)

    def checkpoint(self, name: str, checkpoint: str) -> None:
        with self._layout.open_layer(name) as source, self._making(checkpoint, None) as staged:
            # In a directory of its own: a read-only one cannot be moved, and in one directory with others it would be
            # made, and removed, only when theirs are committed (`Layout.branching_fd`).
            os.mkdir(staged, 0o700, dir_fd=self._layout.staging_fd)
            with self._staged(staged) as own:
                btrfs.snapshot(source, own, checkpoint, read_only=True)
            self._layout.publish_checkpoint(staged, checkpoint)

    def frozen_upper(self, checkpoint: str) -> Path:
        return self._layout.frozen_upper(checkpoint)

    def open_frozen(self, checkpoint: str) -> AbstractContextManager[FrozenTree]:
        return self._layout.open_frozen(checkpoint, BtrfsTree)

    def open_new(self, name: str) -> AbstractContextManager[NewTree]:
        return self._layout.open_new(name)

    def send(self, checkpoint: str, parent: str | None, fd: int) -> None:
        with ExitStack() as stack:
            base = None
            if parent is not None:
                base = btrfs.subvolume_id(stack.enter_context(self._layout.open_checkpoint(parent)))
            btrfs_stream.send(stack.enter_context(self._layout.open_checkpoint(checkpoint)), fd, parent=base)

    def receive(self, name: str, fd: int, *, base: str | None, quota_bytes: int | None) -> None:
        if self._layout.get(name) is None:
            self._make_receiving(name, base, quota_bytes)
        with self._layout.open_layer(name) as root, open(fd, "rb", closefd=False, buffering=_STREAM_BYTES) as stream:
            receive_into(root, stream, lambda: layout.require_room(self._volume.path, self._volume.free_bytes()))

    def _make_receiving(self, name: str, base: str | None, quota_bytes: int | None) -> None:
        """Make the layer that a stream begins from: unlike a branch with the `work` that came along."""
        if base is None:
            self.create(name, quota_bytes=quota_bytes)
            return
        with self._layout.open_checkpoint(base) as source, self._making(name, quota_bytes) as staged:
            self._copy(source, staged, quota_bytes)
            self._layout.publish(staged, name)

    def renew(self, name: str) -> None:
        with self._layout.open_layer(name) as fd:
            layout.renew_work(fd)

    def get(self, name: str) -> WritableLayer | None:
        return self._layout.get(name)

    @property
    def counts_frozen(self) -> bool:
        return self._mode is QuotaMode.SIMPLE

    def limit(self, name: str, quota_bytes: int) -> None:
        self._check_quota(quota_bytes)
        with self._layout.open_layer(name) as fd:
            btrfs.limit_subvolume(fd, quota_bytes, subvolume=btrfs.subvolume_id(fd))

    def used_bytes(self, name: str) -> int:
        with self._layout.open_layer(name) as fd:
            usage = btrfs.qgroup_usage(self._file_system, btrfs.subvolume_id(fd))
            if usage is None:
                return tree.disk_usage(fd)
            return usage.referenced_bytes + usage.reserved_bytes

    def discard(self, name: str) -> None:
        try:
            self._layout.discard(name)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            # A checkpoint of an earlier version: a read-only snapshot without a directory of its own.
            self._layout.trash.remove_at_once(self._layout.checkpoints_fd, name)

    def names(self) -> frozenset[str]:
        return self._layout.names()

    def is_full(self) -> bool:
        """Say whether the volume, not a sandbox's quota, is what has no room."""
        return self._volume.free_bytes() < layout.RESERVE_BYTES

    def wait_removed(self, timeout_s: float) -> bool:
        """Wait until what was discarded is unlinked; the kernel frees its extents, and qgroups go, after that."""
        return self._layout.trash.wait_empty(timeout_s)

    def close(self) -> None:
        self._layout.close()
        os.close(self._fd)

    # Quotas.

    def _quota_mode(self, wanted: bool) -> QuotaMode:
        """Return the mode to count on, after switching it on where that is ours to do."""
        mode = btrfs.quota_mode(self._fd)
        if mode is not QuotaMode.OFF or not wanted or self._volume.backing is None:
            return mode
        for candidate in (QuotaMode.SIMPLE, QuotaMode.CLASSIC):
            try:
                btrfs.enable_quota(self._fd, candidate)
                return candidate
            except OSError as error:
                # EINVAL: the kernel does not know this mode. Other errors mean that no mode can be switched on.
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                    raise
        return QuotaMode.OFF

    def _quota_report(self) -> CapabilityReport:
        reasons = {
            QuotaMode.SIMPLE: "btrfs simple quotas",
            QuotaMode.CLASSIC: "btrfs classic quota groups, which make checkpoints and discards dearer",
            QuotaMode.OFF: "quotas are off on this file system",
        }
        available = self._mode is not QuotaMode.OFF
        return CapabilityReport(
            capability=Capability.DISK_QUOTA,
            available=available,
            reason=reasons[self._mode],
            resolution="" if available else f"run `btrfs quota enable {self._volume.path}` as root",
        )

    def _check_quota(self, quota_bytes: int | None) -> None:
        if quota_bytes is None:
            return
        if self._mode is QuotaMode.OFF:
            report = self._quota_report()
            raise CapabilityMissingError(
                "a disk quota cannot be enforced here", detail=report.reason, resolution=report.resolution
            )
        if quota_bytes < MINIMUM_QUOTA_BYTES:
            raise InvalidRequestError(
                f"a disk quota of {format_size(quota_bytes)} is too small",
                resolution=f"give at least {format_size(MINIMUM_QUOTA_BYTES)}",
            )

    # Making.

    @contextmanager
    def _making(self, name: str, quota_bytes: int | None) -> Iterator[str]:
        self._layout.check_free(name)
        self._check_quota(quota_bytes)
        try:
            layout.require_room(self._volume.path, self._volume.free_bytes())
            with self._layout.making(name) as staged:
                yield staged
        except HostDiskFullError:
            btrfs.start_commit(self._fd)  # What was discarded comes back now instead of at the next commit.
            raise

    @contextmanager
    def _staged(self, staged: str) -> Iterator[int]:
        fd = os.open(staged, tree.DIRECTORY, dir_fd=self._layout.staging_fd)
        try:
            yield fd
        finally:
            os.close(fd)

    # Removing.

    def _remove(self, parent_fd: int, name: str, stopping: Callable[[], bool]) -> bool:
        """Destroy a subvolume (in the trash's thread, for layers); its qgroup goes once the kernel has freed it."""
        try:
            fd = os.open(name, tree.DIRECTORY, dir_fd=parent_fd)
        except FileNotFoundError:
            return True
        try:
            if not btrfs.is_subvolume(fd):
                # What a checkpoint is in, or something half made.
                inside = [each for each in tree.names(fd) if not self._remove_inside(fd, each, stopping)]
                return not inside and remove_tree(parent_fd, name, stopping)
            subvolume = btrfs.subvolume_id(fd)
            if not self._destroy(parent_fd, name, fd):
                return remove_tree(parent_fd, name, stopping)
        finally:
            os.close(fd)
        if self._mode is not QuotaMode.OFF:
            self._stale.append(subvolume)
        return True

    def _remove_inside(self, directory_fd: int, name: str, stopping: Callable[[], bool]) -> bool:
        """Remove an entry of a plain directory if it is a subvolume; say whether none is left."""
        try:
            fd = os.open(name, tree.DIRECTORY, dir_fd=directory_fd)
        except OSError:
            return True  # A file, which goes with the directory.
        try:
            is_subvolume = btrfs.is_subvolume(fd)
        finally:
            os.close(fd)
        return not is_subvolume or self._remove(directory_fd, name, stopping)

    def _destroy(self, parent_fd: int, name: str, fd: int) -> bool:
        """Destroy a subvolume; False when it must be emptied instead, and can be."""
        try:
            btrfs.destroy_subvolume(parent_fd, name)
        except OSError as error:
            # ENOTEMPTY: it holds another subvolume. EPERM: only root destroys subvolumes. EINVAL: no subvolume.
            if error.errno not in (errno.ENOTEMPTY, errno.EPERM, errno.EINVAL):
                raise
            if error.errno != errno.EINVAL:
                btrfs.make_writable(fd)
            return False
        return True

    def _remove_stale_qgroups(self) -> bool:
        """Remove the qgroups of subvolumes that are gone, as far as they count nothing (in the trash's thread).

        The kernel frees a subvolume some time after it was destroyed, with a later commit. Newer ones remove its qgroup
        then, unless a checkpoint still holds what the subvolume wrote: that of such a one nobody else removes.
        """
        for _ in range(len(self._stale)):
            subvolume = self._stale.popleft()
            if not self._remove_qgroup(subvolume):
                self._stale.append(subvolume)
        return not self._stale

    def _remove_qgroup(self, subvolume: int) -> bool:
        usage = btrfs.qgroup_usage(self._file_system, subvolume)
        if usage is None:
            return True
        if self._mode is QuotaMode.SIMPLE and usage.referenced_bytes:
            return False  # To be refused would take a transaction, and so a commit of a file system that rests.
        return btrfs.remove_qgroup(self._fd, subvolume)

    def _qgroups_without_subvolume(self) -> set[int]:
        """Return qgroups that an earlier process left."""
        living = {btrfs.subvolume_id(self._fd)}
        for pattern in ("*/*", "checkpoints/*/*", "staging/*/*", "trash/*/*", "removing/*/*"):
            for path in self._volume.path.glob(pattern):
                fd = os.open(path, tree.DIRECTORY)
                living.add(btrfs.subvolume_id(fd))
                os.close(fd)
        return set(btrfs.qgroups(self._file_system)) - living
