"""Host names of other UTS namespaces, from outside. Source: uts_namespaces(7), sethostname(2)."""

from __future__ import annotations

import ctypes
import os

from dsec.linux.namespaces import CLONE_NEWUTS, inside
from dsec.linux.syscalls import libc_call


def set_host_name(pid: int, name: str) -> None:
    """Set the host name that the process `pid` and its kin see.

    Raises:
        OSError: the process is gone, or the kernel refused.
    """
    text = name.encode("ascii")
    inside(pid, CLONE_NEWUTS, lambda: libc_call("sethostname", ctypes.c_char_p(text), ctypes.c_size_t(len(text))))


def host_name(pid: int) -> str:
    """Return the host name that the process `pid` sees. Raises `OSError`."""
    return inside(pid, CLONE_NEWUTS, lambda: os.uname().nodename)
