"""User namespaces: as maps of ids for ID-mapped mounts, and for sandboxes to be in.

Many things are counted for each user, and for the user who made a namespace what all its users have: instances and
watches of inotify and fanotify, POSIX message queues, pending signals (kernel/ucount.c). Were all made by root, one
sandbox could use up what all others, and the host's own root, may have. So each is made by a user of its own, the one
who is root inside; that user is nobody outside.

A namespace needs a process to be made in; after that a descriptor keeps it. Making one costs two program starts (1 to
2 ms), so that the descriptors are kept per range of ids and used again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from pathlib import Path

from dsec.linux.spawn import Program, spawn

CLONE_NEWUSER = 0x10000000
_UNSHARE = "/usr/bin/unshare"
_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
IDS_PER_RANGE = 65_536
_INITIAL_MAP = ["0", "0", "4294967295"]


def is_host_root() -> bool:
    """Whether this process is root in the initial user namespace, not only in one that an ordinary user made."""
    return os.geteuid() == 0 and not in_user_namespace()


def in_user_namespace() -> bool:
    """Whether this process lives in a user namespace below the initial one."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() != _INITIAL_MAP


def maps_id(number: int) -> bool:
    """Whether this process's user namespace has an id, as user and as group."""
    return all(
        any(first <= number < first + count for first, _, count in _pieces(f"/proc/self/{name}_map"))
        for name in ("uid", "gid")
    )


def _pieces(path: str) -> list[tuple[int, int, int]]:
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return [(int(first), int(outside), int(count)) for first, outside, count in map(str.split, lines)]


def make_user_namespace(first_host_id: int, count: int = IDS_PER_RANGE) -> int:
    """Return a descriptor of a new user namespace that maps 0..count-1 to first_host_id... for users and groups. It
    belongs to the user first_host_id.

    `unshare` makes it and becomes a `cat`, which echoes a line once it is there and ends with its input. Nothing of
    this process is copied, so that the cost does not grow with its memory and any thread may call.
    """
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    program = Program(
        path=_UNSHARE,
        arguments=[_UNSHARE, "--user", "cat"],
        environment=_ENVIRONMENT,
        descriptors={0: in_read, 1: out_write, 2: out_write},
        effective_user=first_host_id,
    )
    try:
        pid = spawn(program)
        os.close(out_write)
        out_write = -1
        try:
            os.write(in_write, b"\n")
            if os.read(out_read, 1) != b"\n":
                raise OSError(errno.EPERM, "the kernel refused to make a user namespace", "unshare(CLONE_NEWUSER)")
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                    file.write(f"0 {first_host_id} {count}\n")
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(in_write)
            in_write = -1
            os.waitpid(pid, 0)
    finally:
        for descriptor in (in_read, in_write, out_read, out_write):
            if descriptor >= 0:
                os.close(descriptor)


class UserNamespaces:
    """A bounded cache of namespaces by first host id, for any thread; the least recently used are closed.

    Args:
        limit: how many to keep; far more than threads ask at once, so that none is closed while it is used.
    """

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._descriptors: OrderedDict[int, int] = OrderedDict()

    def get(self, first_host_id: int) -> int:
        """Return a descriptor that stays open at least until the next call."""
        with self._lock:
            descriptor = self._descriptors.get(first_host_id)
            if descriptor is not None:
                self._descriptors.move_to_end(first_host_id)
                return descriptor
        # Not under the lock: others need not wait for it, and nobody else asks for this range meanwhile.
        descriptor = make_user_namespace(first_host_id)
        with self._lock:
            self._descriptors[first_host_id] = descriptor
            if len(self._descriptors) > self._limit:
                os.close(self._descriptors.popitem(last=False)[1])
        return descriptor

    def close(self) -> None:
        """Close all descriptors; mounts that use the namespaces keep them."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
