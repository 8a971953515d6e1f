"""Memory and descriptors of processes, from /proc (proc(5))."""

from __future__ import annotations

import os

from dsec.base.units import KIB


def _field_bytes(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) * KIB
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0


def proportional_bytes(pid: int) -> int:
    """Return the proportional set size: private pages, and its share of shared ones; 0 when the process is gone."""
    return _field_bytes(f"/proc/{pid}/smaps_rollup", "Pss")


def resident_bytes(pid: int) -> int:
    """Return the resident set size."""
    return _field_bytes(f"/proc/{pid}/status", "VmRSS")


def peak_resident_bytes(pid: int) -> int:
    """Return the highest resident set size since `reset_peak`."""
    return _field_bytes(f"/proc/{pid}/status", "VmHWM")


def reset_peak(pid: int) -> None:
    """Let the highest resident set size begin at the present one."""
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
