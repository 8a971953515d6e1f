"""Open a path without leaving a directory: openat2(2), Linux 5.6.

The kernel resolves the whole path in one call and promises where it ends, whatever somebody renames meanwhile. Two
promises are used:

- `open_in_root` treats a directory as ``/``: absolute links and ``..`` stay below it, as for a process that was
  chrooted there. Links of /proc that jump (``/proc/1/root``) are refused.
- `open_child` opens one entry that is really in the directory: no link, no other mount.

A resolution that races with a rename is answered EAGAIN, so that it is tried again a bounded number of times.
"""

from __future__ import annotations

import errno
import os
import struct

from dsec.linux import syscalls

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

_IN_ROOT = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_CHILD = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS

_HOW = struct.Struct("=QQQ")
_ATTEMPTS = 128
"""Each attempt takes microseconds; a guest that renames in a loop makes a few in a hundred fail."""


def openat2(directory_fd: int, path: bytes, flags: int, *, mode: int = 0, resolve: int) -> int:
    """Open `path` below `directory_fd` (close-on-exec) under the constraints `resolve`."""
    if b"\0" in path:
        raise OSError(errno.EINVAL, "the path holds a NUL byte", path)
    how = _HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    for attempt in range(_ATTEMPTS):
        try:
            return syscalls.call(syscalls.SYS_OPENAT2, directory_fd, path, how, len(how), path=path)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def open_in_root(root_fd: int, path: bytes, flags: int, *, mode: int = 0) -> int:
    """Open a path as a process would whose root directory is `root_fd`."""
    return openat2(root_fd, path, flags, mode=mode, resolve=_IN_ROOT)


def open_child(directory_fd: int, name: bytes, flags: int, *, mode: int = 0) -> int:
    """Open an entry of a directory; a symbolic link raises ELOOP, a mount point EXDEV."""
    return openat2(directory_fd, name, flags, mode=mode, resolve=_CHILD)


def reopen(path_fd: int, flags: int) -> int:
    """Open anew the very file that an O_PATH descriptor names, so that what was checked is what is opened."""
    return os.open(f"/proc/self/fd/{path_fd}", flags | os.O_CLOEXEC)
