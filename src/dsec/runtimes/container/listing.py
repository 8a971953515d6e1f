"""Describe entries: one, or a directory to some depth."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from dsec.base.errors import LimitExceededError
from dsec.linux.openat2 import open_in_root
from dsec.linux.userns import IDS_PER_RANGE
from dsec.model.files import MAXIMUM_PATH_BYTES, FileInfo, FileKind
from dsec.runtimes.container.descent import Descent
from dsec.runtimes.container.file_errors import show
from dsec.runtimes.container.root import open_directory

OVERFLOW_ID = 65_534
"""Owner shown for what belongs to nobody of the sandbox, as the kernel shows it inside."""

_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}
_NOT_ENTERED = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ENOENT})


def inner_id(host_id: int, first_host_id: int) -> int:
    """Return the id inside the sandbox for an id outside."""
    number = host_id - first_host_id
    return number if 0 <= number < IDS_PER_RANGE else OVERFLOW_ID


def describe(path: bytes, status: os.stat_result, target: bytes | None, first_host_id: int) -> FileInfo:
    """Return the description of an entry from its status."""
    shown = _text(path)
    return FileInfo(
        name=_text(path.rstrip(b"/").rpartition(b"/")[2]) or "/",
        path=shown,
        kind=_KINDS.get(stat.S_IFMT(status.st_mode), FileKind.OTHER),
        size_bytes=status.st_size if stat.S_ISREG(status.st_mode) else 0,
        mode=stat.S_IMODE(status.st_mode),
        uid=inner_id(status.st_uid, first_host_id),
        gid=inner_id(status.st_gid, first_host_id),
        modified_at_s=status.st_mtime_ns / 1e9,
        target=None if target is None else _text(target),
        raw_path=b"" if shown.encode() == path else path,
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def stat_entry(root_fd: int, path: bytes, first_host_id: int) -> FileInfo:
    """Describe one entry; a final link is not followed."""
    path = path.rstrip(b"/") or b"/"
    fd = open_in_root(root_fd, path, os.O_PATH | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        target = os.readlink(b"", dir_fd=fd) if stat.S_ISLNK(status.st_mode) else None
    finally:
        os.close(fd)
    return describe(path, status, target, first_host_id)


class Listing:
    """List a directory to some depth, names in order, each directory before what it holds."""

    def __init__(
        self, path: bytes, *, depth: int, limit: int, first_host_id: int, check: Callable[[], None]
    ) -> None:  # fmt: skip
        self._path = path.rstrip(b"/")
        self._depth, self._limit, self._first_host_id, self._check = depth, limit, first_host_id, check
        self._found: list[FileInfo] = []
        self._seen = 0

    def run(self, root_fd: int) -> tuple[FileInfo, ...]:
        """Return the entries. Raises `LimitExceededError` past the limit."""
        fd = open_directory(root_fd, self._path or b"/")
        try:
            with Descent(fd) as descent:
                self._walk(descent)
        finally:
            os.close(fd)
        return tuple(self._found)

    def _walk(self, descent: Descent) -> None:
        pending = [self._names(descent)]
        while True:
            self._check()
            if not pending[-1]:
                pending.pop()
                if not pending:
                    return
                descent.up()
                continue
            name = pending[-1].pop()
            if self._add(descent, name) and descent.depth + 1 < self._depth and _enter(descent, name):
                pending.append(self._names(descent))

    def _names(self, descent: Descent) -> list[bytes]:
        """Return the names in the lowest directory, the first one last."""
        names: list[bytes] = []
        with os.scandir(descent.fd) as entries:
            for entry in entries:
                self._check()
                names.append(os.fsencode(entry.name))
                self._count()
        names.sort(reverse=True)
        return names

    def _count(self) -> None:
        self._seen += 1
        if self._seen > self._limit:
            raise LimitExceededError(
                f"{show(self._path or b'/')} holds more than {self._limit} entries",
                resolution="list a directory below it, or to less depth, or raise the limit",
            )

    def _add(self, descent: Descent, name: bytes) -> bool:
        """Describe an entry of the lowest directory; return whether it is a directory."""
        try:
            status = os.stat(name, dir_fd=descent.fd, follow_symlinks=False)
            target = os.readlink(name, dir_fd=descent.fd) if stat.S_ISLNK(status.st_mode) else None
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False  # A link that became something else between the two calls.
        below = descent.path()
        path = b"/".join((self._path, below, name) if below else (self._path, name))
        if len(path) > MAXIMUM_PATH_BYTES:
            raise LimitExceededError(
                f"below {show(self._path)} are paths longer than {MAXIMUM_PATH_BYTES} bytes",
                resolution="list to less depth",
            )
        self._found.append(describe(path, status, target, self._first_host_id))
        return stat.S_ISDIR(status.st_mode)


def _enter(descent: Descent, name: bytes) -> bool:
    """Enter a directory unless it is something else by now, or a mount."""
    try:
        descent.down(name)
    except OSError as error:
        if error.errno not in _NOT_ENTERED:
            raise
        return False
    return True
