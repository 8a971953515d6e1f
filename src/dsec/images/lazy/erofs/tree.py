"""Read the tree of an EROFS file without mounting it, for hosts and users who cannot.

`fsck.erofs --extract` is no way: the versions in use know no attributes, and it is a program in C that would be handed
somebody else's file. Here each structure is checked by `Walk`, and what comes out goes through `TreeWriter`, as the
entries of any archive do. Whoever stores the result compares its digest.

Sources: https://docs.kernel.org/filesystems/erofs.html; ``fs/erofs/erofs_fs.h`` of the kernel.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from dsec.base.errors import InvalidRequestError
from dsec.base.units import MIB
from dsec.images.entries import KINDS, Entry, EntryKind
from dsec.images.lazy.erofs.metadata import MAXIMUM_INODES, SUPERBLOCK_START, Extent, Inode, Walk
from dsec.images.listing import MAX_DEPTH
from dsec.images.tree_writer import TreeWriter

_BUILD_TIME_AT = SUPERBLOCK_START + 24
_COMPACT_OWNER, _EXTENDED_OWNER = struct.Struct("<24xHH"), struct.Struct("<24xIIQ")
_COMPACT_BYTES, _EXTENDED_BYTES = 32, 64
_XATTR_HEADER = struct.Struct("<IB7x")
_XATTR_ENTRY = struct.Struct("<BBH")
_PREFIXES = {
    1: b"user.",
    2: b"system.posix_acl_access",
    3: b"system.posix_acl_default",
    4: b"trusted.",
    6: b"security.",
}
_LONGEST_LINK = 4096


def unpack_erofs(file: Path, writer: TreeWriter) -> None:
    """Write the tree that an EROFS file holds: what it calls a whiteout stays one.

    Raises:
        InvalidRequestError: it is no EROFS file of the kind that we make, or damaged.
        UnsafeArchiveError: what it holds would leave the tree, or passes a limit.
        HostDiskFullError: no space.
    """
    with file.open("rb") as stream:
        if file.stat().st_size < SUPERBLOCK_START + 128:
            raise _damaged("it is too short")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                tree = _Tree(data)
                for entry, content in tree.listed():
                    writer.add(entry, content)
            except struct.error as error:
                raise _damaged("a structure lies across its end") from error


class _Tree(Walk):
    """A file's tree, as entries."""

    def __init__(self, data: mmap.mmap) -> None:
        super().__init__(data)
        self._bytes = data
        (self._build_time,) = struct.unpack_from("<Q", data, _BUILD_TIME_AT)
        self._first: dict[int, bytes] = {}
        self._directories: set[int] = set()
        self._inodes = 0

    def listed(self) -> Iterator[tuple[Entry, Iterable[bytes]]]:
        """Yield all entries with their contents: the root first, directories before what is in them."""
        return self._below(self.root, b"", 0)

    def _below(self, number: int, path: bytes, depth: int) -> Iterator[tuple[Entry, Iterable[bytes]]]:
        inode = self._counted(number)
        entry = self._entry(inode, path)
        if not path and entry.kind is not EntryKind.DIRECTORY:
            raise _damaged("its root is no directory")
        if entry.kind is not EntryKind.DIRECTORY:
            first = self._first.setdefault(number, path)
            if first != path:
                yield Entry(path=path, kind=EntryKind.HARD_LINK, link=first), ()
            else:
                yield entry, self._content(inode) if entry.kind is EntryKind.FILE else ()
            return
        if number in self._directories or depth > MAX_DEPTH:
            raise _damaged("a directory is in several places, or too deep")
        self._directories.add(number)
        yield entry, ()
        for name, child in self.names(inode):
            yield from self._below(child, path + b"/" + name if path else name, depth + 1)

    def _counted(self, number: int) -> Inode:
        self._inodes += 1
        if self._inodes > MAXIMUM_INODES:
            raise _damaged(f"it has more than {MAXIMUM_INODES} entries")
        return self._visit(number)

    def _entry(self, inode: Inode, path: bytes) -> Entry:
        kind = KINDS.get(stat.S_IFMT(inode.mode))
        if kind is None:
            raise _damaged(f"the inode at {inode.start} is of no kind")
        is_extended = self._bytes[inode.start] & 1
        mtime_s = self._build_time
        if is_extended:
            uid, gid, mtime_s = _EXTENDED_OWNER.unpack_from(self._bytes, inode.start)
        else:
            uid, gid = _COMPACT_OWNER.unpack_from(self._bytes, inode.start)
        is_device = kind in (EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE)
        device = os.makedev(inode.block >> 8 & 0xFFF, inode.block & 0xFF | inode.block >> 12 & 0xFFF00)
        return Entry(
            path=path,
            kind=kind,
            mode=stat.S_IMODE(inode.mode),
            uid=uid,
            gid=gid,
            mtime_s=mtime_s,
            size_bytes=inode.size if kind is EntryKind.FILE else 0,
            link=self._link(inode) if kind is EntryKind.SYMBOLIC_LINK else b"",
            device=device if is_device else 0,
            xattrs=dict(self._xattrs(inode, _EXTENDED_BYTES if is_extended else _COMPACT_BYTES)),
            is_whiteout=kind is EntryKind.CHARACTER_DEVICE and device == 0,
        )

    def _link(self, inode: Inode) -> bytes:
        if inode.size > _LONGEST_LINK:
            raise _damaged(f"the link at {inode.start} has {inode.size} bytes")
        return b"".join(self._content(inode))

    def _content(self, inode: Inode) -> Iterator[bytes]:
        for extent in self.content(inode):
            self.check(extent)
            for start in range(extent.start, extent.end, MIB):
                yield self._bytes[start : min(start + MIB, extent.end)]

    def _xattrs(self, inode: Inode, own_bytes: int) -> Iterator[tuple[bytes, bytes]]:
        if inode.body_bytes == own_bytes:
            return
        at, end = inode.start + own_bytes, inode.start + inode.body_bytes
        shared = _XATTR_HEADER.unpack_from(self._bytes, at)[1]
        at += _XATTR_HEADER.size
        for position in range(shared):
            (number,) = struct.unpack_from("<I", self._bytes, at + 4 * position)
            yield self._attribute(self.xattrs + 4 * number)[:2]
        at += 4 * shared
        while at + _XATTR_ENTRY.size <= end:
            name, value, length = self._attribute(at)
            yield name, value
            at += -(-length // 4) * 4

    def _attribute(self, start: int) -> tuple[bytes, bytes, int]:
        """Return name and value of the attribute at `start`, and its length."""
        name_length, index, value_length = _XATTR_ENTRY.unpack_from(self._bytes, start)
        length = _XATTR_ENTRY.size + name_length + value_length
        self.check(Extent(start, length))
        if index not in _PREFIXES:
            raise _damaged(f"the attribute at {start} is of a kind ({index}) that is not known")
        name_at = start + _XATTR_ENTRY.size
        value_at = name_at + name_length
        return _PREFIXES[index] + self._bytes[name_at:value_at], self._bytes[value_at : value_at + value_length], length


def _damaged(detail: str) -> InvalidRequestError:
    return InvalidRequestError(
        "this file cannot be unpacked as an EROFS layer", detail=detail, resolution="publish and pull the image again"
    )
