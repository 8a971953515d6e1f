"""The trash of a store: things leave by one rename and are removed by a thread of the store.

Destroying a tree takes time in proportion to its cached files (200 ms for 1 GiB just written), and the kernel holds the
parent directory's lock meanwhile. So the thread moves each thing on into a second directory first: whoever
discards next needs the lock of the first only. What a killed process left in either is taken up at the next open.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from dsec.state import tree

_log = structlog.get_logger(__name__)

Remove = Callable[[int, str, Callable[[], bool]], bool]
"""Remove an entry of a directory; ask now and then whether to stop; say whether it is gone."""


def remove_tree(parent_fd: int, name: str, stopping: Callable[[], bool]) -> bool:
    """Remove a plain directory tree."""
    fd = os.open(name, tree.DIRECTORY, dir_fd=parent_fd)
    try:
        done = tree.empty(fd, stopping)
    finally:
        os.close(fd)
    if done:
        os.rmdir(name, dir_fd=parent_fd)
    return done


class Trash:
    """What was discarded and is not gone yet. Thread-safe.

    Args:
        root: directory on the file system of what is discarded; `trash` and `removing` are made there.
        remove: removes one thing, in this object's thread.
    """

    def __init__(self, root: Path, remove: Remove) -> None:
        self._remove = remove
        self._trash_fd = _open_private(root / "trash")
        self._removing_fd = _open_private(root / "removing")
        self._queue = deque(tree.names(self._trash_fd))
        self._begun = deque(tree.names(self._removing_fd))
        self._changed = threading.Condition()
        self._stopping = False
        self._busy = False
        self._thread = threading.Thread(target=self._work, name="dsec-trash", daemon=True)
        self._thread.start()

    def put(self, parent_fd: int, name: str) -> bool:
        """Take the entry `name` of a directory; return at once. False when there is no such entry."""
        token = secrets.token_hex(12)
        try:
            os.rename(name, token, src_dir_fd=parent_fd, dst_dir_fd=self._trash_fd)
        except FileNotFoundError:
            return False
        with self._changed:
            self._queue.append(token)
            self._changed.notify_all()
        return True

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until all that was put here has been dealt with."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._busy or self._queue or self._begun), timeout_s)

    def close(self) -> None:
        """Stop within one step of the work; the rest is taken up at the next open."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        os.close(self._trash_fd)
        os.close(self._removing_fd)

    def _next(self) -> str | None:
        """Wait for work and return the name of an entry of `removing`; None to stop."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping or self._begun or self._queue)
            if self._stopping:
                return None
            self._busy = True
            if self._begun:
                return self._begun.popleft()
            name = self._queue.popleft()
        os.rename(name, name, src_dir_fd=self._trash_fd, dst_dir_fd=self._removing_fd)
        return name

    def _work(self) -> None:
        while (name := self._next()) is not None:
            try:
                self._remove(self._removing_fd, name, lambda: self._stopping)
            except OSError as error:
                # It stays where it is and is tried again at the next open: nothing waits for it.
                _log.warning("discarded layer cannot be removed", entry=name, error=str(error))


def _open_private(path: Path) -> int:
    path.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, tree.DIRECTORY)
