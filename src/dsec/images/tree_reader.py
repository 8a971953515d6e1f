"""Read entries from a directory of the host, through descriptors; the other half is `dsec.images.tree_writer`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from dsec.base.units import MIB
from dsec.images.entries import KINDS, Entry, EntryKind
from dsec.images.listing import Node, read_xattrs, walk
from dsec.images.packing import Found

_OPAQUE = (b"trusted.overlay.opaque", b"user.overlay.opaque")


def entry_of(node: Node) -> Entry:
    """Return the entry that a node is, as if it were the only name of its inode."""
    status = node.status
    kind = KINDS[stat.S_IFMT(status.st_mode)]
    return Entry(
        path=node.path,
        kind=kind,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mtime_s=status.st_mtime_ns // 1_000_000_000,
        size_bytes=status.st_size if kind is EntryKind.FILE else 0,
        link=os.readlink(node.name, dir_fd=node.parent_fd) if kind is EntryKind.SYMBOLIC_LINK else b"",
        device=status.st_rdev,
        xattrs=read_xattrs(node),
    )


def content_of(node: Node) -> Iterable[bytes]:
    """Yield a file's bytes: exactly as many as its size said, so that a file that grows meanwhile is no bomb."""
    fd = os.open(node.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=node.parent_fd)
    with os.fdopen(fd, "rb", buffering=0) as file:
        left = node.status.st_size
        while left > 0 and (chunk := file.read(min(left, MIB))):
            left -= len(chunk)
            yield chunk


def entries_of_upper(upper: Path, check: Callable[[], None]) -> Iterator[Found]:
    """Yield the entries of a writable layer that nobody changes. Contents must be read before the next step.

    Args:
        upper: its upper directory.
        check: called at each entry; what it raises ends the walk.
    """
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for node in walk(fd):
            check()
            yield _found(node)
    finally:
        os.close(fd)


def _found(node: Node) -> Found:
    entry, status = entry_of(node), node.status
    if entry.kind is EntryKind.DIRECTORY:
        return Found(entry=entry, is_opaque=any(entry.xattrs.get(name) == b"y" for name in _OPAQUE))
    return Found(
        entry=replace(entry, is_whiteout=entry.kind is EntryKind.CHARACTER_DEVICE and status.st_rdev == 0),
        content=partial(content_of, node) if entry.kind is EntryKind.FILE else tuple,
        inode=(status.st_dev, status.st_ino) if status.st_nlink > 1 else None,
    )
