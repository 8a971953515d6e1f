"""The trash of a store: things leave by one rename and are removed by a thread of the store.

Destroying a tree takes time in proportion to its cached files (200 ms for 1 GiB just written), and the kernel holds the
parent directory's lock meanwhile. So the thread moves each thing on into a second directory first: whoever
discards next needs the lock of the first only. What a killed process left in either is taken up at the next open.

What cannot be removed now is tried again, and so is what can be done only a while after a removal (`finish`): first
after a second, and ever more seldom while nothing comes of it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from dsec.state import tree

_log = structlog.get_logger(__name__)

Remove = Callable[[int, str, Callable[[], bool]], bool]
"""Remove an entry of a directory; ask now and then whether to stop; say whether it is gone."""

Finish = Callable[[], bool]
"""Do what earlier removals left to be done, as far as it can be done now; say whether nothing is left of it."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 64.0


def remove_tree(parent_fd: int, name: str, stopping: Callable[[], bool]) -> bool:
    """Remove a plain directory tree."""
    try:
        fd = os.open(name, tree.DIRECTORY, dir_fd=parent_fd)
    except FileNotFoundError:
        return True
    try:
        done = tree.empty(fd, stopping)
    finally:
        os.close(fd)
    if done:
        os.rmdir(name, dir_fd=parent_fd)
    return done


def nothing_to_finish() -> bool:
    """Be the `Finish` of a store whose removals leave nothing to be done."""
    return True


class Trash:
    """What was discarded and is not gone yet. Thread-safe.

    Args:
        root: directory on the file system of what is discarded; `trash` and `removing` are made there.
        remove: removes one thing, in this object's thread.
        finish: called in this object's thread a while after each removal, until it says that all is done.
        first_pause_s: after a removal, or after the first failure of one; doubled until `LONGEST_PAUSE_S`.
    """

    def __init__(
        self, root: Path, remove: Remove, finish: Finish = nothing_to_finish, *, first_pause_s: float = FIRST_PAUSE_S
    ) -> None:
        self._remove = remove
        self._finish = finish
        self._trash_fd = _open_private(root / "trash")
        self._removing_fd = _open_private(root / "removing")
        self._queue = deque((fd, name) for fd in (self._removing_fd, self._trash_fd) for name in tree.names(fd))
        self._failed: list[tuple[int, str]] = []
        self._told: set[str] = set()
        self._again = _Again(first_pause_s)
        self._again.soon()  # Also of what an earlier process left to be finished.
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
        self._enqueue(self._trash_fd, token)
        return True

    def put_unpublished(self, parent_fd: int, name: str) -> None:
        """Take the entry `name`, if there is one, of a directory that is open for longer than this; return at once.

        Nobody may know it by that name: what cannot be moved here is removed where it lies, by and by.
        """
        try:
            self.put(parent_fd, name)
        except OSError:
            self._enqueue(parent_fd, name)

    def _enqueue(self, parent_fd: int, name: str) -> None:
        with self._changed:
            self._queue.append((parent_fd, name))
            self._changed.notify_all()

    def remove_at_once(self, parent_fd: int, name: str) -> None:
        """Remove the entry `name` of a directory that cannot be moved here, in the caller's thread."""
        self._remove(parent_fd, name, _never)
        with self._changed:
            self._again.soon()
            self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until all that was put here is removed, for at most so long and while nobody closes this.

        Returns:
            False when something is left, which this goes on with, or whoever opens the store next.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._is_empty(), timeout_s)
            return self._is_empty()

    def close(self) -> None:
        """Stop within one step of the work; the rest is taken up at the next open."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        os.close(self._trash_fd)
        os.close(self._removing_fd)

    def _is_empty(self) -> bool:
        return not (self._busy or self._queue or self._failed)

    def _work(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        """Wait for work; None to stop."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._stopping:
                if self._again.is_due():  # Before removals: there may always be one.
                    return self._try_again
                if self._queue:
                    self._busy = True
                    return self._remove_next
                self._changed.wait(self._again.pause_s())
            return None

    def _remove_next(self) -> None:
        with self._changed:
            parent_fd, name = self._queue.popleft()
        if parent_fd == self._trash_fd:
            parent_fd = self._moved_on(name)
        try:
            gone = self._remove(parent_fd, name, lambda: self._stopping)
        except OSError as error:
            if name not in self._told:
                self._told.add(name)
                _log.warning("discarded layer cannot be removed yet", entry=name, error=str(error))
            gone = False
        with self._changed:
            if gone:
                self._told.discard(name)
                self._again.soon()
            else:
                self._failed.append((parent_fd, name))
                self._again.some_time()

    def _moved_on(self, name: str) -> int:
        """Move an entry of `trash` on into `removing`; return the directory in which it lies now."""
        try:
            os.rename(name, name, src_dir_fd=self._trash_fd, dst_dir_fd=self._removing_fd)
        except OSError:
            return self._trash_fd  # A full file system has no room for a rename, but always for a removal.
        return self._removing_fd

    def _try_again(self) -> None:
        with self._changed:
            self._again.later()
            self._queue.extend(self._failed)
            is_all = not self._failed
            self._failed.clear()
        try:
            is_all &= self._finish()
        except OSError as error:
            _log.warning("a removal cannot be finished yet", error=str(error))
            return
        with self._changed:
            if is_all:
                self._again.never()


class _Again:
    """When to try again. Not thread-safe."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._pause_s = first_s
        self._due: float | None = None
        self._is_changed = False

    def soon(self) -> None:
        """Something has changed; but what changes all the time puts nothing off."""
        self._is_changed = True
        self._pause_s = self._first_s
        due = time.monotonic() + self._first_s
        self._due = due if self._due is None else min(self._due, due)

    def some_time(self) -> None:
        """Something is left."""
        if self._due is None:
            self.soon()

    def later(self) -> None:
        """It is being tried."""
        self._is_changed = False
        self._due = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def never(self) -> None:
        """Nothing was left of what had changed when it was tried."""
        if not self._is_changed:
            self._due = None

    def is_due(self) -> bool:
        return self._due is not None and time.monotonic() >= self._due

    def pause_s(self) -> float | None:
        """How long until then; None: for ever."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())


def _never() -> bool:
    return False


def _open_private(path: Path) -> int:
    path.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, tree.DIRECTORY)
