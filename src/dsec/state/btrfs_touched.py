"""What a send stream says was touched between two checkpoints of a layer (linux/btrfs_stream.py).

The stream is a list of commands, each naming entries by their path at that moment: new inodes appear under temporary
names and are renamed, and a renamed directory is one command. So a small tree of the names met so far is kept and
changed as the stream says; what it holds at the end tells, by final path, what was touched, and where it came from.

Only hints come out of it: entries are compared by looking at both checkpoints (`dsec.state.diff`), which also decides
what the stream cannot tell. A stream that is not understood gives no hint.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dsec.linux import btrfs, btrfs_stream
from dsec.linux.btrfs_search import subvolume_info
from dsec.linux.btrfs_stream import Attribute, Command, Item, StreamError, read_items
from dsec.state.btrfs_inodes import MAXIMUM_HINT_BYTES, touched_in_trees
from dsec.state.disk_tree import DiskTree
from dsec.state.trees import FrozenTree, Range, Touched

_UPPER = b"upper/"
_BUFFER_BYTES = 256 << 10
_MAXIMUM_ITEMS = 1_000_000
_MAKING = frozenset({Command.MKFILE, Command.MKDIR, Command.MKNOD, Command.MKFIFO, Command.MKSOCK, Command.SYMLINK})
_TOUCHING = frozenset(
    {
        Command.SET_XATTR,
        Command.REMOVE_XATTR,
        Command.CHMOD,
        Command.CHOWN,
        Command.UTIMES,
        Command.TRUNCATE,
        Command.UPDATE_EXTENT,
        Command.CLONE,
    }
)
_LENGTHS = {Command.UPDATE_EXTENT: Attribute.SIZE, Command.CLONE: Attribute.CLONE_LEN}
"""What tells how much of a file's content changed, behind `FILE_OFFSET`."""


@dataclass(slots=True, eq=False)
class _Inode:
    """A file or directory that the stream spoke of, or a directory on the way to one.

    Attributes:
        origin: a path that it had in the older checkpoint; None: it was made since.
        names: entries met so far.
        settled: names whose entry in the older checkpoint, if there was one, is not there any more.
    """

    origin: bytes | None
    touched: bool = False
    moved: bool = False
    ranges: list[Range] = field(default_factory=list)
    names: dict[bytes, _Inode] = field(default_factory=dict)
    settled: set[bytes] = field(default_factory=set)

    def origin_of(self, name: bytes) -> bytes | None:
        """Return the path in the older checkpoint of what is called `name`, if that was there."""
        if self.origin is None or name in self.settled:
            return None
        return self.origin + b"/" + name if self.origin else name


class _Names:
    """Follow a stream."""

    def __init__(self) -> None:
        self._top = _Inode(b"")
        self._old: set[bytes] = set()
        self._last: tuple[bytes, _Inode] | None = None

    def follow(self, item: Item) -> None:
        """Do what a command says.

        Raises:
            StreamError: it is not understood.
        """
        path = item.data(Attribute.PATH)
        command = item.command
        if command in _TOUCHING:
            self._touch(path, item)
            return
        self._last = None
        if command in _MAKING:
            self._put(path, _Inode(None, touched=True))
        elif command is Command.RENAME:
            inode = self._take(path)
            inode.touched = inode.moved = True
            self._put(item.data(Attribute.PATH_TO), inode)
        elif command is Command.LINK:
            inode = self._get(item.data(Attribute.PATH_LINK))
            inode.touched = True
            self._put(path, inode)
        elif command in (Command.UNLINK, Command.RMDIR):
            self._take(path)
        else:
            raise StreamError(f"{command.name} has no place between two checkpoints")

    def _touch(self, path: bytes, item: Item) -> None:
        """Several commands in a row mostly speak of one entry."""
        if self._last is None or self._last[0] != path:
            self._last = path, self._get(path)
        inode = self._last[1]
        inode.touched = True
        kind = _LENGTHS.get(item.command)
        if kind is not None and (length := item.number(kind)):
            start = item.number(Attribute.FILE_OFFSET)
            inode.ranges.append(Range(start, start + length))

    def touched(self) -> Touched:
        """Return what the stream said, of the upper directory."""
        new: set[bytes] = set()
        moved: set[bytes] = set()
        made: set[bytes] = set()
        ranges: dict[bytes, Sequence[Range]] = {}
        origins: dict[bytes, bytes] = {}
        for path, inode in self._final():
            if inode.touched:
                new.add(path)
            if inode.moved:
                moved.add(path)
            if inode.origin is None:
                made.add(path)
                continue
            origin = _in_upper(inode.origin)
            if origin is not None:
                origins[path] = origin
                ranges[path] = tuple(inode.ranges)
        old = frozenset(filter(None, map(_in_upper, self._old)))
        return Touched(
            old=old, new=frozenset(new), moved=frozenset(moved), made=frozenset(made), ranges=ranges, origins=origins
        )

    def _final(self) -> Iterator[tuple[bytes, _Inode]]:
        stack = [(b"", self._top)]
        path_bytes = 0
        while stack:
            path, inode = stack.pop()
            path_bytes += len(path) * (1 + len(inode.names))
            if path_bytes > MAXIMUM_HINT_BYTES:
                raise StreamError("it tells of more than is worth following")
            below = _in_upper(path)
            if below is not None:
                yield below, inode
            stack.extend((path + b"/" + name if path else name, each) for name, each in inode.names.items())

    def _holder(self, path: bytes) -> tuple[_Inode, bytes]:
        inode = self._top
        *directories, name = path.split(b"/")
        for directory in directories:
            inode = self._below(inode, directory)
        return inode, name

    def _get(self, path: bytes) -> _Inode:
        return self._below(*self._holder(path)) if path else self._top

    def _below(self, holder: _Inode, name: bytes) -> _Inode:
        found = holder.names.get(name)
        if found is None:
            found = holder.names[name] = _Inode(holder.origin_of(name))
        return found

    def _take(self, path: bytes) -> _Inode:
        """Take a name away, and note that it is gone."""
        holder, name = self._holder(path)
        inode = self._below(holder, name)
        self._settle(holder, name)
        del holder.names[name]
        return inode

    def _put(self, path: bytes, inode: _Inode) -> None:
        holder, name = self._holder(path)
        self._settle(holder, name)
        holder.names[name] = inode

    def _settle(self, holder: _Inode, name: bytes) -> None:
        origin = holder.origin_of(name)
        if origin is not None:
            self._old.add(origin)
        holder.settled.add(name)


def _in_upper(path: bytes) -> bytes | None:
    """Return a path below the upper directory, relative to it; None for other paths."""
    if path == _UPPER[:-1]:
        return b""
    return path[len(_UPPER) :] if path.startswith(_UPPER) else None


class BtrfsTree(DiskTree):
    """A checkpoint's upper directory.

    Args:
        checkpoint_fd: the checkpoint: a read-only subvolume.
        upper_fd: its upper directory.
    """

    def __init__(self, checkpoint_fd: int, upper_fd: int) -> None:
        super().__init__(upper_fd, frozen_at_ns=subvolume_info(checkpoint_fd).made_at_ns)
        self._checkpoint_fd = os.dup(checkpoint_fd)

    def touched_since(self, base: FrozenTree) -> Touched | None:
        if not isinstance(base, BtrfsTree):
            return None
        told = self.touched_in_trees(base)
        return told or touched_between(btrfs.subvolume_id(base._checkpoint_fd), self._checkpoint_fd)

    def touched_in_trees(self, base: BtrfsTree) -> Touched | None:
        """Say what was touched since a checkpoint that is a past of this one; None for others."""
        return touched_in_trees(base._checkpoint_fd, base, self._checkpoint_fd, self)

    def close(self) -> None:
        super().close()
        os.close(self._checkpoint_fd)


def touched_between(old_id: int, new_fd: int) -> Touched | None:
    """Ask the kernel what differs between two checkpoints; None when it does not say, or too much.

    Args:
        old_id: id of the older checkpoint's subvolume.
        new_fd: the newer one, open.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    failures: list[OSError] = []

    def send() -> None:
        try:
            btrfs_stream.send(new_fd, writing, parent=old_id, contents=False)
        except OSError as error:
            failures.append(error)  # EPERM for who is not root; EPIPE when the reader has had enough.
        finally:
            os.close(writing)

    thread = threading.Thread(target=send, name="send")
    thread.start()
    try:
        with open(reading, "rb", buffering=_BUFFER_BYTES) as stream:
            names = _Names()
            for count, item in enumerate(read_items(stream)):
                if count > _MAXIMUM_ITEMS:
                    return None
                if item.command not in (Command.SUBVOL, Command.SNAPSHOT):
                    names.follow(item)
            touched = names.touched()
    except StreamError:
        return None
    finally:
        thread.join()
    return None if failures else touched
