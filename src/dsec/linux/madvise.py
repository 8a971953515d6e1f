"""Reading a process's memory back from swap ahead of its need (process_madvise(2), Linux 5.10).

A process whose memory is in swap reads it back one fault at a time, and waits for each. MADV_WILLNEED starts the reads
of whole ranges without waiting for them, and another process may give that advice. It is only advice: done by half, for
memory that is mapped anew meanwhile, or for a process that has ended, it changes nothing but time.

Only memory that can be in swap is asked for: private memory, memfds and shared memory. Mappings of files are left
out, because the kernel reads ahead in them anyway, and because a guest may map files whose reads somebody must answer.

The process belongs to a guest, who chooses how many mappings it has and how large they are. So everything is bounded:
bytes read of its table, bytes advised in one call, and whether a next call is made.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator

from dsec.linux import syscalls

_MADV_WILLNEED = 3
_SYS_PROCESS_MADVISE = 440
_PIECE_BYTES = 8 << 20
"""Bytes of one call, which takes a few milliseconds."""
_SWAPPED_NAMES = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
MAXIMUM_TABLE_BYTES = 1 << 20


class _Range(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def will_need(pid: int, go_on: Callable[[], bool], *, maximum_table_bytes: int = MAXIMUM_TABLE_BYTES) -> int:
    """Start reading a process's memory back from swap; return how many bytes of address space were asked for.

    A process that is gone, or gone before the end, counts as done.

    Args:
        pid: the process.
        go_on: asked before each call.
        maximum_table_bytes: what is read of its table of mappings; later mappings are left out.

    Raises:
        OSError: EPERM: it needs CAP_SYS_NICE and leave to read the process (ptrace(2)); ENOSYS: an older kernel.
    """
    asked = 0
    try:
        # The descriptor comes first: if the number is reused while the table is read, the advice goes to the dead.
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0
    try:
        for start, length in _swapped(_table(pid, maximum_table_bytes)):
            for offset in range(0, length, _PIECE_BYTES):
                if not go_on():
                    return asked
                asked += _advise(descriptor, start + offset, min(_PIECE_BYTES, length - offset))
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)
    return asked


def _advise(descriptor: int, start: int, length: int) -> int:
    vector = _Range(start, length)
    try:
        return syscalls.call(_SYS_PROCESS_MADVISE, descriptor, ctypes.byref(vector), 1, _MADV_WILLNEED, 0)
    except OSError as error:
        # ENOMEM: unmapped meanwhile; EINVAL, EBADF: a kind of mapping that takes no advice. The next may take it.
        if error.errno in (errno.ENOMEM, errno.EINVAL, errno.EBADF):
            return 0
        raise


def _table(pid: int, maximum_bytes: int) -> str:
    """Return the first whole lines of /proc/PID/maps."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            text = file.read(maximum_bytes)
    except FileNotFoundError:
        return ""
    return text[: text.rfind(b"\n") + 1].decode(errors="replace")


def _swapped(table: str) -> Iterator[tuple[int, int]]:
    """Yield start and length of the mappings whose pages can be in swap (proc_pid_maps(5))."""
    for line in table.split("\n"):
        fields = line.split(maxsplit=5)
        if len(fields) < 5:
            continue
        name = fields[5] if len(fields) == 6 else ""
        anonymous = fields[4] == "0" and not name.startswith("[v")
        if anonymous or name.startswith(_SWAPPED_NAMES):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            yield start, end - start
