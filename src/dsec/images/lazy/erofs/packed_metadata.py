"""The metadata of an EROFS file, packed together at the beginning of a new one.

Theory. Inodes stand between the data of files, each with its attributes and, often, the end of its content. They are
put one behind the other, in their old order and without the ends that go elsewhere (`dsec.images.lazy.erofs.layout`);
behind them the blocks of large directories and links, and the shared attributes. What does not cross the border of a
block must not do so afterwards, since the kernel refuses an end that does (`erofs_map_blocks` in fs/erofs/data.c); what
is longer than a block is put where it stood in one.

Numbers of inodes follow from where these lie, so that directory entries are rewritten; nothing else names an inode.

The file is taken for hostile: inodes that overlap are refused, so that what is written is not more than was there.
"""

from __future__ import annotations

import mmap
import stat
import struct
from collections.abc import Collection, Mapping

from dsec.base.errors import InvalidRequestError
from dsec.images.lazy.erofs.metadata import SLOT_BYTES, SUPERBLOCK_END, SUPERBLOCK_START, Inode, Walk

_CHECKSUM_AT, _COMPAT_AT, _ROOT_AT, _BLOCKS_AT = 4, 8, 14, 36
_META_AT, _XATTR_AT = 40, 44
_CHECKSUMMED = 1
_CONTENT_AT = 16
"""In an inode: where its whole blocks begin."""
_LAYOUT_BITS = 7 << 1
"""In the first two bytes of an inode: how its content lies; 0: in blocks of its own."""
_MAXIMUM_ROOT = 0xFFFF


class WalkedTree(Walk):
    """The walk, with the inodes that it came by, by their numbers."""

    def __init__(self, data: mmap.mmap) -> None:
        super().__init__(data)
        self.inodes: dict[int, Inode] = {}

    def visited(self, number: int, inode: Inode) -> None:
        self.inodes[number] = inode

    def all(self) -> None:
        """Walk, and count what lies between the first and the last shared attribute as metadata."""
        super().all()
        if self.shared_end:
            self.take(self.xattrs, self.shared_end - self.xattrs)


class PackedMetadata:
    """Where metadata goes, from the beginning of the new file on.

    Attributes:
        blocks: how many it takes.

    Raises:
        InvalidRequestError: inodes overlap, as those of mkfs.erofs do not.
    """

    def __init__(self, tree: WalkedTree, data: mmap.mmap, apart: Collection[int]) -> None:
        """Place everything.

        Args:
            tree: was walked.
            data: the old file.
            apart: first blocks of the files whose end does not stay behind the inode; each is one inode's.
        """
        self._tree = tree
        self._data = data
        self._bits = tree.bits
        self._apart = apart
        self._starts: dict[int, int] = {}
        """Where each inode begins."""
        self._placed: dict[int, int] = {}
        """Where each block goes that holds no inode."""
        self.blocks = -(-self._place_inodes() >> self._bits)
        self._place_blocks()

    def _place_inodes(self) -> int:
        """Place inodes and return where they end."""
        at, size, end = SUPERBLOCK_END, 1 << self._bits, 0
        for number, inode in sorted(self._tree.inodes.items(), key=lambda item: item[1].start):
            if inode.start < end:
                raise refused(f"inode {number} overlaps another")
            length = self._length(inode)
            end = inode.start + length
            at = -(-at // SLOT_BYTES) * SLOT_BYTES
            if length > size:
                at += (inode.start - at) % size
            elif at % size + length > size:
                at = -(-at // size) * size
            self._starts[number] = at
            at += length
        return at

    def _place_blocks(self) -> None:
        wanted: set[int] = set()
        for inode in self._tree.inodes.values():
            if not stat.S_ISREG(inode.mode):
                for extent in self._tree.whole_blocks(inode):
                    wanted.update(range(extent.start >> self._bits, -(-extent.end >> self._bits)))
        if self._tree.shared_end:
            wanted.update(range(self._tree.xattrs >> self._bits, -(-self._tree.shared_end >> self._bits)))
        for block in sorted(wanted):
            self._placed[block] = self.blocks
            self.blocks += 1

    def _moves_its_end(self, inode: Inode) -> bool:
        has_blocks = stat.S_ISREG(inode.mode) and any(True for _ in self._tree.whole_blocks(inode))
        return has_blocks and inode.block in self._apart

    def _length(self, inode: Inode) -> int:
        """Return the bytes of an inode, with what stays behind it."""
        tail = None if self._moves_its_end(inode) else self._tree.tail(inode)
        return inode.body_bytes + (tail.length if tail else 0)

    def write(self, made: mmap.mmap, files: Mapping[int, int], blocks: int) -> None:
        """Write everything into the beginning of the new file.

        Args:
            made: that, zeros.
            files: where the content of each file begins, by where it began.
            blocks: of the new file.
        """
        made[:SUPERBLOCK_END] = self._data[:SUPERBLOCK_END]
        size = 1 << self._bits
        for old, new in self._placed.items():
            content = self._data[old << self._bits : (old << self._bits) + size]
            made[new << self._bits : (new << self._bits) + len(content)] = content
        for number, inode in self._tree.inodes.items():
            start, length = self._starts[number], self._length(inode)
            made[start : start + length] = self._data[inode.start : inode.start + length]
            self._tell(made, start, inode, files)
        for number, inode in self._tree.inodes.items():
            if stat.S_ISDIR(inode.mode):
                self._rename(made, number, inode)
        self._write_superblock(made, blocks)

    def _tell(self, made: mmap.mmap, start: int, inode: Inode, files: Mapping[int, int]) -> None:
        """Tell an inode where its content is."""
        if any(True for _ in self._tree.whole_blocks(inode)):
            block = files[inode.block] if stat.S_ISREG(inode.mode) else self._placed[inode.block]
            struct.pack_into("<I", made, start + _CONTENT_AT, block)
        if self._moves_its_end(inode):
            (form,) = struct.unpack_from("<H", made, start)
            struct.pack_into("<H", made, start, form & ~_LAYOUT_BITS)

    def _rename(self, made: mmap.mmap, number: int, directory: Inode) -> None:
        """Write the numbers that the entries of a directory name now."""
        tail = self._tree.tail(directory)
        for entry, named in self._tree.entries(directory):
            if tail and tail.start <= entry < tail.end:
                at = self._starts[number] + entry - directory.start
            else:
                at = (self._placed[entry >> self._bits] << self._bits) | (entry & ((1 << self._bits) - 1))
            struct.pack_into("<Q", made, at, self._starts[named] // SLOT_BYTES)

    def _write_superblock(self, made: mmap.mmap, blocks: int) -> None:
        root = self._starts[self._tree.root] // SLOT_BYTES
        if root > _MAXIMUM_ROOT:
            raise refused("its root would lie where the superblock cannot name it")
        (compatible,) = struct.unpack_from("<I", made, SUPERBLOCK_START + _COMPAT_AT)
        for place, form, value in (
            (_CHECKSUM_AT, "<I", 0),
            (_COMPAT_AT, "<I", compatible & ~_CHECKSUMMED),
            (_ROOT_AT, "<H", root),
            (_BLOCKS_AT, "<I", blocks),
            (_META_AT, "<I", 0),
            (_XATTR_AT, "<I", self._placed[self._tree.xattrs >> self._bits] if self._tree.shared_end else 0),
        ):
            struct.pack_into(form, made, SUPERBLOCK_START + place, value)


def refused(detail: str) -> InvalidRequestError:
    """Return what is said of a layer that cannot be laid out."""
    return InvalidRequestError(
        "this layer cannot be laid out anew", detail=detail, resolution="publish it as it is, without --trace"
    )
