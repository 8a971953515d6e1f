"""Where a log is, who writes it, and how its disk's failures are called."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import DsecError, HostDiskFullError, PlatformError
from dsec.base.units import MIB
from dsec.stores.episode_log_disk import Disk, HostDisk
from dsec.stores.episode_log_tenure import DEFAULT_LEASE_S

DEFAULT_SEGMENT_BYTES = 4 * MIB
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HOST_DISK, _HOST_CLOCK = HostDisk(), SystemClock()


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Where a log is, and who writes it.

    Attributes:
        directory: of the log; its name is the episode's id.
        writer: who writes, for people.
        disk: the file operations.
        clock: wall clock for heads, boot clock for leases.
        lease_s: how long others wait for a writer that stands still.
        segment_bytes: a segment that has grown to this is followed by the next.
        may_acknowledge: whether this host still holds the episode, such as `StoreLease.is_valid`; asked after a save.
    """

    directory: Path
    writer: str = ""
    disk: Disk = _HOST_DISK
    clock: Clock = _HOST_CLOCK
    lease_s: float = DEFAULT_LEASE_S
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    may_acknowledge: Callable[[], bool] = _always


def disk_failure(directory: Path, error: OSError) -> DsecError:
    """Return our error for one that a disk reported while the log in a directory was written."""
    if error.errno in _FULL:
        return HostDiskFullError(
            f"the log in {directory} cannot be written",
            detail=error.strerror or "",
            resolution="make room on the disk, and resume the episode",
        )
    return PlatformError(f"the log in {directory} cannot be written", detail=error.strerror or "")
