"""Act on files as somebody else, for one thread; start programs as somebody else.

A file system that is ID-mapped into a sandbox knows only the sandbox's ids: host root has no id there and can create
nothing. So a thread that works in a sandbox's files takes a file system identity (setfsuid(2)), which the kernel keeps
per thread. Changing it away from 0 drops the file capabilities, and the sandbox's root must have them: they are raised
again for root, and not for other users, whose permissions then count.

The raw system calls are used on purpose: glibc's wrappers of the setuid family would change every thread.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dsec.linux import syscalls

_CAPABILITY_VERSION_3 = 0x20080522
_HEADER = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)

FILE_CAPABILITIES = 0b11111
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER and CAP_FSETID (capabilities(7)): what a sandbox's root
has over its files, and nothing that it has not (such as exceeding quotas)."""
ALL_BUT_DEVICES = 0xFFFF_FFFF & ~(1 << 27)
"""The first 32 without CAP_MKNOD: whoever has these makes no device nodes, but whiteouts, which need no capability."""


_CAP_SYS_ADMIN = 21
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4


def _capabilities() -> bytes:
    data = ctypes.create_string_buffer(24)
    syscalls.call(syscalls.number("capget"), _HEADER, data)
    return data.raw


def _set_capabilities(data: bytes) -> None:
    syscalls.call(syscalls.number("capset"), _HEADER, data)


@contextmanager
def file_identity(
    uid: int, gid: int, *, privileged: bool, groups: Sequence[int] = (), capabilities: int | None = None
) -> Iterator[None]:
    """Use this file system identity in this thread until the block ends.

    Args:
        uid, gid: host ids.
        privileged: keep the capabilities that override file permissions (for the sandbox's root).
        groups: supplementary groups for permission checks; only looked at when not privileged.
        capabilities: which ones, as a mask of the first 32, when privileged; None keeps all.

    The thread must not give up control (no await) inside the block. Needs root on the host.
    """
    before = _capabilities()
    if not privileged:
        _set_groups(groups)
    syscalls.call(syscalls.number("setfsgid"), gid)
    syscalls.call(syscalls.number("setfsuid"), uid)
    try:
        if privileged:
            _set_capabilities(before if capabilities is None else _only(before, capabilities))
        yield
    finally:
        syscalls.call(syscalls.number("setfsuid"), 0)
        syscalls.call(syscalls.number("setfsgid"), 0)
        _set_capabilities(before)
        if not privileged:
            _set_groups(())


@contextmanager
def starting_user(uid: int) -> Iterator[None]:
    """Let programs that this thread starts in the block have `uid` as their effective user, with CAP_SYS_ADMIN.

    The real user stays root, so that root's limits hold. Needs root on the host.
    """
    before = _capabilities()
    syscalls.call(syscalls.number("setresuid"), -1, uid, -1)
    try:
        _set_capabilities(_inheritable(before, 1 << _CAP_SYS_ADMIN))
        syscalls.libc_call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_SYS_ADMIN, 0, 0)
        yield
    finally:
        syscalls.libc_call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        syscalls.call(syscalls.number("setresuid"), -1, 0, -1)
        _set_capabilities(before)


def _inheritable(data: bytes, mask: int) -> bytes:
    """Return the set with the capabilities of `mask`, of the first 32, inheritable too."""
    sets = list(struct.unpack("=6I", data))
    sets[2] |= mask
    return struct.pack("=6I", *sets)


def _only(data: bytes, mask: int) -> bytes:
    """Return the set with no more than `mask` effective; what is permitted stays, so that it can be raised again."""
    low, *rest = struct.unpack("=6I", data)
    rest[2] = 0
    return struct.pack("=6I", low & mask, *rest)


def _set_groups(groups: Sequence[int]) -> None:
    """Set this thread's supplementary groups (the raw call does not touch other threads)."""
    array = struct.pack(f"={len(groups)}I", *groups)
    syscalls.call(syscalls.number("setgroups"), len(groups), array)
