"""Write files so that a crash leaves either the old content or the new, and lock between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.base.errors import ExternalCommandError, HostDiskFullError, StoreUnavailableError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FREE_SPACE = "free space on the disk of the state directory, or remove images (dsec image rm)"


def sync_path(path: Path) -> None:
    """Make a file's content, or a directory's entries, survive a power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, durably: bool = True) -> None:
    """Replace `path` by `data`: temporary file, fsync, rename, fsync of the directory.

    Temporary names begin with a dot, so that readers of the directory can pass over what a crash left.

    Args:
        path: the file.
        data: its new content.
        mode: its mode.
        durably: wait for the disk. Otherwise a loss of power may leave an empty file, or none, and no kill does.
    """
    temporary = path.with_name(f".{secrets.token_hex(6)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durably:
                os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durably:
        sync_path(path.parent)


@contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """Hold the lock file `path` (flock(2)) and yield its descriptor; the kernel lets go when the holder dies."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def try_lock(path: Path) -> int | None:
    """Lock an existing file without waiting and return its descriptor; None while somebody holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@contextmanager
def full_disk_reported(what: str, resolution: str = _FREE_SPACE) -> Iterator[None]:
    """Turn a full disk, met by us or by a program that we ran, into `HostDiskFullError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _disk_full(what, str(error), resolution) from error
    except ExternalCommandError as error:
        if os.strerror(errno.ENOSPC) not in error.detail:
            raise
        raise _disk_full(what, error.detail, resolution) from error


@contextmanager
def usable(what: str, root: Path, otherwise: str = "") -> Iterator[None]:
    """Say which directory it is that a disk, an owner or a mode keeps us from using; not that a disk is full.

    Args:
        what: the directory is.
        root: where it is.
        otherwise: what can be done, if that is not enough.

    Raises:
        StoreUnavailableError: in place of an `OSError` of the block.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise
        resolution = f"look at the owner, mode and disk of {root}"
        raise StoreUnavailableError(
            f"the {what} {root} cannot be used: {error.strerror}",
            detail=str(error),
            resolution=f"{resolution}; {otherwise}" if otherwise else resolution,
        ) from error


def _disk_full(what: str, detail: str, resolution: str) -> HostDiskFullError:
    return HostDiskFullError(f"no space left while {what}", detail=detail, resolution=resolution)
