"""User namespaces that serve only as maps of ids for ID-mapped mounts.

A namespace needs a process to be made in; after that a descriptor keeps it. Making one costs a fork (about 2 ms
from a large Python process), so that the descriptors are kept per range of ids and used again.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from dsec.linux import syscalls

CLONE_NEWUSER = 0x10000000
IDS_PER_RANGE = 65_536
_INITIAL_MAP = ["0", "0", "4294967295"]


def is_host_root() -> bool:
    """Whether this process is root in the initial user namespace, not only in one that an ordinary user made."""
    return os.geteuid() == 0 and not in_user_namespace()


def in_user_namespace() -> bool:
    """Whether this process lives in a user namespace below the initial one."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() != _INITIAL_MAP


def make_user_namespace(first_host_id: int, count: int = IDS_PER_RANGE) -> int:
    """Return a descriptor of a new user namespace that maps 0..count-1 to first_host_id... for users and groups."""
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(done_write)
        _wait_in_new_namespace(ready_write, done_read)
    os.close(ready_write)
    os.close(done_read)
    try:
        if os.read(ready_read, 1) != b"+":
            raise OSError(1, "the kernel refused to make a user namespace", "unshare(CLONE_NEWUSER)")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 {first_host_id} {count}\n")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(done_write)
        os.waitpid(pid, 0)


def _wait_in_new_namespace(ready: int, done: int) -> None:
    """Run in the forked child: enter the namespace, say so, and end when the parent lets go of its pipe."""
    try:
        syscalls.libc_call("unshare", CLONE_NEWUSER)
        os.write(ready, b"+")
        os.read(done, 1)
    finally:
        os._exit(0)


class UserNamespaces:
    """A bounded cache of namespaces by first host id; the least recently used are closed."""

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._descriptors: OrderedDict[int, int] = OrderedDict()

    def get(self, first_host_id: int) -> int:
        """Return a descriptor that stays open at least until the next call."""
        descriptor = self._descriptors.get(first_host_id)
        if descriptor is None:
            descriptor = make_user_namespace(first_host_id)
            self._descriptors[first_host_id] = descriptor
            if len(self._descriptors) > self._limit:
                os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors.move_to_end(first_host_id)
        return descriptor

    def close(self) -> None:
        """Close all descriptors; mounts that use the namespaces keep them."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
