"""Host names of other UTS namespaces, from outside.

setns(2) moves one thread, here for three system calls in a row; no other thread sees another name, and nothing can
be started from this thread in between. The caller needs CAP_SYS_ADMIN in the user namespace that owns the UTS
namespace: root of the host has it in all below. Source: uts_namespaces(7), setns(2), sethostname(2).
"""

from __future__ import annotations

import ctypes
import os

from dsec.linux.syscalls import libc_call

_CLONE_NEWUTS = 0x04000000


def set_host_name(pid: int, name: str) -> None:
    """Set the host name that the process `pid` and its kin see.

    Raises:
        OSError: the process is gone, or the kernel refused.
    """
    own = os.open("/proc/thread-self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        theirs = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_name_in(theirs, own, name.encode("ascii"))
        finally:
            os.close(theirs)
    finally:
        os.close(own)


def host_name(pid: int) -> str:
    """Return the host name that the process `pid` sees. Raises `OSError`."""
    own = os.open("/proc/thread-self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    try:
        theirs = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc_call("setns", theirs, _CLONE_NEWUTS)
            name = os.uname().nodename
            libc_call("setns", own, _CLONE_NEWUTS)
            return name
        finally:
            os.close(theirs)
    finally:
        os.close(own)


def _set_name_in(namespace: int, own: int, name: bytes) -> None:
    if os.fstat(namespace).st_ino == os.fstat(own).st_ino:
        raise OSError(22, "that is our own UTS namespace")
    libc_call("setns", namespace, _CLONE_NEWUTS)
    try:
        libc_call("sethostname", ctypes.c_char_p(name), ctypes.c_size_t(len(name)))
    finally:
        libc_call("setns", own, _CLONE_NEWUTS)
