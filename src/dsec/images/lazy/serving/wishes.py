"""What is to be brought before it is read, kept for the server that follows one that was killed.

A file for each owner, without a sync: what is lost with the host is nobody's wish any more. A disk that is full keeps
nothing, and who reads then waits for it as if nobody had wished.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

from dsec.images.durable import write_atomically
from dsec.images.lazy.serving.daemon_wire import Prefetch
from dsec.images.staging import remove_tree

_MOST = 1024
"""Owners who vanish without a word leave theirs; the oldest go."""


class Wishes:
    """The wishes of a directory. Methods may be called from any thread.

    Args:
        root: the directory; made when the first wish is.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, wish: Prefetch) -> None:
        """Keep an owner's wish, in place of the one before."""
        with contextlib.suppress(OSError):
            self._root.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self._path(wish.owner), msgspec.json.encode(wish), durably=False)
            for path in self._oldest_first()[:-_MOST]:
                path.unlink(missing_ok=True)

    def forget(self, owner: str) -> None:
        """Keep nothing for an owner. Idempotent."""
        with contextlib.suppress(OSError):
            self._path(owner).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget all."""
        remove_tree(self._root)

    def all(self) -> list[Prefetch]:
        """Return what is kept, the oldest first; what is damaged is left out."""
        found = []
        for path in self._oldest_first():
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(path.read_bytes(), type=Prefetch))
        return found

    def _path(self, owner: str) -> Path:
        return self._root / f"{hashlib.blake2b(owner.encode(), digest_size=16).hexdigest()}.json"

    def _oldest_first(self) -> list[Path]:
        times = []
        for path in self._root.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # It was forgotten meanwhile.
                times.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(times)]
