"""Remove a tree whose owner may be changing it.

Memory is bounded: names are read in batches, and a directory is read again when its batch is used up. What was a
directory when it was seen may be a link or file when it is touched, and the other way round: each is tried as what it
turns out to be. A guest that makes files faster than they are removed is bounded by `MAXIMUM_RETURNS` and by the
operation's deadline.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from dsec.base.errors import ConflictError
from dsec.runtimes.container.descent import Descent

MAXIMUM_RETURNS = 1000
"""How often a removal may find a directory filled, or an entry changed, again."""

_BATCH = 512
_NOT_A_DIRECTORY = frozenset({errno.ENOTDIR, errno.ELOOP})


def remove_entry(parent_fd: int, name: bytes, *, recursive: bool, check: Callable[[], None]) -> None:
    """Remove an entry of a directory.

    Args:
        parent_fd: the directory (O_PATH will do).
        name: the entry; a link is removed itself.
        recursive: remove a directory with all it holds; otherwise only an empty one.
        check: called for every entry; raises to stop.
    """
    if _unlink(parent_fd, name):
        return
    if not recursive:
        os.rmdir(name, dir_fd=parent_fd)
        return
    with Descent(parent_fd) as descent:
        _Removal(descent, check).run(name)


def _unlink(parent_fd: int, name: bytes) -> bool:
    """Remove what is not a directory; return False for a directory."""
    try:
        os.unlink(name, dir_fd=parent_fd)
    except IsADirectoryError:
        return False
    return True


class _Removal:
    def __init__(self, descent: Descent, check: Callable[[], None]) -> None:
        self._descent = descent
        self._check = check
        self._returns = 0
        self._pending: list[list[bytes]] = []

    def run(self, name: bytes) -> None:
        """Remove the directory `name` of the descent's top."""
        self._enter(name)
        while self._pending:
            self._check()
            if self._pending[-1]:
                self._enter(self._pending[-1].pop())
            elif subdirectories := self._empty():
                self._pending[-1] = subdirectories
            else:
                self._leave()

    def _enter(self, name: bytes) -> None:
        try:
            self._descent.down(name)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _NOT_A_DIRECTORY:
                raise
            self._count_return()
            self._remove_swapped(name)
        else:
            self._pending.append([])

    def _remove_swapped(self, name: bytes) -> None:
        """Remove what was a directory a moment ago; if it is one again, the next reading finds it."""
        try:
            os.unlink(name, dir_fd=self._descent.fd)
        except (FileNotFoundError, IsADirectoryError):
            pass

    def _empty(self) -> list[bytes]:
        """Unlink what the lowest directory holds but directories; return some of those."""
        # Deep levels take small batches, so that what waits at all levels together stays small.
        batch = _BATCH if self._descent.depth < 64 else 1
        subdirectories: list[bytes] = []
        with os.scandir(self._descent.fd) as entries:
            for entry in entries:
                self._check()
                name = os.fsencode(entry.name)
                if entry.is_dir(follow_symlinks=False) or not self._unlink_seen(name):
                    subdirectories.append(name)
                if len(subdirectories) >= batch:
                    break
        return subdirectories

    def _unlink_seen(self, name: bytes) -> bool:
        try:
            return _unlink(self._descent.fd, name)
        except FileNotFoundError:
            return True

    def _leave(self) -> None:
        name = self._descent.up()
        self._pending.pop()
        try:
            os.rmdir(name, dir_fd=self._descent.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            self._count_return()
            self._enter(name)

    def _count_return(self) -> None:
        self._returns += 1
        if self._returns > MAXIMUM_RETURNS:
            raise ConflictError(
                "the sandbox keeps changing the directory that is being removed",
                resolution="end its processes first, then remove again",
            )
