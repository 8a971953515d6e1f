"""Work in progress of an image store, and what keeps it from being swept away.

Every piece of work has a directory and a lock file beside it. The lock is held by the process that works, and by
the programs it started; the kernel lets go when the last of them is dead. Whoever opens the store sweeps the
directories whose lock nobody holds. `Pins` uses the same idea for layers that are stored but not named yet.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dsec.images.durable import exclusive, try_lock
from dsec.linux import mounts


@dataclass(frozen=True, slots=True)
class WorkDirectory:
    """A private directory that vanishes with its user.

    Attributes:
        path: the directory.
        lock_fd: the descriptor that protects it; pass it to programs that work in it.
    """

    path: Path
    lock_fd: int


class Staging:
    """The directory of work in progress.

    Args:
        root: the directory.
        lock: the store's writer lock; a directory and its lock file are made and swept under it.
    """

    def __init__(self, root: Path, lock: Path) -> None:
        self._root = root
        self._lock = lock

    @contextmanager
    def directory(self) -> Iterator[WorkDirectory]:
        """Make a work directory for the duration of the block."""
        path = self._root / secrets.token_hex(8)
        with exclusive(self._lock):
            lock_fd = _new_locked_file(_lock_file(path))
            path.mkdir(mode=0o700)
        try:
            yield WorkDirectory(path, lock_fd)
        finally:
            _discard(path)
            os.close(lock_fd)

    def sweep(self) -> None:
        """Remove the directories of dead workers. The caller holds the writer lock."""
        for lock_file in self._root.glob("*.lock"):
            try:
                fd = try_lock(lock_file)
            except FileNotFoundError:
                continue  # Who is done takes it away without the writer lock.
            if fd is not None:
                _discard(lock_file.with_suffix(""))
                os.close(fd)


def _lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _new_locked_file(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def _discard(path: Path) -> None:
    """Remove a work directory. What cannot be removed yet keeps its lock file, so that a later sweep tries again."""
    remove_tree(path)
    if not path.exists():
        _lock_file(path).unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory with all below it, unmounting first what is mounted there; or what is there in its place, such
    as a link, whose target stays. What cannot be removed stays without a word.
    """
    for entry in list(mounts.mounts_under(path)):
        mounts.unmount(entry.target, detach=True)
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, onerror=lambda *_: None)


class Pins:
    """Layers that this process has stored and not named yet; nobody collects them while it lives.

    Args:
        root: directory of the pin files of all processes. Methods are called under the writer lock.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / secrets.token_hex(8)
        self._fd: int | None = None
        self._digests: list[str] = []

    def add(self, digest: str) -> None:
        """Protect a layer."""
        if self._fd is None:
            self._fd = _new_locked_file(self._path)
        self._digests.append(digest)
        try:
            self._write()
        except OSError:
            self._digests.remove(digest)
            raise

    def drop(self, digests: Sequence[str]) -> None:
        """Let go of layers: each once, so that two uses of one layer are two pins."""
        for digest in digests:
            if digest in self._digests:
                self._digests.remove(digest)
        try:
            self._write()
        except OSError:
            # On a full disk the file protects what it did before, which is more than is needed.
            pass

    def _write(self) -> None:
        if self._fd is None:
            return
        data = "".join(f"{digest}\n" for digest in self._digests).encode()
        # In this order, so that a full disk takes nothing away.
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        if self._fd is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None

    def pinned(self) -> frozenset[str]:
        """Return what live processes protect, and remove the pin files of dead ones."""
        found: set[str] = set()
        for path in self._root.iterdir():
            fd = try_lock(path)
            if fd is None:
                found.update(path.read_text().split())
            else:
                path.unlink(missing_ok=True)
                os.close(fd)
        return frozenset(found)
