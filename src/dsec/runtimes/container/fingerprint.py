"""What can be seen from outside of an instance in which nothing has run: to tell whether one is clean.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re

from dsec.runtimes.container.groups import Groups
from dsec.runtimes.port import Fingerprint

_ROOT = "/"
_OWNER = re.compile(r"\b([ug]id)=([0-9]+)")


def read_fingerprint(pid: int, groups: Groups, instance_id: str, first_host_id: int) -> Fingerprint:
    """Read the fingerprint of the instance whose init is `pid`. Raises `OSError` when it is gone.

    Args:
        pid: the init.
        groups: the node's control groups.
        instance_id: name of its group.
        first_host_id: owners are told as the ids that they are inside, which are the same in every instance.
    """
    with open(f"/proc/{pid}/mountinfo", encoding="utf8", errors="surrogateescape") as file:
        mounts = tuple(sorted(_mount(line, first_host_id) for line in file))
    return Fingerprint(
        processes=groups.usage(instance_id).pids,
        command_groups=groups.children(instance_id),
        mounts=mounts,
    )


def _mount(line: str, first_host_id: int) -> str:
    """Return where, of which kind and with which rights; for the root not its layers, which differ by nature."""
    fields = line.split()
    where, rights = fields[4], fields[5]
    kind, _, options = fields[fields.index("-") + 1 :][:3]
    if where == _ROOT:
        return f"{where} {kind} {rights}"
    inside = _OWNER.sub(lambda found: f"{found[1]}={int(found[2]) - first_host_id}", options)
    return f"{where} {kind} {rights} {inside}"
