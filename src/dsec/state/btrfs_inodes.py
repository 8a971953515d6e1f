"""What the trees of btrfs say was touched between two checkpoints of one layer.

Each change of an inode, its names, its attributes or its content stamps the inode's item with the transaction. So the
inodes stamped after the older checkpoint was made are all that was touched, and reading them costs what was
touched. Their names are beside them, all of them for hard links; the directories among them tell by their listings
what is gone; the items of a file's content are compared, from which the ranges that differ follow exactly, holes and
shared extents included.

This needs the older checkpoint to be a past of the newer one, by what btrfs says of their origins. For others there is
the send stream (`dsec.state.btrfs_touched`), which costs several times more: it looks, for each extent, for all that
shares it. Like that one, this gives hints alone.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dsec.linux.btrfs_search import (
    EXTENT_DATA,
    INODE_EXTREF,
    INODE_ITEM,
    INODE_REF,
    NOT_TOLD,
    Inode,
    Item,
    Search,
    Segment,
    SubvolumeInfo,
    path_of,
    read_inode,
    read_names,
    read_segment,
    subvolume_info,
    subvolume_of,
)
from dsec.state.trees import FrozenTree, Range, Touched

_UPPER = b"upper"
_MAXIMUM_ITEMS = 500_000
MAXIMUM_HINT_BYTES = 64 << 20
"""Bytes of paths in a hint: a guest can touch many files far down."""
_MAXIMUM_BRANCHES = 8
"""Subvolumes between two checkpoints that are looked up: each branch of a checkpoint is two."""
_KINDS = frozenset({INODE_ITEM, INODE_REF, INODE_EXTREF, EXTENT_DATA})
_SCAN_BYTES = 1 << 20
_OBJECT_BYTES = 32 << 10


class _TooMuchError(Exception):
    """More was touched than is worth following."""


@dataclass(slots=True)
class _Object:
    """Items of one inode."""

    inode: Inode | None = None
    names: list[tuple[int, bytes]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def take(self, item: Item) -> None:
        if item.kind == INODE_ITEM:
            self.inode = read_inode(item)
        elif item.kind in (INODE_REF, INODE_EXTREF):
            self.names.extend(read_names(item))
        else:
            self.segments.append(read_segment(item))


class _Subvolume:
    """One checkpoint: its objects, and paths of its directories."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._scan = Search(fd, buffer_bytes=_SCAN_BYTES)
        self._search = Search(fd, buffer_bytes=_OBJECT_BYTES)
        self._directories: dict[int, bytes] = {}
        self._count = 0
        self._path_bytes = 0

    def changed(self, since: int) -> dict[int, _Object]:
        """Return the inodes that were changed in a transaction or later, without contents."""
        found: dict[int, _Object] = {}
        for item in self._counted(self._scan.changed_inodes(since)):
            if item.kind == INODE_ITEM:
                found[item.object_id] = _Object()
            found[item.object_id].take(item)
        return found

    def object(self, number: int) -> _Object:
        """Return all of one inode."""
        found = _Object()
        for item in self._counted(self._search.items(_KINDS, first=number, last=number)):
            found.take(item)
        return found

    def paths(self, found: _Object) -> list[bytes]:
        """Return the names of an inode that are in the upper directory."""
        paths = (self._path(*name) for name in found.names)
        return [path for path in paths if path is not None]

    def _path(self, directory: int, name: bytes) -> bytes | None:
        if directory not in self._directories:
            self._directories[directory] = path_of(self._fd, directory)
        path = self._directories[directory] + b"/" + name if self._directories[directory] else name
        self._path_bytes += len(path)
        if self._path_bytes > MAXIMUM_HINT_BYTES:
            raise _TooMuchError
        if path == _UPPER:
            return b""
        return path[len(_UPPER) + 1 :] if path.startswith(_UPPER + b"/") else None

    def _counted(self, items: Iterator[Item]) -> Iterator[Item]:
        for item in items:
            self._count += 1
            if self._count > _MAXIMUM_ITEMS:
                raise _TooMuchError
            yield item


@dataclass(slots=True)
class _Gathering:
    """What has been found out."""

    old: set[bytes] = field(default_factory=set)
    new: set[bytes] = field(default_factory=set)
    moved: set[bytes] = field(default_factory=set)
    made: set[bytes] = field(default_factory=set)
    ranges: dict[bytes, Sequence[Range]] = field(default_factory=dict)
    origins: dict[bytes, bytes] = field(default_factory=dict)


def touched_in_trees(base_fd: int, base: FrozenTree, new_fd: int, new: FrozenTree) -> Touched | None:
    """Say what differs between two checkpoints; None when their trees do not tell.

    Args:
        base_fd, base: the older checkpoint's subvolume, open, and its upper directory.
        new_fd, new: the newer one's.
    """
    before = subvolume_info(base_fd)
    try:
        if not _is_past(before, subvolume_info(new_fd), new_fd):
            return None
        found = _gather(_Subvolume(base_fd), base, _Subvolume(new_fd), new, before.made_in)
    except _TooMuchError:
        return None
    except OSError as error:
        if error.errno in NOT_TOLD:
            return None
        raise
    return Touched(
        old=frozenset(found.old),
        new=frozenset(found.new),
        moved=frozenset(found.moved),
        made=frozenset(found.made),
        ranges=found.ranges,
        origins=found.origins,
    )


def _is_past(before: SubvolumeInfo, after: SubvolumeInfo, fd: int) -> bool:
    """Whether all that `after` holds was in `before` or was written since in what became `after`: both were made of one
    subvolume, or `after` of a branch of `before`, or of a branch of such a one."""
    for _ in range(_MAXIMUM_BRANCHES):
        if not any(after.parent_uuid):
            return False
        if after.parent_uuid in (before.uuid, before.parent_uuid):
            return before.made_in <= after.made_in
        parent = subvolume_of(fd, after.parent_uuid)
        if parent is None:
            return False  # It was discarded, and what it began from is not known any more.
        after = parent
    return False


def _gather(base: _Subvolume, base_tree: FrozenTree, new: _Subvolume, new_tree: FrozenTree, since: int) -> _Gathering:
    found = _Gathering()
    for number, each in new.changed(since + 1).items():
        inode = each.inode
        if inode is None:
            continue
        if inode.generation > since:
            paths = new.paths(each)
            found.new.update(paths)
            found.made.update(paths)
            continue
        now, then = new.object(number), base.object(number)
        if now.inode is None or then.inode is None:
            raise FileNotFoundError(errno.ENOENT, "an inode of both checkpoints is not in both")
        _compare(found, new.paths(now), now, base.paths(then), then)
        if stat.S_ISDIR(now.inode.mode):
            _compare_names(found, new.paths(now), new_tree, base.paths(then), base_tree)
    return found


def _compare(found: _Gathering, paths: list[bytes], now: _Object, old_paths: list[bytes], then: _Object) -> None:
    """Note an inode that was there and was touched."""
    found.new.update(paths)
    # Names that are gone, and all of them when there are several: they form a group.
    found.old.update(old_paths)
    if not old_paths:
        found.made.update(paths)  # It came from outside of the upper directory.
        return
    ranges = tuple(_differing(now.segments, then.segments))
    for path in paths:
        found.origins[path] = old_paths[0]
        found.ranges[path] = ranges


def _compare_names(
    found: _Gathering, paths: list[bytes], new: FrozenTree, old_paths: list[bytes], base: FrozenTree
) -> None:
    """Note which entries of a directory are gone; of one that was moved, everything is looked at."""
    if paths != old_paths:
        found.moved.update(paths)
        return
    for path in paths:
        gone = set(base.names(path)).difference(new.names(path))
        found.old.update(path + b"/" + name if path else name for name in gone)


def _differing(new: Sequence[Segment], old: Sequence[Segment]) -> Iterator[Range]:
    """Yield where two contents do not lie at the same place."""
    if new == old:
        return
    bounds = sorted({bound for each in (*new, *old) for bound in (each.start, each.end)})
    places = zip(_places(new, bounds), _places(old, bounds), strict=True)
    for start, end, (here, there) in zip(bounds, bounds[1:], places, strict=False):
        if here != there:
            yield Range(start, end)


def _places(segments: Iterable[Segment], bounds: Sequence[int]) -> Iterator[object | None]:
    """Yield, for each bound, where the bytes from it on lie."""
    rest = iter(segments)
    segment = next(rest, None)
    for bound in bounds:
        while segment is not None and segment.end <= bound:
            segment = next(rest, None)
        yield None if segment is None or segment.start > bound else segment.place
