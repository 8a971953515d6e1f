"""Files of a sandbox: the node adds its defaults and bounds to the instance's own operations."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager

import anyio

from dsec.base.errors import InvalidRequestError
from dsec.linux.pipes import Pipe
from dsec.model.files import FileChange, FileInfo
from dsec.node.core import Core, shielded
from dsec.node.sandbox import Generation
from dsec.node.validation import check_path
from dsec.runtimes.port import Reader, WriteMode, Writer
from dsec.service.content import ByteStream

CHUNK_BYTES = 256 * 1024
MAXIMUM_DEPTH = 64
MAXIMUM_LISTED = 10_000


class GuardedReader:
    """A reader that ends with its generation."""

    def __init__(self, reader: Reader, generation: Generation) -> None:
        self._reader = reader
        self._generation = generation

    async def take(self, pipe: Pipe | None) -> bytes | int:
        """Return the next bytes, or how many of them were moved into the pipe; nothing at the end."""
        taken = await self._reader.read(CHUNK_BYTES) if pipe is None else await self._reader.fill(pipe)
        if self._generation.error is not None:
            raise self._generation.error
        return taken


class FileAccess:
    """The files of one generation with the sandbox's default user and directory."""

    def __init__(self, core: Core, generation: Generation, user: str | None) -> None:
        self._core = core
        self._generation = generation
        self._files = generation.instance.files
        self._user = user if user is not None else generation.user

    def _path(self, path: str, field: str = "path") -> str:
        check_path(field, path)
        return posixpath.join(self._generation.workdir, path)

    @asynccontextmanager
    async def reading(self, path: str) -> AsyncIterator[GuardedReader]:
        """Open a file."""
        async with self._guarded(await self._files.open_read(self._path(path), user=self._user)) as reader:
            yield reader

    @asynccontextmanager
    async def downloading(self, path: str) -> AsyncIterator[GuardedReader]:
        """Open the archive of a file or directory."""
        async with self._guarded(await self._files.download(self._path(path), user=self._user)) as reader:
            yield reader

    @asynccontextmanager
    async def _guarded(self, reader: Reader) -> AsyncIterator[GuardedReader]:
        try:
            yield GuardedReader(reader, self._generation)
        finally:
            with shielded(self._core.settings.end_timeout_s, "closing a file"):
                await reader.close()

    async def write(
        self, path: str, content: AsyncIterable[bytes] | bytes, *, append: bool, permissions: int
    ) -> FileInfo:
        if not 0 <= permissions <= 0o7777:
            raise InvalidRequestError(f"permissions are {permissions:o}; they must be 0 to 7777")
        resolved = self._path(path)
        mode = WriteMode.APPEND if append else WriteMode.REPLACE
        writer = await self._files.open_write(resolved, mode=mode, permissions=permissions, user=self._user)
        await self._fill(writer, content)
        return await self._files.stat(resolved, user=self._user)

    async def upload(self, path: str, archive: AsyncIterable[bytes]) -> None:
        await self._fill(await self._files.upload(self._path(path), user=self._user), archive)

    async def _fill(self, writer: Writer, content: AsyncIterable[bytes] | bytes) -> None:
        committed = False
        try:
            if isinstance(content, ByteStream):
                await _move(content, writer)
            elif isinstance(content, bytes):
                await writer.write(content)
            else:
                async for chunk in content:
                    await writer.write(chunk)
            await writer.commit()
            committed = True
        finally:
            if not committed:
                with shielded(self._core.settings.end_timeout_s, "abandoning a file"):
                    await writer.abort()

    async def stat(self, path: str) -> FileInfo:
        return await self._files.stat(self._path(path), user=self._user)

    async def list(self, path: str, *, depth: int) -> tuple[FileInfo, ...]:
        if not 1 <= depth <= MAXIMUM_DEPTH:
            raise InvalidRequestError(f"depth is {depth}; it must be 1 to {MAXIMUM_DEPTH}")
        return await self._files.list(self._path(path), depth=depth, limit=MAXIMUM_LISTED, user=self._user)

    async def make_directory(self, path: str) -> bool:
        return await self._files.make_directory(self._path(path), user=self._user)

    async def move(self, source: str, target: str) -> None:
        await self._files.move(self._path(source, "source"), self._path(target, "target"), user=self._user)

    async def remove(self, path: str, *, recursive: bool) -> None:
        await self._files.remove(self._path(path), recursive=recursive, user=self._user)

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool) -> AsyncIterator[AsyncIterator[FileChange]]:
        events = await self._files.watch(self._path(path), recursive=recursive, user=self._user)
        async with events:
            yield self._changes(events)

    async def _changes(self, events: AsyncIterable[FileChange]) -> AsyncIterator[FileChange]:
        """Pass changes on until the generation ends."""
        iterator = aiter(events)
        while True:
            change: FileChange | None = None
            with anyio.CancelScope() as scope, self._generation.operation(scope) as operation:
                try:
                    change = await anext(iterator)
                except StopAsyncIteration:
                    return
            if operation.error is not None:
                raise operation.error
            if change is not None:
                yield change


async def _move(content: ByteStream, writer: Writer) -> None:
    """Pass short content on as bytes, and what is longer through a pipe."""
    size_bytes = 0
    async for chunk in content:
        await writer.write(chunk)
        size_bytes += len(chunk)
        if size_bytes >= CHUNK_BYTES:
            break
    else:
        return
    with Pipe() as pipe:
        while count := await content.fill(pipe):
            await writer.drain(pipe, count)
