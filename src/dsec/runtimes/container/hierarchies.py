"""Hierarchies of our own on a v1-hybrid host. Both are mounts that any node may make and none removes.

- crun refuses a hybrid host whose v2 tree still holds a controller (hugetlb is commonly left there). Mounting a v1
  hierarchy for it takes it away.
- Moving a process waits for an RCU grace period unless some hierarchy asks for `favordynmods` (Linux 6.0); a named
  hierarchy without controllers asks for it without changing anybody else's mounts.
"""

from __future__ import annotations

import os
from pathlib import Path

from dsec.linux import mounts
from dsec.linux.cgroups import CgroupMode, CgroupMounts

_DIRECTORY = Path("/run/dsec/cgroup")
FAST_HIERARCHY = "dsec"


def own_hierarchies(found: CgroupMounts) -> None:
    """Mount what is missing; a host that refuses is left as it is (the runtime will say what it lacks)."""
    if found.mode is CgroupMode.UNIFIED:
        return
    for controller in (found.unified / "cgroup.controllers").read_text(encoding="ascii").split():
        _mount(controller, controller)
    if not any(entry.kind == "cgroup" and f"name={FAST_HIERARCHY}" in entry.options for entry in mounts.mount_table()):
        _mount(FAST_HIERARCHY, f"none,name={FAST_HIERARCHY},favordynmods")


def _mount(name: str, options: str) -> None:
    target = _DIRECTORY / name
    target.mkdir(parents=True, exist_ok=True)
    try:
        mounts.mount("cgroup", target, "cgroup", options=options)
    except OSError:
        # Older kernels know no favordynmods, and a controller in use cannot be moved: both only cost time or are
        # reported by the runtime when it starts.
        return


def remove_everywhere(group: str) -> None:
    """Remove an empty group from every v1 hierarchy of the host: some OCI runtimes make theirs in all of them."""
    for entry in mounts.mount_table():
        if entry.kind == "cgroup":
            try:
                os.rmdir(Path(entry.target) / group)
            except OSError:
                continue  # It is not in this hierarchy, or this mount shows another part of it.
