"""Make the kernel forget what it has cached of a read-only file system, so that it reads the device again.

There is no call that does so for one mounted file system. What there is was tried on EROFS on a loop device, and each
of these lets go of what the others leave:

- ``BLKFLSBUF`` on the device: blocks that the file system reads by the device's own cache (inode tables).
- posix_fadvise(2) with ``POSIX_FADV_DONTNEED`` on every file *and directory*: content, names, tails of files. It comes
  second, since what lies in the same blocks as inodes is read from the device's cache.
- ``/proc/sys/vm/drop_caches`` with 2: inodes in memory, which hold owners, sizes and the targets of symbolic links. It
  does so for the whole host, whose directories are then read anew.

What none of them takes away: pages that a process has mapped, as programs and libraries that run; and inodes of files
that are open. They go with their last user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsec.linux import syscalls
from dsec.linux.page_cache import cached_ranges, device_size, extents

_BLKFLSBUF = 0x1261


def evict_device(device: str) -> None:
    """Forget the blocks of a device that are cached and clean. Raises `OSError`."""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.libc_call("ioctl", descriptor, ctypes.c_ulong(_BLKFLSBUF), 0, path=device)
    finally:
        os.close(descriptor)


def evict_tree(root: Path) -> None:
    """Forget the content of all files and directories of a tree that nobody has mapped; what cannot be read is passed
    over. Opens nothing that could be a device or a pipe.
    """
    for directory, _ in _directories(root):
        evict_file(directory)
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    evict_file(entry.path)


def still_cached(root: Path, ranges: Sequence[range]) -> Iterator[str]:
    """Yield the files of a tree of which something in some ranges of its device is cached, relative to the tree. After
    an eviction these are the ones that programs have mapped, and those that were read again meanwhile.
    """
    for directory, names in _directories(root):
        for name in names:
            path = os.path.join(directory, name)
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.lstat(path).st_mode) and _has_cached(path, ranges):
                    yield os.path.relpath(path, root)


def _directories(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the directories of a tree, each once, and the names of what is in them but directories. A file system that
    a stranger wrote may have one in many places."""
    seen: set[int] = set()
    for directory, below, names in os.walk(root):
        yield directory, names
        below[:] = [name for name in below if _is_new(os.path.join(directory, name), seen)]


def _is_new(directory: str, seen: set[int]) -> bool:
    try:
        inode = os.lstat(directory).st_ino
    except OSError:
        return False
    is_new = inode not in seen
    seen.add(inode)
    return is_new


def _has_cached(path: str, ranges: Sequence[range]) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size_bytes = device_size(descriptor)
        wanted = [
            range(logical + max(0, each.start - physical), logical + min(length, each.stop - physical))
            for logical, physical, length in extents(descriptor)
            for each in ranges
            if each.start < physical + length and physical < each.stop
        ]
        cached = cached_ranges(descriptor, size_bytes) if wanted and size_bytes else ()
        return any(each.start < there.stop and there.start < each.stop for there in cached for each in wanted)
    finally:
        os.close(descriptor)


def evict_file(path: str | os.PathLike[str]) -> None:
    """Forget the content of a file, or the names in a directory; one that cannot be opened is passed over."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def evict_inodes() -> None:
    """Forget all inodes and names of the host that nobody uses, where one may."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("2")
