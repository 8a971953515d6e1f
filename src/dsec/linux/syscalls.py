"""System calls that the standard library does not wrap, through libc's `syscall`.

Numbers below 424 differ by architecture; those from 424 up are the same everywhere (syscalls(2)). Each function
raises `OSError` with the kernel's errno and, where there is one, the path.
"""

from __future__ import annotations

import ctypes
import os
import platform

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

SYS_OPEN_TREE = 428
SYS_MOVE_MOUNT = 429
SYS_FSOPEN = 430
SYS_FSCONFIG = 431
SYS_FSMOUNT = 432
SYS_CLOSE_RANGE = 436
SYS_OPENAT2 = 437
SYS_PIDFD_GETFD = 438
SYS_MOUNT_SETATTR = 442

_BY_MACHINE = {
    "x86_64": {"setgroups": 116, "setresuid": 117, "setfsuid": 122, "setfsgid": 123, "capget": 125, "capset": 126},
    "aarch64": {"setresuid": 147, "setgroups": 159, "setfsuid": 151, "setfsgid": 152, "capget": 90, "capset": 91},
}


def number(name: str) -> int:
    """Return the number of an old system call on this machine."""
    table = _BY_MACHINE.get(platform.machine())
    if table is None:
        raise OSError(38, f"system call numbers of {platform.machine()} are not known")
    return table[name]


def call(nr: int, *args: object, path: str | bytes | None = None) -> int:
    """Make a system call and return its result.

    Args:
        nr: the number.
        args: ints, bytes, ctypes buffers or None.
        path: named in the error, if given.
    """
    result: int = _syscall(nr, *(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return result


def libc_call(name: str, *args: object, path: str | bytes | None = None) -> int:
    """Call a libc function that returns -1 and sets errno."""
    result: int = getattr(_libc, name)(*args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return result
