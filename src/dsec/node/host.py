"""What the node asks of its host before it admits a sandbox."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class HostProbe(Protocol):
    """Read what is left on the host. Calls are cheap (microseconds)."""

    def free_disk_bytes(self) -> int:
        """Bytes that sandboxes can still write."""

    def free_memory_bytes(self) -> int:
        """Bytes that the kernel could give without swapping (MemAvailable)."""


class SystemHost:
    """This host, for a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def free_disk_bytes(self) -> int:
        volume = os.statvfs(self._state_dir)
        return volume.f_bavail * volume.f_frsize

    def free_memory_bytes(self) -> int:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return 0


def boot_id() -> str:
    """Return the id of this boot of the kernel (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
