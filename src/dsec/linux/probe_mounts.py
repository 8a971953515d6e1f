"""Trials of file systems and mounts. `dsec.linux.probe_trials` runs each in a mount namespace of its own.

The layers of a sandbox are read-only EROFS images under a writable btrfs subvolume, ID-mapped as detached mounts and
joined by overlayfs (docs/container-backend.md). Each step is tried alone, so that a host that lacks one says which.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsec.linux import mounts, syscalls
from dsec.linux.identity import file_identity
from dsec.linux.probe import Finding, found, missing, refused

_FIRST_HOST_ID = 1 << 30
"""Ids that a trial maps to: above what hosts hand to users and below what systemd hands to its own containers."""
_BTRFS_BYTES = 128 << 20
"""The smallest btrfs that every version of mkfs.btrfs makes is about 109 MiB; the file is sparse."""

# linux/loop.h
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_LOOP_CONFIG_BYTES = 304
_LOOP_FLAGS_OFFSET = 8 + 52
# linux/btrfs.h
_BTRFS_IOC_QUOTA_CTL = 0xC0109428
_QUOTA_ENABLE = 1
_QUOTA_ENABLE_SIMPLE = 4


# -- things to mount ----------------------------------------------------------------------------------------------


def erofs_image() -> bytes:
    """Return an EROFS image of one empty directory (docs.kernel.org/filesystems/erofs.html), made by hand so that the
    kernel can be tried where mkfs.erofs is missing."""
    superblock = struct.pack(
        "=IIIBBHQQIIII16s16sI", 0xE0F5E1E2, 0, 0, 12, 0, 36, 1, 0, 0, 2, 0, 0, b"dsec-probe", b"", 0
    )
    names = b"..."
    entries = struct.pack("=QHBB", 36, 24, 2, 0) + struct.pack("=QHBB", 36, 25, 2, 0) + names
    root = struct.pack("=HHHHIIIIHHI", 0, 0, 0o040755, 2, len(entries), 0, 1, 1, 0, 0, 0)
    first = (bytes(1024) + superblock.ljust(128, b"\0") + root).ljust(4096, b"\0")
    return first + entries.ljust(4096, b"\0")


def _attach_loop(file: Path) -> str:
    """Bind a file to a free loop device that frees itself with its last user."""
    with open("/dev/loop-control", "rb") as control:
        index = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    device = f"/dev/loop{index}"
    with open(file, "r+b") as backing:
        config = bytearray(_LOOP_CONFIG_BYTES)
        struct.pack_into("=I", config, 0, backing.fileno())
        struct.pack_into("=I", config, _LOOP_FLAGS_OFFSET, _LO_FLAGS_AUTOCLEAR)
        # Kept open on purpose: it is the mount, or the end of this process, that lets go of the device.
        fcntl.ioctl(os.open(device, os.O_RDWR | os.O_CLOEXEC), _LOOP_CONFIGURE, config)
    return device


def _attach_loop_retrying(file: Path) -> str:
    for _ in range(4):  # Another process may take the device between asking for a free one and binding it.
        with suppress(OSError):
            return _attach_loop(file)
    return _attach_loop(file)


def _directory(scratch: Path, name: str) -> Path:
    path = scratch / name
    path.mkdir()
    return path


def _mount_tmpfs(target: Path) -> Path:
    mounts.mount("tmpfs", target, "tmpfs", 0, "mode=755,size=1m")
    return target


def _mount_erofs(scratch: Path) -> Path:
    image = scratch / "image.erofs"
    image.write_bytes(erofs_image())
    target = _directory(scratch, "erofs")
    try:
        mounts.mount(str(image), target, "erofs", mounts.MS_RDONLY)
    except OSError as error:
        if error.errno != errno.ENOTBLK:
            raise
        mounts.mount(_attach_loop_retrying(image), target, "erofs", mounts.MS_RDONLY)
    return target


def _mount_btrfs(scratch: Path) -> Path:
    file = scratch / "volume.btrfs"
    with open(file, "wb") as volume:
        volume.truncate(_BTRFS_BYTES)
    subprocess.run(["mkfs.btrfs", "-q", str(file)], check=True, capture_output=True)
    target = _directory(scratch, "btrfs")
    mounts.mount(_attach_loop_retrying(file), target, "btrfs")
    return target


# -- ID-mapped mounts ---------------------------------------------------------------------------------------------


@contextmanager
def _user_namespace(first_host_id: int) -> Iterator[int]:
    """A user namespace whose ids 0 to 65,535 are the host's from `first_host_id` on, as a descriptor."""
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(done_write)
        os.write(ready_write, b"." if ctypes.CDLL(None).unshare(0x10000000) == 0 else b"!")
        os.read(done_read, 1)
        os._exit(0)
    try:
        if os.read(ready_read, 1) != b".":
            raise OSError(errno.EPERM, "a user namespace was refused")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {first_host_id} 65536\n")
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (ready_read, ready_write, done_read, done_write):
            os.close(descriptor)
        os.waitpid(pid, 0)
    try:
        yield namespace
    finally:
        os.close(namespace)


def _map(path: Path, namespace: int) -> int:
    tree = mounts.open_tree(path)
    mounts.map_ids(tree, namespace)
    return tree


def _try_mapping(path: Path) -> Finding:
    with _user_namespace(_FIRST_HOST_ID) as namespace:
        tree = _map(path, namespace)
        owner = os.fstat(tree).st_uid
        os.close(tree)
    if owner != _FIRST_HOST_ID:
        return missing(f"the mapped owner shows as {owner}")
    return found()


def try_idmap_erofs(scratch: Path) -> Finding:
    """ID-map a mounted EROFS image."""
    return _try_mapping(_mount_erofs(scratch))


def try_idmap_btrfs(scratch: Path) -> Finding:
    """ID-map a btrfs volume."""
    if shutil.which("mkfs.btrfs") is None:
        return missing("cannot be tried without mkfs.btrfs")
    return _try_mapping(_mount_btrfs(scratch))


# -- file systems -------------------------------------------------------------------------------------------------


def try_overlay(scratch: Path) -> Finding:
    """Mount an overlay and write through it; in a user namespace with `userxattr`."""
    base = _mount_tmpfs(_directory(scratch, "base"))
    lower, upper, work, target = (_directory(base, name) for name in ("lower", "upper", "work", "target"))
    user = _in_user_namespace()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}" + (",userxattr" if user else "")
    mounts.mount("overlay", target, "overlay", 0, options)
    (target / "written").write_text("x")
    return found("in a user namespace, with userxattr" if user else "works")


def _in_user_namespace() -> bool:
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def try_overlay_detached(scratch: Path) -> Finding:
    """Mount an overlay whose layers are detached ID-mapped mounts, and write to it as the mapped root."""
    lower, upper = (_mount_tmpfs(_directory(scratch, name)) for name in ("lower", "upper"))
    (lower / "file").write_text("below")
    for name in ("u", "w"):
        (upper / name).mkdir()
    target = _directory(scratch, "target")
    with _user_namespace(_FIRST_HOST_ID) as namespace:
        below, above = _map(lower, namespace), _map(upper, namespace)
        with file_identity(_FIRST_HOST_ID, _FIRST_HOST_ID, privileged=True):
            _mount_overlay(below, above, target)
            (target / "file").write_text("above")
        return _check_owner(target / "file")


def _mount_overlay(lower: int, upper: int, target: Path) -> None:
    options = [
        ("lowerdir+", f"/proc/self/fd/{lower}"),
        ("upperdir", f"/proc/self/fd/{upper}/u"),
        ("workdir", f"/proc/self/fd/{upper}/w"),
    ]
    overlay = mounts.new_mount("overlay", options)
    mounts.move_mount(overlay, target)
    os.close(overlay)


def _check_owner(path: Path) -> Finding:
    owner = path.stat().st_uid
    return found() if owner == _FIRST_HOST_ID else missing(f"the mapped owner shows as {owner}")


def try_erofs(scratch: Path) -> Finding:
    """Mount an EROFS image from a file."""
    image = scratch / "image.erofs"
    image.write_bytes(erofs_image())
    target = _directory(scratch, "target")
    try:
        mounts.mount(str(image), target, "erofs", mounts.MS_RDONLY)
    except OSError as error:
        if error.errno != errno.ENOTBLK:
            raise
    else:
        return found("from the file itself")
    mounts.mount(_attach_loop_retrying(image), target, "erofs", mounts.MS_RDONLY)
    return found("through a loop device")


def try_loop(scratch: Path) -> Finding:
    """Bind a file to a loop device."""
    file = scratch / "file"
    file.write_bytes(bytes(1 << 20))
    return found(_attach_loop_retrying(file).rpartition("/")[0] + "/loop*")


def try_btrfs(scratch: Path) -> Finding:
    """Mount a btrfs volume from a file, make a subvolume and a snapshot of it."""
    if shutil.which("mkfs.btrfs") is None:
        return missing("cannot be tried without mkfs.btrfs")
    volume = _mount_btrfs(scratch)
    for argv in (["create", volume / "a"], ["snapshot", volume / "a", volume / "b"]):
        subprocess.run(["btrfs", "subvolume", *map(str, argv)], check=True, capture_output=True)
    return found()


def try_btrfs_quota(scratch: Path) -> Finding:
    """Switch simple quotas on (Linux 6.7), or classic quota groups where they are unknown."""
    if shutil.which("mkfs.btrfs") is None:
        return missing("cannot be tried without mkfs.btrfs")
    volume = os.open(_mount_btrfs(scratch), os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):
        fcntl.ioctl(volume, _BTRFS_IOC_QUOTA_CTL, struct.pack("=QQ", _QUOTA_ENABLE_SIMPLE, 0))
        return found("simple quotas")
    fcntl.ioctl(volume, _BTRFS_IOC_QUOTA_CTL, struct.pack("=QQ", _QUOTA_ENABLE, 0))
    return found("classic quota groups (simple ones need Linux 6.7)")


def try_fuse(_: Path) -> Finding:
    """Open /dev/fuse and mount on it; nobody answers, and nobody asks."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return refused(error, "/dev/fuse")
    options = [("fd", str(device)), ("rootmode", "40000"), ("user_id", "0"), ("group_id", "0"), ("source", "probe")]
    os.close(mounts.new_mount("fuse", options))
    return found()


def enter_private_mounts(uid: int, gid: int) -> None:
    """Give this process a mount namespace of its own; an ordinary user's in a user namespace in which it is root."""
    flags = 0x00020000 | (0x10000000 if uid else 0)
    syscalls.libc_call("unshare", flags)
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1\n")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1\n")
    mounts.mount("none", "/", "", mounts.MS_REC | mounts.MS_PRIVATE)
