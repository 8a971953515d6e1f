"""The runtime of an ordinary user: root in a user namespace over subordinate ids, and nobody on the host.

What differs from root's: groups are made below the one that was delegated, or there are none; all sandboxes share the
ids of the namespace, since layers cannot be ID-mapped there; overlays are mounted with ``userxattr``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import CapabilityMissingError
from dsec.linux.cgroups import CgroupMode, CgroupMounts, Cgroups
from dsec.linux.userns import IDS_PER_RANGE
from dsec.runtimes.container.groups import Groups
from dsec.runtimes.container.ungrouped import Ungrouped

SHARED_ID_MAP = ((0, 0, 1), (1, 1, IDS_PER_RANGE - 1))
"""The map of every sandbox. In two pieces, as the namespace has them: the kernel takes a range only if it lies within
one piece of the parent's map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryUser:
    """How the runtime runs for an ordinary user.

    Attributes:
        group: path in the unified tree of the group that is delegated; None: there is none.
    """

    group: str | None = None


def open_groups(user: OrdinaryUser, node_id: str, run_directory: Path) -> Groups:
    """Return the groups of a node.

    Raises:
        CapabilityMissingError: the unified tree is gone.
    """
    if user.group is None:
        return Ungrouped(run_directory)
    found = CgroupMounts.find()
    if found is None:
        raise CapabilityMissingError("cgroup v2 is not on this host", resolution="mount -t cgroup2 none /sys/fs/cgroup")
    # Version 1 hierarchies cannot be delegated safely, so that only the unified tree counts.
    mounts = CgroupMounts(mode=CgroupMode.UNIFIED, unified=found.unified, v1={})
    return Cgroups(mounts, os.path.join(user.group.strip("/"), "dsec", node_id))
