"""Trees of writable layers in memory, as snapshots see them: the fakes of `dsec.state.disk_tree`.

An entry in memory is whatever the in-memory runtime keeps: it has a kind, a mode, owners, content, a target and a time.
What is made here is of the same shape. There are no hard links and no attributes: placing a hard link copies.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from dsec.model.files import FileKind
from dsec.state.manifest import Directory, Entry, File, Link, Status, Symlink, parent_of
from dsec.state.trees import FileReader, Found, FrozenTree, Range, Touched

_KINDS = {FileKind.FILE: "f", FileKind.DIRECTORY: "d", FileKind.SYMLINK: "l"}
_NS = 1_000_000_000


@dataclass(slots=True)
class MemoryEntry:
    """One file, directory or link; its length is what it costs of the quota."""

    kind: FileKind
    mode: int
    uid: int = 0
    gid: int = 0
    content: bytes = b""
    target: str = ""
    modified_at_s: float = 0.0

    def __len__(self) -> int:
        return len(self.content)


class MemoryFrozenTree:
    """A `FrozenTree` of entries by absolute path."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries = {_path_of(path): entry for path, entry in entries.items()}
        self._names: dict[bytes, list[bytes]] = {}
        for path in self._entries:
            if path:
                self._names.setdefault(parent_of(path), []).append(path.rpartition(b"/")[2])

    def names(self, directory: bytes) -> list[bytes]:
        return self._names.get(directory, [])

    def look(self, path: bytes) -> Found | None:
        entry = self._entries.get(path)
        if entry is None:
            # The top of a layer that nobody has mounted yet.
            return None if path else Found("d", 0o755, 0, 0, 0, 0, 1, 0)
        return Found(
            kind=_KINDS[entry.kind],
            mode=entry.mode & 0o7777,
            uid=entry.uid,
            gid=entry.gid,
            mtime_ns=round(entry.modified_at_s * _NS),
            size=len(entry.content),
            links=1,
            inode=id(entry),
        )

    def attributes(self, path: bytes) -> tuple[tuple[bytes, bytes], ...]:
        return ()

    def target(self, path: bytes) -> bytes:
        target: str = self._entries[path].target
        return target.encode(errors="surrogateescape")

    def open(self, path: bytes) -> AbstractContextManager[FileReader]:
        return nullcontext(_MemoryFile(self._entries[path].content))

    def touched_since(self, base: FrozenTree) -> Touched | None:
        return None


class _MemoryFile:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]

    def expect(self, start: int, length: int) -> None:
        """It is there."""

    def data_ranges(self) -> Iterator[Range]:
        if self._content:
            yield Range(0, len(self._content))


class MemoryNewTree:
    """A `NewTree` that fills a mapping of entries by absolute path when it is finished."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries = entries
        self._made: dict[bytes, MemoryEntry] = {}
        self._file: MemoryEntry | None = None

    def place(self, path: bytes, entry: Entry) -> None:
        self._file = None
        match entry:
            case Directory(status):
                self._made[path] = _entry(FileKind.DIRECTORY, status)
            case Symlink(status, target):
                self._made[path] = _entry(FileKind.SYMLINK, status)
                self._made[path].target = target.decode(errors="surrogateescape")
            case File(status, size):
                self._file = self._made[path] = _entry(FileKind.FILE, status)
                self._file.content = bytes(size)
            case Link(first):
                self._made[path] = copy.copy(self._made[first])
            case _:
                raise AssertionError(f"nothing in memory is like {entry!r}")

    def write(self, start: int, content: bytes | memoryview) -> None:
        assert self._file is not None, "no file was placed"
        before = self._file.content
        self._file.content = before[:start] + bytes(content) + before[start + len(content) :]

    def finish(self) -> None:
        self._entries.clear()
        self._entries.update({f"/{path.decode(errors='surrogateescape')}": made for path, made in self._made.items()})


def _path_of(path: str) -> bytes:
    return path.lstrip("/").encode(errors="surrogateescape")


def _entry(kind: FileKind, status: Status) -> MemoryEntry:
    return MemoryEntry(kind, status.mode, status.uid, status.gid, modified_at_s=status.mtime_ns / _NS)
