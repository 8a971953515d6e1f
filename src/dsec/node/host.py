"""What the node asks of its host before it admits a sandbox."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from dsec.linux.pressure import process_share, processor_times, stall_shares

_SHARE_HOLDS_S = 1.0
"""The kernel counts processor time in ticks: in less, the share of it is noise, however many ask."""


class HostProbe(Protocol):
    """Read what is left on the host. Calls are cheap (microseconds)."""

    def free_disk_bytes(self) -> int:
        """Bytes that sandboxes can still write."""

    def free_memory_bytes(self) -> int:
        """Bytes that the kernel could give without swapping (MemAvailable)."""

    def stalls(self) -> Mapping[str, float]:
        """Shares, 0 to 1, of how long tasks waited and of the processes that are taken, by the field of
        `dsec.pools.admission.Pressure`; what the host does not count is left out."""

    def capacity(self) -> tuple[int, int]:
        """What the host has: thousandths of a processor, and bytes of memory."""

    def processor_share(self) -> float:
        """Share, 0 to 1, of the processors' time that was used lately: since about the last call, or since the boot."""


class SystemHost:
    """This host, for a state directory.

    Args:
        state_dir: whose file system counts when there is no volume.
        volume_free_bytes: tells what is left on the volume of writable layers; None: there is none.
    """

    def __init__(self, state_dir: Path, *, volume_free_bytes: Callable[[], int] | None = None) -> None:
        self._state_dir = state_dir
        self._volume_free_bytes = volume_free_bytes
        self._times = (0, 0)
        self._share = 0.0
        self._share_at_s = -math.inf

    def free_disk_bytes(self) -> int:
        if self._volume_free_bytes is not None:
            return self._volume_free_bytes()
        volume = os.statvfs(self._state_dir)
        return volume.f_bavail * volume.f_frsize

    def free_memory_bytes(self) -> int:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return 0

    def stalls(self) -> Mapping[str, float]:
        found = {
            f"{resource}_{kind}": share
            for resource in ("memory", "io", "cpu")
            for kind, share in stall_shares(resource).items()
            if (resource, kind) != ("cpu", "full")  # It means nothing for a whole host.
        }
        pids = process_share()
        return found if pids is None else {**found, "pids": pids}

    def capacity(self) -> tuple[int, int]:
        return capacity()

    def processor_share(self) -> float:
        now_s = time.monotonic()
        if now_s - self._share_at_s < _SHARE_HOLDS_S:
            return self._share
        before, self._times, self._share_at_s = self._times, processor_times(), now_s
        used, all_time = self._times[0] - before[0], self._times[1] - before[1]
        self._share = min(1.0, max(0.0, used / all_time)) if all_time > 0 else 0.0
        return self._share


def boot_id() -> str:
    """Return the id of this boot of the kernel (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def capacity() -> tuple[int, int]:
    """Return what this host has: thousandths of a processor that we may run on, and bytes of memory."""
    return len(os.sched_getaffinity(0)) * 1000, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
