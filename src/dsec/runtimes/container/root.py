"""The root directory of a sandbox as seen from outside: a descriptor, and how paths below it are opened.

Nothing here trusts what a path led to a moment ago. A file is first opened with O_PATH, which touches nothing (a FIFO
does not block, a device is not opened), what that descriptor *is* gets checked, and then the very same inode is opened.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dsec.base.errors import InvalidRequestError, SandboxExitedError, UnsupportedFileError
from dsec.linux import statfs
from dsec.linux.openat2 import open_in_root, reopen
from dsec.model.files import MAXIMUM_PATH_BYTES
from dsec.runtimes.container.file_errors import show

MAXIMUM_LINKS = 40
"""Links that may follow one another at the end of a path, as in the kernel."""

_DATA_FILE_SYSTEMS = frozenset({statfs.OVERLAY, statfs.TMPFS, statfs.BTRFS, statfs.EXT, statfs.XFS, statfs.EROFS})
"""Where files are data. Files of proc, sysfs and cgroup are orders to the kernel, and a guest's symbolic link must not
turn a write into one; files of FUSE and network file systems can block without end."""


class RootHandle:
    """The descriptor of a sandbox's root (O_PATH | O_DIRECTORY), shared by threads and closed once.

    A descriptor's number is given to somebody else the moment it is closed. So whoever uses it holds it, and closing
    waits for the last holder.

    Args:
        fd: owned by the handle from now on.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._holders = 0
        self._closed = False
        self._lock = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[int]:
        """Yield the descriptor. Raises `SandboxExitedError` once the handle is closed."""
        with self._lock:
            if self._closed:
                raise SandboxExitedError("the sandbox has ended", resolution="create another one")
            self._holders += 1
        try:
            yield self._fd
        finally:
            with self._lock:
                self._holders -= 1
                self._close_if_unused()

    def check_alive(self) -> None:
        """Raise `SandboxExitedError` once the handle is closed."""
        with self.hold():
            pass

    def close(self) -> None:
        """Let nobody new in; the descriptor closes with its last holder. Idempotent."""
        with self._lock:
            self._closed = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closed and self._holders == 0 and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def encode_path(path: str) -> bytes:
    """Return the bytes of a path in a request, absolute. Raises `InvalidRequestError` for what no path can be."""
    raw = _encode(path)
    if not raw or b"\0" in raw:
        raise InvalidRequestError(f"{path!r} is not a path", resolution="give a path without NUL characters")
    if len(raw) >= MAXIMUM_PATH_BYTES:
        raise InvalidRequestError(
            f"the path {show(raw)} has {len(raw)} bytes", resolution=f"use less than {MAXIMUM_PATH_BYTES} bytes"
        )
    return b"/" + raw.lstrip(b"/")


def _encode(path: str) -> bytes:
    try:
        return os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{path!r} is not a path", resolution="write bytes that are not UTF-8 as surrogate escapes"
        ) from error


def split_entry(path: bytes) -> tuple[bytes, bytes]:
    """Return directory and name of the entry that a path names. Raises `InvalidRequestError` where it names none."""
    directory, _, name = path.rstrip(b"/").rpartition(b"/")
    if name in (b"", b".", b".."):
        raise InvalidRequestError(f"{show(path)} names no entry of a directory", resolution="end with a name")
    return directory or b"/", name


def open_parent(root_fd: int, path: bytes) -> tuple[int, bytes]:
    """Open the directory of an entry that will be made, renamed or removed (O_PATH); return it and the entry's name."""
    directory, name = split_entry(path)
    fd = open_in_root(root_fd, directory, os.O_PATH | os.O_DIRECTORY)
    try:
        check_data(fd, directory)
    except BaseException:
        os.close(fd)
        raise
    return fd, name


def check_data(fd: int, path: bytes) -> os.stat_result:
    """Return the status of a descriptor (O_PATH will do) that is a regular file or a directory holding data.

    Raises:
        UnsupportedFileError: it is a FIFO, socket, device or link, or lies on a file system that is not data.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise UnsupportedFileError(
            f"{show(path)} is {_describe(status.st_mode)}", resolution="read and write it with a command in the sandbox"
        )
    if statfs.file_system_type(fd) not in _DATA_FILE_SYSTEMS:
        raise UnsupportedFileError(
            f"{show(path)} is not on a file system that holds data",
            detail="only overlay, tmpfs, btrfs, ext4, XFS and EROFS are read and written from outside",
            resolution="use a command in the sandbox",
        )
    return status


def _describe(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a symbolic link" if stat.S_ISLNK(mode) else "a device"


def open_data(root_fd: int, path: bytes, flags: int) -> int:
    """Open a regular file or directory that exists. Never blocks on what it is (O_NONBLOCK also makes the open
    fail, and not wait, when the guest holds a lease on the file)."""
    found = open_in_root(root_fd, path, os.O_PATH)
    try:
        check_data(found, path)
        return reopen(found, flags | os.O_NONBLOCK)
    finally:
        os.close(found)


def open_directory(root_fd: int, path: bytes) -> int:
    """Open a directory for reading. ENOTDIR when it is none."""
    return open_data(root_fd, path, os.O_RDONLY | os.O_DIRECTORY)


def make_directories(root_fd: int, path: bytes, permissions: int = 0o755) -> list[bytes]:
    """Make a directory and its missing parents (those get 0o755); return the paths that are new, outermost first."""
    made: list[bytes] = []
    missing = [path.rstrip(b"/") or b"/"]
    while (parent := _parent_if_missing(root_fd, missing[-1])) is not None:
        missing.append(parent)
    while missing:
        current = missing.pop()
        if _make_one(root_fd, current, 0o755 if missing else permissions):
            made.append(current)
    return made


def _parent_if_missing(root_fd: int, path: bytes) -> bytes | None:
    """Return the parent of `path` if that does not exist."""
    parent = path.rpartition(b"/")[0]
    if not parent:
        return None
    try:
        os.close(open_in_root(root_fd, parent, os.O_PATH | os.O_DIRECTORY))
    except FileNotFoundError:
        return parent
    return None


def _make_one(root_fd: int, path: bytes, permissions: int) -> bool:
    if path == b"/" or path.endswith((b"/.", b"/..")):
        return False
    parent, name = open_parent(root_fd, path)
    try:
        make_child_directory(parent, name, permissions)
        return True
    except FileExistsError:
        # A link to a directory will do; a dangling link or a file will not.
        os.close(open_in_root(root_fd, path, os.O_PATH | os.O_DIRECTORY))
        return False
    finally:
        os.close(parent)


def make_child_directory(parent_fd: int, name: bytes, permissions: int) -> None:
    """Make one directory with exactly these permissions (the process's umask does not count)."""
    os.mkdir(name, permissions & 0o777, dir_fd=parent_fd)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        set_permissions(fd, permissions)
    finally:
        os.close(fd)


def set_permissions(fd: int, permissions: int) -> None:
    """Give an open file or directory these permissions where it has others; an inherited set-group bit stays."""
    current = stat.S_IMODE(os.fstat(fd).st_mode)
    wanted = (permissions & 0o7777) | (current & stat.S_ISGID)
    if current != wanted:
        os.fchmod(fd, wanted)


def resolve_target(root_fd: int, path: bytes) -> bytes:
    """Follow the links at the end of a path that is about to be written, as open(2) would; the rest is the kernel's.

    A guest that changes links meanwhile only chooses another place inside its own root.
    """
    for _ in range(MAXIMUM_LINKS):
        directory, name = split_entry(path)
        try:
            fd = open_in_root(root_fd, directory + b"/" + name, os.O_PATH | os.O_NOFOLLOW)
        except FileNotFoundError:
            return path
        try:
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                return path
            target = os.readlink(b"", dir_fd=fd)
        finally:
            os.close(fd)
        path = target if target.startswith(b"/") else directory.rstrip(b"/") + b"/" + target
    raise InvalidRequestError(f"{show(path)} leads through too many symbolic links", resolution="name the file itself")
