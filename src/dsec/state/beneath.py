"""Open entries of a tree by their path from its top, however long, through no link and on no other mount."""

from __future__ import annotations

import os

from dsec.linux.openat2 import open_child

_STEP_BYTES = 4000
"""The kernel resolves paths of up to 4,095 bytes in one call (PATH_MAX); a guest can nest deeper."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def open_beneath(top_fd: int, path: bytes, flags: int) -> int:
    """Open an entry; the empty path is the top itself.

    Raises:
        OSError: there is none; a link or a mount point stands in the way (ELOOP, EXDEV).
    """
    directory_fd = top_fd
    try:
        while len(path) > _STEP_BYTES:
            end = path.rindex(b"/", 0, _STEP_BYTES)
            directory_fd = _replace(directory_fd, open_child(directory_fd, path[:end], DIRECTORY), keep=top_fd)
            path = path[end + 1 :]
        return open_child(directory_fd, path or b".", flags)
    finally:
        if directory_fd != top_fd:
            os.close(directory_fd)


def _replace(old: int, new: int, *, keep: int) -> int:
    if old != keep:
        os.close(old)
    return new


class OpenDirectory:
    """The directory used last, kept open: entries are mostly asked for directory by directory.

    Args:
        top_fd: top of the tree; the caller's.
    """

    def __init__(self, top_fd: int) -> None:
        self._top_fd = top_fd
        self._path: bytes | None = None
        self._fd = -1
        self._failure: OSError | None = None

    def of(self, path: bytes) -> tuple[int, bytes]:
        """Return the directory that holds a path, open until the next call, and the path's name in it."""
        directory, _, name = path.rpartition(b"/")
        return self.at(directory), name or b"."

    def at(self, directory: bytes) -> int:
        """Return a directory, open until the next call. One that cannot be opened is tried once while it is asked for
        again and again."""
        if directory != self._path:
            self.close()
            try:
                self._fd = open_beneath(self._top_fd, directory, DIRECTORY)
            except OSError as error:
                self._failure = error
            self._path = directory
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror)
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._path, self._failure = -1, None, None
