"""Contents of chunks that were written a moment ago, for the reads that follow at once.

A chunk is written past the page cache (`dsec.linux.direct_io`), so that nothing of it is in memory afterwards but this.
Programs read most of what they read of a chunk soon after its first byte; whoever comes later has the kernel read it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

_LIMIT_BYTES = 64 << 20
_Key = tuple[str, int]
"""Name of a layer's manifest, and the number of the chunk."""


class RecentChunks:
    """Chunks of the layers of one cache. Its methods may be called from any thread.

    Args:
        limit_bytes: bound on their contents; the oldest go first.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._contents: OrderedDict[_Key, bytes] = OrderedDict()
        self._held_bytes = 0
        self._aged: set[_Key] = set()

    def put(self, manifest_id: str, position: int, content: bytes) -> None:
        """Remember a chunk that is on the disk."""
        with self._lock:
            self._drop((manifest_id, position))
            self._contents[(manifest_id, position)] = content
            self._held_bytes += len(content)
            while self._held_bytes > self._limit_bytes:
                self._drop(next(iter(self._contents)))

    def get(self, manifest_id: str, position: int) -> bytes | None:
        """Return a chunk's content, if it is remembered."""
        return self._contents.get((manifest_id, position))

    def age(self) -> None:
        """Forget what was there when this was called last."""
        with self._lock:
            for key in list(self._aged):
                self._drop(key)
            self._aged = set(self._contents)

    def _drop(self, key: _Key) -> None:
        self._held_bytes -= len(self._contents.pop(key, b""))
        self._aged.discard(key)
