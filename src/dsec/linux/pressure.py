"""Pressure stall information: for which share of the time tasks waited for a resource.

Source: Documentation/accounting/psi.rst of the kernel. A kernel without PSI has none of these files.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def stall_shares(resource: str, *, proc: Path = PROC) -> dict[str, float]:
    """Return the shares of the last 10 s, 0 to 1, by ``some`` and ``full``; empty when the kernel keeps none.

    Args:
        resource: ``cpu``, ``memory`` or ``io``.
        proc: where procfs is.
    """
    try:
        text = (proc / "pressure" / resource).read_text(encoding="ascii")
    except OSError:
        # Absent, or PSI is compiled in and switched off (EOPNOTSUPP).
        return {}
    shares: dict[str, float] = {}
    for line in text.splitlines():
        kind, *fields = line.split()
        values = dict(field.split("=", 1) for field in fields)
        shares[kind] = float(values["avg10"]) / 100
    return shares


def processor_times(*, proc: Path = PROC) -> tuple[int, int]:
    """Return the time that all processors together were used since the boot, and that time with the idle one, in clock
    ticks (proc_stat(5)); (0, 0) when the kernel does not say. Waiting for a disk counts as idle.
    """
    try:
        fields = [int(text) for text in (proc / "stat").read_text(encoding="ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    idle = sum(fields[3:5])
    return sum(fields) - idle, sum(fields)


def process_share(*, proc: Path = PROC) -> float | None:
    """Return the processes and threads of this host as a share of what it can have; None when it does not say."""
    try:
        running = int((proc / "loadavg").read_text(encoding="ascii").split()[3].split("/")[1])
        limits = (
            int((proc / "sys" / "kernel" / name).read_text(encoding="ascii")) for name in ("pid_max", "threads-max")
        )
        return running / min(limits)
    except (OSError, ValueError, IndexError):
        return None


def disk_times(device: int, *, proc: Path = PROC) -> tuple[int, float] | None:
    """Return how many reads and writes of a block device ended since boot, and the seconds that they took in all.

    Args:
        device: as in `st_dev` of a file on it.

    Source: Documentation/admin-guide/iostats.rst. None for what is no block device of its own (tmpfs, btrfs).
    """
    wanted = (str(os.major(device)), str(os.minor(device)))
    try:
        lines = (proc / "diskstats").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if tuple(fields[:2]) == wanted:
            return int(fields[3]) + int(fields[7]), (int(fields[6]) + int(fields[10])) / 1000
    return None


def tcp_segments(*, proc: Path = PROC) -> tuple[int, int] | None:
    """Return how many TCP segments this network namespace sent, and how many of them again. Source: RFC 4022."""
    try:
        lines = (proc / "net" / "snmp").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    rows = [line.split() for line in lines if line.startswith("Tcp:")]
    if len(rows) != 2:
        return None
    values = dict(zip(rows[0][1:], rows[1][1:], strict=True))
    return int(values["OutSegs"]), int(values["RetransSegs"])
