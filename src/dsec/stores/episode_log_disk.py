"""The port of disks: the file operations that a log of an episode is made of.

Contract of every driver:

- Each operation is one at whose instruction a machine may stop. What happens to names and bytes that were not synced is
  then open: a name may be there or not, the end of a file may be missing or be anything.
- What was synced survives: bytes by `sync`, names by `sync_directory` (fsync(2) of file and directory).
- A failed `sync` says nothing about what came before, and is never to be repeated: Linux marks the pages that it could
  not write as clean, and the next one succeeds (Rebello et al., "Can Applications Recover from fsync Failures?", ATC
  2020; the PostgreSQL developers' thread of 2018).
- Errors are `OSError`s; whoever uses the port translates them.
- `link` and `try_lock` are atomic between all processes of the host.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """File operations; handles are the driver's."""

    def make_directory(self, path: Path) -> None:
        """Make a directory whose name survives; it may be there."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; none if there is no such directory."""

    def read(self, path: Path, offset: int = 0, length: int = -1) -> bytes:
        """Return a file's bytes from `offset`, `length` at most; what is no regular file is an error."""

    def exists(self, path: Path) -> bool:
        """Say whether a name is there now."""

    def create(self, path: Path) -> int:
        """Make a new file for appending; raises `FileExistsError`."""

    def open(self, path: Path) -> int:
        """Open a file that is there, for `try_lock` and `overwrite`."""

    def write(self, handle: int, data: bytes | memoryview) -> int:
        """Append; return how many bytes were taken, which may be fewer."""

    def overwrite(self, handle: int, data: bytes) -> None:
        """Replace the beginning of a file by as many bytes."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut a file to its first `size` bytes."""

    def sync(self, handle: int) -> None:
        """Bring a file's bytes to the disk."""

    def sync_directory(self, path: Path) -> None:
        """Bring the names in a directory to the disk."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in one step."""

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name; return False, and do nothing, if the name is taken."""

    def remove(self, path: Path) -> None:
        """Take a name away; it may be gone."""

    def try_lock(self, handle: int) -> bool:
        """Lock a file against every other open of it, until it is closed; return False if somebody holds it."""

    def close(self, handle: int) -> None:
        """Let go of a handle."""


class HostDisk:
    """Implements `Disk` on the host's file systems."""

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        self.sync_directory(path.parent)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def read(self, path: Path, offset: int = 0, length: int = -1) -> bytes:
        # Not to block: of a pipe that somebody put there, opening it would wait for whoever writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, f"{path.name} is no regular file")
            file.seek(offset)
            return file.read(length)

    def exists(self, path: Path) -> bool:
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        return True

    def create(self, path: Path) -> int:
        # Not opened for appending: a tenure is overwritten in place, and there is one writer.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        return os.write(handle, data)

    def overwrite(self, handle: int, data: bytes) -> None:
        os.pwrite(handle, data, 0)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)
        os.lseek(handle, size, os.SEEK_SET)

    def sync(self, handle: int) -> None:
        os.fsync(handle)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> bool:
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        return True

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def try_lock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self, handle: int) -> None:
        os.close(handle)


def write_new(disk: Disk, path: Path, data: bytes) -> int:
    """Write and sync a file under a name that counts for nothing, and return its handle.

    Raises:
        OSError: it could not be written; nothing is open.
    """
    disk.remove(path)
    handle = disk.create(path)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[disk.write(handle, rest) :]
        disk.sync(handle)
    except OSError:
        disk.close(handle)
        raise
    return handle
