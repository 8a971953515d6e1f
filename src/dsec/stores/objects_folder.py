"""Objects in a local folder: the store of a single node, or of several on a shared file system.

A put writes a file of its own beside the object's place, syncs it, gives it the object's name in one step, and syncs
the directory; only then is it acknowledged (rename(2), link(2), fsync(2)). So an object is whole under its name or not
there, at whatever instruction the process is killed and, on a file system that keeps what was synced, when the power
goes. `link` refuses a name that exists, which makes *put if absent* one step too.

obstore's folder store has the first and the third step and neither sync (its `put` returns with the data in the page
cache), so this driver does the work itself. Its names for puts under way begin with ``.put-``, which no key does; they
are flocked while they are written, and opening the store removes those that nobody holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from dsec.base.errors import HostDiskFullError, ObjectNotFoundError, StoreUnavailableError
from dsec.linux.direct_io import write_direct
from dsec.stores.objects import DEFAULT_TIMEOUT_S, ObjectInfo, check_key, check_prefix, check_range

_UNDER_WAY = ".put-"
_EMPTY_S = 600.0
_THREADS = 8
"""Calls at once: more only queue for the disk."""
_DIRECT_BYTES = 256 << 10
"""Objects from this size on are written past the page cache."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_Result = TypeVar("_Result")


class FolderObjectStore:
    """Implements `dsec.stores.objects.ObjectStore` in a directory, which begins to be.

    Args:
        root: the directory.

    Raises:
        StoreUnavailableError: it cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self.url = root.absolute().as_uri()
        self._root = root.absolute()
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._synced: set[Path] = set()
        with _translated(self.url, "open"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_leftovers(self._root)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        path = self._path(key)
        return await self._in_thread("put", key, timeout_s, lambda: self._put(path, data, if_absent))

    async def get(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        path = self._path(key)
        return await self._in_thread("get", key, timeout_s, lambda: _read(path))

    async def get_range(self, key: str, start: int, length: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        check_range(start, length)
        path = self._path(key)
        return await self._in_thread("get", key, timeout_s, lambda: _read_range(path, start, length))

    async def head(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ObjectInfo | None:
        path = self._path(key)
        return await self._in_thread("head", key, timeout_s, lambda: _describe(path, key))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        directory = self._root / prefix.rpartition("/")[0]
        found = await self._in_thread(
            "list", prefix, DEFAULT_TIMEOUT_S, lambda: sorted(_walk(self._root, directory, prefix), key=_key_of)
        )
        for info in found:
            yield info

    async def delete(self, keys: Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        paths = [self._path(key) for key in keys]
        await self._in_thread("delete", ", ".join(keys[:3]), timeout_s, lambda: _delete(paths))

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    async def _in_thread(self, action: str, key: str, timeout_s: float, call: Callable[[], _Result]) -> _Result:
        """Run a blocking call within its deadline. One that hangs in the kernel, as on a dead network mount, is left
        behind in its thread: it cannot be interrupted, and what it does is whole or nothing.
        """
        try:
            with _translated(self.url, action, key), anyio.fail_after(timeout_s):
                return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"{self.url} did not {action} {key!r} within {timeout_s:g} s",
                resolution="look at the disk, or mount, that it is on",
            ) from error

    def _put(self, path: Path, data: bytes, if_absent: bool) -> bool:
        if if_absent and path.exists():
            return False
        self._make_directories(path.parent)
        with _file_under_way(path.parent) as (descriptor, temporary):
            _write_all(descriptor, data)
            os.fsync(descriptor)
            if not _publish(temporary, path, if_absent):
                return False
        _sync_directory(path.parent)
        return True

    def _make_directories(self, directory: Path) -> None:
        """Make directories that survive a loss of power: each one's name is synced in the one above it. What another
        process made a moment ago it may not have synced yet, so each is synced once by us, whoever made it.
        """
        if directory in self._synced or directory == self._root:
            return
        self._make_directories(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(directory.parent)
        self._synced.add(directory)


@contextmanager
def _file_under_way(directory: Path) -> Iterator[tuple[int, Path]]:
    """Make a file that is locked while it is written, and gone from its first name when the context ends."""
    temporary = directory / f"{_UNDER_WAY}{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor, temporary
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    done = write_direct(descriptor, data) if len(data) >= _DIRECT_BYTES else 0
    rest = memoryview(data)[done:]
    while len(rest) > 0:
        rest = rest[os.write(descriptor, rest) :]


def _publish(temporary: Path, path: Path, if_absent: bool) -> bool:
    """Give a synced file the object's name in one step."""
    if not if_absent:
        os.rename(temporary, path)
        return True
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """Open an object. Others may write the folder: what is no regular file is no object, and a FIFO, which would keep
    whoever opens it waiting for a writer, is not waited for.

    Raises:
        FileNotFoundError: there is no object.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno != errno.ENXIO:  # A socket, or a device without a driver.
            raise
        raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))
    return descriptor


def _read(path: Path) -> bytes:
    with os.fdopen(_open(path), "rb") as file:
        return file.read()


def _read_range(path: Path, start: int, length: int) -> bytes:
    descriptor = _open(path)
    try:
        data = os.pread(descriptor, length, start)
        while 0 < len(data) < length:  # One read(2) gives at most 2 GiB, and less when it is interrupted.
            more = os.pread(descriptor, length - len(data), start + len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(descriptor)


def _describe(path: Path, key: str) -> ObjectInfo | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not path.is_file():
        return None
    return ObjectInfo(key=key, size_bytes=status.st_size, modified_at_s=status.st_mtime)


def _walk(root: Path, directory: Path, prefix: str) -> Iterator[ObjectInfo]:
    """Yield what lies below a directory and begins with a prefix; what goes away meanwhile is passed over."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        key = path.relative_to(root).as_posix()
        if entry.is_dir(follow_symlinks=False):
            if key.startswith(prefix) or prefix.startswith(f"{key}/"):
                yield from _walk(root, path, prefix)
        elif key.startswith(prefix) and (info := _describe(path, key)) is not None:
            yield info


def _key_of(info: ObjectInfo) -> str:
    return info.key


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            continue
    for directory in {path.parent for path in paths}:
        try:
            _sync_directory(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue  # Nothing was ever put there.


def _remove_leftovers(root: Path) -> None:
    """Remove what killed puts left. A put that runs, here or in another process, holds the lock of its file; one that
    has made its file and not locked it yet has written nothing, so that an empty file is given time.
    """
    for directory, _, names in os.walk(root):
        for name in names:
            if name.startswith(_UNDER_WAY):
                _remove_if_left(Path(directory, name))


def _remove_if_left(path: Path) -> None:
    try:
        descriptor = _open(path)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if status.st_size > 0 or time.time() - status.st_mtime > _EMPTY_S:
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return  # Its put is under way.
    finally:
        os.close(descriptor)


@contextmanager
def _translated(url: str, action: str, key: str = "") -> Iterator[None]:
    where = f"{url}/{key}" if key else url
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ObjectNotFoundError(f"{url} holds no object {key!r}") from error
    except OSError as error:
        if error.errno in _FULL:
            raise HostDiskFullError(
                f"{action} {where}: the disk is full", resolution="make room on the disk of the store"
            ) from error
        raise StoreUnavailableError(
            f"{action} {where}: {error.strerror}", resolution="look at the directory's owner, mode and disk"
        ) from error
