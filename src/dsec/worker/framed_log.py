"""An append-only file of framed lines whose acknowledged lines survive a kill.

A log whose file could not be brought to the disk takes nothing more until it is opened again: the system then holds
the lost pages for written, so that a later success would say nothing (`dsec.stores.episode_log_disk`).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

import anyio
import anyio.to_thread

from dsec.base.errors import HostDiskFullError, PlatformError, StateCorruptedError
from dsec.episode.frames import encode_frame, scan_frames

_SUSPECT = "look at the disk, and start again: opening the log finds out what is there"


def sync_directory(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FramedLog:
    """One log, open for appending. Opening cuts off a torn tail; a line counts once `append` has returned."""

    def __init__(self, path: Path) -> None:
        """Open or create the log.

        Raises:
            StateCorruptedError: it is damaged elsewhere than at its end, or no file; nothing was changed.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._failed: PlatformError | None = None
        if path.exists() and not path.is_file():
            raise StateCorruptedError(f"{path} is no regular file", resolution="move it away")
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = anyio.Lock()
        try:
            self._repair()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _repair(self) -> None:
        scan = scan_frames(self._path.read_bytes(), name=str(self._path))
        self.documents = scan.documents
        self.repaired_bytes = scan.torn_bytes
        self._length = self._synced = scan.good_bytes
        if scan.torn_bytes:
            os.ftruncate(self._descriptor, scan.good_bytes)
            os.fsync(self._descriptor)

    def __enter__(self) -> FramedLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    async def append(self, document: bytes, *, durable: bool = True) -> None:
        """Append one JSON object; with `durable` it is on the disk when this returns.

        Cancelling neither tears a line nor takes it back: it is shielded.

        Raises:
            HostDiskFullError, PlatformError: it could not be written, and the log is as before; or it could not be
                brought to the disk, now or earlier, and whether the line is there is open.
        """
        if self._failed is not None:
            raise PlatformError(self._failed.brief, detail=self._failed.detail, resolution=_SUSPECT)
        self._write(encode_frame(document))
        if durable:
            with anyio.CancelScope(shield=True):
                await self._sync(self._length)

    def _write(self, line: bytes) -> None:
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            os.ftruncate(self._descriptor, self._length)
            raise self._failure(error) from error
        self._length += len(line)

    async def _sync(self, length: int) -> None:
        """Bring the first `length` bytes to the disk. One call serves everybody who has written by then."""
        async with self._lock:
            if self._synced >= length:
                return
            if self._failed is not None:
                raise PlatformError(self._failed.brief, detail=self._failed.detail, resolution=_SUSPECT)
            written = self._length
            try:
                await anyio.to_thread.run_sync(os.fsync, self._descriptor)
            except OSError as error:
                self._failed = self._failure(error)
                raise self._failed from error
            self._synced = written

    def _failure(self, error: OSError) -> PlatformError:
        kind = HostDiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else PlatformError
        return kind(f"{self._path} cannot be written", detail=error.strerror or "")
