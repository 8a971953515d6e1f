"""The files of an in-memory instance, as the port has them."""

from __future__ import annotations

import asyncio
import posixpath
from collections import deque
from collections.abc import Awaitable, Collection, Sequence
from types import TracebackType
from typing import TypeVar

import blake3

from dsec.base.errors import (
    AlreadyExistsError,
    DirectoryNotEmptyError,
    DsecError,
    InvalidRequestError,
    IsADirectoryInSandboxError,
    LimitExceededError,
    NotADirectoryInSandboxError,
    PathNotFoundError,
    SandboxDiskFullError,
    UnsupportedFileError,
)
from dsec.linux.pipes import Pipe
from dsec.model.files import FileChange, FileChangeKind, FileInfo, FileKind
from dsec.runtimes.memory_archive import UnpackingWriter, pack
from dsec.runtimes.memory_tree import Entry, Tree, file_info, resolve_user
from dsec.runtimes.port import FileDigest, FileEvents, Reader, WriteMode, Writer

_MAXIMUM_PENDING_CHANGES = 1024
_T = TypeVar("_T")


async def _or_error(found: Awaitable[_T]) -> _T | DsecError:
    try:
        return await found
    except DsecError as error:
        return error


class BytesReader:
    """A `Reader` over bytes at hand."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size_bytes = len(data)

    async def read(self, limit: int) -> bytes:
        chunk, self._data = self._data[:limit], self._data[limit:]
        return bytes(chunk)

    async def fill(self, pipe: Pipe) -> int:
        count = pipe.put(self._data)
        self._data = self._data[count:]
        return count

    async def close(self) -> None:
        self._data = memoryview(b"")


class MemoryWriter:
    """A `Writer` whose content appears at commit."""

    def __init__(self, tree: Tree, path: str, entry: Entry, mode: WriteMode) -> None:
        self._tree, self._path, self._entry, self._mode = tree, path, entry, mode
        self._data = bytearray()
        self._open = True

    async def write(self, data: bytes) -> None:
        self._tree.check_alive()
        quota = self._tree.quota_bytes
        if quota is not None and len(self._data) + len(data) > quota:
            raise SandboxDiskFullError(f"the sandbox's quota of {quota} bytes is reached")
        self._data += data

    async def drain(self, pipe: Pipe, count: int) -> None:
        await self.write(pipe.take(count))

    async def commit(self) -> None:
        self._tree.check_alive()
        before = self._tree.entries.get(self._path)
        if before is not None and self._mode is WriteMode.CREATE:
            raise AlreadyExistsError(f"{self._path} exists")
        kept = before.content if before is not None and self._mode is WriteMode.APPEND else b""
        self._entry.content = kept + bytes(self._data)
        self._tree.put(self._path, self._entry)
        self._open = False

    async def abort(self) -> None:
        self._open = False
        self._data.clear()


class MemoryFileEvents:
    """A watch on one directory."""

    def __init__(self, tree: Tree, directory: str, recursive: bool) -> None:
        self._tree, self._directory, self._recursive = tree, directory.rstrip("/") + "/", recursive
        self._pending: deque[FileChange] = deque()
        self._arrived = asyncio.Event()

    def offer(self, kind: FileChangeKind, path: str) -> None:
        if not path.startswith(self._directory):
            return
        relative = path[len(self._directory) :]
        if not self._recursive and "/" in relative:
            return
        if len(self._pending) >= _MAXIMUM_PENDING_CHANGES:
            self._pending.clear()
            kind, relative = FileChangeKind.OVERFLOW, ""
        self._pending.append(FileChange(kind=kind, path=relative))
        self._arrived.set()

    async def __aenter__(self) -> FileEvents:
        self._tree.watches.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tree.watches.discard(self)

    def __aiter__(self) -> FileEvents:
        return self

    async def __anext__(self) -> FileChange:
        while not self._pending:
            self._arrived.clear()
            await self._arrived.wait()
        return self._pending.popleft()


class MemoryFiles:
    """`Files` over a tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    async def open_read(self, path: str, *, offset: int = 0, user: str | None = None) -> Reader:
        identity = resolve_user(user)
        resolved, entry = self.tree.get(path)
        _require_regular(resolved, entry)
        self.tree.require(resolved, identity, 0o4)
        return BytesReader(entry.content[offset:])

    async def open_write(
        self, path: str, *, mode: WriteMode = WriteMode.REPLACE, permissions: int = 0o644, user: str | None = None
    ) -> Writer:
        identity = resolve_user(user)
        resolved = self.tree.resolve(path)
        before = self.tree.entries.get(resolved)
        if before is None:
            parent = posixpath.dirname(resolved)
            self.tree.make_directories(parent, identity)
            self.tree.require(parent, identity, 0o2)
            return MemoryWriter(self.tree, resolved, Entry(FileKind.FILE, permissions, *identity), mode)
        _require_regular(resolved, before)
        if mode is WriteMode.CREATE:
            raise AlreadyExistsError(f"{resolved} exists")
        self.tree.require(resolved, identity, 0o2)
        return MemoryWriter(self.tree, resolved, Entry(FileKind.FILE, before.mode, before.uid, before.gid), mode)

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        resolve_user(user)
        return file_info(*self.tree.get(path, follow=False))

    async def put(self, path: str, data: bytes, *, permissions: int = 0o644, only_over_file: bool = False) -> bool:
        try:
            if only_over_file and (await self.stat(path)).kind is not FileKind.FILE:
                return False
        except PathNotFoundError:
            return False
        writer = await self.open_write(path, permissions=permissions)
        await writer.write(data)
        await writer.commit()
        return True

    async def stat_all(self, paths: Sequence[str]) -> tuple[FileInfo | DsecError, ...]:
        return tuple([await _or_error(self.stat(path)) for path in paths])

    async def digest_all(self, paths: Sequence[str], *, limit_bytes: int) -> tuple[FileDigest | DsecError, ...]:
        return tuple([await _or_error(self._digest(path, limit_bytes)) for path in paths])

    async def _digest(self, path: str, limit_bytes: int) -> FileDigest:
        reader = await self.open_read(path)
        return FileDigest(reader.size_bytes, blake3.blake3(await reader.read(limit_bytes)).hexdigest())

    async def list(
        self, path: str, *, depth: int = 1, limit: int = 10_000, user: str | None = None
    ) -> tuple[FileInfo, ...]:
        identity = resolve_user(user)
        resolved, entry = self.tree.get(path)
        if entry.kind is not FileKind.DIRECTORY:
            raise NotADirectoryInSandboxError(f"{path} is not a directory")
        self.tree.require(resolved, identity, 0o4)
        prefix = len(resolved.rstrip("/")) + 1
        found = [child for child in sorted(self.tree.children(resolved)) if child.count("/", prefix) < depth]
        if len(found) > limit:
            raise LimitExceededError(f"{path} holds more than {limit} entries")
        return tuple(file_info(child, self.tree.entries[child]) for child in found)

    async def make_directory(self, path: str, *, permissions: int = 0o755, user: str | None = None) -> bool:
        identity = resolve_user(user)
        resolved = self.tree.resolve(path)
        return self.tree.make_directories(resolved, identity, permissions)

    async def move(self, source: str, target: str, *, user: str | None = None) -> None:
        identity = resolve_user(user)
        old, entry = self.tree.get(source, follow=False)
        new = self.tree.resolve(target, follow_last=False)
        parent, _ = self.tree.get(posixpath.dirname(new))
        for directory in (posixpath.dirname(old), parent):
            self.tree.require(directory, identity, 0o2)
        self._check_move(old, new)
        if old == new:
            return
        moved = [old, *self.tree.children(old)] if entry.kind is FileKind.DIRECTORY else [old]
        for path in moved:
            self.tree.entries[new + path[len(old) :]] = self.tree.entries.pop(path)
        self.tree.changed(FileChangeKind.MOVED, new)

    def _check_move(self, old: str, new: str) -> None:
        if new.startswith(old.rstrip("/") + "/") or old == "/":
            raise InvalidRequestError(f"{old} cannot be moved into itself")
        there = self.tree.entries.get(new)
        if there is not None and there.kind is FileKind.DIRECTORY and old != new:
            raise IsADirectoryInSandboxError(f"{new} is a directory")

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        identity = resolve_user(user)
        resolved, entry = self.tree.get(path, follow=False)
        if resolved == "/":
            raise InvalidRequestError("the root directory cannot be removed")
        self.tree.require(posixpath.dirname(resolved), identity, 0o2)
        children: Collection[str] = self.tree.children(resolved) if entry.kind is FileKind.DIRECTORY else ()
        if children and not recursive:
            raise DirectoryNotEmptyError(f"{path} is not empty", resolution="remove it recursively")
        for child in (*children, resolved):
            self.tree.delete(child)

    async def download(self, path: str, *, user: str | None = None) -> Reader:
        identity = resolve_user(user)
        resolved, _ = self.tree.get(path)
        self.tree.require(resolved, identity, 0o4)
        return BytesReader(pack(self.tree, resolved))

    async def upload(self, path: str, *, user: str | None = None) -> Writer:
        identity = resolve_user(user)
        resolved = self.tree.resolve(path)
        self.tree.make_directories(resolved, identity)
        self.tree.require(resolved, identity, 0o2)
        return UnpackingWriter(self.tree, resolved, identity)

    async def watch(self, path: str, *, recursive: bool = False, user: str | None = None) -> FileEvents:
        resolve_user(user)
        resolved, entry = self.tree.get(path)
        if entry.kind is not FileKind.DIRECTORY:
            raise NotADirectoryInSandboxError(f"{path} is not a directory")
        return MemoryFileEvents(self.tree, resolved, recursive)


def _require_regular(path: str, entry: Entry) -> None:
    if entry.kind is FileKind.DIRECTORY:
        raise IsADirectoryInSandboxError(f"{path} is a directory")
    if entry.kind is not FileKind.FILE:
        raise UnsupportedFileError(f"{path} is not a regular file")
