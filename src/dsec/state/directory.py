"""Writable layers as plain directories, for hosts without btrfs.

What it cannot do is said: there is no disk quota; where files cannot share their contents (ext4, tmpfs) there are no
checkpoints; where they can (XFS, btrfs) a checkpoint copies every name, so that it is not of constant time. Making and
discarding is: a discard is a rename, and a thread of the store removes the tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from dsec.base.errors import CapabilityMissingError
from dsec.model.capability import Capability, CapabilityReport
from dsec.state import copying, layout, tree
from dsec.state.port import WritableLayer
from dsec.state.trash import remove_tree
from dsec.state.trees import FrozenTree, NewTree

_USE_BTRFS = "run as root on a host with btrfs and loop devices, where a volume is made by itself"


class DirectoryWritableLayers:
    """A `WritableLayers` in a plain directory.

    Args:
        root: where; on the file system that is to hold the layers.
    """

    driver = "directory"
    encoding = ""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._layout = layout.Layout(root, remove_tree)
        self._shares = copying.can_share(self._layout.layers_fd)

    @property
    def counts_frozen(self) -> bool:
        return False

    def limit(self, name: str, quota_bytes: int) -> None:
        raise _no_quota()

    def capabilities(self) -> tuple[CapabilityReport, ...]:
        shared = "files share their contents" if self._shares else "files cannot share their contents here"
        return (
            _missing(Capability.DISK_QUOTA, "plain directories have no quota"),
            _missing(Capability.CONSTANT_TIME_ROLLBACK, "a checkpoint copies every name of a layer"),
            CapabilityReport(capability=Capability.CHECKPOINT, available=True, reason=shared)
            if self._shares
            else _missing(Capability.CHECKPOINT, shared),
        )

    def create(self, name: str, *, quota_bytes: int | None) -> WritableLayer:
        with self._making(name, quota_bytes) as (staged, fd):
            layout.make_pair(fd)
            return self._layout.publish(staged, name)

    def branch(self, checkpoint: str, name: str, *, quota_bytes: int | None) -> WritableLayer:
        self._require_sharing()
        with (
            self._layout.open_checkpoint(checkpoint) as source,
            self._making(name, quota_bytes) as (staged, fd),
        ):
            _copy_upper(source, fd)
            return self._layout.publish(staged, name)

    def settle(self, name: str) -> None:
        """A copy waits for nothing: it shares what was written once that is on disk, and else copies it."""

    def checkpoint(self, name: str, checkpoint: str) -> None:
        self._require_sharing()
        with self._layout.open_layer(name) as source, self._making(checkpoint, None) as (staged, fd):
            _copy_upper(source, fd)
            self._layout.publish_checkpoint(staged, checkpoint)

    def frozen_upper(self, checkpoint: str) -> Path:
        return self._layout.frozen_upper(checkpoint)

    def open_frozen(self, checkpoint: str) -> AbstractContextManager[FrozenTree]:
        return self._layout.open_frozen(checkpoint)

    def open_new(self, name: str) -> AbstractContextManager[NewTree]:
        return self._layout.open_new(name)

    def send(self, checkpoint: str, parent: str | None, fd: int) -> None:
        raise _cannot_travel()

    def receive(self, name: str, fd: int, *, base: str | None, quota_bytes: int | None) -> None:
        raise _cannot_travel()

    def renew(self, name: str) -> None:
        raise _cannot_travel()

    def get(self, name: str) -> WritableLayer | None:
        return self._layout.get(name)

    def used_bytes(self, name: str) -> int:
        """Bytes that this layer's files take; walks the tree, so its time grows with their number."""
        with self._layout.open_layer(name) as fd:
            return tree.disk_usage(fd)

    def discard(self, name: str) -> None:
        self._layout.discard(name)

    def names(self) -> frozenset[str]:
        return self._layout.names()

    def is_full(self) -> bool:
        """Say whether the file system has no room."""
        return layout.free_bytes(self._root) < layout.RESERVE_BYTES

    def wait_removed(self, timeout_s: float) -> bool:
        """Wait until what was discarded is gone."""
        return self._layout.trash.wait_empty(timeout_s)

    def close(self) -> None:
        self._layout.close()

    def _require_sharing(self) -> None:
        if not self._shares:
            raise CapabilityMissingError(
                "checkpoints are not possible here", detail="files cannot share their contents", resolution=_USE_BTRFS
            )

    @contextmanager
    def _making(self, name: str, quota_bytes: int | None) -> Iterator[tuple[str, int]]:
        """Make a directory in `staging` for what is to be called `name`."""
        self._layout.check_free(name)
        if quota_bytes is not None:
            raise _no_quota()
        layout.require_room(self._root, layout.free_bytes(self._root))
        with self._layout.making(name) as staged:
            os.mkdir(staged, 0o755, dir_fd=self._layout.staging_fd)
            fd = os.open(staged, tree.DIRECTORY, dir_fd=self._layout.staging_fd)
            try:
                yield staged, fd
            finally:
                os.close(fd)


def _cannot_travel() -> CapabilityMissingError:
    return CapabilityMissingError("layers in plain directories cannot be sent or received", resolution=_USE_BTRFS)


def _no_quota() -> CapabilityMissingError:
    return CapabilityMissingError("plain directories cannot enforce a disk quota", resolution=_USE_BTRFS)


def _missing(capability: Capability, reason: str) -> CapabilityReport:
    return CapabilityReport(capability=capability, available=False, reason=reason, resolution=_USE_BTRFS)


def _copy_upper(source: int, target: int) -> None:
    """Copy `upper` of one layer to another, whose `work` begins empty."""
    layout.make_pair(target)
    fds = [os.open("upper", tree.DIRECTORY, dir_fd=fd) for fd in (source, target)]
    try:
        copying.copy_tree(fds[0], fds[1])
    finally:
        for fd in fds:
            os.close(fd)
