"""Walk down and up a hostile tree by descriptors.

Every step down opens a real directory on the same file system (no link, no mount), so that swapping a directory for a
link while we walk can end the walk but never lead it elsewhere. A guest can nest directories deeper than we have
descriptors: only the lowest `OPEN_LEVELS` are kept open, and a step up to a closed one goes through ``..`` and is
believed only when it arrives at the inode that was left.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType

from dsec.base.errors import ConflictError, LimitExceededError
from dsec.linux.openat2 import RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, open_child, openat2

OPEN_LEVELS = 32
MAXIMUM_DEPTH = 20_000

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_UP = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS


@dataclass(slots=True)
class _Level:
    name: bytes
    inode: tuple[int, int]
    fd: int | None


class Descent:
    """A stack of nested directories; a context manager that closes what is open.

    Args:
        fd: the top; stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._levels = [_Level(b"", _inode(fd), os.dup(fd))]

    def __enter__(self) -> Descent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for level in self._levels:
            if level.fd is not None:
                os.close(level.fd)
        self._levels.clear()

    @property
    def fd(self) -> int:
        """The lowest directory."""
        fd = self._levels[-1].fd
        assert fd is not None
        return fd

    @property
    def depth(self) -> int:
        """How far below the top we are."""
        return len(self._levels) - 1

    def path(self) -> bytes:
        """Return the path from the top, without slashes around it."""
        return b"/".join(level.name for level in self._levels[1:])

    def down(self, name: bytes) -> None:
        """Enter a directory. Raises OSError: ENOTDIR or ELOOP (no directory), EXDEV (a mount), ENOENT."""
        if len(self._levels) > MAXIMUM_DEPTH:
            raise LimitExceededError(
                f"directories are nested deeper than {MAXIMUM_DEPTH}", resolution="remove them with a command"
            )
        fd = open_child(self.fd, name, _DIRECTORY)
        self._levels.append(_Level(name, _inode(fd), fd))
        if len(self._levels) > OPEN_LEVELS:
            self._close_level(self._levels[-OPEN_LEVELS - 1])

    def up(self) -> bytes:
        """Leave the lowest directory and return its name in the one above.

        Raises:
            ConflictError: it was moved meanwhile.
        """
        left = self._levels.pop()
        assert left.fd is not None
        try:
            above = self._levels[-1]
            if above.fd is None:
                above.fd = self._open_above(left.fd, above)
        finally:
            os.close(left.fd)
        return left.name

    def _open_above(self, fd: int, above: _Level) -> int:
        parent = openat2(fd, b"..", _DIRECTORY, resolve=_UP)
        if _inode(parent) != above.inode:
            os.close(parent)
            raise ConflictError("the sandbox moved a directory that was being walked", resolution="try again")
        return parent

    @staticmethod
    def _close_level(level: _Level) -> None:
        if level.fd is not None:
            os.close(level.fd)
            level.fd = None


def _inode(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
