"""One tree from several layers, which shows in any stack what they show.

Overlayfs's rules, applied beforehand: of a path the uppermost layer counts, directories are merged unless something of
another kind lies between them. What is left to hide *below* these layers has to stay: a whiteout that nothing above it
replaced stays one if something is there to hide. One that hides nothing must go: in a directory that no other layer
has, overlayfs passes on the names as it reads them, and a whiteout there is a name that cannot be opened. And a
directory is opaque in the merged layer if anything within the range kept it from being merged further down: an opaque
directory, a whiteout or a file in the middle, under a directory of an upper layer.

The root is never opaque: overlayfs does not look at that attribute there.

Two walks: the first, from the top down, decides by metadata alone which layer each path comes from; the second copies.
Memory grows with the number of entries, about 200 bytes each.

Sources: Documentation/filesystems/overlayfs.rst ("whiteouts and opaque directories", "Multiple lower layers");
fs/overlayfs/namei.c, `ovl_lookup_single`: a lookup stops at whatever is no directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dsec.images.below import is_opaque
from dsec.images.entries import EntryKind, opaque_xattrs
from dsec.images.listing import Node, walk
from dsec.images.tree_reader import content_of, entry_of
from dsec.images.tree_writer import TreeWriter
from dsec.linux.userns import is_host_root


@dataclass(slots=True)
class _Decided:
    """What the first walk found.

    Attributes:
        whiteouts: paths that are hidden in what lies below.
        owner: number of the layer that each path comes from.
        directories: paths that are directories in the result.
        opaque: those that hide what layers below the range have.
    """

    owner: dict[bytes, int] = field(default_factory=dict)
    directories: set[bytes] = field(default_factory=set)
    opaque: set[bytes] = field(default_factory=set)
    whiteouts: set[bytes] = field(default_factory=set)


def _nothing(path: bytes) -> bool:
    return False


def merge_trees(layers: Sequence[int], writer: TreeWriter, below: Callable[[bytes], bool] = _nothing) -> None:
    """Write the merged tree of several layers.

    Args:
        layers: descriptors of their root directories, from the lowest up.
        writer: takes the result; it must keep devices, which whiteouts are.
        below: whether the layers below these show anything at a path.
    """
    decided = _decide(layers)
    for path in decided.whiteouts:
        if is_below(path, decided.opaque) or not below(path):
            del decided.owner[path]
    for number, layer in enumerate(layers):
        _copy(layer, number, decided, writer)
    attribute = opaque_xattrs(privileged=is_host_root())
    for path in decided.opaque:
        writer.add_xattrs(path, attribute)


def _decide(layers: Sequence[int]) -> _Decided:
    decided = _Decided()
    closed: set[bytes] = set()
    """Paths of which lower layers show nothing, neither themselves nor below."""
    for number in reversed(range(len(layers))):
        closing: set[bytes] = set()
        for node in walk(layers[number]):
            if node.path not in closed and not is_below(node.path, closed):
                _decide_node(node, number, decided, closing)
        closed |= closing
    return decided


def _decide_node(node: Node, number: int, decided: _Decided, closing: set[bytes]) -> None:
    path = node.path
    is_directory = stat.S_ISDIR(node.status.st_mode)
    if path not in decided.owner:
        decided.owner[path] = number
        if is_directory:
            decided.directories.add(path)
        elif is_whiteout(node.status):
            decided.whiteouts.add(path)
    if path and (not is_directory or is_opaque(b"/proc/self/fd/%d/%s" % (node.parent_fd, node.name))):
        closing.add(path)
        if path in decided.directories:
            decided.opaque.add(path)


def is_whiteout(status: os.stat_result) -> bool:
    """Tell whether an entry hides what lower layers have in its place."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def has_vain_whiteouts(layer: int, below: Callable[[bytes], bool]) -> bool:
    """Tell whether a layer has whiteouts that hide nothing of the layers below; reads directories, and little else."""
    return any(not below(path) for path in _whiteouts(layer, b""))


def _whiteouts(fd: int, path: bytes) -> Iterator[bytes]:
    with os.scandir(fd) as listed:
        entries = list(listed)
    for entry in entries:
        where = path + os.fsencode(entry.name)
        if entry.is_dir(follow_symlinks=False):
            child = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                yield from _whiteouts(child, where + b"/")
            finally:
                os.close(child)
        elif _is_rare(entry) and is_whiteout(entry.stat(follow_symlinks=False)):
            yield where


def _is_rare(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry needs to be looked at: that of most says the name's record already."""
    return not entry.is_file(follow_symlinks=False) and not entry.is_symlink()


def is_below(path: bytes, closed: set[bytes]) -> bool:
    """Tell whether one of the directories above a path is in `closed`."""
    at = path.rfind(b"/")
    while at > 0:
        if path[:at] in closed:
            return True
        at = path.rfind(b"/", 0, at)
    return False


def _copy(layer: int, number: int, decided: _Decided, writer: TreeWriter) -> None:
    """Copy what comes from one layer. Names of one inode stay so, as far as they are left."""
    linked: dict[tuple[int, int], bytes] = {}
    for node in walk(layer):
        if decided.owner.get(node.path) != number:
            continue
        status = node.status
        entry = replace(entry_of(node), mtime_rest_ns=status.st_mtime_ns % 1_000_000_000)
        if entry.kind is not EntryKind.DIRECTORY and status.st_nlink > 1:
            first = linked.setdefault((status.st_dev, status.st_ino), node.path)
            if first != node.path:
                writer.add(replace(entry, kind=EntryKind.HARD_LINK, link=first, size_bytes=0, xattrs={}))
                continue
        writer.add(entry, content_of(node) if entry.kind is EntryKind.FILE else ())
