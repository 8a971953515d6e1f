"""Ports between saved layers and snapshots: a tree that is read, and one that is made.

A *frozen tree* is what a checkpoint holds. Nobody changes it while it is open; but a hostile guest chose every name,
size, link and attribute of it, so that no path is resolved by following links and nothing is read whole.

A *new tree* is a writable layer being filled. What is not finished is discarded by whoever opened it.

Calls block; both are used from one thread at a time, not always the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from dsec.state.manifest import Entry


class Found(msgspec.Struct, frozen=True):
    """One name of a frozen tree, as `lstat` tells.

    Attributes:
        kind: tag of the entry that it is in a manifest: one of ``dflwns``; empty: nothing
            that a snapshot holds.
        mode: permission bits.
        uid, gid: owners.
        mtime_ns: time of the last change of content.
        size: bytes of a regular file.
        links: names that the inode has.
        inode: number that all names of the inode share, and no other inode of the tree.
        unchanged_if: equal in two trees of one layer only where the inode is the same and nothing of it changed, its
            content and attributes included; None: cannot be told.
        is_dense: whether it is known that a regular file has no holes worth looking for.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    links: int
    inode: int
    unchanged_if: object | None = None
    is_dense: bool = False


class Range(msgspec.Struct, frozen=True):
    """Bytes of a file from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What may differ between two frozen trees: a superset of what does.

    Attributes:
        old: paths of the older tree whose entries may be gone or other, each with all that is below it.
        new: paths of the newer tree that may be new or changed, themselves alone.
        moved: paths of the newer tree that may be new with all that is below them.
        made: paths of the newer tree whose inodes are new, whatever their numbers.
        ranges: where the content of a regular file of the newer tree may differ from that of the same inode in the
            older tree; a file that is neither here nor in `made` has the same content.
        origins: for entries of the newer tree that were in the older one: a path that they had there.
    """

    old: frozenset[bytes]
    new: frozenset[bytes]
    moved: frozenset[bytes]
    made: frozenset[bytes]
    ranges: dict[bytes, Sequence[Range]]
    origins: dict[bytes, bytes]


class FileReader(Protocol):
    """One open regular file."""

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from `start`, fewer only at the end of the file."""

    def expect(self, start: int, length: int) -> None:
        """Hear what will be read soon, and perhaps begin to fetch it."""

    def data_ranges(self) -> Iterator[Range]:
        """Yield where there is something else than holes, in order."""


class FrozenTree(Protocol):
    """A tree that nobody changes. Paths are those of `dsec.state.manifest`; the empty one is the top directory."""

    def names(self, directory: bytes) -> list[bytes]:
        """Return the names in a directory, in no order."""

    def look(self, path: bytes) -> Found | None:
        """Describe an entry; None when there is none."""

    def attributes(self, path: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """Return the extended attributes that a manifest keeps, by name."""

    def target(self, path: bytes) -> bytes:
        """Return where a symbolic link leads."""

    def open(self, path: bytes) -> AbstractContextManager[FileReader]:
        """Open a regular file."""

    def touched_since(self, base: FrozenTree) -> Touched | None:
        """Say, without walking, what may differ from an older frozen state of the same layer; None: not known."""


class NewTree(Protocol):
    """A layer being filled: entries are placed in the order of a manifest, then it is finished once.

    Raises:
        HostDiskFullError: there is no room.
    """

    def place(self, path: bytes, entry: Entry) -> None:
        """Make the next entry. What it says of a regular file's content is written next, with `write`."""

    def write(self, start: int, content: bytes | memoryview) -> None:
        """Write into the regular file placed last."""

    def finish(self) -> None:
        """Give directories their modes and times. After this the tree is as the manifest says."""
