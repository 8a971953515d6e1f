"""Do something in a namespace of another process, from outside.

setns(2) moves one thread. Here it is a thread of its own that ends afterwards: the way back is not always open
(root of a user namespace may enter the namespaces below it, and not return to the host's own), and nobody else must
ever see another namespace than ours. A thread takes about 0.1 ms. The caller needs CAP_SYS_ADMIN in the user namespace
that owns the namespace: root has it in all below its own. Source: namespaces(7), setns(2), user_namespaces(7).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from dsec.linux.syscalls import libc_call

CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
_NAMES = {CLONE_NEWUTS: "uts", CLONE_NEWIPC: "ipc"}

_T = TypeVar("_T")


def inside(pid: int, kind: int, act: Callable[[], _T]) -> _T:
    """Return what `act` returns in a namespace of the process `pid`.

    Args:
        pid: whose namespace.
        kind: `CLONE_NEWUTS` or `CLONE_NEWIPC`, the kinds that a thread may change alone.
        act: does what it does quickly, and only what the namespace is about.

    Raises:
        OSError: the process is gone, shares our own namespace, or the kernel refused.
    """
    failures: list[OSError] = []
    results: list[_T] = []
    name = _NAMES[kind]
    namespace = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> None:
        try:
            libc_call("setns", namespace, kind)
            results.append(act())
        except OSError as error:
            failures.append(error)

    try:
        if os.fstat(namespace).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino:
            raise OSError(errno.EINVAL, f"that is our own {name} namespace")
        thread = threading.Thread(target=enter, name=name)
        thread.start()
        thread.join()
    finally:
        os.close(namespace)
    if failures:
        raise failures[0]
    return results[0]
