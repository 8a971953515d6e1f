"""The canonical content listing of a tree, whose sha256 names a layer (docs/formats/image-store.md).

The listing depends on nothing but content: the same tree stored as an EROFS file, as a directory, on another host
or by another importer gives the same digest. It is computed from what was *stored*, never from what was handed
in, so that a tree that changes while it is read cannot get a digest it does not deserve.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dsec.base.errors import InvalidRequestError
from dsec.linux.inodes import attribute_names

LISTING_HEADER = b"dsec layer listing 1\n"

MAX_DEPTH = 256
"""Deepest tree. Every walk holds one descriptor a level, and the usual limit of a process is 1024."""

_KINDS = {
    stat.S_IFREG: b"f",
    stat.S_IFDIR: b"d",
    stat.S_IFLNK: b"l",
    stat.S_IFCHR: b"c",
    stat.S_IFBLK: b"b",
    stat.S_IFIFO: b"p",
    stat.S_IFSOCK: b"s",
}
_HOST_XATTRS = (b"security.selinux", b"security.ima", b"security.evm", b"system.posix_acl_")
"""Attributes that a host adds of itself; they say nothing about the content."""


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of a tree, seen through its parent's descriptor.

    Attributes:
        path: from the root of the tree, without a leading slash; empty for the root itself.
        parent_fd: descriptor of the directory that holds it, valid only during the iteration step.
        name: its name in there.
        status: what lstat(2) says.
    """

    path: bytes
    parent_fd: int
    name: bytes
    status: os.stat_result


MAX_ENTRIES = 8_000_000
"""Of one tree; twice as many as of an archive, as layers may be merged."""
_ANY, _SHARED = 1 << 62, 4
"""Without a bound; and how often files of a tree may have the same bytes of the file that it is in. Those of ours do
not at all."""
_STUB = 2
"""Inode of all directories by which a btrfs snapshot shows nested subvolumes that it has not got; they are empty."""


def walk(root_fd: int) -> Iterator[Node]:
    """Yield the root and everything below it: parents first, the entries of a directory sorted by their bytes.

    Raises:
        InvalidRequestError: the tree is deeper than `MAX_DEPTH`, or is no tree.
    """
    status = os.stat(root_fd)
    yield Node(b"", root_fd, b".", status)
    yield from _walk_directory(root_fd, b"", 1, {(status.st_dev, status.st_ino)})


def _walk_directory(fd: int, path: bytes, depth: int, seen: set[tuple[int, int]]) -> Iterator[Node]:
    if depth > MAX_DEPTH:
        raise InvalidRequestError(
            f"the tree is deeper than {MAX_DEPTH} directories",
            detail=path[:200].decode(errors="replace"),
            resolution="flatten it; no sandbox needs a base image that deep",
        )
    for name in sorted(os.fsencode(entry) for entry in os.listdir(fd)):
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        where = path + b"/" + name if path else name
        yield Node(where, fd, name, status)
        if stat.S_ISDIR(status.st_mode):
            identity = status.st_dev, status.st_ino
            if identity in seen and status.st_ino != _STUB:
                # A file system that a stranger wrote can say so, and double what there is to be walked at each level.
                raise InvalidRequestError(
                    "a directory of the tree is in several places",
                    detail=where[:200].decode(errors="replace"),
                    resolution="do not trust whoever made it; or unmount what is bound into it",
                )
            seen.add(identity)
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                yield from _walk_directory(child, where, depth + 1, seen)
            finally:
                os.close(child)


@dataclass(slots=True)
class _Listing:
    """A running digest over records, and the hard links seen so far."""

    most_bytes: int
    hasher: hashlib._Hash = field(default_factory=lambda: hashlib.sha256(LISTING_HEADER))
    linked: dict[tuple[int, int], bytes] = field(default_factory=dict)
    entries: int = 0
    content_bytes: int = 0

    def add(self, node: Node) -> None:
        status = node.status
        kind = _KINDS[stat.S_IFMT(status.st_mode)]
        first = self._first_link(node)
        self.content_bytes += status.st_size if kind == b"f" and not first else 0
        if self.content_bytes > self.most_bytes or self.entries >= MAX_ENTRIES:
            raise InvalidRequestError(
                "the tree has more in it than its file can hold",
                detail=f"{self.entries} entries, {self.content_bytes} bytes",
                resolution="do not trust whoever made it",
            )
        fields = [
            node.path,
            kind,
            b"%o" % stat.S_IMODE(status.st_mode),
            b"%d" % status.st_uid,
            b"%d" % status.st_gid,
            b"" if kind == b"d" else b"%d" % (status.st_mtime_ns // 1_000_000_000),
            b"%d:%d" % (os.major(status.st_rdev), os.minor(status.st_rdev)) if kind in b"cb" else b"",
            first,
        ]
        if not first:
            fields += _content(node, kind)
        self.hasher.update(b"".join(b"%d:%s," % (len(value), value) for value in fields) + b"\n")
        self.entries += 1

    def _first_link(self, node: Node) -> bytes:
        """Return the first path of the node's hard-link group; empty when this is the first, or the only one."""
        if node.status.st_nlink < 2 or stat.S_ISDIR(node.status.st_mode):
            return b""
        key = (node.status.st_dev, node.status.st_ino)
        first = self.linked.setdefault(key, node.path)
        return b"" if first == node.path else first


def _content(node: Node, kind: bytes) -> list[bytes]:
    fields = [b"", b""]
    if kind == b"f":
        fields = [b"%d" % node.status.st_size, _file_digest(node)]
    elif kind == b"l":
        fields = [b"", os.readlink(node.name, dir_fd=node.parent_fd)]
    for name, value in sorted(read_xattrs(node).items()):
        fields += [name, value]
    return fields


def _file_digest(node: Node) -> bytes:
    fd = os.open(node.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=node.parent_fd)
    with os.fdopen(fd, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def read_xattrs(node: Node) -> dict[bytes, bytes]:
    """Return the extended attributes of a node, but for those that hosts add of themselves."""
    path = b"/proc/self/fd/%d/%s" % (node.parent_fd, node.name)
    names = map(os.fsencode, attribute_names(path))
    kept = (name for name in names if not name.startswith(_HOST_XATTRS))
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in kept}


def tree_digest(root_fd: int, *, file_bytes: int = _ANY) -> tuple[str, int]:
    """Return ``sha256:...`` over the canonical listing of the tree, and its number of entries.

    Args:
        file_bytes: length of the file that the tree is in: a file system that a stranger wrote may give all of it to
            each of millions of files, to be read for years.

    Raises:
        InvalidRequestError: it is deeper or has more in it than can be.
    """
    listing = _Listing(file_bytes * _SHARED)
    for node in walk(root_fd):
        listing.add(node)
    return f"sha256:{listing.hasher.hexdigest()}", listing.entries


def directory_digest(tree: Path) -> tuple[str, int]:
    """Return the digest of a directory."""
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return tree_digest(fd)
    finally:
        os.close(fd)
