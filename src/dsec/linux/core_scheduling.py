"""Core scheduling: whether this kernel can keep strangers off the sibling hyperthread.

Tasks with different cookies never run on one core at a time, so that a neighbour neither slows a sandbox down
within a core nor listens to it. It needs CONFIG_SCHED_CORE and processors with more than one thread per core.

Source: Documentation/admin-guide/hw-vuln/core-scheduling.rst, prctl(2).
"""

from __future__ import annotations

import ctypes
import errno

from dsec.linux.syscalls import libc_call

_PR_SCHED_CORE = 62
_GET, _THREAD = 0, 0


def missing_because() -> str:
    """Say why core scheduling is not there; empty when it is. Asks for our own cookie, which changes nothing."""
    cookie = ctypes.c_ulonglong()
    try:
        libc_call(
            "prctl",
            ctypes.c_int(_PR_SCHED_CORE),
            ctypes.c_ulong(_GET),
            ctypes.c_ulong(0),
            ctypes.c_ulong(_THREAD),
            ctypes.byref(cookie),
        )
    except OSError as error:
        if error.errno == errno.ENODEV:
            return "the processors have one thread per core, so that nobody shares one"
        if error.errno == errno.EINVAL:
            return "this kernel was built without CONFIG_SCHED_CORE"
        return f"the kernel refuses it: {error.strerror}"
    return ""
