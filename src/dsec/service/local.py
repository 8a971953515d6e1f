"""Files of the host as the two ends of a transfer."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from anyio import to_thread

from dsec.base.errors import InvalidRequestError, PathNotFoundError
from dsec.linux.pipes import Pipe
from dsec.service.content import ByteStream

_CHUNK_BYTES = 1 << 20
Taken = TypeVar("Taken", bytes, int)


class LocalFile(ByteStream):
    """A file of the host to be sent.

    Raises (once it is read):
        PathNotFoundError, InvalidRequestError: it cannot be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._closed = False

    async def __anext__(self) -> bytes:
        data = await self._run(lambda: os.read(self._fd, _CHUNK_BYTES))
        if not data:
            raise StopAsyncIteration
        return data

    async def fill(self, pipe: Pipe) -> int:
        return await self._run(lambda: pipe.fill_from_file(self._fd, pipe.piece_bytes))

    async def _run(self, work: Callable[[], Taken]) -> Taken:
        """Read in a thread; at the end and after an error the file is closed."""

        def in_thread() -> Taken:
            if self._closed:
                raise InvalidRequestError(f"{self._path} was sent already", resolution="open it once more")
            try:
                if self._fd < 0:
                    self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                return work()
            except FileNotFoundError as error:
                raise PathNotFoundError(f"there is nothing at {self._path}") from error
            except OSError as error:
                raise InvalidRequestError(f"cannot read {self._path}", detail=str(error.strerror)) from error

        taken = await to_thread.run_sync(in_thread)
        if not taken:
            self.close()
        return taken

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._closed = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def aclose(self) -> None:
        self.close()


def local_permissions(path: Path) -> int:
    """Return the permission bits of a local file.

    Raises:
        PathNotFoundError, InvalidRequestError: there is none, or it is no file.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise PathNotFoundError(f"there is nothing at {path}") from error
    except OSError as error:
        raise InvalidRequestError(f"cannot read {path}", detail=str(error.strerror)) from error
    if not stat.S_ISREG(mode):
        raise InvalidRequestError(f"{path} is not a file", resolution="upload directories, and name files")
    return stat.S_IMODE(mode) & 0o777


async def save(content: AsyncIterator[bytes], target: Path, *, permissions: int = 0o644) -> int:
    """Write what comes into a local file, which takes its name when all of it is there; return how many bytes.

    Args:
        permissions: the file's, whatever the umask.

    Raises:
        InvalidRequestError: the file cannot be written.
    """
    fresh = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size_bytes = await _pour(content, fd)
            os.fchmod(fd, permissions)
        finally:
            os.close(fd)
        fresh.replace(target)
    except OSError as error:
        raise InvalidRequestError(f"cannot write {target}", detail=str(error.strerror)) from error
    finally:
        fresh.unlink(missing_ok=True)
    return size_bytes


async def _pour(content: AsyncIterator[bytes], fd: int) -> int:
    size_bytes = 0
    if not isinstance(content, ByteStream):
        async for data in content:
            size_bytes += await to_thread.run_sync(_write, fd, data)
        return size_bytes
    try:
        with Pipe() as pipe:
            while count := await content.fill(pipe):
                await to_thread.run_sync(pipe.empty_to_file, fd, count)
                size_bytes += count
    finally:
        await content.aclose()
    return size_bytes


def _write(fd: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)
