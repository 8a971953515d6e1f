"""inotify(7): what the kernel tells about changes in directories."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from dsec.linux import syscalls

IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_CLOSE_WRITE = 0x8
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x01000000
IN_ISDIR = 0x40000000

READ_BYTES = 64 * 1024
_EVENT = struct.Struct("=iIII")


@dataclass(frozen=True, slots=True)
class InotifyEvent:
    """One event: the watch it belongs to, its bits, and the entry's name (empty for the directory itself)."""

    watch: int
    mask: int
    name: bytes


def init() -> int:
    """Return a new, non-blocking inotify instance. EMFILE past fs.inotify.max_user_instances."""
    return syscalls.libc_call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)


def add_watch(inotify_fd: int, path_fd: int, mask: int) -> int:
    """Watch the directory behind a descriptor. ENOSPC past fs.inotify.max_user_watches."""
    path = f"/proc/self/fd/{path_fd}".encode()
    return syscalls.libc_call("inotify_add_watch", inotify_fd, path, mask, path=path)


def remove_watch(inotify_fd: int, watch: int) -> None:
    syscalls.libc_call("inotify_rm_watch", inotify_fd, watch)


def parse(data: bytes) -> Iterator[InotifyEvent]:
    """Yield the events of one read."""
    at = 0
    while at < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield InotifyEvent(watch, mask, data[at : at + length].rstrip(b"\0"))
        at += length
