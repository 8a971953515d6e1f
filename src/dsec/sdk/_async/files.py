"""Files of a sandbox. Every operation works from outside, through the sandbox's root."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dsec.base.errors import PathNotFoundError
from dsec.model.files import FileChange, FileInfo
from dsec.sdk.archive import DEFAULT_UNPACK_LIMITS, Unpacked, UnpackLimits, pack_stream, unpack_stream
from dsec.sdk.local import LocalFile, local_permissions, save
from dsec.service.port import SandboxService


class AsyncFiles:
    """Read, write, list, move, watch and transfer files. Relative paths begin at the default directory."""

    def __init__(self, service: SandboxService, sandbox_id: str) -> None:
        self._service = service
        self._sandbox_id = sandbox_id

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        """Return the whole content of a file."""
        parts = []
        async for chunk in self._service.read_file(self._sandbox_id, path, user=user):
            parts.append(chunk)
        return b"".join(parts)

    async def read_text(self, path: str, *, encoding: str = "utf-8", user: str | None = None) -> str:
        """Return the whole content of a file as text."""
        return (await self.read(path, user=user)).decode(encoding)

    async def read_stream(self, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        """Iterate the content of a file in pieces, in flat memory."""
        async for chunk in self._service.read_file(self._sandbox_id, path, user=user):
            yield chunk

    async def write(
        self,
        path: str,
        content: bytes | str | AsyncIterable[bytes],
        *,
        permissions: int = 0o644,
        user: str | None = None,
    ) -> FileInfo:
        """Write a file, replacing what was there at once when all has arrived; missing directories are made."""
        return await self._service.write_file(
            self._sandbox_id, path, _encoded(content), permissions=permissions, user=user
        )

    async def write_from(
        self, path: str, source: str | Path, *, permissions: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Write a file from one of this host, whose permissions it gets when none are given. No byte is copied on the
        way where both ends can do without."""
        local = Path(source)
        mode = local_permissions(local) if permissions is None else permissions
        return await self._service.write_file(self._sandbox_id, path, LocalFile(local), permissions=mode, user=user)

    async def read_into(self, path: str, target: str | Path, *, user: str | None = None) -> int:
        """Write a file's content into one of this host, which takes its name when all is there; return its size."""
        return await save(self._service.read_file(self._sandbox_id, path, user=user), Path(target))

    async def append(
        self, path: str, content: bytes | str | AsyncIterable[bytes], *, user: str | None = None
    ) -> FileInfo:
        """Add to the end of a file."""
        return await self._service.write_file(self._sandbox_id, path, _encoded(content), append=True, user=user)

    async def list(self, path: str = ".", *, depth: int = 1, user: str | None = None) -> list[FileInfo]:
        """List a directory to `depth` levels."""
        return list(await self._service.list_files(self._sandbox_id, path, depth=depth, user=user))

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Describe one entry; a final symbolic link is not followed."""
        return await self._service.stat_file(self._sandbox_id, path, user=user)

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Tell whether there is something at `path`."""
        try:
            await self.stat(path, user=user)
        except PathNotFoundError:
            return False
        return True

    async def make_directory(self, path: str, *, user: str | None = None) -> bool:
        """Make a directory and its missing parents; return whether it is new."""
        return await self._service.make_directory(self._sandbox_id, path, user=user)

    async def move(self, source: str, target: str, *, user: str | None = None) -> None:
        """Rename, replacing a file at `target` but not a directory."""
        await self._service.move_file(self._sandbox_id, source, target, user=user)

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file, link or empty directory, or a whole tree when `recursive`."""
        await self._service.remove_file(self._sandbox_id, path, recursive=recursive, user=user)

    @asynccontextmanager
    async def watch(
        self, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AsyncIterator[AsyncIterator[FileChange]]:
        """Hear changes under a directory while the context is open."""
        async with self._service.watch_files(self._sandbox_id, path, recursive=recursive, user=user) as changes:
            yield changes

    async def upload(self, source: str | Path, target: str, *, user: str | None = None) -> None:
        """Copy a local file, or the content of a local directory, into the directory `target`.

        Raises:
            UnsupportedFileError: there is a FIFO, socket or device under `source`. Nothing was sent.
        """
        await self._service.upload(self._sandbox_id, target, pack_stream(Path(source)), user=user)

    async def download(
        self,
        source: str,
        target: str | Path,
        *,
        limits: UnpackLimits = DEFAULT_UNPACK_LIMITS,
        skip_outward_links: bool = False,
        user: str | None = None,
    ) -> Unpacked:
        """Copy a file or a directory's content into the local directory `target`.

        The guest decides what is in the archive: nothing of it is written outside `target`.

        Raises:
            UnsafeArchiveError: a name or link leads out of `target`, an entry is a device, or a limit is exceeded. With
                `skip_outward_links` links that lead out are left out and named in the result instead.
        """
        archive = self._service.download(self._sandbox_id, source, user=user)
        return await unpack_stream(archive, Path(target), limits=limits, skip_outward_links=skip_outward_links)


def _encoded(content: bytes | str | AsyncIterable[bytes]) -> bytes | AsyncIterable[bytes]:
    return content.encode() if isinstance(content, str) else content
