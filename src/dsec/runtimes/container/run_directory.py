"""The directory that holds a node's bundles and the state of its OCI runtimes, in memory.

An instance writes a dozen small files and directories there and removes them with itself. On a disk that is a sixth
of the processor time of a launch, and a removal waits for whatever else is being written (33 ms were seen). Most hosts
have /run in memory; where it is on a disk, the node mounts a file system in memory for its own directory. Nothing in it
is of use after a restart of the host.
"""

from __future__ import annotations

import os
from pathlib import Path

from dsec.linux import mounts, statfs

_OPTIONS = "mode=711,size=25%"
"""An instance takes about 50 KiB; the share is a bound, not a reservation."""


def open_run_directory(directory: Path, *, in_memory: bool, owner: str = "") -> None:
    """Make the directory; with `in_memory`, see that it is, unless something is in it already or the host refuses.

    Args:
        directory: the directory.
        in_memory: whether it is to be in memory.
        owner: whose it is, as the table of mounts (``findmnt -t tmpfs``) shall say.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o711)
    if not in_memory or _is_in_memory(directory) or os.listdir(directory):
        return
    try:
        flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
        mounts.mount(owner or "tmpfs", directory, "tmpfs", flags, _OPTIONS)
    except OSError:
        return  # On the disk it is slower, and as good.


def close_run_directory(directory: Path) -> None:
    """Remove the directory of a node that is gone. Raises `OSError` while something is in it."""
    if os.path.ismount(directory) and not os.listdir(directory):
        # Lazily: a container that starts elsewhere at this moment holds a copy of every mount, which makes it busy.
        mounts.unmount(directory, detach=True)
    directory.rmdir()


def _is_in_memory(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return statfs.file_system_type(descriptor) == statfs.TMPFS
    finally:
        os.close(descriptor)
