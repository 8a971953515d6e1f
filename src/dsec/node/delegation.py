"""Find the control group that was delegated to an ordinary user's node, and stay with it as long as sandboxes do.

A group is delegated when its owner may make groups in it and move processes within it (cgroup-v2.rst, "Delegation").
The node moves itself into a leaf of it, since a group whose controllers serve its children may hold no process itself.

Which group it was is written down: a node that is started again from another place, such as a login session, must go
on using the group in which its sandboxes live, or none if they live without.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dsec.base.errors import CapabilityMissingError
from dsec.linux.cgroups import CgroupMounts

_RECORD = "namespace.group"
_LEAF = "dsec-node"


def delegated_group(state_dir: Path, run_directory: Path) -> str | None:
    """Return the path of the group in the unified tree, having moved this process below it; None without one.

    Raises:
        CapabilityMissingError: live sandboxes are in a group that this process may not enter.
    """
    found = CgroupMounts.find()
    record = state_dir / _RECORD
    has_instances = run_directory.is_dir() and any(entry.is_dir() for entry in os.scandir(run_directory))
    earlier = record.read_text(encoding="utf8").strip() if has_instances and record.exists() else None
    if earlier is not None and (not earlier or (found and (found.unified / earlier.strip("/")).is_dir())):
        return _stay(found, earlier)
    group = None if found is None else _own_group()
    if found is not None and group is not None and not _enter(found.unified / group.strip("/")):
        group = None
    record.write_text(group or "", encoding="utf8")
    return group


def leave_group(state_dir: Path, node: str) -> None:
    """Remove what the node made in its group. What is in use stays: the kernel refuses."""
    found = CgroupMounts.find()
    try:
        group = (state_dir / _RECORD).read_text(encoding="utf8").strip()
    except FileNotFoundError:
        return
    if found is None or not group:
        return
    top = found.unified / group.strip("/")
    for made in (top / "dsec" / node, top / "dsec", top / _LEAF):
        with suppress(OSError):
            made.rmdir()


def _stay(found: CgroupMounts | None, group: str) -> str | None:
    """Go back to the group that sandboxes are in; empty when they are in none."""
    if not group or found is None:
        return None
    if not _enter(found.unified / group.strip("/")):
        raise CapabilityMissingError(
            f"sandboxes of this node live in the control group {group}, which this process may not enter",
            resolution="start the node where it was started before, such as in the same systemd scope or user manager",
        )
    return group


def _own_group() -> str | None:
    """Return this process's group in the unified tree, without the leaf that an earlier node made."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf8").splitlines():
        if line.startswith("0::/"):
            return line[3:].removesuffix(f"/{_LEAF}") or "/"
    return None


def _enter(group: Path) -> bool:
    """Move this process into a leaf of a group; return whether the group lets it."""
    leaf = group / _LEAF
    try:
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    except OSError:
        return False
    return True
