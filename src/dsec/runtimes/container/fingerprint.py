"""What can be seen from outside of an instance in which nothing has run: to tell whether one is clean.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

from dsec.runtimes.container.groups import Groups
from dsec.runtimes.port import Fingerprint

_ROOT = "/"


def read_fingerprint(pid: int, groups: Groups, instance_id: str) -> Fingerprint:
    """Read the fingerprint of the instance whose init is `pid`. Raises `OSError` when it is gone."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf8", errors="surrogateescape") as file:
        mounts = tuple(sorted(map(_mount, file)))
    return Fingerprint(
        processes=groups.usage(instance_id).pids,
        command_groups=groups.children(instance_id),
        mounts=mounts,
    )


def _mount(line: str) -> str:
    """Return where, of which kind and with which rights; for the root not its layers, which differ by nature."""
    fields = line.split()
    where, rights = fields[4], fields[5]
    kind, _, options = fields[fields.index("-") + 1 :][:3]
    return f"{where} {kind} {rights}" if where == _ROOT else f"{where} {kind} {rights} {options}"
