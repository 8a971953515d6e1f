"""What a frozen tree holds that an older one did not: entries to write and paths that are gone.

The walk of both trees decides. Where the driver vouches for an inode (`Found.unchanged_if`) a file is not opened;
otherwise contents are compared block by block, so that of a large file only the blocks that differ are stored.

A driver may say what was touched (`FrozenTree.touched_since`). Then only that is looked at, by the same comparison; so
a hint can spare work and cannot invent anything. What it cannot express, names of one inode, or what contradicts the
tree is decided by the walk.

Hard links: all names of an inode form a group; the first one in the order of paths holds the entry, the others link to
it. When a group's names differ from those that its first name belonged to in the older tree, all of it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dsec.base.errors import LimitExceededError, UnsupportedFileError
from dsec.state.manifest import (
    MAXIMUM_ENTRIES,
    MAXIMUM_PATH_BYTES,
    Directory,
    Entry,
    Link,
    Pipe,
    Socket,
    Status,
    Symlink,
    Whiteout,
    order,
    parent_of,
)
from dsec.state.manifest_codec import MAXIMUM_MANIFEST_BYTES
from dsec.state.trees import FileReader, Found, FrozenTree, Range, Touched

BLOCK_BYTES = 4096
_STEP_BYTES = 256 << 10
_FEW = 0.25
"""When less than this share of a file is said to have been touched, it is not compared first: hardly any would be the
same, and reading the older file costs more."""
_ENTRY_BYTES, _RANGE_BYTES = 16, 40
"""Roughly what a manifest needs for an entry and for an extent, beside names and attributes; rather less."""
_MOST_OF_IT = 0.9
"""A file of which more than this share differs is stored whole: it needs no base, and cuts as others like it do."""


@dataclass(frozen=True, slots=True)
class Content:
    """A regular file of which some ranges are to be stored.

    Attributes:
        status, size: of the file.
        ranges: what to store, in order.
        base: path in the older tree of the file that holds the rest; None: the rest is zeros.
    """

    status: Status
    size: int
    ranges: tuple[Range, ...]
    base: bytes | None


@dataclass(slots=True)
class Difference:
    """What to write so that the older tree becomes the newer one.

    Attributes:
        entries: new and changed entries by path, in order.
        removed: what is gone, in order, each with all that is below it.
        added_entries, added_bytes: by how much the numbers of entries and of bytes of regular files changed.
        described_bytes: about what names, attributes and places of contents of the entries take in a manifest.
        by_hint: whether the walk was spared.
    """

    entries: list[tuple[bytes, Entry | Content]]
    removed: list[bytes]
    added_entries: int
    added_bytes: int
    described_bytes: int
    by_hint: bool


class _UnsureError(Exception):
    """The hint does not tell enough."""


def difference(tree: FrozenTree, base: FrozenTree | None, *, check: Callable[[], None] = lambda: None) -> Difference:
    """Compare a tree with an older one; None: with an empty one. Blocks for as long as that takes.

    Args:
        tree, base: what to compare.
        check: called at each entry and now and then in contents; what it raises ends the comparison. A guest can share
            extents until reading its files takes days.

    Raises:
        LimitExceededError: the tree has more, or longer, names than a snapshot may hold.
        UnsupportedFileError: it holds a device, which no sandbox can make.
    """
    touched = None if base is None else tree.touched_since(base)
    if touched is not None:
        try:
            return _Comparison(tree, base, touched, check).of_touched(touched)
        except _UnsureError:
            pass
    return _Comparison(tree, base, None, check).of_all()


@dataclass(slots=True)
class _Comparison:
    tree: FrozenTree
    base: FrozenTree | None
    touched: Touched | None
    check: Callable[[], None]
    entries: dict[bytes, Entry | Content] = field(default_factory=dict)
    removed: list[bytes] = field(default_factory=list)
    groups: dict[int, list[bytes]] = field(default_factory=dict)
    old_groups: dict[int, list[bytes]] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)
    added_entries: int = 0
    added_bytes: int = 0
    seen_bytes: int = 0
    described_bytes: int = 0

    def of_all(self) -> Difference:
        self._compare_below(b"")
        self._compare_groups()
        return self._result(by_hint=False)

    def of_touched(self, touched: Touched) -> Difference:
        for path in sorted(touched.old | touched.new | touched.moved, key=order):
            if path in self.seen:
                continue
            new = self.tree.look(path)
            if new is None and path in touched.new:
                raise _UnsureError
            if new is not None and new.kind == "d" and (path in touched.moved or not self._was_same(path, new)):
                self._compare_below(path)
            else:
                self._compare(path)
        self._check_groups(self.tree, self.groups)
        self._check_groups(self.base, self.old_groups)
        self._compare_groups()
        return self._result(by_hint=True)

    def _check_groups(self, tree: FrozenTree | None, groups: dict[int, list[bytes]]) -> None:
        """A hint may have told of some names of an inode only."""
        for paths in groups.values():
            found = None if tree is None else tree.look(paths[0])
            if found is None or len(set(paths)) != found.links:
                raise _UnsureError

    def _was_same(self, path: bytes, new: Found) -> bool:
        old = self._old(path)
        return old is not None and self._is_same_inode(path, new, old)

    def _is_same_inode(self, path: bytes, new: Found, old: Found) -> bool:
        """Whether a path of the newer tree is an inode of the older one. Without a hint numbers mean nothing; and two
        branches of a layer give the same number to different inodes."""
        return self.touched is not None and path not in self.touched.made and new.inode == old.inode

    def _result(self, *, by_hint: bool) -> Difference:
        removed: list[bytes] = []
        gone: set[bytes] = set()
        for path in sorted(self.removed, key=order):
            if not _is_in(path, gone):
                gone.add(path)
                removed.append(path)
        entries = sorted(self.entries.items(), key=lambda item: order(item[0]))
        return Difference(entries, removed, self.added_entries, self.added_bytes, self.described_bytes, by_hint)

    def _compare_below(self, top: bytes) -> None:
        """Compare a path and all that is below it in either tree."""
        stack = [top]
        while stack:
            path = stack.pop()
            if path in self.seen:
                continue
            new, old = self._compare(path)
            if new is None or new.kind != "d":
                continue
            names = self.tree.names(path)
            self._bound(len(path) * len(names), path)
            stack.extend(_join(path, name) for name in names)
            if old is not None and old.kind == "d" and self.base is not None:
                for name in set(self.base.names(path)).difference(names):
                    self._remove(_join(path, name))

    def _compare(self, path: bytes) -> tuple[Found | None, Found | None]:
        """Compare one path of both trees."""
        self.check()
        self.seen.add(path)
        self.seen_bytes += len(path)
        self._bound(0, path)
        new, old = self.tree.look(path), self._old(path)
        if new is None:
            if old is not None:
                self._remove(path)
            return new, old
        _check(path, new)
        if old is not None and old.kind == "d" and new.kind != "d":
            self._remove(path)
            old = None
        self._count(new, old)
        linked = self._note_group(self.groups, path, new)
        linked = (old is not None and self._note_group(self.old_groups, path, old)) or linked
        if (new.kind == "d" or not linked) and (changed := self._changed(path, new, old)) is not None:
            self._describe(path, changed)
        return new, old

    def _describe(self, path: bytes, entry: Entry | Content) -> None:
        """Note an entry to write."""
        self.entries[path] = entry
        self.described_bytes += len(path) + _described_bytes(entry)
        self._bound(0, path)

    def _bound(self, more: int, path: bytes) -> None:
        """A guest may give a small file long names and megabytes of attributes: more than a manifest holds is refused
        while it is gathered, before it fills the node's memory."""
        if max(self.seen_bytes + more, self.described_bytes) > MAXIMUM_MANIFEST_BYTES:
            raise LimitExceededError(
                f"names and attributes of the sandbox's files have more than {MAXIMUM_MANIFEST_BYTES} bytes",
                detail=f"{len(self.seen)} files were seen, the last one near {path[:200]!r}",
                resolution="remove files with long paths, many extended attributes or many holes",
            )

    def _count(self, new: Found, old: Found | None) -> None:
        self.added_entries += old is None
        self.added_bytes += _bytes_of(new) - (0 if old is None else _bytes_of(old))
        if len(self.seen) > MAXIMUM_ENTRIES:
            raise LimitExceededError(
                f"a snapshot holds at most {MAXIMUM_ENTRIES} entries", resolution="remove files that are not needed"
            )

    def _remove(self, path: bytes) -> None:
        """Note that a path of the older tree is gone, with all that is below it."""
        self.removed.append(path)
        stack = [path]
        while stack:
            here = stack.pop()
            self.check()
            old = self._old(here)
            if old is None or self.base is None:
                continue
            self.seen.add(here)
            self.added_entries -= 1
            self.added_bytes -= _bytes_of(old)
            self._note_group(self.old_groups, here, old)
            if old.kind == "d":
                stack.extend(_join(here, name) for name in self.base.names(here))

    def _old(self, path: bytes) -> Found | None:
        return None if self.base is None else self.base.look(path)

    # Hard links.

    def _note_group(self, groups: dict[int, list[bytes]], path: bytes, found: Found) -> bool:
        """Note a name of an inode that has several; such are compared when all names are known."""
        if found.kind == "d" or found.links < 2:
            return False
        groups.setdefault(found.inode, []).append(path)
        return True

    def _compare_groups(self) -> None:
        for paths in [*self.groups.values(), *self.old_groups.values()]:
            paths.sort(key=order)
        before = {path: tuple(paths) for paths in self.old_groups.values() for path in paths}
        grouped: set[bytes] = set()
        for paths in self.groups.values():
            first, *others = paths
            same = before.get(first) == tuple(paths)
            self._compare_linked(first, anyway=not same)
            if not same:
                for path in others:
                    self._describe(path, Link(first))
            grouped.update(paths)
        for path in before.keys() - grouped:
            if path in self.seen:
                self._compare_linked(path, anyway=True)

    def _compare_linked(self, path: bytes, *, anyway: bool) -> None:
        """Compare an inode under one of its names; `anyway`: write it although it is the same."""
        new = self.tree.look(path)
        if new is None or new.kind == "d":
            return
        changed = self._changed(path, new, self._old(path), anyway=anyway)
        if changed is not None:
            self._describe(path, changed)

    # One inode.

    def _changed(self, path: bytes, new: Found, old: Found | None, *, anyway: bool = False) -> Entry | Content | None:
        """Return the entry to write for a path; None when the older tree's is the same."""
        if old is not None and _is_surely_same(new, old) and not anyway:
            return None
        status = self._status(self.tree, path, new)
        if new.kind == "f":
            content = self._content(path, new, old, status)
            same = content.base == path and not content.ranges and old is not None and old.size == new.size
            return None if same and not anyway and self._is_same_status(path, status, old) else content
        entry = self._entry(path, new, status)
        if anyway or old is None or old.kind != new.kind or not self._is_same_status(path, status, old):
            return entry
        if self.base is not None and isinstance(entry, Symlink) and self.base.target(path) != entry.target:
            return entry
        return None

    def _is_same_status(self, path: bytes, status: Status, old: Found | None) -> bool:
        return old is not None and self.base is not None and self._status(self.base, path, old) == status

    def _status(self, tree: FrozenTree, path: bytes, found: Found) -> Status:
        return Status(found.mode, found.uid, found.gid, found.mtime_ns, tree.attributes(path))

    def _entry(self, path: bytes, new: Found, status: Status) -> Entry:
        match new.kind:
            case "d":
                return Directory(status)
            case "l":
                return Symlink(status, self.tree.target(path))
            case "w":
                return Whiteout(status)
            case "n":
                return Pipe(status)
            case _:
                return Socket(status)

    # Contents.

    def _content(self, path: bytes, new: Found, here: Found | None, status: Status) -> Content:
        origin, old = self._origin(path, new, here)
        if old is None or self.base is None:
            return Content(status, new.size, self._all_of(path, new), None)
        candidates = self._hinted(path, new, old)
        if candidates is not None and _bytes_in(candidates) <= _FEW * new.size:
            return Content(status, new.size, candidates, origin)
        if candidates is not None and _bytes_in(candidates) > _MOST_OF_IT * new.size:
            return Content(status, new.size, self._all_of(path, new), None)
        changed = self._compared(path, new, origin, candidates)
        if _bytes_in(changed) > _MOST_OF_IT * new.size:
            return Content(status, new.size, self._all_of(path, new), None)
        return Content(status, new.size, changed, origin)

    def _all_of(self, path: bytes, new: Found) -> tuple[Range, ...]:
        """Return where a file has something else than holes."""
        if new.is_dense:
            return (Range(0, new.size),) if new.size else ()
        with self.tree.open(path) as file:
            return tuple(file.data_ranges())

    def _compared(
        self, path: bytes, new: Found, origin: bytes, candidates: tuple[Range, ...] | None
    ) -> tuple[Range, ...]:
        """Return the blocks that differ from the older file's, among the candidates if there are some."""
        assert self.base is not None
        with self.tree.open(path) as file, self.base.open(origin) as old_file:
            if candidates is None:
                candidates = _merged([*file.data_ranges(), *old_file.data_ranges()], new.size)
            return tuple(_differing(file, old_file, candidates, self.check))

    def _origin(self, path: bytes, new: Found, here: Found | None) -> tuple[bytes, Found | None]:
        """Return the file of the older tree whose content to compare with: the same inode, if it is known, or else what
        was `here`, under the same path."""
        if self.touched is not None and path not in self.touched.made:
            origin = _moved_from(path, self.touched)
            old = self._old(origin) if origin != path else None
            if old is not None and old.kind == "f" and self._is_same_inode(path, new, old):
                return origin, old
        return path, here if here is not None and here.kind == "f" else None

    def _hinted(self, path: bytes, new: Found, old: Found) -> tuple[Range, ...] | None:
        """Return where the content may differ; None: not known."""
        if self.touched is None or not self._is_same_inode(path, new, old):
            return () if _is_surely_same(new, old) else None
        ranges = list(self.touched.ranges.get(path, ()))
        if new.size > old.size:
            ranges.append(Range(old.size, new.size))
        return _merged(ranges, new.size)


def _check(path: bytes, found: Found) -> None:
    if len(path) > MAXIMUM_PATH_BYTES:
        raise LimitExceededError(
            f"a path of {len(path)} bytes is too long for a snapshot",
            detail=f"it begins with {path[:80]!r}",
            resolution=f"remove directories nested deeper than {MAXIMUM_PATH_BYTES} bytes",
        )
    if not found.kind:
        raise UnsupportedFileError(f"{path[:200]!r} is a device, which a snapshot cannot hold")


def _described_bytes(entry: Entry | Content) -> int:
    """Return about how many bytes an entry takes in a manifest, its path excepted."""
    if isinstance(entry, Link):
        return _ENTRY_BYTES + len(entry.path)
    size = _ENTRY_BYTES + sum(len(name) + len(value) for name, value in entry.status.attributes)
    if isinstance(entry, Symlink):
        return size + len(entry.target)
    return size + (_RANGE_BYTES * len(entry.ranges) if isinstance(entry, Content) else 0)


def _is_surely_same(new: Found, old: Found) -> bool:
    return new.unchanged_if is not None and new.unchanged_if == old.unchanged_if


def _bytes_of(found: Found) -> int:
    return found.size if found.kind == "f" else 0


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def _is_in(path: bytes, paths: set[bytes]) -> bool:
    """Whether a path or a directory above it is among `paths`."""
    while path not in paths:
        if not path:
            return False
        path = parent_of(path)
    return True


def _moved_from(path: bytes, touched: Touched) -> bytes:
    """Return where in the older tree a path was, by the nearest directory above it that is known to have moved."""
    above = path
    while above not in touched.origins:
        if not above:
            return path
        above = parent_of(above)
    return touched.origins[above] + path[len(above) :]


def _bytes_in(ranges: Iterable[Range]) -> int:
    return sum(each.end - each.start for each in ranges)


def _merged(ranges: Sequence[Range], size: int) -> tuple[Range, ...]:
    """Return the union of ranges, in order, begun and ended at the bounds of blocks or at the end of the file."""
    merged: list[Range] = []
    for each in sorted(ranges, key=lambda each: each.start):
        start = each.start - each.start % BLOCK_BYTES
        end = min(size, each.end + -each.end % BLOCK_BYTES)
        if merged and start <= merged[-1].end:
            start, end = merged[-1].start, max(end, merged.pop().end)
        if end > start:
            merged.append(Range(start, end))
    return tuple(merged)


def _differing(new: FileReader, old: FileReader, ranges: Iterable[Range], check: Callable[[], None]) -> Iterator[Range]:
    """Yield the blocks in which two files differ, neighbours as one; behind its end a file is zeros."""
    start = end = -1
    for each in ranges:
        for at in range(each.start, each.end, _STEP_BYTES):
            check()
            length = min(_STEP_BYTES, each.end - at)
            for first, last in _differing_blocks(new.read(at, length), old.read(at, length)):
                if at + first != end:
                    if end > start:
                        yield Range(start, end)
                    start = at + first
                end = at + last
    if end > start:
        yield Range(start, end)


def _differing_blocks(new: bytes, old: bytes) -> Iterator[tuple[int, int]]:
    if new == old:
        return
    old = old.ljust(len(new), b"\0")
    for at in range(0, len(new), BLOCK_BYTES):
        last = min(at + BLOCK_BYTES, len(new))
        if new[at:last] != old[at:last]:
            yield at, last
