"""Loop devices: a file as a block device (loop(4)).

Devices are attached with *autoclear*: the kernel detaches them with their last user, so that a process killed
between attaching and mounting leaves nothing. One file must never be attached twice, or two file systems would
write to it: `find` says whether it is.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.linux import syscalls

_CHANGE_FD = 0x4C06
_CONFIGURE = 0x4C0A
_GET_STATUS64 = 0x4C05
_SET_CAPACITY = 0x4C07
_GET_FREE = 0x4C82
_READ_ONLY = 1
_AUTOCLEAR = 4
_DIRECT_IO = 16
_BLOCK_BYTES = 4096
_ATTEMPTS = 64


def _ioctl(fd: int, request: int, argument: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(argument, len(argument))
    syscalls.libc_call("ioctl", fd, ctypes.c_ulong(request), buffer)
    return buffer.raw


def _info(flags: int, name: bytes) -> bytes:
    """Return a `struct loop_info64`."""
    return struct.pack("=5QIIII64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, name[-63:], b"", b"", 0, 0)


def backing_file(device: str) -> tuple[int, int] | None:
    """Return device and inode number of the file behind a loop device; None when it has none."""
    try:
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return None
        raise
    try:
        kernel_device, inode = struct.unpack_from("=QQ", _ioctl(fd, _GET_STATUS64, bytes(232)))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
    finally:
        os.close(fd)
    # The kernel reports its own encoding (new_encode_dev): 12 bits of major between 20 of minor.
    major, minor = (kernel_device >> 8) & 0xFFF, (kernel_device & 0xFF) | ((kernel_device >> 12) & 0xFFF00)
    return os.makedev(major, minor), inode


def backing_path(device: str) -> str:
    """Return the path of the file behind a loop device, as the kernel has it now; empty when it has none."""
    try:
        return Path(f"/sys/block/{device.removeprefix('/dev/')}/loop/backing_file").read_text().rstrip("\n")
    except FileNotFoundError:
        return ""


def is_released(device: str, *, within_s: float) -> bool:
    """Tell whether a device loses its file within some time."""
    deadline = time.monotonic() + within_s
    while backing_path(device):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def find(path: str | os.PathLike[str]) -> str | None:
    """Return the loop device through which `path` can be written.

    Devices that only read are not opened: what is behind one may be served by a process that hangs, and whoever opens
    it waits for that one (`lo_open` behind the mutex that the last one to close it holds).
    """
    status = os.stat(path)
    for entry in glob.glob("/sys/block/loop*/loop/backing_file"):
        name = entry.split("/")[3]
        device = f"/dev/{name}"
        if not _is_read_only(name) and backing_file(device) == (status.st_dev, status.st_ino):
            return device
    return None


def _is_read_only(name: str) -> bool:
    try:
        return Path(f"/sys/block/{name}/ro").read_text().strip() == "1"
    except FileNotFoundError:
        return True  # It went meanwhile.


@contextmanager
def attached(path: str | os.PathLike[str]) -> Iterator[str]:
    """Attach `path` for the block and yield the device, whose mount then keeps it.

    A file that is attached already keeps its device. I/O is direct where the file's file system allows it (what is
    written is then cached once, not twice); the kernel falls back by itself where not.
    """
    with _existing_or_new(path) as fd:
        yield os.readlink(f"/proc/self/fd/{fd}")


@contextmanager
def _existing_or_new(path: str | os.PathLike[str]) -> Iterator[int]:
    present = find(path)
    fd = os.open(present, os.O_RDWR | os.O_CLOEXEC) if present else _attach(path)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def attached_read_only(path: str | os.PathLike[str]) -> Iterator[str]:
    """Attach `path` read-only, whether or not it is attached already, and yield the device, whose mount then keeps it.

    The file of such a device can be exchanged by `change_file`.
    """
    fd = _attach(path, read_only=True)
    try:
        yield os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def change_file(device: str, path: str | os.PathLike[str]) -> None:
    """Let a read-only device read another file of the same size from now on, under the file system that is mounted from
    it (LOOP_CHANGE_FD of loop(4)). Waits for the reads that are under way.

    Raises:
        OSError: EINVAL: the device is not read-only, or the sizes differ; ENXIO: it has no file.
    """
    fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.libc_call("ioctl", fd, ctypes.c_ulong(_CHANGE_FD), file, path=device)
        finally:
            os.close(file)
    finally:
        os.close(fd)


def _attach(path: str | os.PathLike[str], *, read_only: bool = False) -> int:
    """Attach `path` to a free device and return the device's descriptor."""
    access = os.O_RDONLY if read_only else os.O_RDWR
    file = os.open(path, access | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            device = os.open(_free_device(), access | os.O_CLOEXEC)
            if _configure(device, file, os.fsencode(path), _READ_ONLY if read_only else 0):
                return device
            os.close(device)  # Somebody else took it between the two calls.
    finally:
        os.close(file)
    raise OSError(errno.EBUSY, "no free loop device", os.fspath(path))


def _configure(device: int, file: int, name: bytes, access: int) -> bool:
    for flags in (access | _AUTOCLEAR | _DIRECT_IO, access | _AUTOCLEAR):
        try:
            _ioctl(device, _CONFIGURE, struct.pack("=II", file, _BLOCK_BYTES) + _info(flags, name) + bytes(64))
            return True
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            if error.errno != errno.EINVAL or not flags & _DIRECT_IO:
                os.close(device)
                raise
    return False


def _free_device() -> str:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        return f"/dev/loop{syscalls.libc_call('ioctl', control, ctypes.c_ulong(_GET_FREE))}"
    finally:
        os.close(control)


def update_capacity(device: str) -> None:
    """Tell a device that its file has grown."""
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        syscalls.libc_call("ioctl", fd, ctypes.c_ulong(_SET_CAPACITY))
    finally:
        os.close(fd)
