"""The state volume: the btrfs file system that holds writable layers.

Where the state directory lies on btrfs whose quotas are on, the volume is a directory in it. Elsewhere it is a
sparse file `volume.btrfs`, attached to a loop device and mounted at `volume/`. (On btrfs without quotas the file
serves too: simple quotas are a permanent feature flag, which we do not set on a file system that is not ours.)

Chosen by measurement (20 GiB file on ext4 on a virtual disk, 2 cores; 1 GiB written, then sync):

======================================  ==========  ========  ==============================
variant                                 write 1 GiB  sync      snapshot of 1 GiB not yet written
======================================  ==========  ========  ==============================
loop buffered                           2.5 s       2.9 s     2,980 ms
loop direct, ``discard=async``          1.0 s       0.5 s     590 ms
loop direct, ``nodiscard``              0.9 s       0.5 s     550 ms
======================================  ==========  ========  ==============================

So the loop device uses direct I/O. `discard=async` costs next to nothing and gives freed space back to the host.
Metadata is single: a second copy in the same file protects from nothing. Nodes of 16 KiB and of 4 KiB make no
difference in time, and 16 KiB leave room for long extended attributes. `nosuid` and `nodev`: no file in it means
anything to the host.

`metadata_ratio=8` takes room for metadata before data has taken it all (about 3% of a large volume): a volume
without any refuses even renames. `commit=5`: the kernel frees what was destroyed when it commits, by default every
30 s.

Every step can be the last before a kill: the file is made under another name and renamed when it is a file system;
the loop device clears itself unless mounted; a file that is attached or mounted already is found again, never
attached twice.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import (
    CapabilityMissingError,
    ExternalCommandError,
    HostDiskFullError,
    InvalidRequestError,
    StateCorruptedError,
)
from dsec.base.units import GIB, MIB, format_size
from dsec.linux import btrfs, inodes, loop, mounts, statfs
from dsec.state import layout

MINIMUM_BYTES = 256 * MIB
_SHARE_OF_FREE = 0.8
_MKFS = ("mkfs.btrfs", "--quiet", "--force", "--metadata", "single", "--data", "single")
_OPTIONS = "discard=async,commit=5,metadata_ratio=8"
_NOT_ROOT = "run as root with the loop module loaded, or use plain directories for layers"
_MS_NOATIME = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StateVolume:
    """A directory on btrfs for writable layers.

    Attributes:
        path: the directory.
        backing: the file that holds the file system, when we made it; None on a file system of the host's.
    """

    path: Path
    backing: Path | None

    def free_bytes(self) -> int:
        """Bytes that can still be written; never more than the host has for the file behind the volume."""
        status = os.statvfs(self.path)
        # Not f_bavail: btrfs says 0 there for as long as metadata cannot grow, even after everything was removed.
        free = status.f_bfree * status.f_frsize
        return free if self.backing is None else min(free, layout.free_bytes(self.backing.parent))


def open_volume(state: Path, *, size_bytes: int | None = None, unwritten_bytes: int | None = None) -> StateVolume:
    """Find, or make, the volume of a state directory, and mount it.

    Args:
        state: the state directory; its lock is held by the caller.
        size_bytes: size of the volume's file. A larger value than before grows it; a smaller one changes nothing.
            By default 80% of what is free when it is made, in whole GiB.
        unwritten_bytes: how much of what sandboxes wrote may wait in memory before it goes to disk; by default as much
            as the kernel allows (20% of memory). A checkpoint waits for its layer's share of it: about 0.7 s per GiB.
            With 64 MiB a checkpoint of 1 GiB just written took 11 to 26 ms, and writing it about 1.4 times as long.

    Raises:
        CapabilityMissingError: no btrfs, no loop devices, no mkfs.btrfs or no right to mount: use plain directories.
        HostDiskFullError: too little is free for a volume.
        StateCorruptedError: the file exists and is no file system, or something else is mounted in its place.
    """
    directory, backing = state / "volume", state / "volume.btrfs"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not backing.exists() and _host_quotas_are_on(state):
        return StateVolume(path=directory, backing=None)
    _require_loop_devices()
    if not backing.exists():
        _make(backing, size_bytes)
    if _mounted(directory, backing) is None:
        _mount(backing, directory)
    if size_bytes is not None:
        _grow(backing, directory, size_bytes)
    _limit_unwritten(directory, unwritten_bytes)
    return StateVolume(path=directory, backing=backing)


def _limit_unwritten(directory: Path, unwritten_bytes: int | None) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        btrfs.limit_unwritten(btrfs.file_system_id(fd), unwritten_bytes)
    except FileNotFoundError as error:
        if unwritten_bytes is not None:
            raise CapabilityMissingError(
                "this kernel cannot bound what a volume keeps in memory",
                detail=str(error),
                resolution="use Linux 6.3 or newer, or leave the bound out",
            ) from error
    finally:
        os.close(fd)


def destroy_volume(state: Path) -> None:
    """Unmount and delete the volume with everything in it. Idempotent. No layer may be in use."""
    directory, backing = state / "volume", state / "volume.btrfs"
    for entry in mounts.mounts_under(directory):
        mounts.unmount(entry.target)
    for file in (backing, _unfinished(backing)):
        file.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def _host_quotas_are_on(state: Path) -> bool:
    fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return statfs.file_system_type(fd) == statfs.BTRFS and btrfs.quota_mode(fd) is not btrfs.QuotaMode.OFF
    finally:
        os.close(fd)


def _require_loop_devices() -> None:
    """Refuse before anything is made what an ordinary user's attempt would end with."""
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        raise CapabilityMissingError("loop devices cannot be used", resolution=_NOT_ROOT)


def _unfinished(backing: Path) -> Path:
    return backing.with_name(backing.name + ".new")


def _make(backing: Path, size_bytes: int | None) -> None:
    """Make the file: complete under its name, or not at all."""
    unfinished = _unfinished(backing)
    unfinished.unlink(missing_ok=True)
    size = _checked_size(backing.parent, size_bytes)
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        inodes.change_flags(fd, add=inodes.NOCOW)  # On btrfs, a file system in a copied-on-write file fragments it.
        os.ftruncate(fd, size)
        _run_mkfs(unfinished)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(unfinished, backing)


def _checked_size(directory: Path, size_bytes: int | None) -> int:
    if size_bytes is not None:
        if size_bytes < MINIMUM_BYTES:
            raise InvalidRequestError(
                f"a volume of {format_size(size_bytes)} is too small",
                resolution=f"give it at least {format_size(MINIMUM_BYTES)}",
            )
        return size_bytes
    share = int(layout.free_bytes(directory) * _SHARE_OF_FREE)
    size = share // GIB * GIB or share // MIB * MIB
    if size < MINIMUM_BYTES:
        raise HostDiskFullError(
            f"{directory} has no room for a volume of writable layers",
            detail=f"{format_size(share)} could be used, {format_size(MINIMUM_BYTES)} are needed",
            resolution="free space, or put the state directory on another file system",
        )
    return size


def _run_mkfs(path: Path) -> None:
    command = [*_MKFS, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError as error:
        raise CapabilityMissingError(
            "mkfs.btrfs is not installed", resolution="install btrfs-progs, or use plain directories for layers"
        ) from error
    if done.returncode != 0:
        raise ExternalCommandError(
            "the volume of writable layers cannot be made",
            detail=f"{' '.join(command)}\nexit status {done.returncode}\n{done.stderr[-2000:]}",
        )


def _mount(backing: Path, directory: Path) -> None:
    flags = mounts.MS_NOSUID | mounts.MS_NODEV | _MS_NOATIME
    try:
        with loop.attached(backing) as device:
            mounts.mount(device, directory, "btrfs", flags, _OPTIONS)
    except OSError as error:
        raise _mount_error(backing, error) from error


def _mount_error(backing: Path, error: OSError) -> Exception:
    if error.errno in (errno.EPERM, errno.EACCES):
        return CapabilityMissingError(f"not allowed to mount {backing}", resolution=_NOT_ROOT)
    if error.errno in (errno.ENODEV, errno.ENOENT):
        return CapabilityMissingError(
            "the kernel has no btrfs or no loop devices",
            detail=str(error),
            resolution="load the modules btrfs and loop, or use plain directories for layers",
        )
    return StateCorruptedError(
        f"{backing} cannot be mounted",
        detail=str(error),
        resolution="see the kernel's log; `btrfs check` reads the file, and moving it away begins with an empty volume",
    )


def _mounted(directory: Path, backing: Path) -> str | None:
    """Return the loop device mounted at `directory`; None when nothing is.

    Raises:
        StateCorruptedError: something else is mounted there.
    """
    where = os.path.realpath(directory)
    found = [entry for entry in mounts.mount_table() if entry.target == where]
    if not found:
        return None
    status = os.stat(backing)
    top = found[-1]
    if top.kind != "btrfs" or loop.backing_file(top.source) != (status.st_dev, status.st_ino):
        raise StateCorruptedError(
            f"something other than {backing.name} is mounted at {directory}",
            detail=f"{top.kind} from {top.source}",
            resolution=f"unmount {directory}",
        )
    return top.source


def _grow(backing: Path, directory: Path, size_bytes: int) -> None:
    """Grow the file, the device and the file system; each step is done again if a kill came between."""
    device = _mounted(directory, backing)
    if device is None or size_bytes < os.stat(backing).st_size:
        return
    os.truncate(backing, size_bytes)
    loop.update_capacity(device)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        btrfs.grow_to_device(fd)
    finally:
        os.close(fd)
