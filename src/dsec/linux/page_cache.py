"""What the kernel caches of a file, and where the file lies on its device: mincore(2), and FS_IOC_FIEMAP of
``Documentation/filesystems/fiemap.rst``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator

from dsec.linux import syscalls

PAGE_BYTES = mmap.PAGESIZE
_FIEMAP = 0xC020660B
_HEAD = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=QQQ16xI12x")
_EXTENTS = 128
_LAST = 1
_MAXIMUM = (1 << 64) - 1
_PIECE_BYTES = 1 << 30
"""Mapped at a time."""


def cached_ranges(descriptor: int, size_bytes: int) -> Iterator[range]:
    """Yield the ranges of a file, or block device, that are in the page cache, in whole pages and in order.

    Args:
        descriptor: open for reading.
        size_bytes: its length.
    """
    for start in range(0, size_bytes, _PIECE_BYTES):
        length = min(_PIECE_BYTES, size_bytes - start)
        yield from _runs(_resident(descriptor, start, length), start)


def _resident(descriptor: int, start: int, length: int) -> bytes:
    """Return a byte a page, whose lowest bit says whether it is there."""
    with mmap.mmap(descriptor, length, flags=mmap.MAP_PRIVATE, offset=start) as mapped:
        there = ctypes.create_string_buffer(-(-length // PAGE_BYTES))
        # The mapping is private, so that it may be written to, which ctypes insists on; nothing writes.
        address = (ctypes.c_char * length).from_buffer(mapped)
        try:
            syscalls.libc_call("mincore", ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(length), there)
        finally:
            del address  # Otherwise the mapping could not be closed.
        return there.raw


def _runs(there: bytes, start: int) -> Iterator[range]:
    pages = bytes(value & 1 for value in there)
    at = pages.find(b"\1")
    while at >= 0:
        end = pages.find(b"\0", at)
        end = len(pages) if end < 0 else end
        yield range(start + at * PAGE_BYTES, start + end * PAGE_BYTES)
        at = pages.find(b"\1", end)


def extents(descriptor: int) -> Iterator[tuple[int, int, int]]:
    """Yield where a file lies on its device: its offset, the device's, and the length of each extent, in bytes.

    Raises:
        OSError: EOPNOTSUPP where the file system does not tell.
    """
    start = 0
    while True:
        buffer = bytearray(_HEAD.size + _EXTENTS * _EXTENT.size)
        _HEAD.pack_into(buffer, 0, start, _MAXIMUM - start, 0, 0, _EXTENTS, 0)
        # Not by fcntl.ioctl, which keeps the interpreter's lock for a buffer of this size: the file may lie on a device
        # that this very process serves, and then no thread could ever answer what the kernel asks for.
        shared = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        syscalls.libc_call("ioctl", descriptor, ctypes.c_ulong(_FIEMAP), shared)
        count = _HEAD.unpack_from(buffer)[3]
        for number in range(count):
            logical, physical, length, flags = _EXTENT.unpack_from(buffer, _HEAD.size + number * _EXTENT.size)
            yield logical, physical, length
            if flags & _LAST:
                return
            start = logical + length
        if not count:
            return


def device_size(descriptor: int) -> int:
    """Return the length of a file or block device."""
    return os.lseek(descriptor, 0, os.SEEK_END)
