"""A file without a name that packed rounds are put into, so that they take no memory of the process.

It is gone with the process, and nothing depends on it: rounds are in the log. What is put there was just written and
comes from the page cache when a decision needs it, which the kernel takes for something else when it has to.
"""

from __future__ import annotations

import os
from pathlib import Path

from dsec.base.units import MIB

_SLACK_BYTES = 4 * MIB
Place = tuple[int, int]
"""Offset and length."""


class Spill:
    """Takes blocks and gives them back, in any order; blocks are let go of from the oldest on.

    Args:
        directory: on whose file system the file is.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1
        self._end = 0

    def put(self, block: bytes) -> Place | None:
        """Put a block at the end; None: there is no room, or no such file can be had."""
        try:
            if self._descriptor < 0:
                flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
                self._descriptor = os.open(self._directory, flags, 0o600)
            if os.pwrite(self._descriptor, block, self._end) < len(block):
                return None
        except OSError:
            return None
        place = self._end, len(block)
        self._end += len(block)
        return place

    def get(self, place: Place) -> bytes:
        """Return a block."""
        offset, length = place
        return os.pread(self._descriptor, length, offset)

    def wants_room(self, oldest: Place) -> bool:
        """Whether so much was let go of in front of the oldest block that it should be put together anew."""
        return oldest[0] > _SLACK_BYTES

    def clear(self) -> None:
        """Let go of all blocks."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
        self._end = 0

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
