"""Write past the page cache: O_DIRECT of open(2).

What is written once, synced at once and seldom read gains nothing from a copy in memory: it displaces what others read,
and on a virtual machine each page that was never touched before may first have to be got from its host (10 us for 4 KiB
on one such machine, where writing and syncing 8 MiB took 26 ms, and 7 ms past the cache).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading

ALIGNMENT = 4096
"""Of addresses, offsets and lengths: enough for every disk and file system that wants less than a page."""
_BUFFER_BYTES = 2 << 20
_CANNOT = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_local = threading.local()


def write_direct(fd: int, data: bytes) -> int:
    """Write the beginning of `data` at the position of a file, which has to be aligned, past the page cache.

    Returns:
        How much was written; the rest is to be written as usual. It is 0 where the file system cannot do this, and else
        all but the last, unaligned bytes.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno in _CANNOT:
            return 0
        raise
    try:
        return _write(fd, data)
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _write(fd: int, data: bytes) -> int:
    buffer = _buffer()
    done, end = 0, len(data) - len(data) % ALIGNMENT
    while done < end:
        size = min(len(buffer), end - done)
        buffer[:size] = data[done : done + size]
        try:
            written = os.write(fd, memoryview(buffer)[:size])
        except OSError as error:
            if error.errno in _CANNOT:
                return done  # It wants another alignment, or said so only now.
            raise
        done += written
        if written % ALIGNMENT:
            return done  # Going on from there would be unaligned.
    return done


def _buffer() -> mmap.mmap:
    """Return this thread's buffer, which is kept: new memory is what makes writing slow."""
    if not hasattr(_local, "buffer"):
        _local.buffer = mmap.mmap(-1, _BUFFER_BYTES)
    buffer: mmap.mmap = _local.buffer
    return buffer
