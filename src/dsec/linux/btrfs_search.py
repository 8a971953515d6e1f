"""Read the trees of btrfs: items of a subvolume, by key and by the transaction in which their leaf was written last.

An item is a key (object, type, offset) and bytes. A subvolume's objects are inodes; the types used here are the inode,
its names, and where its content lies. Searching with `since` skips, node by node, all that was not rewritten since
that transaction, so that it costs what changed and not what there is; it yields whole leaves, with unchanged items
beside changed ones.

Sources: linux/btrfs_tree.h, linux/btrfs.h, btrfs-ioctl(2). Needs CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dsec.linux import syscalls

INODE_ITEM, INODE_REF, INODE_EXTREF, EXTENT_DATA = 1, 12, 13, 108
FIRST_INODE = 256
_NAMES = frozenset({INODE_REF, INODE_EXTREF})
INLINE, REGULAR, PREALLOCATED = 0, 1, 2
_MAGIC = 0x94
_INO_LOOKUP = (3 << 30) | (4096 << 16) | (_MAGIC << 8) | 18
_SEARCH_V2 = (3 << 30) | (112 << 16) | (_MAGIC << 8) | 17
_GET_SUBVOL_INFO = (2 << 30) | (504 << 16) | (_MAGIC << 8) | 60
_KEY = struct.Struct("=7QIIII32xQ")
_HEADER = struct.Struct("=QQQII")
_TRANSACTION = struct.Struct("=Q")
_INODE = struct.Struct("=QQQ16xIIII")
_REF = struct.Struct("=QH")
_EXTREF = struct.Struct("=QQH")
_EXTENT = struct.Struct("=QQBxxxB")
_PLACE = struct.Struct("=QQQQ")
_INFO_UUIDS, _INFO_OTRANSID, _INFO_OTIME = 296, 352, 392
_ROOT_TREE, _UUID_TREE = 1, 9
_ROOT_ITEM, _UUID_SUBVOLUME, _ORPHAN_ITEM = 132, 251, 48
_ORPHANS = (1 << 64) - 5
_ROOT_UUIDS, _ROOT_OTRANSID = 247, 303
_ROOT_TIMES = struct.Struct("=Q28xQI")
"""From `otransid` of a `struct btrfs_root_item` on: that, then `stransid`, `rtransid` and `ctime`, then `otime`."""
_SMALL_BYTES = 32 << 10
_MOST = (1 << 64) - 1


class Item(NamedTuple):
    """One item of a tree."""

    object_id: int
    kind: int
    offset: int
    data: bytes


class Inode(NamedTuple):
    """What an `INODE_ITEM` says.

    Attributes:
        generation: transaction in which the inode was made.
        transaction: the one in which it was changed last, in whatever way.
        size, links, mode: as lstat(2) tells.
    """

    generation: int
    transaction: int
    size: int
    links: int
    mode: int


class Segment(NamedTuple):
    """Bytes of a file from `start` to before `end`.

    Attributes:
        start, end: which.
        place: where they lie on disk, moved back by `start`; two files with equal places have equal bytes there. None:
            they read as zeros. For content within the tree: that itself.
    """

    start: int
    end: int
    place: object | None


@dataclass(frozen=True, slots=True)
class SubvolumeInfo:
    """What is told of a subvolume.

    Attributes:
        uuid, parent_uuid: its own, and the one that it was made a snapshot of; all zeros: of none.
        made_in: transaction with which it was made.
        made_at_ns: when, by the wall clock that its files' times come from.
    """

    uuid: bytes
    parent_uuid: bytes
    made_in: int
    made_at_ns: int


def subvolume_info(fd: int) -> SubvolumeInfo:
    """Describe the subvolume that holds `fd`."""
    buffer = ctypes.create_string_buffer(504)
    syscalls.libc_call("ioctl", fd, ctypes.c_ulong(_GET_SUBVOL_INFO), buffer)
    raw = buffer.raw
    (made_in,) = struct.unpack_from("=Q", raw, _INFO_OTRANSID)
    seconds, nanoseconds = struct.unpack_from("=QI", raw, _INFO_OTIME)
    return SubvolumeInfo(
        raw[_INFO_UUIDS : _INFO_UUIDS + 16],
        raw[_INFO_UUIDS + 16 : _INFO_UUIDS + 32],
        made_in,
        seconds * 1_000_000_000 + nanoseconds,
    )


def subvolume_of(fd: int, wanted: bytes) -> SubvolumeInfo | None:
    """Describe the subvolume of the file system of `fd` that has a UUID; None: there is none, or none any more."""
    low, high = struct.unpack("=QQ", wanted)
    for entry in Search(fd, buffer_bytes=_SMALL_BYTES, tree=_UUID_TREE).items({_UUID_SUBVOLUME}, first=low, last=low):
        if entry.offset != high:
            continue
        (number,) = struct.unpack_from("=Q", entry.data)
        roots = Search(fd, buffer_bytes=_SMALL_BYTES, tree=_ROOT_TREE).items({_ROOT_ITEM}, first=number, last=number)
        for item in roots:
            made_in, seconds, nanoseconds = _ROOT_TIMES.unpack_from(item.data, _ROOT_OTRANSID)
            uuids = item.data[_ROOT_UUIDS : _ROOT_UUIDS + 32]
            if uuids[:16] == wanted:
                return SubvolumeInfo(wanted, uuids[16:], made_in, seconds * 1_000_000_000 + nanoseconds)
    return None


def destroyed_subvolumes(fd: int) -> frozenset[int]:
    """Return the ids of the subvolumes that were destroyed and are not freed yet, the one being freed among them."""
    search = Search(fd, buffer_bytes=_SMALL_BYTES, tree=_ROOT_TREE)
    return frozenset(item.offset for item in search.items({_ORPHAN_ITEM}, first=_ORPHANS, last=_ORPHANS))


def path_of(fd: int, inode: int) -> bytes:
    """Return the path of a directory from the root of the subvolume that holds `fd`; empty for the root itself.

    Raises:
        OSError: there is no such inode (ENOENT), or its path is longer than 4,079 bytes (ENAMETOOLONG).
    """
    argument = ctypes.create_string_buffer(struct.pack("=QQ4080x", 0, inode), 4096)
    syscalls.libc_call("ioctl", fd, ctypes.c_ulong(_INO_LOOKUP), argument)
    return ctypes.string_at(ctypes.addressof(argument) + 16).rstrip(b"/")


class Search:
    """Searches of one subvolume, which share a buffer. Not for several threads at once.

    Args:
        fd: in the subvolume.
        buffer_bytes: for items; each call costs time for all of it, whatever it finds. One item may have 16 KiB.
        tree: number of another tree than the subvolume's own.
    """

    def __init__(self, fd: int, *, buffer_bytes: int, tree: int = 0) -> None:
        self._fd = fd
        self._tree = tree
        self._buffer = ctypes.create_string_buffer(_KEY.size + buffer_bytes)
        self._raw = memoryview(self._buffer).cast("B")

    def items(self, kinds: Container[int], *, first: int, last: int) -> Iterator[Item]:
        """Yield the items of some kinds of the objects `first` to `last`, in the order of their keys."""
        for object_id, kind, offset, at, length in self._found(first, last, 0):
            if kind in kinds:
                yield Item(object_id, kind, offset, bytes(self._raw[at : at + length]))

    def changed_inodes(self, since: int) -> Iterator[Item]:
        """Yield the item of each inode that was changed in the transaction `since` or later, and behind it those of its
        names which were written since, among them all names of an inode that was made since."""
        changed = 0
        for object_id, kind, offset, at, length in self._found(FIRST_INODE, _MOST, since):
            if kind == INODE_ITEM:
                # What is skipped here is the bulk of the leaves, whence nothing is made of it.
                if _TRANSACTION.unpack_from(self._raw, at + 8)[0] < since:
                    continue
                changed = object_id
            elif object_id != changed or kind not in _NAMES:
                continue
            yield Item(object_id, kind, offset, bytes(self._raw[at : at + length]))

    def _found(self, first: int, last: int, since: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the key of each item, where it is in the buffer and how long, until the next one is asked for."""
        begin: tuple[int, int, int] | None = (first, 0, 0)
        while begin is not None and begin[0] <= last:
            count = self._search(begin, last, since)
            begin = None
            at, raw, unpack = _KEY.size, self._raw, _HEADER.unpack_from
            for _ in range(count):
                _, object_id, offset, kind, length = unpack(raw, at)
                at += _HEADER.size + length
                begin = object_id, kind, offset
                yield object_id, kind, offset, at - length, length
            begin = begin and _next_key(*begin)

    def _search(self, begin: tuple[int, int, int], last: int, since: int) -> int:
        object_id, kind, offset = begin
        size = len(self._buffer) - _KEY.size
        # A key is compared as a whole, so that the bounds of types and offsets bind at the first and last object only.
        bounds = object_id, last, offset, _MOST, since, _MOST, kind, 255
        _KEY.pack_into(self._buffer, 0, self._tree, *bounds, 0xFFFFFFFF, 0, size)
        syscalls.libc_call("ioctl", self._fd, ctypes.c_ulong(_SEARCH_V2), self._buffer)
        (count,) = struct.unpack_from("=I", self._buffer, 64)
        return int(count)


def _next_key(object_id: int, kind: int, offset: int) -> tuple[int, int, int]:
    if offset < _MOST:
        return object_id, kind, offset + 1
    if kind < 255:
        return object_id, kind + 1, 0
    return object_id + 1, 0, 0


def read_inode(item: Item) -> Inode:
    """Read an `INODE_ITEM`."""
    generation, transaction, size, links, _, _, mode = _INODE.unpack_from(item.data)
    return Inode(generation, transaction, size, links, mode)


def read_names(item: Item) -> Iterator[tuple[int, bytes]]:
    """Yield directory and name for each name in an `INODE_REF` or `INODE_EXTREF`."""
    at = 0
    while at < len(item.data):
        if item.kind == INODE_REF:
            directory = item.offset
            _, length = _REF.unpack_from(item.data, at)
            at += _REF.size
        else:
            directory, _, length = _EXTREF.unpack_from(item.data, at)
            at += _EXTREF.size
        yield directory, item.data[at : at + length]
        at += length


def read_segment(item: Item) -> Segment:
    """Read an `EXTENT_DATA`."""
    _, content_bytes, compression, kind = _EXTENT.unpack_from(item.data)
    if kind == INLINE:
        return Segment(item.offset, item.offset + content_bytes, (compression, item.data[_EXTENT.size :]))
    address, _, offset, length = _PLACE.unpack_from(item.data, _EXTENT.size)
    place = None if address == 0 or kind == PREALLOCATED else (address, offset - item.offset)
    return Segment(item.offset, item.offset + length, place)


NOT_TOLD = frozenset({errno.EPERM, errno.ENOENT, errno.ENAMETOOLONG, errno.ENOTTY, errno.EOVERFLOW, errno.EOPNOTSUPP})
"""Errors of the calls above with which a tree does not tell what is asked; others are faults."""
