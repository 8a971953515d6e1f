"""EROFS layer files: make, mount, look into.

Files are uncompressed, so that reading through the mount costs what reading a local file costs. Linux 6.12 mounts
the file itself (CONFIG_EROFS_FS_BACKED_BY_FILE); older kernels need a loop device, which mount(8) sets up and the
kernel frees with the mount.

Mounts are read-only, without devices and without set-uid. The last protects the *host*, whose users must not gain
anything from a program in somebody's image; sandboxes do not notice, since a file opened through an overlay has the
overlay's mount flags.

Sources: mkfs.erofs(1), https://docs.kernel.org/filesystems/erofs.html.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.base.errors import StateCorruptedError
from dsec.images.command import run
from dsec.linux import mounts
from dsec.linux.userns import is_host_root

_FLAGS = mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV
"""As bits of mount(2). The first three bits of fsmount(2)'s attributes mean the same."""

_NOT_A_BLOCK_DEVICE = (errno.ENOTBLK, errno.EINVAL)
_DAMAGED = (errno.EBADMSG, errno.EUCLEAN, errno.EIO)


def make(tree: Path, file: Path, *, lock_fd: int | None = None) -> None:
    """Write the directory `tree` into an EROFS file: owners, modes, times, attributes, links and devices kept.

    Raises:
        ExternalCommandError: `mkfs.erofs` failed.
    """
    # Run inside the tree: mkfs.erofs builds source paths of at most PATH_MAX bytes, prefix included.
    keep = () if lock_fd is None else (lock_fd,)
    run(["mkfs.erofs", "--quiet", str(file.absolute()), "."], package="erofs-utils", cwd=tree, keep_fds=keep)


def mount_file(file: Path, target: Path, *, loop: bool = False) -> None:
    """Mount a layer file at an existing directory.

    Args:
        loop: go through a loop device at once, without trying to mount the file itself.

    Raises:
        StateCorruptedError: the kernel finds no EROFS in the file.
        OSError: the mount is not permitted, or the kernel has no EROFS.
    """
    if not loop and _mounted_directly(file, target):
        return
    if not _has_magic(file):
        raise _damaged(file, "it has no superblock")
    run(["mount", "-t", "erofs", "-o", "loop,ro,nosuid,nodev", str(file), str(target)], package="mount")


def _mounted_directly(file: Path, target: Path) -> bool:
    """Mount the file itself; return False on kernels that take block devices only."""
    try:
        mounts.mount(str(file), target, "erofs", _FLAGS)
    except OSError as error:
        if error.errno in _DAMAGED:
            raise _damaged(file, error.strerror or "") from error
        if error.errno not in _NOT_A_BLOCK_DEVICE:
            raise
        return False
    return True


def _damaged(file: Path, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"{file} is not a sound EROFS file", detail=detail, resolution="remove the image and import it again"
    )


def _has_magic(file: Path) -> bool:
    """Tell whether the superblock, 1024 bytes in, begins as EROFS's does."""
    with file.open("rb") as stream:
        stream.seek(1024)
        return stream.read(4) == b"\xe2\xe1\xf5\xe0"


@contextmanager
def opened(file: Path, scratch: Path) -> Iterator[int]:
    """Yield a descriptor of the root directory of a layer file, mounted where nobody sees it.

    Args:
        scratch: an empty directory, used as mount point where detached mounts of files are not possible.
    """
    try:
        mount_fd = mounts.new_mount("erofs", [("source", str(file)), ("ro", None)], _FLAGS)
    except OSError as error:
        if error.errno in _DAMAGED:
            raise _damaged(file, error.strerror or "") from error
        if error.errno not in _NOT_A_BLOCK_DEVICE:
            raise
        with _opened_at(file, scratch) as root_fd:
            yield root_fd
        return
    try:
        root_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount_fd)
    finally:
        os.close(mount_fd)
    try:
        yield root_fd
    finally:
        os.close(root_fd)


@contextmanager
def _opened_at(file: Path, scratch: Path) -> Iterator[int]:
    mount_file(file, scratch)
    root_fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield root_fd
    finally:
        os.close(root_fd)
        mounts.unmount(scratch, detach=True)


def missing_reason(scratch: Path) -> str:
    """Return why EROFS layers cannot be used on this host, or nothing if they can: an empty one is made and mounted.

    Args:
        scratch: an empty directory to try in.
    """
    if not is_host_root():
        return "mounting EROFS needs root"
    if shutil.which("mkfs.erofs") is None:
        return "mkfs.erofs is not installed (Debian package erofs-utils)"
    tree, file, target = scratch / "tree", scratch / "probe.erofs", scratch / "target"
    tree.mkdir()
    target.mkdir()
    make(tree, file)
    try:
        with opened(file, target):
            return ""
    except OSError as error:
        return f"this host does not mount EROFS: {error.strerror}"
