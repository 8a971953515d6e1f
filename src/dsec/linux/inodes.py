"""What inodes carry beside their mode: attribute flags (ioctl_iflags(2)), names of extended attributes, shared extents
(ioctl_ficlone(2)) and holes (fallocate(2))."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

from dsec.base.errors import LimitExceededError
from dsec.linux.syscalls import libc_call

_GETFLAGS = 0x80086601
_SETFLAGS = 0x40086602
_FICLONE = 0x40049409
_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02

APPEND = 0x20
IMMUTABLE = 0x10
NOCOW = 0x00800000

_UNSUPPORTED = (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV, errno.ENOSYS)


def attribute_names(file: int | bytes) -> list[str]:
    """Return the names of the extended attributes of an open file, or of what a path names: a link itself, too.

    Raises:
        LimitExceededError: there are more than the kernel lists (64 KiB of names, listxattr(2)). A guest can set them.
    """
    try:
        return os.listxattr(file) if isinstance(file, int) else os.listxattr(file, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        name = "the directory" if isinstance(file, int) else repr(file.rpartition(b"/")[2])
        raise LimitExceededError(
            f"{name} has more extended attributes than can be listed", resolution="remove some of them"
        ) from error


def flags(fd: int) -> int:
    """Return attribute flags; 0 where the file system has none."""
    try:
        found: int = struct.unpack("=I", fcntl.ioctl(fd, _GETFLAGS, bytes(4)))[0]
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return 0
        raise
    return found


def change_flags(fd: int, *, add: int = 0, remove: int = 0) -> bool:
    """Set and clear attribute flags. Returns whether anything changed; False too where the file system has none."""
    try:
        before: int = struct.unpack("=I", fcntl.ioctl(fd, _GETFLAGS, bytes(4)))[0]
        after = (before | add) & ~remove
        if after == before:
            return False
        fcntl.ioctl(fd, _SETFLAGS, struct.pack("=I", after))
    except OSError as error:
        if error.errno in (*_UNSUPPORTED, errno.EPERM):
            return False
        raise
    return True


def clone_file(source_fd: int, target_fd: int) -> bool:
    """Let `target_fd` share all extents of `source_fd`. Returns False where the file system cannot."""
    try:
        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True


def punch_hole(fd: int, offset: int, length: int) -> bool:
    """Give a range of a file back to the file system; it reads as zeros. Returns False where the file system cannot."""
    try:
        libc_call("fallocate64", fd, _KEEP_SIZE_AND_PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(length))
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True
