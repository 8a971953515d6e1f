"""btrfs: subvolumes, snapshots and quotas by ioctl, without spawning `btrfs`.

Calls go through `libc.ioctl` and not through `fcntl.ioctl`, which holds the interpreter's lock during the call when
the argument is longer than 1,024 bytes: these are 4,096 bytes long, and a snapshot of a subvolume with unwritten data
waits until that data is on disk.

Quotas. A *qgroup* ``0/<subvolume id>`` counts what a subvolume holds and can limit it. The *classic* mode finds out who
shares each extent, which makes snapshots and deletions dearer the more is shared. The *simple* mode (Linux 6.7)
charges an extent to the subvolume that wrote it, for as long as anybody holds it. It is a permanent feature flag of the
file system, so it is only switched on where the file system is ours.

Sources: btrfs-ioctl(2), linux/btrfs.h, Documentation of `btrfs-quota(8)`; numbers below are those of linux/btrfs.h.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import struct
import time
import uuid
from dataclasses import dataclass

from dsec.linux import btrfs_search, syscalls

FIRST_SUBVOLUME_ID = 256
"""Ids below belong to the file system itself."""

_MAGIC = 0x94
_WRITE, _READ = 1, 2


def _request(direction: int, number: int, size: int) -> int:
    """Compose an ioctl number as the macros _IOR and _IOW do."""
    return (direction << 30) | (size << 16) | (_MAGIC << 8) | number


_SNAP_DESTROY = _request(_WRITE, 15, 4096)
_RESIZE = _request(_WRITE, 3, 4096)
_INO_LOOKUP = _request(_READ | _WRITE, 18, 4096)
_SNAP_CREATE_V2 = _request(_WRITE, 23, 4096)
_SUBVOL_CREATE_V2 = _request(_WRITE, 24, 4096)
_SUBVOL_SETFLAGS = _request(_WRITE, 26, 8)
_FS_INFO = _request(_READ, 31, 1024)
_QUOTA_CTL = _request(_READ | _WRITE, 40, 16)
_QGROUP_CREATE = _request(_WRITE, 42, 16)
_QGROUP_LIMIT = _request(_READ, 43, 48)
_WAIT_SYNC = _request(_WRITE, 22, 8)
_START_SYNC = _request(_READ, 24, 8)

_SUBVOL_RDONLY = 2
_SUBVOL_QGROUP_INHERIT = 4
_INHERIT_SET_LIMITS = 1
_LIMIT_MAX_RFER = 1

_QUOTA_ENABLE_CLASSIC = 1
_QUOTA_DISABLE = 2
_QUOTA_ENABLE_SIMPLE = 4
_FREEING_PAUSE_S = 0.005


def _ioctl(fd: int, request: int, argument: bytes, *, path: str = "") -> bytes:
    buffer = ctypes.create_string_buffer(argument, len(argument))
    syscalls.libc_call("ioctl", fd, ctypes.c_ulong(request), buffer, path=path or None)
    return buffer.raw


def file_system_id(fd: int) -> str:
    """Return the file system's UUID as `/sys/fs/btrfs` spells it."""
    return str(uuid.UUID(bytes=_ioctl(fd, _FS_INFO, bytes(1024))[16:32]))


def _inherit(limit_bytes: int) -> ctypes.Array[ctypes.c_char]:
    """Return a `struct btrfs_qgroup_inherit` that gives the new qgroup a limit."""
    limit = struct.pack("=5Q", _LIMIT_MAX_RFER, limit_bytes, 0, 0, 0)
    return ctypes.create_string_buffer(struct.pack("=4Q", _INHERIT_SET_LIMITS, 0, 0, 0) + limit, 72)


def _make(fd: int, request: int, name: str, *, source: int, flags: int, limit_bytes: int | None) -> None:
    """Fill a `struct btrfs_ioctl_vol_args_v2` and make the call."""
    inherit = None if limit_bytes is None else _inherit(limit_bytes)
    size, address = (0, 0) if inherit is None else (len(inherit), ctypes.addressof(inherit))
    flags |= 0 if inherit is None else _SUBVOL_QGROUP_INHERIT
    packed = struct.pack("=qQQQQ16x4040s", source, 0, flags, size, address, os.fsencode(name))
    _ioctl(fd, request, packed, path=name)


def create_subvolume(parent_fd: int, name: str, *, limit_bytes: int | None = None) -> None:
    """Make an empty subvolume; with `limit_bytes` its qgroup is limited from the start (quotas must be on)."""
    _make(parent_fd, _SUBVOL_CREATE_V2, name, source=0, flags=0, limit_bytes=limit_bytes)


def snapshot(
    source_fd: int, parent_fd: int, name: str, *, read_only: bool = False, limit_bytes: int | None = None
) -> None:
    """Make a snapshot of the subvolume `source_fd`. Waits until data it wrote, and not yet on disk, is there."""
    flags = _SUBVOL_RDONLY if read_only else 0
    _make(parent_fd, _SNAP_CREATE_V2, name, source=source_fd, flags=flags, limit_bytes=limit_bytes)


def write_out(source_fd: int, parent_fd: int, taken: str) -> None:
    """Write out the data that the subvolume `source_fd` holds in memory, and wait for it, without a commit.

    No call does that for one subvolume: syncfs(2) writes all of them and commits, a snapshot commits. But a snapshot is
    refused under a name that is taken only after it has written out (`btrfs_mksnapshot` in fs/btrfs/ioctl.c). A kernel
    that looks at the name first would write nothing here; the snapshot that follows then does it.

    Args:
        source_fd: the subvolume.
        parent_fd, taken: a directory and a name that exists in it.
    """
    try:
        snapshot(source_fd, parent_fd, taken, read_only=True)
    except FileExistsError:
        return
    raise FileNotFoundError(errno.ENOENT, "the name was free, and a snapshot has it now", taken)


def destroy_subvolume(parent_fd: int, name: str) -> None:
    """Remove a subvolume. Its cached inodes are dropped before the call returns, its extents afterwards."""
    _ioctl(parent_fd, _SNAP_DESTROY, struct.pack("=q4088s", 0, os.fsencode(name)), path=name)


def start_commit(fd: int) -> int:
    """Have the current transaction committed in the background, which also sets the kernel's cleaner to work.

    Returns:
        The transaction, for `wait_commit`.
    """
    transaction: int = struct.unpack("=Q", _ioctl(fd, _START_SYNC, bytes(8)))[0]
    return transaction


def wait_commit(fd: int, transaction: int) -> None:
    """Wait until a transaction is on disk."""
    _ioctl(fd, _WAIT_SYNC, struct.pack("=Q", transaction))


def wait_destroyed(fd: int) -> None:
    """Wait until every subvolume destroyed so far is freed and its space can be used again. Needs CAP_SYS_ADMIN.

    The kernel's own call for that (`BTRFS_IOC_SUBVOL_SYNC_WAIT`, Linux 6.13) looks at the queue of its cleaner, and
    does not wait for the subvolume that the cleaner has taken from there and is at work on.
    """
    wait_commit(fd, start_commit(fd))
    while btrfs_search.destroyed_subvolumes(fd):
        time.sleep(_FREEING_PAUSE_S)
    wait_commit(fd, start_commit(fd))  # Extents that a transaction frees can be used after it.


def make_writable(subvolume_fd: int) -> None:
    """Take the read-only flag from a snapshot; who may not destroy subvolumes can then empty it."""
    _ioctl(subvolume_fd, _SUBVOL_SETFLAGS, struct.pack("=Q", 0))


def subvolume_id(fd: int) -> int:
    """Return the id of the subvolume that holds `fd`."""
    argument = struct.pack("=QQ4080x", 0, FIRST_SUBVOLUME_ID)
    identity: int = struct.unpack_from("=Q", _ioctl(fd, _INO_LOOKUP, argument))[0]
    return identity


def is_subvolume(fd: int) -> bool:
    """Say whether `fd` is the root of a subvolume: the only directory with this inode number."""
    return os.fstat(fd).st_ino == FIRST_SUBVOLUME_ID


def grow_to_device(fd: int) -> None:
    """Let the file system use all of its device."""
    _ioctl(fd, _RESIZE, struct.pack("=q4088s", 0, b"max"))


def limit_unwritten(file_system: str, limit_bytes: int | None) -> None:
    """Bound what a file system may hold in memory before it is on disk; None leaves that to the kernel (Linux 6.3)."""
    directory = f"/sys/fs/btrfs/{file_system}/bdi"
    settings = {"strict_limit": "0", "max_ratio": "100"}
    if limit_bytes is not None:
        settings = {"strict_limit": "1", "max_bytes": str(limit_bytes)}
    for name, value in settings.items():
        with open(f"{directory}/{name}", "w", encoding="ascii") as file:
            file.write(value)


class QuotaMode(enum.Enum):
    """How a file system counts."""

    OFF = "off"
    SIMPLE = "simple"
    CLASSIC = "classic"


def _quota_directory(file_system: str) -> str:
    return f"/sys/fs/btrfs/{file_system}/qgroups"


def quota_mode(fd: int) -> QuotaMode:
    """Say which quota mode is on (kernels before 6.7 have the classic one only)."""
    directory = _quota_directory(file_system_id(fd))
    if not os.path.isdir(directory):
        return QuotaMode.OFF
    try:
        with open(f"{directory}/mode", encoding="ascii") as file:
            mode = file.read().strip()
    except FileNotFoundError:
        return QuotaMode.CLASSIC
    return {"squota": QuotaMode.SIMPLE, "qgroup": QuotaMode.CLASSIC}.get(mode, QuotaMode.OFF)


def enable_quota(fd: int, mode: QuotaMode) -> None:
    """Switch quotas on, or off."""
    commands = {
        QuotaMode.SIMPLE: _QUOTA_ENABLE_SIMPLE,
        QuotaMode.CLASSIC: _QUOTA_ENABLE_CLASSIC,
        QuotaMode.OFF: _QUOTA_DISABLE,
    }
    _ioctl(fd, _QUOTA_CTL, struct.pack("=QQ", commands[mode], 0))


def limit_subvolume(fd: int, limit_bytes: int, *, subvolume: int = 0) -> None:
    """Limit what a subvolume may hold; 0 means the one that holds `fd`."""
    _ioctl(fd, _QGROUP_LIMIT, struct.pack("=6Q", subvolume, _LIMIT_MAX_RFER, limit_bytes, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class QgroupUsage:
    """What a qgroup counts now.

    Attributes:
        referenced_bytes: extents charged to it, as of the last update of the extent tree.
        reserved_bytes: data that was written and waits for its extent.
    """

    referenced_bytes: int
    reserved_bytes: int


def qgroup_usage(file_system: str, subvolume: int) -> QgroupUsage | None:
    """Read a subvolume's usage from sysfs; None when there is no such qgroup."""
    directory = f"{_quota_directory(file_system)}/0_{subvolume}"
    try:
        return QgroupUsage(_number(f"{directory}/referenced"), _number(f"{directory}/rsv_data"))
    except OSError as error:
        # ENODEV: it went between open(2) and read(2).
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        return None


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def qgroups(file_system: str) -> frozenset[int]:
    """Return the ids of all subvolumes that have a qgroup, living or gone."""
    try:
        entries = os.listdir(_quota_directory(file_system))
    except FileNotFoundError:
        return frozenset()
    return frozenset(int(name[2:]) for name in entries if name.startswith("0_"))


def remove_qgroup(fd: int, subvolume: int) -> bool:
    """Remove the qgroup of a subvolume that is gone.

    Returns:
        False when it still counts something (a checkpoint holds what the subvolume wrote) or the file system is full,
        so try again later; True
        when it is removed, which newer kernels do by themselves.
    """
    try:
        _ioctl(fd, _QGROUP_CREATE, struct.pack("=QQ", 0, subvolume))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTCONN, errno.EINVAL):
            return True
        if error.errno in (errno.EBUSY, errno.ENOSPC, errno.EDQUOT):
            return False
        raise
    return True
