"""The directories in which a store of writable layers keeps them.

::

    <root>/layers/<name>/{upper,work}    writable layers
    <root>/checkpoints/<name>/[<name>/]  frozen copies; on btrfs each in a directory of its own, which can be moved
    <root>/staging/<random>/             being made; a rename into `layers` publishes it whole
    <root>/branching-<n>/<random>/       being copied; a rename into `staging` follows
    <root>/trash, <root>/removing        discarded

One process at a time opens a store (the node's lock sees to it), so what `staging` and `branching-<n>` hold at opening
was left by a process that was killed, and is discarded. The root is closed to everybody else: upper directories hold
files that are owned by id 0 on disk and may be set-user-id.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from dsec.base.errors import (
    AlreadyExistsError,
    HostDiskFullError,
    InvalidRequestError,
    NotFoundError,
    SnapshotNotFoundError,
)
from dsec.base.units import MIB, format_size
from dsec.state import tree
from dsec.state.disk_tree import DiskNewTree, DiskTree
from dsec.state.port import WritableLayer
from dsec.state.trash import Finish, Remove, Trash, nothing_to_finish

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,127}")
_BRANCHING = 16
"""As many copies at once share commits: more than a node makes side by side."""
RESERVE_BYTES = 32 * MIB
"""No layer is made, or filled, with less than this free, so that what exists can still be written down and removed."""


def check_name(name: str) -> str:
    """Return a well-formed name.

    Raises:
        InvalidRequestError: it is not; names become directories.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{name[:80]!r} cannot name a writable layer", resolution="use letters, digits and dashes, at most 128"
        )
    return name


def _copied(checkpoint_fd: int, upper_fd: int) -> DiskTree:
    return DiskTree(upper_fd)


class Layout:
    """The directories of one store, held open. Every change of them goes through here."""

    def __init__(self, root: Path, remove: Remove, finish: Finish = nothing_to_finish) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        self.layers_fd, self.checkpoints_fd, self.staging_fd = (
            _open_made(root / name) for name in ("layers", "checkpoints", "staging")
        )
        self._branching = [_open_made(root / f"branching-{number}") for number in range(_BRANCHING)]
        self._turn = count()
        self.trash = Trash(root, remove, finish)
        for fd in (self.staging_fd, *self._branching):
            for name in tree.names(fd):
                self.trash.put_unpublished(fd, name)

    def branching_fd(self) -> int:
        """Return a directory in which to make one copy, that hardly anybody else uses now.

        The kernel holds the lock of the directory in which a btrfs snapshot is made until the file system has
        committed. In one directory they come one after another, each with a commit of its own; in several they share
        one. And nobody waits who makes something in `staging`.
        """
        return self._branching[next(self._turn) % _BRANCHING]

    def check_free(self, name: str) -> None:
        """Raise AlreadyExistsError when the name is taken; layers and checkpoints share their names."""
        if self._parent_of(check_name(name)) is not None:
            raise _taken(name)

    @contextmanager
    def open_layer(self, name: str) -> Iterator[int]:
        """Open a layer's directory."""
        with self._opened(self.layers_fd, name, NotFoundError(f"there is no writable layer {name!r}")) as fd:
            yield fd

    @contextmanager
    def open_checkpoint(self, name: str) -> Iterator[int]:
        """Open a checkpoint's directory."""
        missing = SnapshotNotFoundError(f"there is no checkpoint {name!r}")
        with self._opened(self.checkpoints_fd, name, missing) as fd:
            try:
                nested = os.open(name, tree.DIRECTORY, dir_fd=fd)
            except FileNotFoundError:  # A plain copy, or a snapshot that an earlier version made.
                yield fd
                return
            try:
                yield nested
            finally:
                os.close(nested)

    def frozen_upper(self, name: str) -> Path:
        """Return the `upper` directory of a checkpoint."""
        with self.open_checkpoint(name):
            directory = self._root / "checkpoints" / name
            nested = directory / name
            return (nested if nested.is_dir() else directory) / "upper"

    @contextmanager
    def open_frozen(self, name: str, opened: Callable[[int, int], DiskTree] = _copied) -> Iterator[DiskTree]:
        """Open a checkpoint's upper directory as a tree, given the descriptors of the checkpoint and of that."""
        with self.open_checkpoint(name) as fd, _upper_of(fd) as upper:
            frozen = opened(fd, upper)
            try:
                yield frozen
            finally:
                frozen.close()

    @contextmanager
    def open_new(self, name: str) -> Iterator[DiskNewTree]:
        """Open an empty layer's upper directory as a tree to be filled; translate what the kernel says meanwhile."""
        with self.open_layer(name) as fd, _upper_of(fd) as upper:
            new = DiskNewTree(upper, reserve_bytes=RESERVE_BYTES)
            try:
                yield new
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise host_disk_full(self._root) from error
                raise
            finally:
                new.close()

    @contextmanager
    def _opened(self, parent_fd: int, name: str, missing: NotFoundError) -> Iterator[int]:
        try:
            fd = os.open(check_name(name), tree.DIRECTORY, dir_fd=parent_fd)
        except FileNotFoundError as error:
            raise missing from error
        try:
            yield fd
        finally:
            os.close(fd)

    def get(self, name: str) -> WritableLayer | None:
        """Return the published layer of this name."""
        return self._layer(name) if _exists(self.layers_fd, check_name(name)) else None

    def publish(self, staged: str, name: str) -> WritableLayer:
        """Move a finished layer from `staging` to `layers`."""
        os.rename(staged, name, src_dir_fd=self.staging_fd, dst_dir_fd=self.layers_fd)
        return self._layer(name)

    def publish_checkpoint(self, staged: str, name: str) -> None:
        """Move a finished copy from `staging` to `checkpoints`."""
        os.rename(staged, name, src_dir_fd=self.staging_fd, dst_dir_fd=self.checkpoints_fd)

    def names(self) -> frozenset[str]:
        """Names of all layers and checkpoints."""
        return frozenset(tree.names(self.layers_fd)) | frozenset(tree.names(self.checkpoints_fd))

    def discard(self, name: str) -> None:
        """Hand a layer or checkpoint to the trash."""
        parent_fd = self._parent_of(check_name(name))
        if parent_fd is None:
            return
        try:
            self.trash.put(parent_fd, name)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A full volume has no room for a rename, but always for a removal.
            self.trash.remove_at_once(parent_fd, name)

    def close(self) -> None:
        """Stop the trash and let go of all descriptors."""
        self.trash.close()
        for fd in (self.layers_fd, self.checkpoints_fd, self.staging_fd, *self._branching):
            os.close(fd)

    def _layer(self, name: str) -> WritableLayer:
        directory = self._root / "layers" / name
        return WritableLayer(name=name, upper=directory / "upper", work=directory / "work")

    def _parent_of(self, name: str) -> int | None:
        return next((fd for fd in (self.layers_fd, self.checkpoints_fd) if _exists(fd, name)), None)

    @contextmanager
    def making(self, name: str) -> Iterator[str]:
        """Give a name in `staging` under which to make `name`; translate what the kernel says meanwhile.

        What was half made goes to the trash.
        """
        staged = secrets.token_hex(12)
        try:
            yield staged
        except OSError as error:
            self.trash.put_unpublished(self.staging_fd, staged)
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise _taken(name) from error  # Another thread was faster.
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise host_disk_full(self._root) from error
            raise
        except BaseException:
            self.trash.put_unpublished(self.staging_fd, staged)  # Also of what is no error of ours, as a cancellation.
            raise


@contextmanager
def _upper_of(fd: int) -> Iterator[int]:
    upper = os.open("upper", tree.DIRECTORY, dir_fd=fd)
    try:
        yield upper
    finally:
        os.close(upper)


def _taken(name: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"the writable layer {name!r} exists")


def make_pair(fd: int) -> None:
    """Make `upper` and `work` in a new layer's directory."""
    os.fchmod(fd, 0o755)
    for name, mode in (("work", 0o700), ("upper", 0o755)):
        os.mkdir(name, mode, dir_fd=fd)
        os.chmod(name, mode, dir_fd=fd)  # The process's umask does not count.


def renew_work(fd: int) -> None:
    """Empty the `work` directory that came along with a copy: overlayfs begins it anew at each mount."""
    work = os.open("work", tree.DIRECTORY, dir_fd=fd)
    try:
        tree.empty(work)
    finally:
        os.close(work)


def host_disk_full(path: Path) -> HostDiskFullError:
    """Return the error for a volume without room."""
    return HostDiskFullError(
        f"the volume of writable layers at {path} is full",
        resolution="remove sandboxes or checkpoints that are not needed, free space on the host, or grow the volume",
    )


def require_room(path: Path, free_bytes: int) -> None:
    """Raise HostDiskFullError when less than the reserve is free."""
    if free_bytes < RESERVE_BYTES:
        error = host_disk_full(path)
        error.detail = f"{format_size(free_bytes)} free, {format_size(RESERVE_BYTES)} are kept in reserve"
        raise error


def free_bytes(path: Path) -> int:
    """Bytes that can still be written on the file system of `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _exists(parent_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _open_made(path: Path) -> int:
    path.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, tree.DIRECTORY)
