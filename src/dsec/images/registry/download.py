"""Download a blob into a file of this host (`downloads`), going on with what is there, and verify it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread

from dsec.base.errors import HostDiskFullError, StateCorruptedError
from dsec.base.units import MIB
from dsec.images.durable import full_disk_reported
from dsec.images.registry.blobs import resumed
from dsec.images.registry.client import RegistryClient
from dsec.images.registry.http import reported
from dsec.images.registry.media import Descriptor
from dsec.images.registry.reference import Repository

OnBytes = Callable[[int], None]
"""Told how many more bytes are here; fewer than none where they were no good."""
_WRITTEN_AT_ONCE = MIB


async def download(
    client: RegistryClient,
    repository: Repository,
    descriptor: Descriptor,
    path: Path,
    *,
    on_bytes: OnBytes,
) -> None:
    """Complete a file that the caller holds, whose beginning may be here, and verify it.

    Raises:
        StateCorruptedError: the registry has other bytes than the descriptor says.
        HostDiskFullError: there is no room for it.
        ObjectNotFoundError, StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as the registry answers;
            what came stays for the next try.
    """
    try:
        with full_disk_reported(f"downloading {descriptor.digest[:19]}"):
            for is_last in (False, True):
                began_at, is_verified = await _tried(client, repository, descriptor, path, on_bytes)
                if is_verified:
                    return
                on_bytes(-descriptor.size)
                path.write_bytes(b"")
                # What was here before may have been what was wrong: a crash can leave bytes that were never written.
                if is_last or began_at == 0:
                    break
    except HostDiskFullError:
        os.truncate(path, 0)  # What is full needs room more than the next pull needs a beginning.
        raise
    raise StateCorruptedError(
        f"{repository.host} gave other bytes than {descriptor.digest} in {repository.path}",
        resolution="push the image again; if it stays so, do not trust this registry",
    )


async def _tried(
    client: RegistryClient, repository: Repository, descriptor: Descriptor, path: Path, on_bytes: OnBytes
) -> tuple[int, bool]:
    """Complete a file; return how much of it was here, and whether it is the blob."""
    download = _Download(path, descriptor, on_bytes)
    began_at = await anyio.to_thread.run_sync(download.begin)
    pieces = resumed(
        client,
        repository,
        descriptor.digest,
        began_at,
        descriptor.size,
        maximum_skipped_bytes=descriptor.size,
    )
    try:
        with reported():
            async for piece in pieces:
                await download.add(piece)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(download.end)
    return began_at, download.is_verified


class _Download:
    """One file under way. Its methods other than `add` block."""

    def __init__(self, path: Path, descriptor: Descriptor, on_bytes: OnBytes) -> None:
        self._descriptor = descriptor
        self._on_bytes = on_bytes
        self._hasher = hashlib.sha256()
        self._pending = bytearray()
        self._file = path.open("r+b")

    @property
    def is_verified(self) -> bool:
        return f"sha256:{self._hasher.hexdigest()}" == self._descriptor.digest

    def begin(self) -> int:
        """Read what is here, and return how much that is."""
        if os.fstat(self._file.fileno()).st_size > self._descriptor.size:
            self._file.truncate(0)
        while data := self._file.read(_WRITTEN_AT_ONCE):
            self._hasher.update(data)
        self._on_bytes(self._file.tell())
        return self._file.tell()

    async def add(self, piece: bytes) -> None:
        """Take the next bytes; they are written by the megabyte."""
        self._pending += piece
        self._on_bytes(len(piece))
        if len(self._pending) >= _WRITTEN_AT_ONCE:
            await anyio.to_thread.run_sync(self._write)

    def _write(self) -> None:
        self._file.write(self._pending)
        self._hasher.update(self._pending)
        self._pending.clear()

    def end(self) -> None:
        """Write the rest, and close the file."""
        with self._file:
            self._write()
