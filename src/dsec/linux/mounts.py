"""Mounts: the classic calls, the new mount API (fsopen(2) and friends), and the table of what is mounted.

A *detached* mount is a file descriptor without a place in any mount table: it can be configured (ID-mapped, made
read-only) and used by overlayfs before anybody sees it, and it vanishes with its last user.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsec.linux import syscalls

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

MNT_FORCE = 1
MNT_DETACH = 2

_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6
_MOUNT_ATTR_IDMAP = 0x00100000
MOUNT_ATTR_NODEV = 0x00000004
"""Device nodes of this mount open nothing (mount_setattr(2))."""


def mount(source: str, target: str | os.PathLike[str], kind: str, flags: int = 0, options: str = "") -> None:
    """Mount as mount(2) does."""
    where = os.fsencode(target)
    syscalls.libc_call(
        "mount", os.fsencode(source), where, kind.encode(), flags, options.encode() or None, path=os.fsdecode(where)
    )


def unmount(target: str | os.PathLike[str], *, detach: bool = False, force: bool = False) -> None:
    """Unmount; with `detach`, lazily: gone from the table now, freed with the last user. With `force`, requests that a
    network or FUSE file system has under way are ended first."""
    where = os.fsencode(target)
    flags = (MNT_DETACH if detach else 0) | (MNT_FORCE if force else 0)
    syscalls.libc_call("umount2", where, flags, path=os.fsdecode(where))


def open_tree(path: str | os.PathLike[str]) -> int:
    """Return a detached copy of the mount that holds `path`, rooted at `path` (open_tree(2) with OPEN_TREE_CLONE)."""
    where = os.fsencode(path)
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
    return syscalls.call(syscalls.SYS_OPEN_TREE, syscalls.AT_FDCWD, where, flags, path=os.fsdecode(where))


def map_ids(mount_fd: int, user_namespace_fd: int) -> None:
    """Map the owners that a detached mount shows through a user namespace (mount_setattr(2), Linux 5.12)."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, user_namespace_fd)
    syscalls.call(syscalls.SYS_MOUNT_SETATTR, mount_fd, b"", syscalls.AT_EMPTY_PATH, attributes, len(attributes))


def move_mount(mount_fd: int, target: str | os.PathLike[str]) -> None:
    """Attach a detached mount at `target`."""
    where = os.fsencode(target)
    syscalls.call(
        syscalls.SYS_MOVE_MOUNT, mount_fd, b"", syscalls.AT_FDCWD, where, _MOVE_MOUNT_F_EMPTY_PATH,
        path=os.fsdecode(where),
    )  # fmt: skip


def new_mount(kind: str, options: Sequence[tuple[str, str | None]], attributes: int = 0) -> int:
    """Make a detached mount of a new file system.

    Args:
        kind: file system type.
        options: key and value in order; a value of None sets a flag.
        attributes: MOUNT_ATTR_* bits of fsmount(2).
    """
    context = syscalls.call(syscalls.SYS_FSOPEN, kind.encode(), _FSOPEN_CLOEXEC)
    try:
        for key, value in options:
            command = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
            text = None if value is None else os.fsencode(value)
            syscalls.call(syscalls.SYS_FSCONFIG, context, command, key.encode(), text, 0, path=f"{kind} option {key}")
        syscalls.call(syscalls.SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0, path=kind)
        return syscalls.call(syscalls.SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, attributes)
    except OSError as error:
        raise OSError(error.errno, _explain(context, error.strerror), error.filename) from error
    finally:
        os.close(context)


def _explain(context: int, message: str | None) -> str:
    """Add what the file system itself said (it is read from the context, one message a read)."""
    try:
        said = os.read(context, 4096).decode(errors="replace").strip()
    except OSError:
        return message or ""
    return f"{message}: {said}"


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of mountinfo (proc_pid_mountinfo(5))."""

    mount_id: int
    target: str
    kind: str
    source: str
    options: str


def mount_table(path: str = "/proc/self/mountinfo") -> tuple[MountEntry, ...]:
    """Return what is mounted, in order."""
    with open(path, encoding="utf8", errors="surrogateescape") as file:
        return tuple(_parse(line) for line in file)


def _parse(line: str) -> MountEntry:
    fields = line.rstrip("\n").split(" ")
    dash = fields.index("-", 6)
    return MountEntry(
        mount_id=int(fields[0]),
        target=_unescape(fields[4]),
        kind=fields[dash + 1],
        source=_unescape(fields[dash + 2]),
        options=f"{fields[5]},{fields[dash + 3]}",
    )


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text


def mounts_under(directory: str | os.PathLike[str]) -> Iterator[MountEntry]:
    """Yield the mounts at or below `directory`, deepest first."""
    root = os.path.realpath(directory)
    below = [entry for entry in mount_table() if entry.target == root or entry.target.startswith(root + "/")]
    return reversed(below)
