"""One empty directory that stands, in all sandboxes, where they are shown no directory of the kernel's.

An OCI runtime hides a directory behind a new file system, and a sandbox has five to hide. The kernel keeps an entry for
every file system in every memory control group, so that they cost memory and time that grow with the square of the
number of sandboxes. One file system, mounted by the first node and never removed, does it for all; it has no name that
would tell a guest where it is on the host.
"""

from __future__ import annotations

import os
from pathlib import Path

from dsec.linux import mounts
from dsec.runtimes.container.bundle import MASKED_PATHS

EMPTY_DIRECTORY = Path("/run/dsec/.empty")


def open_empty_directory() -> bool:
    """Mount the empty file system if it is not there; return whether it is. A host that refuses has none."""
    EMPTY_DIRECTORY.mkdir(parents=True, exist_ok=True, mode=0o555)
    if EMPTY_DIRECTORY.is_mount():
        return True
    try:
        mounts.mount(
            "tmpfs",
            EMPTY_DIRECTORY,
            "tmpfs",
            mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC,
            "mode=555,nr_inodes=1",
        )
    except OSError:
        return False
    return True


def masked_directories() -> tuple[str, ...]:
    """Return those of the masked paths that are directories on this kernel."""
    return tuple(path for path in MASKED_PATHS if os.path.isdir(path))
