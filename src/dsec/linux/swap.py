"""Swap areas: writing the header, switching on and off, and the table of what is on.

A swap area is a file (or partition) whose first page says how many pages follow (`union swap_header` of
include/linux/swap.h). The kernel reads that page once, at swapon(2), maps the file's blocks, and then writes to the
disk past the file system: the file may have no holes and no copy-on-write, and must not change while it is on. File
systems that cannot promise this (overlayfs, tmpfs, btrfs for a file that is copied on write) refuse with EINVAL.

The header is written here and not by mkswap(8): it is five numbers and a signature, and a node should not depend on a
program in /usr/sbin for it.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass

from dsec.linux import syscalls

_BOOT_SECTOR_BYTES = 1024
_SIGNATURE = b"SWAPSPACE2"
_VERSION = 1
_MINIMUM_PAGES = 10
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class SwapArea:
    """One line of /proc/swaps (proc(5))."""

    path: str
    size_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        return self.size_bytes - self.used_bytes


def format_swap(descriptor: int, size_bytes: int) -> None:
    """Write the header of a swap area.

    Args:
        descriptor: a file of `size_bytes` without holes, open for writing.
        size_bytes: its size; what is left of the last page is not used.

    Raises:
        ValueError: too small for the kernel.
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    pages = size_bytes // page_bytes
    if pages < _MINIMUM_PAGES:
        raise ValueError(f"a swap area has at least {_MINIMUM_PAGES * page_bytes} bytes, not {size_bytes}")
    # Version, number of the last page, number of bad pages; UUID and label, which follow, stay empty.
    numbers = struct.pack("=III", _VERSION, pages - 1, 0)
    header = bytes(_BOOT_SECTOR_BYTES) + numbers
    page = header.ljust(page_bytes - len(_SIGNATURE), b"\0") + _SIGNATURE
    if os.pwrite(descriptor, page, 0) != page_bytes:
        raise OSError(28, os.strerror(28))


def swap_on(path: str | os.PathLike[str]) -> None:
    """Let the kernel use an area, after all that are on (swapon(2)). Needs CAP_SYS_ADMIN.

    Raises:
        OSError: EINVAL: the file has holes or its file system cannot carry swap; EBUSY: it is on already; EPERM.
    """
    where = os.fsencode(path)
    syscalls.libc_call("swapon", where, 0, path=os.fsdecode(where))


def swap_off(path: str | os.PathLike[str]) -> None:
    """Read everything back from an area and let go of it (swapoff(2)). Takes as long as reading it takes.

    Raises:
        OSError: ENOMEM: its content has no room in memory; EINVAL: it is not on; EPERM.
    """
    where = os.fsencode(path)
    syscalls.libc_call("swapoff", where, path=os.fsdecode(where))


def swap_table(path: str = "/proc/swaps") -> tuple[SwapArea, ...]:
    """Return the areas that are on; none where the kernel has no swap."""
    try:
        with open(path, encoding="utf8", errors="surrogateescape") as file:
            lines = file.read().splitlines()[1:]
    except FileNotFoundError:
        return ()
    return tuple(_parse(line) for line in lines if line.strip())


def _parse(line: str) -> SwapArea:
    name, _kind, size_kib, used_kib, _priority = line.split()
    return SwapArea(_unescape(name), int(size_kib) << 10, int(used_kib) << 10)


def _unescape(name: str) -> str:
    """Undo what the kernel writes for blanks and backslashes (seq_path: three octal digits)."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), name)
