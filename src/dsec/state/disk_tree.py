"""Trees on disk, for snapshots: a frozen layer's upper directory that is read, and a new one that is filled.

What a guest chose is never trusted: see `dsec.state.tree` for the dangers. Paths are opened beneath the top, through
no link. A file is read by ranges, never whole.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from dsec.base.errors import StateCorruptedError
from dsec.base.units import MIB
from dsec.linux.inodes import attribute_names
from dsec.state.beneath import OpenDirectory, open_beneath
from dsec.state.manifest import (
    OVERLAY_ATTRIBUTES,
    Directory,
    Entry,
    File,
    Link,
    Patch,
    Pipe,
    Socket,
    Status,
    Symlink,
    Whiteout,
    is_kept,
)
from dsec.state.trees import FileReader, Found, FrozenTree, Range, Touched

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ON_DISK = b"trusted."
"""What stands before the names of overlayfs' attributes on disk."""
_DENSE_BYTES = 1 << 20
"""In a file up to this size that takes as many blocks as its size, holes are not looked for."""
_KINDS = {
    stat.S_IFDIR: "d",
    stat.S_IFREG: "f",
    stat.S_IFLNK: "l",
    stat.S_IFIFO: "n",
    stat.S_IFSOCK: "s",
}
_LOOK_EVERY_BYTES = 8 * MIB
_ENTRY_BYTES = 4096
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_CANNOT = frozenset({errno.EFBIG, errno.EINVAL, errno.ENAMETOOLONG, errno.EMLINK, errno.EOPNOTSUPP, errno.E2BIG})


class DiskTree:
    """A `FrozenTree` in a directory. Close it.

    Args:
        top_fd: the directory; kept open by a descriptor of its own.
        frozen_at_ns: when the tree was frozen, by the clock of its files' times, if those times and the numbers of
            inodes are the ones of the layer itself; None: it is a copy, whose times and numbers say nothing.
    """

    def __init__(self, top_fd: int, *, frozen_at_ns: int | None = None) -> None:
        self.top_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=top_fd)
        self._directory = OpenDirectory(self.top_fd)
        self._settled_ns = None if frozen_at_ns is None else frozen_at_ns - _COARSE_NS

    def names(self, directory: bytes) -> list[bytes]:
        # A descriptor of its own: the kept one would share its position with an earlier listing.
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory.at(directory))
        try:
            with os.scandir(fd) as entries:
                return [os.fsencode(entry.name) for entry in entries]
        finally:
            os.close(fd)

    def look(self, path: bytes) -> Found | None:
        try:
            directory, name = self._directory.of(path)
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise
        return Found(
            kind=_kind(status),
            mode=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            size=status.st_size,
            links=status.st_nlink,
            inode=status.st_ino,
            unchanged_if=self._unchanged_if(status),
            is_dense=status.st_size <= min(_DENSE_BYTES, status.st_blocks * 512),
        )

    def _unchanged_if(self, status: os.stat_result) -> object | None:
        """The kernel's clock is coarse: a change right after the freeze may bear the time of one right before it."""
        if self._settled_ns is None or status.st_ctime_ns > self._settled_ns:
            return None
        return status.st_ino, status.st_ctime_ns, status.st_size, status.st_mode

    def attributes(self, path: bytes) -> tuple[tuple[bytes, bytes], ...]:
        directory, name = self._directory.of(path)
        where = b"/proc/self/fd/%d/%s" % (directory, name)
        found: list[tuple[bytes, bytes]] = []
        for text in attribute_names(where):
            attribute = os.fsencode(text)
            kept = attribute.removeprefix(_ON_DISK) if attribute.startswith(_ON_DISK) else attribute
            if is_kept(kept) and (kept in OVERLAY_ATTRIBUTES) == (kept != attribute):
                found.append((kept, os.getxattr(where, attribute, follow_symlinks=False)))
        return tuple(sorted(found))

    def target(self, path: bytes) -> bytes:
        directory, name = self._directory.of(path)
        return os.readlink(name, dir_fd=directory)

    @contextmanager
    def open(self, path: bytes) -> Iterator[FileReader]:
        directory, name = self._directory.of(path)
        fd = os.open(name, _READ | os.O_CLOEXEC, dir_fd=directory)
        try:
            yield _DiskFile(fd)
        finally:
            os.close(fd)

    def touched_since(self, base: FrozenTree) -> Touched | None:
        return None

    def close(self) -> None:
        self._directory.close()
        os.close(self.top_fd)


_COARSE_NS = 1_000_000_000
"""A change and a freeze less than this apart cannot be told apart by times: ticks are 10 ms at most."""


class _DiskFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, start: int, length: int) -> bytes:
        content = os.pread(self._fd, length, start)
        if len(content) in (0, length):
            return content
        parts = [content]
        done = len(content)
        while done < length and (content := os.pread(self._fd, length - done, start + done)):
            parts.append(content)
            done += len(content)
        return b"".join(parts)

    def expect(self, start: int, length: int) -> None:
        os.posix_fadvise(self._fd, start, length, os.POSIX_FADV_WILLNEED)

    def data_ranges(self) -> Iterator[Range]:
        size = os.fstat(self._fd).st_size
        end = 0
        while end < size:
            try:
                start = os.lseek(self._fd, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # Nothing but a hole is left.
                raise
            end = min(os.lseek(self._fd, start, os.SEEK_HOLE), size)
            yield Range(start, end)


def _kind(status: os.stat_result) -> str:
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return "w"
    return _KINDS.get(stat.S_IFMT(status.st_mode), "")


class DiskNewTree:
    """A `NewTree` in an empty directory that is private to the caller. Close it.

    Args:
        top_fd: the directory; the caller keeps it open.
        reserve_bytes: what to leave free on the file system: it counts as full before.
    """

    def __init__(self, top_fd: int, *, reserve_bytes: int = 0) -> None:
        self._top_fd = top_fd
        self._reserve_bytes = reserve_bytes
        self._directory = OpenDirectory(top_fd)
        self._directories: list[tuple[bytes, Status]] = []
        self._file: tuple[int, bytes, File] | None = None
        self._unlooked_bytes = 0

    def place(self, path: bytes, entry: Entry) -> None:
        with _translated(path):
            self._finish_file()
            self._take_room(_ENTRY_BYTES)
            self._place(path, entry)

    def _take_room(self, size: int) -> None:
        """Leave the reserve of the file system alone, without which what stands on it could not even be removed. What a
        snapshot holds is bound by no quota."""
        self._unlooked_bytes += size
        if self._unlooked_bytes >= _LOOK_EVERY_BYTES:
            self._unlooked_bytes = 0
            status = os.fstatvfs(self._top_fd)
            if status.f_bavail * status.f_frsize < self._reserve_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _place(self, path: bytes, entry: Entry) -> None:
        directory, name = self._directory.of(path)
        match entry:
            case Directory(status):
                if path:
                    os.mkdir(name, 0o700, dir_fd=directory)
                self._directories.append((path, status))
            case File():
                self._file = os.open(name, _CREATE, 0o600, dir_fd=directory), path, entry
            case Link(first):
                self._link(first, name, directory)
            case Symlink(status, target):
                os.symlink(target, name, dir_fd=directory)
                _give(directory, name, status, is_link=True)
            case Whiteout(status):
                self._make_node(directory, name, stat.S_IFCHR, status)
            case Pipe(status):
                self._make_node(directory, name, stat.S_IFIFO, status)
            case Socket(status):
                self._make_node(directory, name, stat.S_IFSOCK, status)
            case Patch():
                raise AssertionError("a folded tree holds no patches")

    def write(self, start: int, content: bytes | memoryview) -> None:
        if self._file is None:
            raise AssertionError("no file was placed")
        fd, path, _ = self._file
        with _translated(path):
            self._take_room(len(content))
            left = memoryview(content)
            while left:
                done = os.pwrite(fd, left, start)
                left, start = left[done:], start + done

    def finish(self) -> None:
        self._finish_file()
        # The deepest first: whatever is made in a directory changes its time.
        for path, status in reversed(self._directories):
            with _translated(path):
                fd = open_beneath(self._top_fd, path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    _give_open(fd, status)
                finally:
                    os.close(fd)

    def close(self) -> None:
        """Let go of descriptors."""
        if self._file is not None:
            os.close(self._file[0])
            self._file = None
        self._directory.close()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        fd, path, entry = self._file
        self._file = None
        try:
            with _translated(path):
                os.ftruncate(fd, entry.size)
                _give_open(fd, entry.status)
        finally:
            os.close(fd)

    def _link(self, first: bytes, name: bytes, directory: int) -> None:
        holder, _, first_name = first.rpartition(b"/")
        source = open_beneath(self._top_fd, holder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.link(first_name, name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            os.close(source)

    def _make_node(self, directory: int, name: bytes, kind: int, status: Status) -> None:
        os.mknod(name, kind | 0o600, 0, dir_fd=directory)
        _give(directory, name, status, is_link=False)


def _give_open(fd: int, status: Status) -> None:
    """Give an open file or directory what its status says. Owners first: changing them takes bits and capabilities."""
    os.fchown(fd, status.uid, status.gid)
    for name, value in status.attributes:
        os.setxattr(fd, _name_on_disk(name), value)
    os.fchmod(fd, status.mode)
    os.utime(fd, ns=(status.mtime_ns, status.mtime_ns))


def _give(directory: int, name: bytes, status: Status, *, is_link: bool) -> None:
    os.chown(name, status.uid, status.gid, dir_fd=directory, follow_symlinks=False)
    for attribute, value in status.attributes:
        where = b"/proc/self/fd/%d/%s" % (directory, name)
        os.setxattr(where, _name_on_disk(attribute), value, follow_symlinks=False)
    if not is_link:
        os.chmod(name, status.mode, dir_fd=directory)
    os.utime(name, ns=(status.mtime_ns, status.mtime_ns), dir_fd=directory, follow_symlinks=False)


def _name_on_disk(attribute: bytes) -> bytes:
    return _ON_DISK + attribute if attribute in OVERLAY_ATTRIBUTES else attribute


@contextmanager
def _translated(path: bytes) -> Iterator[None]:
    """Say which entry this host cannot hold. What has no room is told by whoever opened the tree."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM or error.errno not in _CANNOT:
            raise
        raise StateCorruptedError(
            f"{path[:200]!r} of the snapshot cannot be made here",
            detail=os.strerror(error.errno or 0),
            resolution="restore it on a host with the file system that it was saved from",
        ) from error
