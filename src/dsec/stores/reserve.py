"""A little room on a disk, kept for what makes room.

On a disk that is full a node could not even remove a sandbox: the journal has to be told, and cannot grow. So a file
lies beside it that is of no use but its size; a write that ends something may take its place. It is made again when
there is room.
"""

from __future__ import annotations

import os
from pathlib import Path


class DiskReserve:
    """One file of a fixed size. Its methods block for a moment; none raises.

    Args:
        path: where it lies; on the disk whose room it keeps.
        size_bytes: how much.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._is_kept = False

    def keep(self) -> None:
        """Take the room, unless that is done or there is none."""
        if self._is_kept:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(fd, 0, self._size_bytes)
            self._is_kept = True
        except OSError:
            # What was got of it would only be missing elsewhere.
            self.spend()
        finally:
            os.close(fd)

    def spend(self) -> None:
        """Give the room back."""
        self._is_kept = False
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            pass  # Then there is none to be had.
