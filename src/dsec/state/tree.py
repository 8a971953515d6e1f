"""Walk, measure and empty directory trees that a hostile guest wrote.

Three dangers, one answer each:

- *Links out.* Every step is one name below an open directory, opened with O_NOFOLLOW: no path is ever resolved.
- *Depth.* A guest can nest deeper than any path, stack or descriptor limit. Walking keeps one descriptor and goes up
  by ``..``, checked against the identity of the directory it came from. Emptying does not go down at all: it moves
  each subdirectory up into the root of the tree (*flattening*), where every directory is at depth one.
- *Number.* Entries are streamed. Flattening keeps its progress in the tree itself: after a kill it simply goes on.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dsec.linux import inodes

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH = 1000
_WALK_ATTEMPTS = 3


class Cursor:
    """One open directory that moves through a tree. Owns its descriptor; close it."""

    def __init__(self, root_fd: int) -> None:
        self.fd = os.open(".", DIRECTORY, dir_fd=root_fd)
        self._above: list[tuple[int, int]] = []

    def enter(self, name: str) -> None:
        """Go down into a subdirectory."""
        below = os.open(name, DIRECTORY, dir_fd=self.fd)
        self._above.append(self._identity())
        self._move(below)

    def leave(self) -> None:
        """Go back up. Raises OSError with ESTALE if somebody moved the directory meanwhile."""
        self._move(os.open("..", DIRECTORY, dir_fd=self.fd))
        if self._identity() != self._above.pop():
            raise OSError(errno.ESTALE, "the directory was moved while it was walked")

    def close(self) -> None:
        os.close(self.fd)

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino


@contextmanager
def listing(fd: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    """List a directory through a descriptor of its own.

    The given one would share its position with other threads, and on btrfs it shows no entry made since it was last
    rewound.
    """
    own = os.open(".", DIRECTORY, dir_fd=fd)
    try:
        with os.scandir(own) as entries:
            yield entries
    finally:
        os.close(own)


def names(fd: int) -> list[str]:
    """Return the names of a directory's entries."""
    with listing(fd) as entries:
        return [entry.name for entry in entries]


def disk_usage(root_fd: int) -> int:
    """Return the bytes that a tree's blocks take; hard links count once.

    A guest may write meanwhile: what vanishes is not counted, and if it keeps moving directories the result is a
    lower bound.
    """
    total = 0
    for _ in range(_WALK_ATTEMPTS):
        total = 0
        try:
            for status in _statuses(root_fd):
                total += status.st_blocks * 512
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        else:
            break
    return total


def _statuses(root_fd: int) -> Iterator[os.stat_result]:
    """Yield the status of every inode below `root_fd` once."""
    linked: set[tuple[int, int]] = set()
    cursor = Cursor(root_fd)
    try:
        pending = [_subdirectories(cursor.fd)]
        yield from _files(cursor.fd, linked)
        while pending:
            if not pending[-1]:
                pending.pop()
                if pending:
                    cursor.leave()
                continue
            if _try_enter(cursor, pending[-1].pop()):
                yield os.fstat(cursor.fd)
                yield from _files(cursor.fd, linked)
                pending.append(_subdirectories(cursor.fd))
    finally:
        cursor.close()


def _try_enter(cursor: Cursor, name: str) -> bool:
    try:
        cursor.enter(name)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            return False  # Gone, or replaced by something else, since it was listed; or not ours to read.
        raise
    return True


def _subdirectories(fd: int) -> list[str]:
    with listing(fd) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _files(fd: int, linked: set[tuple[int, int]]) -> Iterator[os.stat_result]:
    with listing(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            identity = (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and identity in linked:
                continue
            if status.st_nlink > 1:
                linked.add(identity)
            yield status


def _never() -> bool:
    return False


def empty(root_fd: int, stopping: Callable[[], bool] = _never) -> bool:
    """Remove everything below `root_fd`.

    Args:
        root_fd: the directory to empty; it stays.
        stopping: asked after at most 1,000 removals; the work ends there and can be taken up again.

    Returns:
        True when the directory is empty, False when it was told to stop.
    """
    while found := _some_names(root_fd):
        removed = 0
        for name, is_directory in found:
            if stopping():
                return False
            if is_directory:
                removed += _dissolve(root_fd, name, stopping)
            else:
                removed += _unlink(root_fd, name)
        if not removed:
            raise OSError(errno.ENOTEMPTY, f"cannot remove {found[0][0]!r} and {len(found) - 1} more")
    return True


def _some_names(fd: int) -> list[tuple[str, bool]]:
    """Return up to a batch of entries and whether they are directories."""
    found: list[tuple[str, bool]] = []
    with listing(fd) as entries:
        for entry in entries:
            found.append((entry.name, entry.is_dir(follow_symlinks=False)))
            if len(found) >= _BATCH:
                break
    return found


def _dissolve(root_fd: int, name: str, stopping: Callable[[], bool]) -> int:
    """Unlink a directory's files, move its subdirectories up to the root, remove it. Returns how much was done."""
    if _remove_directory(root_fd, name):
        return 1
    fd = _open_directory(root_fd, name)
    done = 0
    try:
        while entries := _some_names(fd):
            if stopping():
                return done + 1
            moved = sum(
                _move_up(fd, entry, root_fd, stopping) if is_directory else _unlink(fd, entry)
                for entry, is_directory in entries
            )
            done += moved
            if not moved:
                return done
    finally:
        os.close(fd)
    return done + _remove_directory(root_fd, name)


def _move_up(fd: int, name: str, root_fd: int, stopping: Callable[[], bool]) -> int:
    if _remove_directory(fd, name):
        return 1
    try:
        _insist(fd, name, lambda: os.rename(name, secrets.token_hex(12), src_dir_fd=fd, dst_dir_fd=root_fd))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return _empty_foreign(fd, name, stopping)
    return 1


def _empty_foreign(fd: int, name: str, stopping: Callable[[], bool]) -> int:
    """Empty a directory that is the root of another subvolume, from which nothing can be moved out."""
    inner = _open_directory(fd, name)
    try:
        empty(inner, stopping)
    finally:
        os.close(inner)
    return int(_remove_directory(fd, name))


def _remove_directory(fd: int, name: str) -> bool:
    """Remove an empty directory; say whether it was."""
    try:
        _insist(fd, name, lambda: os.rmdir(name, dir_fd=fd))
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            return False
        raise
    return True


def _unlink(fd: int, name: str) -> int:
    try:
        _insist(fd, name, lambda: os.unlink(name, dir_fd=fd))
    except FileNotFoundError:
        return 0
    return 1


def _insist(fd: int, name: str, act: Callable[[], None]) -> None:
    """Do `act` on an entry, once more after taking off what protects the entry or its directory."""
    try:
        act()
    except PermissionError:
        _unprotect(fd)
        _unprotect_entry(fd, name)
        act()


def _open_directory(fd: int, name: str) -> int:
    try:
        return os.open(name, DIRECTORY, dir_fd=fd)
    except PermissionError:
        os.chmod(name, stat.S_IRWXU, dir_fd=fd)  # A directory was listed here, in a tree that nobody changes now.
        return os.open(name, DIRECTORY, dir_fd=fd)


def _unprotect(fd: int) -> None:
    inodes.change_flags(fd, remove=inodes.IMMUTABLE | inodes.APPEND)
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(fd, stat.S_IRWXU)


def _unprotect_entry(fd: int, name: str) -> None:
    """Take flags off a file or directory; other kinds have none, and opening them could have effects."""
    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        entry = _open_directory(fd, name)
    elif stat.S_ISREG(status.st_mode):
        entry = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    else:
        return
    try:
        _unprotect(entry)
    finally:
        os.close(entry)
