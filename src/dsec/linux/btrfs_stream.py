"""The send stream of btrfs: have the kernel write it, and read its commands.

The stream tells, as a list of commands, what makes one subvolume out of another or out of nothing: make, rename, link,
unlink, write, set attributes. It names entries by their path at that moment, so that applying it in order to what the
parent held gives exactly what the sent subvolume held.

::

    "btrfs-stream\\0" u32 version                          once
    u32 length, u16 command, u32 crc32c, attributes       each command
    u16 type, u16 length, bytes                           each attribute

Version 1 is read here: every kernel that has btrfs writes it. The checksum of a command is not verified: who carries a
stream compares a digest of all of it.

Sources: linux/fs/btrfs/send.h, btrfs-ioctl(2), the btrfs wiki's "Design notes on Send/Receive".
"""

from __future__ import annotations

import ctypes
import enum
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from dsec.linux import syscalls

MAGIC = b"btrfs-stream\0"
VERSION = 1
_SEND = (1 << 30) | (72 << 16) | (0x94 << 8) | 38
_NO_FILE_DATA = 1
_HEAD = struct.Struct("<IHI")
_ATTRIBUTE = struct.Struct("<HH")
_MAXIMUM_COMMAND_BYTES = 1 << 20
"""The kernel's own bound on one command of version 1 is 64 KiB."""


class Command(enum.IntEnum):
    """Commands of version 1."""

    SUBVOL = 1
    SNAPSHOT = 2
    MKFILE = 3
    MKDIR = 4
    MKNOD = 5
    MKFIFO = 6
    MKSOCK = 7
    SYMLINK = 8
    RENAME = 9
    LINK = 10
    UNLINK = 11
    RMDIR = 12
    SET_XATTR = 13
    REMOVE_XATTR = 14
    WRITE = 15
    CLONE = 16
    TRUNCATE = 17
    CHMOD = 18
    CHOWN = 19
    UTIMES = 20
    END = 21
    UPDATE_EXTENT = 22


_COMMANDS = {int(command): command for command in Command}


class Attribute(enum.IntEnum):
    """Attributes of version 1 that are used here."""

    SIZE = 4
    MODE = 5
    UID = 6
    GID = 7
    RDEV = 8
    MTIME = 10
    ATIME = 11
    XATTR_NAME = 13
    XATTR_DATA = 14
    PATH = 15
    PATH_TO = 16
    PATH_LINK = 17
    FILE_OFFSET = 18
    DATA = 19
    CLONE_PATH = 22
    CLONE_OFFSET = 23
    CLONE_LEN = 24


class StreamError(ValueError):
    """What was read is no send stream, or ends in the middle."""


class Item(NamedTuple):
    """One command with its attributes; asking for one that is missing or of another length raises `StreamError`."""

    command: Command
    attributes: dict[int, bytes]

    def data(self, name: Attribute) -> bytes:
        found = self.attributes.get(name)
        if found is None:
            raise StreamError(f"{self.command.name} has no {name.name}")
        return found

    def number(self, name: Attribute) -> int:
        data = self.data(name)
        if len(data) != 8:
            raise StreamError(f"{name.name} of {self.command.name} has {len(data)} bytes instead of 8")
        return int.from_bytes(data, "little")

    def time_ns(self, name: Attribute) -> int:
        data = self.data(name)
        if len(data) != 12:
            raise StreamError(f"{name.name} of {self.command.name} has {len(data)} bytes instead of 12")
        seconds, nanoseconds = struct.unpack("<qI", data)
        return int(seconds) * 1_000_000_000 + int(nanoseconds)


def send(subvolume_fd: int, stream_fd: int, *, parent: int | None, contents: bool = True) -> None:
    """Write the stream of a read-only subvolume to a pipe or file. Blocks; EPIPE when nobody reads any more.

    Files share extents in the stream only within the sent subvolume, so that applying it needs nothing but what the
    parent held.

    Args:
        subvolume_fd: what is sent.
        stream_fd: where to.
        parent: id of the read-only subvolume that the stream begins from; None: from nothing.
        contents: False tells of contents only where they changed (`UPDATE_EXTENT`).
    """
    flags = 0 if contents else _NO_FILE_DATA
    packed = struct.pack("=qQQQQI28x", stream_fd, 0, 0, parent or 0, flags, 0)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    syscalls.libc_call("ioctl", subvolume_fd, ctypes.c_ulong(_SEND), buffer)


def read_items(file: BinaryIO) -> Iterator[Item]:
    """Yield the commands of one stream up to its end, without the END command.

    Raises:
        StreamError: it is no stream of this version, or it ends in the middle.
    """
    start = _read(file, len(MAGIC) + 4)
    if start[: len(MAGIC)] != MAGIC:
        raise StreamError("it does not begin as a send stream does")
    version = int.from_bytes(start[len(MAGIC) :], "little")
    if version != VERSION:
        raise StreamError(f"it is a send stream of version {version}; version {VERSION} is read")
    while True:
        length, number, _ = _HEAD.unpack(_read(file, _HEAD.size))
        if length > _MAXIMUM_COMMAND_BYTES:
            raise StreamError(f"a command has {length} bytes")
        command = _COMMANDS.get(number)
        if command is None:
            raise StreamError(f"there is no command {number} in version {VERSION}")
        item = Item(command, _attributes(_read(file, length)))
        if command is Command.END:
            return
        yield item


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset, size, unpack = 0, len(data), _ATTRIBUTE.unpack_from
    try:
        while offset < size:
            kind, length = unpack(data, offset)
            begin = offset + _ATTRIBUTE.size
            offset = begin + length
            found[kind] = data[begin:offset]
    except struct.error as error:
        raise StreamError("an attribute is cut off") from error
    if offset != size:
        raise StreamError("an attribute is longer than its command")
    return found


def _read(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    if len(data) != length:
        raise StreamError("it ends in the middle")
    return data
