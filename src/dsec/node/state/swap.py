"""The node's swap file: where the memory of paused sandboxes goes.

One file of one bounded size, in the state directory beside the volume, and never more than a share of the disk that is
free when it is made. That happens when it is first needed, under another name, and it is renamed once it is whole, so
a file that has the right name can be switched on. The kernel keeps it on when the node dies: pages of paused sandboxes
are in it. The next node finds it in /proc/swaps by device and inode, whatever path the table shows, and uses it on.
Killed at any instruction, what a node leaves is one of three things: a part, which the next one deletes at its start; a
whole file that is off, which holds nothing and is switched on; or a file that is on.

The kernel chooses which memory goes where: other areas of the host may take pages of a sandbox, and ours may take
others. Claims therefore only keep two pauses of this node from counting on the same room, for the time in which their
pages travel; after that /proc/swaps tells what is used. So they need not outlive the node: the next one claims again
for what it still has to give back.

On btrfs a swap file must not be copied on write, which is set while it is empty, and its data must be on one device;
its subvolume cannot be snapshotted while it is on (btrfs(5), "Swapfile support"). The volume of sandboxes is another.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from dsec.base.errors import (
    CapabilityMissingError,
    HostDiskFullError,
    HostOutOfMemoryError,
    RuntimeFailedError,
    StateCorruptedError,
    SwapFullError,
)
from dsec.base.units import MIB, format_size
from dsec.linux import inodes, statfs
from dsec.linux.swap import SwapArea, format_swap, swap_off, swap_on, swap_table
from dsec.linux.userns import is_host_root
from dsec.model.capability import Capability, CapabilityReport

SWAP_FILE = "swap"
"""Its name in the state directory."""
LARGEST_SHARE = 0.25
"""Of the disk that is free when the file is made: the rest is for what sandboxes write."""
_SMALLEST_BYTES = 1 * MIB
"""A file of less would hold nobody's memory."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WITHOUT_SWAP = {statfs.OVERLAY: "overlayfs", statfs.TMPFS: "tmpfs"}
_ELSEWHERE = "use a state directory on ext4, XFS or btrfs with its data on one device; or keep the memory"


class Swap(Protocol):
    """Room for the memory of paused sandboxes. Its methods block."""

    def claim(self, size_bytes: int) -> AbstractContextManager[None]:
        """Keep room for memory that is about to be given back, while the block runs.

        Raises:
            SwapFullError: there is not that much room beside what others claim.
            CapabilityMissingError: there can be no swap here.
            HostDiskFullError: there is no room on disk to make it.
            StateCorruptedError: something else lies in its place.
        """

    def report(self) -> CapabilityReport:
        """Say whether there can be swap, as far as that can be told without making it."""

    def tidy(self) -> None:
        """Delete what a node that was killed while it made the file left of it. When a node starts."""

    def remove(self) -> None:
        """Let go of it, when no sandbox is left.

        Raises:
            HostOutOfMemoryError: what is in it has no room in memory; it stays.
            RuntimeFailedError: the kernel refuses for another reason.
        """


class SwapFile:
    """One swap file. Its methods block: making it allocates, removing it reads everything back.

    Args:
        path: where it is; its directory must exist and belong to the node alone.
        size_bytes: its size when it is made, or `LARGEST_SHARE` of the free disk if that is less; 0: there is none.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._part = path.with_name(path.name + ".part")
        self._lock = threading.Lock()
        """Held while the file is made or removed, which takes long."""
        self._counting = threading.Lock()
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
        """See `Swap.claim`; makes the file, or switches it on, if it is not yet."""
        with self._lock:
            area = self._opened()
        with self._counting:
            free_bytes = area.free_bytes - self._claimed_bytes
            if size_bytes > free_bytes:
                raise SwapFullError(
                    f"{format_size(size_bytes)} of memory do not fit into the {format_size(max(free_bytes, 0))} "
                    f"that are free in {self.path}",
                    resolution="resume or destroy paused sandboxes, set a larger swap_bytes, or keep the memory",
                )
            self._claimed_bytes += size_bytes
        try:
            yield
        finally:
            with self._counting:
                self._claimed_bytes -= size_bytes

    def report(self) -> CapabilityReport:
        """See `Swap.report`."""
        area = self.area()
        if area is not None:
            return _report(f"{format_size(area.used_bytes)} of {format_size(area.size_bytes)} used in {self.path}")
        if self.size_bytes == 0:
            return _report("swap_bytes is 0", "set swap_bytes, or keep the memory")
        if not is_host_root():
            return _report("only root may switch swap on", "run the node as root, or keep the memory")
        kind = _file_system(self.path.parent)
        if kind in _WITHOUT_SWAP:
            return _report(f"{_WITHOUT_SWAP[kind]} cannot carry a swap file", _ELSEWHERE)
        return _report(f"up to {format_size(self.size_bytes)} at {self.path}, made when first needed")

    def tidy(self) -> None:
        """See `Swap.tidy`."""
        with self._lock:
            self._part.unlink(missing_ok=True)

    def remove(self) -> None:
        """See `Swap.remove`: switch it off and delete it, and what a killed node left of one. No error when there is
        none. Whoever deletes a state directory does this first: a deleted file stays on until the host restarts."""
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
            raise CapabilityMissingError(
                "this node has no swap file: swap_bytes is 0", resolution="set swap_bytes, or keep the memory"
            )
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
        return stat.S_IMODE(found.st_mode) == 0o600 and self._wanted_bytes(found) <= found.st_size <= self.size_bytes

    def _wanted_bytes(self, old: os.stat_result | None = None) -> int:
        """Return how large a file made now would be, the room of the old one, which would go, included."""
        disk = os.statvfs(self.path.parent)
        free_bytes = disk.f_bavail * disk.f_frsize + (0 if old is None else old.st_blocks * 512)
        return min(self.size_bytes, int(free_bytes * LARGEST_SHARE))

    def _make(self) -> None:
        for old in (self._part, self.path):
            old.unlink(missing_ok=True)  # What is off holds nothing of use, and its room is needed.
        size_bytes = self._wanted_bytes()
        if size_bytes < min(_SMALLEST_BYTES, self.size_bytes):
            raise HostDiskFullError(f"no room for a swap file at {self.path}: it may take a quarter of the free disk")
        descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            inodes.change_flags(descriptor, add=inodes.NOCOW)  # For btrfs; others have no such flag.
            os.posix_fallocate(descriptor, 0, size_bytes)
            format_swap(descriptor, size_bytes)
            # A crash of the host must not leave the name with a file that lost its header.
            os.fsync(descriptor)
            os.rename(self._part, self.path)
        except OSError as error:
            self._part.unlink(missing_ok=True)
            if error.errno in _NO_ROOM:
                raise HostDiskFullError(
                    f"no room for a swap file of {format_size(size_bytes)} at {self.path}"
                ) from error
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
                f"cannot use {self.path} as swap: {error.strerror}",
                detail="the file system cannot carry it (EINVAL), or too many areas are on already (EPERM)",
                resolution=_ELSEWHERE,
            ) from error


def _report(reason: str, resolution: str = "") -> CapabilityReport:
    return CapabilityReport(
        capability=Capability.SWAP_FILE, available=not resolution, reason=reason, resolution=resolution
    )


def _file_system(directory: Path) -> int:
    descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        return statfs.file_system_type(descriptor)
    finally:
        os.close(descriptor)


def _is_same(path: str, ours: os.stat_result) -> bool:
    try:
        other = os.stat(path)
    except OSError:
        return False
    return (other.st_dev, other.st_ino) == (ours.st_dev, ours.st_ino)
