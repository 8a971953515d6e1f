"""Take away what a node keeps on its host between its lives: its swap file, the mounts of its state directory, its
control groups and its run directory.

A node that ends leaves them, because sandboxes live on in them. When all sandboxes were destroyed nobody needs them,
and the next node makes them again.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from dsec.images.lazy.serving.client import LAZY, end_daemon
from dsec.linux.cgroups import CgroupMounts
from dsec.linux.mounts import mounts_under, unmount
from dsec.node.delegation import leave_group
from dsec.node.lock import hold_state, node_id
from dsec.node.state.swap import SWAP_FILE, SwapFile
from dsec.runtimes.container.run_directory import close_run_directory
from dsec.runtimes.container.runtime import RUN_DIRECTORY


def leave_host(state_dir: Path) -> tuple[str, ...]:
    """Unmount and remove what the node of `state_dir` left on the host; return what is still in use.

    Raises:
        StateLockedError: a node lives.
        HostOutOfMemoryError: what is in its swap has no room in memory.
    """
    with hold_state(state_dir):
        # Its mounts below go without it, and its own with it.
        end_daemon(state_dir / "images" / LAZY)
        # Before anybody deletes it: a deleted file stays on until the host restarts.
        SwapFile(state_dir / SWAP_FILE, 0).remove()
        busy = tuple(entry.target for entry in mounts_under(state_dir) if not _unmounted(entry.target))
        node = node_id(state_dir, os.urandom)
        _remove_groups(node)
        leave_group(state_dir, node)
        with suppress(OSError):  # One that still holds something stays.
            close_run_directory(RUN_DIRECTORY / node)
    return busy


def may_have_sandboxes(state_dir: Path) -> bool:
    """Say whether a node of `state_dir`, which does not live, may have sandboxes or pools: its journal knows of all.

    A journal that cannot be read may hold anything.
    """
    journal = state_dir / "journal.sqlite"
    if not journal.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=rw", uri=True, timeout=5.0)) as connection:
            found = "SELECT EXISTS (SELECT 1 FROM sandbox) OR EXISTS (SELECT 1 FROM pool)"
            moving = "SELECT EXISTS (SELECT 1 FROM migration WHERE NOT is_over)"
            return any(connection.execute(query).fetchone()[0] for query in (found, moving))
    except sqlite3.Error:
        return True


def _unmounted(target: str) -> bool:
    try:
        unmount(target)
    except OSError:
        return False
    return True


def _remove_groups(node: str) -> None:
    """Remove the node's own groups. One that still holds something stays: the kernel refuses."""
    mounts = CgroupMounts.find()
    for root in {mounts.unified, *mounts.v1.values()} if mounts else ():
        with suppress(OSError):
            (root / "dsec" / node).rmdir()
