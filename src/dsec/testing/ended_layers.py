"""Take lazy layers from the host when a test is over, however it ended.

A daemon that is left serves on until nothing is mounted, and one that is killed leaves FUSE mounts that answer nothing:
whoever deletes the directory later, as pytest does with those of earlier runs, cannot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.images.durable import try_lock
from dsec.images.lazy.serving.client import end_daemon
from dsec.images.staging import remove_tree
from dsec.linux import mounts


def end_layers(*lazy: Path) -> None:
    """End the daemons of these directories, and remove them with all that is mounted there, or beside them in the
    ``mounts`` of an image store. Those that do not exist, or are gone already, are none.

    Raises:
        AssertionError: a daemon does not end, or a mount stays.
    """
    try:
        for root in lazy:
            remove_tree(root.parent / "mounts")
            remove_tree(root / "mounts")
            end_daemon(root)
    finally:
        left = [str(root) for root in lazy if _is_kept(root)]
        for root in lazy:
            remove_tree(root)
    left += [entry.target for root in lazy for entry in mounts.mounts_under(root)]
    assert not left, f"still there: {left}"


@contextmanager
def layers_ended(*lazy: Path) -> Iterator[None]:
    """Do that when the block is left."""
    try:
        yield
    finally:
        end_layers(*lazy)


def _is_kept(root: Path) -> bool:
    """Whether a daemon still keeps a directory."""
    lock = root / "keeper.lock"
    if not lock.exists():
        return False
    descriptor = try_lock(lock)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
