"""The type of the file system behind a descriptor (fstatfs(2)), which the standard library does not tell."""

from __future__ import annotations

import ctypes

from dsec.linux import syscalls

BTRFS = 0x9123683E
EROFS = 0xE0F5E1E2
EXT = 0xEF53
OVERLAY = 0x794C7630
TMPFS = 0x01021994
XFS = 0x58465342

_STATFS_BYTES = 256
"""More than any architecture's struct statfs; the type is its first word."""


def file_system_type(fd: int) -> int:
    """Return the magic number; works on O_PATH descriptors too."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    syscalls.libc_call("fstatfs", fd, buffer)
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF
