"""What the layers below a path show there, one path at a time and without mounting them.

Overlayfs's own rules, as in `dsec.images.merged`: the uppermost layer that has the path decides, a whiteout ends the
look, and so do a directory that is opaque and anything but a directory on the way. Layers hold what guests and archives
named: nothing is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE = (b"trusted.overlay.opaque", b"user.overlay.opaque")


class Below:
    """A stack of layers, held open while the context lasts.

    Args:
        layer_paths: from the lowest up.
    """

    def __init__(self, layer_paths: Sequence[Path]) -> None:
        self._paths = layer_paths
        self._stack = ExitStack()
        self._roots: list[int] = []

    def __enter__(self) -> Below:
        for path in reversed(self._paths):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stack.callback(os.close, fd)
            self._roots.append(fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def is_directory(self, path: bytes) -> bool:
        """Whether the layers show a directory at a path."""
        status = self._upper(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def shows(self, path: bytes) -> bool:
        """Whether the layers show anything at a path."""
        status = self._upper(path)
        return status is not None and not (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0)

    def _upper(self, path: bytes) -> os.stat_result | None:
        *parents, name = path.split(b"/")
        with ExitStack() as opened:
            at = self._roots
            for part in parents:
                at = self._enter(at, part, opened)
            return next((found for fd in at if (found := _status(fd, name)) is not None), None)

    @staticmethod
    def _enter(at: Sequence[int], name: bytes, opened: ExitStack) -> list[int]:
        """Return the directories `name` that are merged, from the top down."""
        merged: list[int] = []
        for fd in at:
            status = _status(fd, name)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode):
                break
            child = os.open(name, _OPEN_DIRECTORY, dir_fd=fd)
            opened.callback(os.close, child)
            merged.append(child)
            if is_opaque(child):
                break
        return merged


def is_opaque(where: int | bytes) -> bool:
    """Whether a directory hides what lower layers have in it."""
    for name in _OPAQUE:
        try:
            if os.getxattr(where, name) == b"y":
                return True
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
                raise
    return False


def _status(fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
