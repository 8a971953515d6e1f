"""System V objects of other IPC namespaces, from outside.

The files of /proc/sysvipc show the namespace of whoever opens them, not of whose /proc it is; so they are opened
inside. Source: sysvipc(7), proc_sysvipc(5), ipc_namespaces(7).
"""

from __future__ import annotations

from pathlib import Path

from dsec.linux.namespaces import CLONE_NEWIPC, inside

_KINDS = {"shm": "shared memory", "sem": "semaphores", "msg": "message queue"}


def sysv_objects(pid: int, *, limit: int) -> tuple[str, ...]:
    """Return kind, key and permissions of the objects that the process `pid` and its kin see.

    Args:
        pid: whose namespace.
        limit: of objects of each kind.

    Raises:
        OSError: the process is gone, or shares our own namespace.
    """
    return inside(pid, CLONE_NEWIPC, lambda: tuple(line for kind in _KINDS for line in _read(kind, limit)))


def _read(kind: str, limit: int) -> list[str]:
    path = Path("/proc/sysvipc") / kind
    if not path.exists():  # A kernel without System V IPC.
        return []
    with path.open(encoding="ascii", errors="replace") as file:
        next(file, None)
        rows = [line.split() for line, _ in zip(file, range(limit), strict=False)]
    return [f"{_KINDS[kind]} key {row[0]} mode {row[2]}" for row in rows]
