"""Host names of other UTS namespaces, from outside.

setns(2) moves one thread. Here it is a thread of its own that ends afterwards: the way back is not always open
(root of a user namespace may enter the namespaces below it, and not return to the host's own), and nobody else must
ever see another name. A thread takes about 0.1 ms. The caller needs CAP_SYS_ADMIN in the user namespace that owns
the UTS namespace: root has it in all below its own. Source: uts_namespaces(7), setns(2), sethostname(2),
user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from dsec.linux.syscalls import libc_call

_CLONE_NEWUTS = 0x04000000


def set_host_name(pid: int, name: str) -> None:
    """Set the host name that the process `pid` and its kin see.

    Raises:
        OSError: the process is gone, or the kernel refused.
    """
    text = name.encode("ascii")
    _inside(pid, lambda: libc_call("sethostname", ctypes.c_char_p(text), ctypes.c_size_t(len(text))))


def host_name(pid: int) -> str:
    """Return the host name that the process `pid` sees. Raises `OSError`."""
    found: list[str] = []
    _inside(pid, lambda: found.append(os.uname().nodename))
    return found[0]


def _inside(pid: int, act: Callable[[], object]) -> None:
    """Do something in the UTS namespace of a process, in a thread that ends with it."""
    failures: list[OSError] = []
    namespace = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> None:
        try:
            libc_call("setns", namespace, _CLONE_NEWUTS)
            act()
        except OSError as error:
            failures.append(error)

    try:
        if os.fstat(namespace).st_ino == os.stat("/proc/self/ns/uts").st_ino:
            raise OSError(22, "that is our own UTS namespace")
        thread = threading.Thread(target=enter, name="uts")
        thread.start()
        thread.join()
    finally:
        os.close(namespace)
    if failures:
        raise failures[0]
