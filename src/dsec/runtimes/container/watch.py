"""Watch a directory of a sandbox from outside with inotify(7).

The watch is put on the very inode of the sandbox's overlay that the guest works with, so that the kernel tells about
the guest's changes and ours alike. A recursive watch is one watch per directory, added as directories appear; what was
made in a new directory before its watch stood is found by reading it and told as created (perhaps twice).

Memory is bounded: events wait in the kernel's queue until they are asked for, and what does not fit there, or needs
more than `MAXIMUM_WATCHES`, is told as one OVERFLOW.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from types import TracebackType

import anyio

from dsec.base.errors import InvalidStateError, LimitExceededError, SandboxExitedError
from dsec.linux import inotify
from dsec.linux.openat2 import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)
from dsec.model.files import FileChange, FileChangeKind
from dsec.runtimes.container.access import Access
from dsec.runtimes.container.file_errors import show
from dsec.runtimes.container.root import open_directory
from dsec.runtimes.container.users import ResolvedUser

MAXIMUM_WATCHES = 8192
"""Directories under one watch. A watch costs the kernel about 1 KiB."""

MAXIMUM_FOUND = 10_000
"""Entries told for directories that appeared with their content in one reading."""

_MASK = (
    inotify.IN_CREATE | inotify.IN_DELETE | inotify.IN_MODIFY | inotify.IN_MOVED_FROM | inotify.IN_MOVED_TO
    | inotify.IN_DELETE_SELF | inotify.IN_ONLYDIR
)  # fmt: skip
_KINDS = (
    (inotify.IN_CREATE, FileChangeKind.CREATED),
    (inotify.IN_MOVED_TO, FileChangeKind.CREATED),
    (inotify.IN_MOVED_FROM, FileChangeKind.MOVED),
    (inotify.IN_DELETE, FileChangeKind.REMOVED),
    (inotify.IN_MODIFY, FileChangeKind.MODIFIED),
)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_BELOW = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES, errno.EINVAL, errno.EBADF})
_NO_MORE = frozenset({errno.ENOSPC, errno.EMFILE})
_OVERFLOW = FileChange(kind=FileChangeKind.OVERFLOW, path="")


class WatchTree:
    """The watches of one directory and, if `recursive`, of those below it. Blocking; used by one thread at a time.

    The directory is opened only for the moments of adding watches: the kernel tells that a directory is gone when its
    last descriptor is.

    Args:
        root_fd: the sandbox's root.
        path: the directory in it.
        check: called for every directory; raises to stop.
    """

    def __init__(self, root_fd: int, path: bytes, *, recursive: bool, check: Callable[[], None]) -> None:
        self._top = path
        self._top_fd = open_directory(root_fd, path)
        self._recursive = recursive
        self._check = check
        self._paths: dict[int, bytes] = {}
        self.finished = False
        """Whether the directory itself is gone."""
        self.fd = -1
        try:
            self.fd = _new_instance()
            self._top_watch = inotify.add_watch(self.fd, self._top_fd, _MASK)
            self._paths[self._top_watch] = b""
            if recursive and not self._add_below(b"", None):
                raise LimitExceededError(
                    f"more than {MAXIMUM_WATCHES} directories to watch", resolution="watch a smaller directory"
                )
        except BaseException:
            self.close()
            raise
        finally:
            self._close_top()

    def close(self) -> None:
        """End the watches."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _close_top(self) -> None:
        if self._top_fd >= 0:
            os.close(self._top_fd)
            self._top_fd = -1

    @property
    def recursive(self) -> bool:
        return self._recursive

    def changes(self, data: bytes, root_fd: int) -> list[FileChange]:
        """Return what the events of one reading say, without immediate repetitions. Follows new directories."""
        try:
            self._top_fd = open_directory(root_fd, self._top)
        except OSError as error:
            if not _is_gone(error):
                raise
        try:
            return self.translate(data)
        finally:
            self._close_top()

    def translate(self, data: bytes) -> list[FileChange]:
        """As `changes`, for a watch that is not recursive; does not touch files."""
        found: list[FileChange] = []
        for event in inotify.parse(data):
            for change in self._changes_of(event):
                if not found or found[-1] != change:
                    found.append(change)
        return found

    def _changes_of(self, event: inotify.InotifyEvent) -> list[FileChange]:
        if event.mask & inotify.IN_Q_OVERFLOW:
            return [_OVERFLOW]
        if event.mask & (inotify.IN_IGNORED | inotify.IN_UNMOUNT):
            self._paths.pop(event.watch, None)
            self.finished = self.finished or event.watch == self._top_watch
            return []
        directory = self._paths.get(event.watch)
        kind = next((kind for bit, kind in _KINDS if event.mask & bit), None)
        if directory is None or kind is None:
            return []
        path = directory + b"/" + event.name if directory else event.name
        changes = [_change(kind, path)]
        if self._recursive and event.mask & inotify.IN_ISDIR:
            self._follow_directory(kind, path, changes)
        return changes

    def _follow_directory(self, kind: FileChangeKind, path: bytes, changes: list[FileChange]) -> None:
        if kind is FileChangeKind.CREATED:
            if not self._add(path) or not self._add_below(path, changes):
                changes.append(_OVERFLOW)
        elif kind is FileChangeKind.MOVED:
            self._drop(path)

    def _drop(self, path: bytes) -> None:
        """End the watches of a directory that moved away, and of those below it."""
        below = path + b"/"
        for watch, known in list(self._paths.items()):
            if known == path or known.startswith(below):
                del self._paths[watch]
                try:
                    inotify.remove_watch(self.fd, watch)
                except OSError:
                    pass  # It was removed with its directory.

    def _add(self, path: bytes) -> bool:
        """Watch one directory; return False past the bound. A directory that is gone already is no error."""
        if len(self._paths) >= MAXIMUM_WATCHES:
            return False
        try:
            fd = openat2(self._top_fd, path, _DIRECTORY, resolve=_BELOW)
        except OSError as error:
            return _is_gone(error)
        try:
            self._paths[inotify.add_watch(self.fd, fd, _MASK)] = path
        except OSError as error:
            return _is_gone(error)
        finally:
            os.close(fd)
        return True

    def _add_below(self, path: bytes, found: list[FileChange] | None) -> bool:
        """Watch all directories below one; tell the entries seen to `found`, if given. Return False past a bound."""
        waiting = [path]
        while waiting:
            self._check()
            for name, is_directory in self._entries(waiting.pop()):
                if found is not None:
                    found.append(_change(FileChangeKind.CREATED, name))
                    if len(found) > MAXIMUM_FOUND:
                        return False
                if is_directory:
                    if not self._add(name):
                        return False
                    waiting.append(name)
        return True

    def _entries(self, path: bytes) -> list[tuple[bytes, bool]]:
        """Return the paths below a directory and whether each is a directory; those only when nothing else is told."""
        try:
            fd = openat2(self._top_fd, path or b".", _DIRECTORY, resolve=_BELOW)
        except OSError as error:
            if not _is_gone(error):
                raise
            return []
        entries: list[tuple[bytes, bool]] = []
        try:
            with os.scandir(fd) as listed:
                for entry in listed:
                    self._check()
                    name = os.fsencode(entry.name)
                    entries.append((path + b"/" + name if path else name, entry.is_dir(follow_symlinks=False)))
                    if len(entries) > MAXIMUM_FOUND + MAXIMUM_WATCHES:
                        break
        finally:
            os.close(fd)
        return entries


def _is_gone(error: OSError) -> bool:
    """Return True for a directory that is gone or closed to the user, False for an exhausted limit."""
    if error.errno in _GONE:
        return True
    if error.errno in _NO_MORE:
        return False
    raise error


def _change(kind: FileChangeKind, path: bytes) -> FileChange:
    return FileChange(kind=kind, path=path.decode("utf-8", "replace"))


def _new_instance() -> int:
    try:
        return inotify.init()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise LimitExceededError(
            "this host allows no more directories to be watched at once",
            detail="inotify_init1: EMFILE",
            resolution="raise fs.inotify.max_user_instances, or end other watches",
        ) from error


class InotifyEvents:
    """The port's `FileEvents` over a `WatchTree`. Iteration ends when the directory itself is removed."""

    def __init__(self, access: Access, user: ResolvedUser, path: bytes, tree: WatchTree) -> None:
        self._access, self._user, self._path, self._tree = access, user, path, tree
        self._pending: deque[FileChange] = deque()
        self._closed = False

    async def __aenter__(self) -> InotifyEvents:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the watch and wake who waits for it. Idempotent; from the event loop's thread."""
        if not self._closed:
            self._closed = True
            anyio.notify_closing(self._tree.fd)
            self._tree.close()

    def __aiter__(self) -> InotifyEvents:
        return self

    async def __anext__(self) -> FileChange:
        while not self._pending:
            if self._tree.finished:
                raise StopAsyncIteration
            await self._read()
        return self._pending.popleft()

    async def _read(self) -> None:
        self._check_open()
        try:
            await anyio.wait_readable(self._tree.fd)
        except anyio.ClosedResourceError as error:
            self._check_open()
            raise SandboxExitedError("the watch has ended") from error
        self._check_open()
        try:
            data = os.read(self._tree.fd, inotify.READ_BYTES)
        except BlockingIOError:
            return
        if self._tree.recursive:
            changes = await self._access.run(self._user, self._path, lambda root: self._tree.changes(data, root))
        else:
            changes = self._tree.translate(data)
        self._pending.extend(changes)

    def _check_open(self) -> None:
        self._access.root.check_alive()
        if self._closed:
            raise InvalidStateError(f"the watch of {show(self._path)} is closed", resolution="open another one")
