"""Wait until what nobody uses is unmounted, layers or a file system: a copy in another mount namespace may delay it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.store import LocalImageStore
from dsec.linux import mounts

_LONGEST_S = 60.0


def release_all(store: LocalImageStore, daemon: LayerDaemon) -> None:
    """Release the layers of a store of which nothing is used, and fail where that does not come about.

    A process with a mount namespace of its own, as one in a network namespace has, keeps copies of what was mounted
    when it began: where that is somebody else's on this host, the test cannot be made now.
    """
    deadline = time.monotonic() + _LONGEST_S
    store.release()
    while daemon.mounted():
        if time.monotonic() > deadline:
            pytest.fail("some lazy layer stays mounted")
        for pid in _others():
            if str(store.root) in _mountinfo(pid):
                pytest.skip(f"process {pid} of this host has a copy of the mount in a namespace of its own")
        store.release()


def _others() -> Iterator[str]:
    """Yield one process of each other mount namespace of the host."""
    seen = {os.readlink("/proc/self/ns/mnt")}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
        except OSError:
            continue  # It has ended.
        if namespace not in seen:
            seen.add(namespace)
            yield pid


def _mountinfo(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:
        return ""


def unmount_when_free(target: Path) -> None:
    """Unmount a file system as soon as nothing of it is in use. Raises `OSError` when something stays in use.

    A file of it may be behind a loop device, which the kernel detaches some time after the last mount of it: at once,
    or when a container that starts elsewhere on the host has dropped its copies of all mounts.
    """
    deadline = time.monotonic() + _LONGEST_S
    while True:
        try:
            return mounts.unmount(target)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.05)
