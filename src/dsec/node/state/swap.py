"""The node's swap file: where the memory of paused sandboxes goes.

One file of one bounded size, in the state directory beside the volume (a file inside btrfs cannot carry swap by
default). It is made when it is first needed, under another name, and renamed once it is whole, so a file that has the
right name can be switched on. The kernel keeps it on when the node dies: pages of paused sandboxes are in it. The next
node finds it in /proc/swaps by device and inode, whatever path the table shows, and uses it on. Killed at any
instruction, what a node leaves is one of three things: a part, which is deleted; a whole file that is off, which holds
nothing and is switched on; or a file that is on.

The kernel chooses which memory goes where: other areas of the host may take pages of a sandbox, and ours may take
others. Claims therefore only keep two pauses of this node from counting on the same room, for the time in which their
pages travel; after that /proc/swaps tells what is used.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsec.base.errors import (
    CapabilityMissingError,
    HostDiskFullError,
    HostOutOfMemoryError,
    RuntimeFailedError,
    StateCorruptedError,
    SwapFullError,
)
from dsec.linux.swap import SwapArea, format_swap, swap_off, swap_on, swap_table

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SwapFile:
    """One swap file. Its methods block: making it allocates, removing it reads everything back.

    Args:
        path: where it is; its directory must exist and belong to the node alone.
        size_bytes: its size when it is made; 0: there is none.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._part = path.with_name(path.name + ".part")
        self._lock = threading.Lock()
        self._claimed_bytes = 0

    def area(self) -> SwapArea | None:
        """Return how full it is; None while it is not on."""
        try:
            ours = os.lstat(self.path)
        except FileNotFoundError:
            return None
        return next((area for area in swap_table() if _is_same(area.path, ours)), None)

    @contextmanager
    def claim(self, size_bytes: int) -> Iterator[None]:
        """Keep room for memory that is about to be given back; make the file, or switch it on, if it is not yet.

        Raises:
            SwapFullError: there is not that much room beside what others claim.
            CapabilityMissingError: this host or directory cannot carry a swap file, or none is wanted.
            HostDiskFullError: there is no room on disk to make it.
            StateCorruptedError: something else lies in its place.
        """
        with self._lock:
            free_bytes = self._opened().free_bytes - self._claimed_bytes
            if size_bytes > free_bytes:
                raise SwapFullError(
                    f"{size_bytes} bytes of memory do not fit into the {max(free_bytes, 0)} bytes that are free in "
                    f"{self.path}; resume or destroy paused sandboxes, or make the swap file larger"
                )
            self._claimed_bytes += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._claimed_bytes -= size_bytes

    def remove(self) -> None:
        """Switch it off and delete it, and what a killed node left of one. No error when there is none.

        Raises:
            HostOutOfMemoryError: what is in it has no room in memory; it stays on.
            RuntimeFailedError: the kernel refuses for another reason.
        """
        with self._lock:
            if self.area() is not None:
                self._switch_off()
            for path in (self.path, self._part):
                path.unlink(missing_ok=True)

    def _switch_off(self) -> None:
        try:
            swap_off(self.path)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise HostOutOfMemoryError(
                    f"what is in {self.path} has no room in memory; destroy paused sandboxes first"
                ) from error
            raise RuntimeFailedError(f"cannot switch off {self.path}: {error.strerror}") from error

    # -- making it ------------------------------------------------------------------------------------------------

    def _opened(self) -> SwapArea:
        area = self.area()
        if area is not None:
            return area
        if self.size_bytes == 0:
            raise CapabilityMissingError("this node has no swap file: its size is set to 0")
        if not self._is_whole():
            self._make()
        self._switch_on()
        area = self.area()
        if area is None:
            raise RuntimeFailedError(f"{self.path} was switched on, but /proc/swaps does not show it")
        return area

    def _is_whole(self) -> bool:
        """Whether a file of the right size lies there, switched off, so that nothing in it is of use to anybody."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            raise StateCorruptedError(f"{self.path} is not the node's swap file; move it away")
        return found.st_size == self.size_bytes and stat.S_IMODE(found.st_mode) == 0o600

    def _make(self) -> None:
        self._part.unlink(missing_ok=True)
        descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            os.posix_fallocate(descriptor, 0, self.size_bytes)
            format_swap(descriptor, self.size_bytes)
            # A crash of the host must not leave the name with a file that lost its header.
            os.fsync(descriptor)
            os.rename(self._part, self.path)
        except OSError as error:
            self._part.unlink(missing_ok=True)
            if error.errno in _NO_ROOM:
                raise HostDiskFullError(f"no room for a swap file of {self.size_bytes} bytes at {self.path}") from error
            raise
        finally:
            os.close(descriptor)

    def _switch_on(self) -> None:
        try:
            swap_on(self.path)
        except OSError as error:
            # A file that is of no use should not hold the disk.
            with suppress(OSError):
                self.path.unlink()
            raise CapabilityMissingError(
                f"cannot use {self.path} as swap: {error.strerror}. It takes root, and a file system that can carry "
                "swap files, such as ext4 or XFS; keep the memory, or move the state directory"
            ) from error


def _is_same(path: str, ours: os.stat_result) -> bool:
    try:
        other = os.stat(path)
    except OSError:
        return False
    return (other.st_dev, other.st_ino) == (ours.st_dev, ours.st_ino)
