"""Contents of single files: a source and the three ways of writing (replace, create, append).

Replacing is atomic: the content goes to a file without a name (O_TMPFILE, so that nothing stays behind when we are
killed and the guest sees nothing half-written) that is linked and renamed over the old one at the end. The mode of
what is replaced is kept, and its owner when the writer may give files away. Nothing is synced to disk: a sandbox's
files are as durable as those that its own programs write.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from dataclasses import dataclass

from dsec.base.errors import AlreadyExistsError, IsADirectoryInSandboxError
from dsec.base.units import KIB
from dsec.linux.openat2 import open_in_root, reopen
from dsec.linux.pipes import Pipe
from dsec.runtimes.container.file_errors import show
from dsec.runtimes.container.root import (
    check_data,
    make_directories,
    open_data,
    open_parent,
    resolve_target,
    set_permissions,
    split_entry,
)
from dsec.runtimes.container.streams import AHEAD_BYTES
from dsec.runtimes.port import WriteMode

_APPENDED_BYTES = 256 * KIB
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})


class FileSource:
    """Reads an open file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def take(self, limit: int) -> bytes:
        return os.read(self._fd, limit)

    def fill(self, pipe: Pipe) -> int:
        return pipe.fill_from_file(self._fd, pipe.piece_bytes)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file opened for reading and its first bytes."""

    source: FileSource
    size_bytes: int
    ahead: bytes


def open_file(root_fd: int, path: bytes, offset: int) -> OpenedFile:
    """Open a regular file at `offset` and read its first bytes."""
    fd = open_data(root_fd, path, os.O_RDONLY)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryInSandboxError(f"{show(path)} is a directory", resolution="download it, or name a file")
        if offset:
            os.lseek(fd, offset, os.SEEK_SET)
        return OpenedFile(FileSource(fd), status.st_size, os.read(fd, AHEAD_BYTES))
    except BaseException:
        os.close(fd)
        raise


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Where a write goes.

    Attributes:
        parent_fd: the directory; owned.
        name: the entry in it.
        existing_fd: O_PATH descriptor of the regular file that is there; owned. None when there is none.
        made: directories that were made for it, outermost first.
    """

    parent_fd: int
    name: bytes
    existing_fd: int | None
    made: tuple[bytes, ...]

    def close(self) -> None:
        os.close(self.parent_fd)
        if self.existing_fd is not None:
            os.close(self.existing_fd)


def find_target(root_fd: int, path: bytes, mode: WriteMode) -> WriteTarget:
    """Resolve where a write to `path` goes and make its missing parents.

    Raises:
        AlreadyExistsError: something is there and the mode is CREATE.
        IsADirectoryInSandboxError, UnsupportedFileError: what is there is not a regular file.
    """
    if path.endswith(b"/"):
        raise IsADirectoryInSandboxError(f"{show(path)} names a directory", resolution="name a file")
    # Creating must not follow a link that somebody prepared (O_CREAT | O_EXCL does not either).
    directory, name = split_entry(path if mode is WriteMode.CREATE else resolve_target(root_fd, path))
    made = make_directories(root_fd, directory)
    parent, _ = open_parent(root_fd, directory.rstrip(b"/") + b"/" + name)
    try:
        existing = _find_existing(parent, name, path, mode)
    except BaseException:
        os.close(parent)
        raise
    return WriteTarget(parent, name, existing, tuple(made))


def _find_existing(parent: int, name: bytes, path: bytes, mode: WriteMode) -> int | None:
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return None
    try:
        if mode is WriteMode.CREATE:
            raise AlreadyExistsError(f"{show(path)} exists already", resolution="write with mode replace")
        if stat.S_ISDIR(check_data(fd, path).st_mode):
            raise IsADirectoryInSandboxError(f"{show(path)} is a directory", resolution="name a file")
        if not os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


class ReplacingSink:
    """Writes a new file that takes the name when it is finished (modes REPLACE and CREATE)."""

    def __init__(self, target: WriteTarget, *, permissions: int, exclusive: bool) -> None:
        self._target = target
        self._permissions = permissions
        self._exclusive = exclusive
        self._temporary: bytes | None = None
        self._fd = self._open()

    def _open(self) -> int:
        try:
            return os.open(b".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self._target.parent_fd)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
        self._temporary = _temporary_name()
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._temporary, flags, 0o600, dir_fd=self._target.parent_fd)

    def put(self, data: bytes) -> None:
        write_all(self._fd, data)

    def drain(self, pipe: Pipe, count: int) -> None:
        pipe.empty_to_file(self._fd, count)

    def finish(self) -> None:
        self._set_attributes()
        name, parent = self._target.name, self._target.parent_fd
        if self._temporary is None and self._target.existing_fd is None and self._link_nowhere_else(name):
            return
        if self._temporary is None:
            temporary = _temporary_name()
            self._link(temporary)
            self._temporary = temporary
        if self._exclusive:
            os.link(self._temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
            os.unlink(self._temporary, dir_fd=parent)
        else:
            os.rename(self._temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        self._temporary = None

    def _link_nowhere_else(self, name: bytes) -> bool:
        """Link the nameless file; return False when the name was taken meanwhile and may be replaced."""
        try:
            self._link(name)
        except FileExistsError:
            if self._exclusive:
                raise
            return False
        return True

    def _link(self, name: bytes) -> None:
        # Through /proc, since linking a bare descriptor asks for CAP_DAC_READ_SEARCH (open(2), O_TMPFILE).
        os.link(f"/proc/self/fd/{self._fd}", name, dst_dir_fd=self._target.parent_fd, follow_symlinks=True)

    def _set_attributes(self) -> None:
        if self._target.existing_fd is None:
            set_permissions(self._fd, self._permissions)
            return
        old, new = os.fstat(self._target.existing_fd), os.fstat(self._fd)
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            try:
                os.fchown(self._fd, old.st_uid, old.st_gid)
            except PermissionError:
                pass  # An ordinary user cannot give files away; the file is then theirs, as after mv(1).
        set_permissions(self._fd, stat.S_IMODE(old.st_mode))

    def undo(self) -> None:
        if self._temporary is not None:
            _unlink_if_there(self._target.parent_fd, self._temporary)
        _remove_made(self._target)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._target.close()


class BeginningSink(ReplacingSink):
    """Appends to a file that is not there: it appears with all that was written or not at all, even when we are killed.
    What the guest makes in its place meanwhile is appended to."""

    def __init__(self, target: WriteTarget, *, permissions: int) -> None:
        super().__init__(target, permissions=permissions, exclusive=True)

    def finish(self) -> None:
        try:
            super().finish()
        except FileExistsError:
            self._append_to_what_came()

    def _append_to_what_came(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(self._target.name, flags, dir_fd=self._target.parent_fd)
        try:
            if not stat.S_ISREG(os.fstat(target).st_mode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            offset = 0
            while data := os.pread(self._fd, _APPENDED_BYTES, offset):
                write_all(target, data)
                offset += len(data)
        finally:
            os.close(target)
        if self._temporary is not None:
            _unlink_if_there(self._target.parent_fd, self._temporary)
            self._temporary = None


class AppendingSink:
    """Appends to a file that is there (O_APPEND, so that what the guest writes meanwhile is not overwritten)."""

    def __init__(self, target: WriteTarget, existing_fd: int) -> None:
        self._target = target
        self._written = 0
        self._closed = False
        self._fd = reopen(existing_fd, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        self._start = os.fstat(self._fd).st_size

    def put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = os.write(self._fd, view)
            self._written += count
            view = view[count:]

    def drain(self, pipe: Pipe, count: int) -> None:
        """A file that is only appended to takes no pages (splice(2))."""
        while count:
            data = pipe.take(min(count, _APPENDED_BYTES))
            self.put(data)
            count -= len(data)

    def finish(self) -> None:
        """Everything is there already."""

    def undo(self) -> None:
        """Cut off what was appended, unless somebody else has appended or cut since."""
        if os.fstat(self._fd).st_size == self._start + self._written:
            os.ftruncate(self._fd, self._start)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._target.close()
            os.close(self._fd)


def open_sink(
    root_fd: int, path: bytes, *, mode: WriteMode, permissions: int
) -> ReplacingSink | AppendingSink:  # fmt: skip
    """Open a file for writing."""
    target = find_target(root_fd, path, mode)
    try:
        if mode is WriteMode.APPEND:
            if target.existing_fd is None:
                return BeginningSink(target, permissions=permissions)
            return AppendingSink(target, target.existing_fd)
        return ReplacingSink(target, permissions=permissions, exclusive=mode is WriteMode.CREATE)
    except BaseException:
        target.close()
        raise


def put_file(root_fd: int, path: bytes, data: bytes, *, permissions: int, only_over_file: bool) -> bool:
    """Replace a file by these bytes, or make it; say whether that was done (see the port)."""
    if only_over_file and not _is_regular(root_fd, path):
        return False
    sink = open_sink(root_fd, path, mode=WriteMode.REPLACE, permissions=permissions)
    finished = False
    try:
        sink.put(data)
        sink.finish()
        finished = True
    finally:
        if not finished:
            sink.undo()
        sink.close()
    return True


def _is_regular(root_fd: int, path: bytes) -> bool:
    try:
        fd = open_in_root(root_fd, path, os.O_PATH | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def _temporary_name() -> bytes:
    return b".dsec-" + secrets.token_hex(8).encode()


def _unlink_if_there(parent: int, name: bytes) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass  # The guest was faster.


def _remove_made(target: WriteTarget) -> None:
    """Take back the directories that were made for the file, as far as they are still empty."""
    fd = os.dup(target.parent_fd)
    try:
        for path in reversed(target.made):
            up = os.open(b"..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = up
            os.rmdir(path.rpartition(b"/")[2], dir_fd=fd)
    except OSError:
        pass  # Somebody uses them by now.
    finally:
        os.close(fd)
