"""Where the metadata of an EROFS file lies: superblock, inodes with what stands beside them, directories, attributes.

Theory. mkfs.erofs writes inodes between the data of files, so that a walk over a tree touches a little of everything
(in the default image, 55 of 57 chunks). Those blocks are known beforehand, by walking the tree as the kernel does. They
are a few per cent of the file (6 % there); fetched first, they make every `stat`, `readdir` and `readlink` local.

The tail of a file that stands behind its inode is in the same block and comes along: small files are whole metadata.

Files are taken for hostile: every position is checked against the file's size, each directory is walked once, and the
number of inodes is bounded.

Sources: https://docs.kernel.org/filesystems/erofs.html; the layout of the structures is that of the kernel's
``fs/erofs/erofs_fs.h``.
"""

from __future__ import annotations

import mmap
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import InvalidRequestError

MAXIMUM_INODES = 8_000_000
SUPERBLOCK_START = 1024
_SUPERBLOCK = struct.Struct("<IIIBBHQQIIII")
_SUPERBLOCK_BYTES = 128
SUPERBLOCK_END = SUPERBLOCK_START + _SUPERBLOCK_BYTES
_MAGIC = 0xE0F5E1E2
_INCOMPATIBLE_START = SUPERBLOCK_START + 80
_ALLOWED_INCOMPATIBLE = 0
SLOT_BYTES = 32
_COMPACT = struct.Struct("<HHHHIIII")
_EXTENDED = struct.Struct("<HHHHQII")
_COMPACT_BYTES, _EXTENDED_BYTES = 32, 64
_XATTR_HEADER = struct.Struct("<IB7x")
_XATTR_ENTRY = struct.Struct("<BBH")
_DIRENT = struct.Struct("<QHBx")
_PLAIN, _INLINE = 0, 2
_BLOCK_BITS = range(9, 17)


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Bytes of a file, from `start`."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Inode:
    """An inode, as far as the walk needs it.

    Attributes:
        start: where it begins.
        mode, size: as in the tree.
        layout: how its content lies.
        block: where its whole blocks begin.
        body_bytes: the inode itself and its attributes; an inline tail follows.
    """

    start: int
    mode: int
    size: int
    layout: int
    block: int
    body_bytes: int


def metadata_extents(file: Path) -> tuple[Extent, ...]:
    """Return the blocks in which an EROFS file's metadata lies, merged and in order; the last may end with the file.

    Raises:
        InvalidRequestError: it is no EROFS file, one with features that `dsec.images.erofs.make` does not use
            (compression, chunks, further devices), or damaged.
    """
    with file.open("rb") as stream:
        if file.stat().st_size < SUPERBLOCK_START + _SUPERBLOCK_BYTES:
            raise _refused("it is too short")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            walk = Walk(data)
            try:
                walk.all()
            except struct.error as error:
                raise _refused("a structure lies across its end") from error
            return walk.extents()


class Walk:
    """A walk over the tree of an EROFS file, which is taken for hostile.

    Attributes:
        bits: a block has so many bits.
        root: number of the root's inode.
        meta: where inode 0 would stand.
        xattrs: where the shared attribute 0 would stand.

    Raises:
        InvalidRequestError: as `metadata_extents`.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        magic, _, _, bits, _, root, _, _, _, _, meta_block, xattr_block = _SUPERBLOCK.unpack_from(
            data, SUPERBLOCK_START
        )
        if magic != _MAGIC:
            raise _refused("it has no superblock")
        if bits not in _BLOCK_BITS:
            raise _refused(f"blocks of 2^{bits} bytes are not known")
        (incompatible,) = struct.unpack_from("<I", data, _INCOMPATIBLE_START)
        if incompatible & ~_ALLOWED_INCOMPATIBLE:
            raise _refused(f"it uses features {incompatible:#x}, such as compression or further devices")
        self.bits, self.root = bits, root
        self.meta = meta_block << bits
        self.xattrs = xattr_block << bits
        self.shared_end = 0
        """Where the last shared attribute that is used ends; 0: none is used."""
        self._blocks: set[int] = set()

    def all(self) -> None:
        """Visit the whole tree."""
        self.take(0, SUPERBLOCK_START + _SUPERBLOCK_BYTES)
        seen = {self.root}
        pending = [self.root]
        looked_at = 0
        while pending:
            number = pending.pop()
            inode = self._visit(number)
            self.visited(number, inode)
            if not stat.S_ISDIR(inode.mode):
                continue
            for _, child in self.entries(inode):
                looked_at += 1
                if child not in seen:
                    seen.add(child)
                    pending.append(child)
            # Directories may lie over each other, so that few bytes hold many entries of few inodes.
            if len(seen) > MAXIMUM_INODES or looked_at > 3 * MAXIMUM_INODES:
                raise _refused(f"it has more than {MAXIMUM_INODES} inodes, or three times as many entries")

    def check(self, extent: Extent) -> None:
        """Refuse an extent outside of the file."""
        if extent.start < 0 or extent.length < 0 or extent.end > self._size:
            raise _refused(f"{extent.length} bytes at {extent.start} lie outside it")

    def visited(self, number: int, inode: Inode) -> None:
        """Hear of an inode, once; for who wants to know more than where metadata lies."""

    def extents(self) -> tuple[Extent, ...]:
        found: list[Extent] = []
        for block in sorted(self._blocks):
            start = block << self.bits
            length = min(1 << self.bits, self._size - start)
            if found and found[-1].end == start:
                found[-1] = Extent(found[-1].start, found[-1].length + length)
            else:
                found.append(Extent(start, length))
        return tuple(found)

    def take(self, start: int, length: int) -> None:
        """Count bytes as metadata."""
        if start < 0 or length < 0 or start + length > self._size:
            raise _refused(f"{length} bytes at {start} lie outside it")
        self._blocks.update(range(start >> self.bits, ((start + max(length, 1) - 1) >> self.bits) + 1))

    def _visit(self, number: int) -> Inode:
        """Read an inode, and count it, its attributes and what of its content is metadata."""
        inode = self._inode(number)
        self.take(inode.start, inode.body_bytes)
        self._take_shared_attributes(inode)
        if tail := self.tail(inode):
            self.take(tail.start, tail.length)
        if stat.S_ISDIR(inode.mode) or stat.S_ISLNK(inode.mode):
            for extent in self.whole_blocks(inode):
                self.take(extent.start, extent.length)
        return inode

    def _inode(self, number: int) -> Inode:
        start = self.meta + number * SLOT_BYTES
        if start + _COMPACT_BYTES > self._size:
            raise _refused(f"inode {number} lies outside it")
        form = struct.unpack_from("<H", self._data, start)[0]
        layout = (form >> 1) & 7
        kind, own_bytes = (_EXTENDED, _EXTENDED_BYTES) if form & 1 else (_COMPACT, _COMPACT_BYTES)
        fields = kind.unpack_from(self._data, start)
        attributes, mode, size = fields[1], fields[2], fields[4]
        block = fields[5] if form & 1 else fields[6]
        has_content = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
        if has_content and layout not in (_PLAIN, _INLINE):
            raise _refused(f"inode {number} is laid out in a way ({layout}) that is not known")
        body = own_bytes + (_XATTR_HEADER.size + (attributes - 1) * 4 if attributes else 0)
        return Inode(start, mode, size if has_content else 0, layout if has_content else _PLAIN, block, body)

    def _take_shared_attributes(self, inode: Inode) -> None:
        own_bytes = _EXTENDED_BYTES if self._data[inode.start] & 1 else _COMPACT_BYTES
        if inode.body_bytes == own_bytes:
            return
        header = inode.start + own_bytes
        _, count = _XATTR_HEADER.unpack_from(self._data, header)
        if _XATTR_HEADER.size + 4 * count > inode.body_bytes - own_bytes:
            raise _refused(f"the attributes at {header} do not fit their inode")
        for position in range(count):
            (number,) = struct.unpack_from("<I", self._data, header + _XATTR_HEADER.size + 4 * position)
            start = self.xattrs + 4 * number
            self.take(start, _XATTR_ENTRY.size)
            name_length, _, value_length = _XATTR_ENTRY.unpack_from(self._data, start)
            length = _XATTR_ENTRY.size + name_length + value_length
            self.take(start, length)
            self.shared_end = max(self.shared_end, start + length)

    def whole_blocks(self, inode: Inode) -> Iterator[Extent]:
        """Yield the part of an inode's content that lies in blocks of its own, if there is any."""
        length = inode.size
        if inode.layout == _INLINE:
            length &= ~((1 << self.bits) - 1)
        if length:
            yield Extent(inode.block << self.bits, length)

    def content(self, inode: Inode) -> Iterator[Extent]:
        """Yield where an inode's content lies, in order."""
        yield from self.whole_blocks(inode)
        if tail := self.tail(inode):
            yield tail

    def tail(self, inode: Inode) -> Extent | None:
        """Return where the end of an inode's content stands behind the inode, if it does."""
        length = inode.size & ((1 << self.bits) - 1) if inode.layout == _INLINE else 0
        return Extent(inode.start + inode.body_bytes, length) if length else None

    def directory_parts(self, directory: Inode) -> Iterator[Extent]:
        """Yield the content of a directory a block at a time, as the kernel reads it."""
        for extent in self.content(directory):
            for start in range(extent.start, extent.end, 1 << self.bits):
                part = Extent(start, min(1 << self.bits, extent.end - start))
                (_, names, _) = _DIRENT.unpack_from(self._data, part.start)
                if names < _DIRENT.size or names % _DIRENT.size or names > part.length:
                    raise _refused(f"the directory block at {part.start} is damaged")
                yield part

    def names(self, directory: Inode) -> Iterator[tuple[bytes, int]]:
        """Yield the names in a directory, but its own and its parent's, and the inodes' numbers."""
        for part in self.directory_parts(directory):
            block = self._data[part.start : part.end]
            names_at = _DIRENT.unpack_from(block, 0)[1]
            starts = [_DIRENT.unpack_from(block, at)[:2] for at in range(0, names_at, _DIRENT.size)]
            ends = [*(start for _, start in starts[1:]), len(block)]
            for (child, start), end in zip(starts, ends, strict=True):
                name = block[start:end].partition(b"\0")[0]
                if name in (b".", b".."):
                    continue
                if not name or b"/" in name or start < names_at or end > len(block):
                    raise _refused(f"the directory block at {part.start} has a name that cannot be")
                yield name, child

    def entries(self, directory: Inode) -> Iterator[tuple[int, int]]:
        """Yield where each entry of a directory stands, and its inode's number."""
        for part in self.directory_parts(directory):
            names = _DIRENT.unpack_from(self._data, part.start)[1]
            for position in range(0, names, _DIRENT.size):
                yield part.start + position, _DIRENT.unpack_from(self._data, part.start + position)[0]


def _refused(detail: str) -> InvalidRequestError:
    return InvalidRequestError(
        "this file cannot be taken apart as an EROFS layer",
        detail=detail,
        resolution="import the image again: layers are made by mkfs.erofs without compression",
    )
