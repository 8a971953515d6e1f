"""Say where a benchmark ran, and whether the host was quiet enough for it."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from typing import Any

from dsec.linux.cgroups import CgroupMounts

QUIET_LOAD_PER_CORE = 0.5
"""Above this one-minute load average per core, latencies are somebody else's as much as ours."""

_PROGRAMS = ("crun", "dockerd")


def describe_host() -> dict[str, Any]:
    """Return kernel, processor, memory, load and versions."""
    found = CgroupMounts.find()
    return {
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes("MemTotal"),
        "load_average_at_start": [round(value, 2) for value in os.getloadavg()],
        "cgroups": "none" if found is None else found.mode.value,
        "python": platform.python_version(),
        "dsec": version("dsec"),
        **{name: program_version(name) for name in _PROGRAMS},
        "notes": [],
    }


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def memory_bytes(field: str) -> int:
    """Return a field of /proc/meminfo, such as ``MemAvailable``."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


def program_version(program: str) -> str | None:
    """Return the first line of ``PROGRAM --version``; None when it is not installed."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def disturbance() -> str | None:
    """Return what speaks against measuring now; None when the host is quiet."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= QUIET_LOAD_PER_CORE * cores:
        return None
    return f"the load average is {load:.2f} on {cores} cores: other work disturbs what is measured here"
