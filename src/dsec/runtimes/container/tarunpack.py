"""Unpack a tar stream into a directory of a hostile sandbox, with flat memory.

No name of the archive is ever given to the kernel whole. Each component is opened as a real directory on the same file
system (no link, whether the archive or the guest made it), and what an entry replaces is unlinked, never written
through. So nothing that the guest swaps meanwhile redirects a write, and the worst it can achieve is an error.

Ownership: entries belong to the user who unpacks; for the sandbox's root, to the ids in the archive where those exist
in the sandbox. A symbolic link may say what it likes within the sandbox (absolute targets are ordinary: virtual
environments have them), but one that climbs above the sandbox's root is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from dsec.base.errors import DsecError, IsADirectoryInSandboxError, LimitExceededError, UnsafeArchiveError
from dsec.base.units import KIB
from dsec.linux.openat2 import open_child
from dsec.linux.pipes import Pipe
from dsec.linux.userns import IDS_PER_RANGE
from dsec.runtimes.container.contents import write_all
from dsec.runtimes.container.file_errors import file_error, show
from dsec.runtimes.container.root import make_child_directory, set_permissions
from dsec.runtimes.container.tarstream import EntryKind, TarEntry, TarParser

MAXIMUM_LATE_MODES = 10_000
"""Directories whose mode would stop their own unpacking; those get it at the end."""

_LONG_BYTES = 64 * KIB
"""Content that is worth a system call of its own."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_THE_WAY = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EXDEV})


class UnpackingSink:
    """A `Sink` that takes a tar stream.

    Args:
        directory_fd: where to unpack; owned.
        depth: how many components the directory is below the sandbox's root.
        first_host_id: host id of the sandbox's user 0.
        keep_owners: give entries the archive's owners (the user is the sandbox's root).
        check: called for every entry; raises to stop.
    """

    def __init__(
        self, directory_fd: int, *, depth: int, first_host_id: int, keep_owners: bool, check: Callable[[], None]
    ) -> None:
        self._top = directory_fd
        self._depth = depth
        self._first_host_id = first_host_id
        self._keep_owners = keep_owners
        self._check = check
        self._parser = TarParser()
        self._file: int | None = None
        self._entry: TarEntry | None = None
        self._left_bytes = 0
        self._parent: tuple[tuple[bytes, ...], int] | None = None
        self._late_modes: list[TarEntry] = []

    def put(self, data: bytes) -> None:
        for event in self._parser.feed(data):
            if isinstance(event, TarEntry):
                self._check()
                with _Naming(event):
                    self._begin(event)
            else:
                self._content(event)

    def drain(self, pipe: Pipe, count: int) -> None:
        """Move long contents from the pipe to their file; what is between them passes the parser."""
        while count:
            wanted = min(count, self._parser.content_left_bytes)
            if wanted >= _LONG_BYTES:
                self._move(pipe, wanted)
                count -= wanted
            else:
                data = pipe.take(min(count, _LONG_BYTES))
                self.put(data)
                count -= len(data)

    def _move(self, pipe: Pipe, count: int) -> None:
        assert self._file is not None
        assert self._entry is not None
        with _Naming(self._entry):
            pipe.empty_to_file(self._file, count)
            self._parser.skip_content(count)
            self._written(count)

    def finish(self) -> None:
        self._parser.check_ended()
        # Inner directories first: an outer one may become unreadable to this user.
        for entry in reversed(self._late_modes):
            with _Naming(entry):
                self._set_late_mode(entry)

    def undo(self) -> None:
        """Remove the file that was being written; entries before it stay."""
        if self._file is None or self._entry is None:
            return
        try:
            os.unlink(self._entry.parts[-1], dir_fd=self._parent_fd(self._entry.parts[:-1]))
        except FileNotFoundError:
            pass  # The guest was faster.

    def close(self) -> None:
        for fd in (self._file, self._parent[1] if self._parent else None, self._top):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._file, self._parent, self._top = None, None, -1

    def _begin(self, entry: TarEntry) -> None:
        if not entry.parts:
            if entry.kind is not EntryKind.DIRECTORY:
                raise UnsafeArchiveError(
                    "an archive entry without a name is no directory", resolution="write a valid tar"
                )
            return  # The directory itself keeps its mode and owner.
        parent = self._parent_fd(entry.parts[:-1])
        if entry.kind is EntryKind.DIRECTORY:
            self._make_directory(parent, entry)
        elif entry.kind is EntryKind.SYMLINK:
            self._make_symlink(parent, entry)
        elif entry.kind is EntryKind.HARD_LINK:
            self._make_hard_link(parent, entry)
        else:
            self._begin_file(parent, entry)

    def _parent_fd(self, parts: tuple[bytes, ...]) -> int:
        """Return the directory of an entry, made where it is missing. The last one is kept open: entries of one
        directory follow one another."""
        if not parts:
            return self._top
        if self._parent is not None:
            if self._parent[0] == parts:
                return self._parent[1]
            os.close(self._parent[1])
            self._parent = None
        self._parent = (parts, self._open_directories(parts, make=True))
        return self._parent[1]

    def _open_directories(self, parts: tuple[bytes, ...], *, make: bool) -> int:
        fd = os.dup(self._top)
        try:
            for part in parts:
                child = _open_or_make(fd, part) if make else open_child(fd, part, _DIRECTORY)
                os.close(fd)
                fd = child
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _make_directory(self, parent: int, entry: TarEntry) -> None:
        """Make a directory; one that exists keeps its mode and owner (an archive of ``tmp/`` must not close /tmp)."""
        name = entry.parts[-1]
        try:
            os.close(open_child(parent, name, _DIRECTORY))
            return
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                raise
        _unlink_old(parent, name)
        make_child_directory(parent, name, 0o700)
        fd = open_child(parent, name, _DIRECTORY)
        try:
            self._give(fd, entry)
            set_permissions(fd, entry.mode | 0o700)
        finally:
            os.close(fd)
        if entry.mode | 0o700 != entry.mode:
            self._add_late_mode(entry)

    def _add_late_mode(self, entry: TarEntry) -> None:
        self._late_modes.append(entry)
        if len(self._late_modes) > MAXIMUM_LATE_MODES:
            raise LimitExceededError(
                f"more than {MAXIMUM_LATE_MODES} directories of the archive are closed to their owner",
                resolution="archive directories with mode u+rwx",
            )

    def _set_late_mode(self, entry: TarEntry) -> None:
        fd = self._open_directories(entry.parts, make=False)
        try:
            set_permissions(fd, entry.mode)
        finally:
            os.close(fd)

    def _make_symlink(self, parent: int, entry: TarEntry) -> None:
        if _climbs_out(entry.target, self._depth + len(entry.parts) - 1):
            raise UnsafeArchiveError(
                f"the archive entry {show(entry.name)} is refused: its target leads out of the sandbox",
                detail=f"it points to {show(entry.target)}",
                resolution="archive links that stay inside",
            )
        name = entry.parts[-1]
        _unlink_old(parent, name)
        os.symlink(entry.target, name, dir_fd=parent)
        if self._keep_owners:
            os.chown(name, self._host_id(entry.uid), self._host_id(entry.gid), dir_fd=parent, follow_symlinks=False)

    def _make_hard_link(self, parent: int, entry: TarEntry) -> None:
        if entry.target_parts == entry.parts or not entry.target_parts:
            raise UnsafeArchiveError(
                f"the archive entry {show(entry.name)} is refused: it links to itself", resolution="write a valid tar"
            )
        source = self._open_directories(entry.target_parts[:-1], make=False)
        try:
            name = entry.target_parts[-1]
            if not stat.S_ISREG(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
                raise UnsafeArchiveError(
                    f"the archive entry {show(entry.name)} is refused: it links to what is no file",
                    resolution="archive hard links to files of the same archive",
                )
            _unlink_old(parent, entry.parts[-1])
            os.link(name, entry.parts[-1], src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _begin_file(self, parent: int, entry: TarEntry) -> None:
        name = entry.parts[-1]
        try:
            fd = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        except FileExistsError:
            _unlink_old(parent, name)
            fd = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        self._file, self._entry, self._left_bytes = fd, entry, entry.size_bytes
        if not entry.size_bytes:
            self._end_file(fd, entry)

    def _content(self, data: memoryview) -> None:
        assert self._file is not None
        assert self._entry is not None
        with _Naming(self._entry):
            write_all(self._file, data)
            self._written(len(data))

    def _written(self, count: int) -> None:
        assert self._file is not None
        assert self._entry is not None
        self._left_bytes -= count
        if not self._left_bytes:
            self._end_file(self._file, self._entry)

    def _end_file(self, fd: int, entry: TarEntry) -> None:
        self._give(fd, entry)
        set_permissions(fd, entry.mode)
        os.utime(fd, (entry.modified_at_s, entry.modified_at_s))
        self._file = None
        os.close(fd)

    def _give(self, fd: int, entry: TarEntry) -> None:
        if self._keep_owners:
            os.fchown(fd, self._host_id(entry.uid), self._host_id(entry.gid))

    def _host_id(self, number: int) -> int:
        return self._first_host_id + (number if 0 <= number < IDS_PER_RANGE else 0)


class _Naming:
    """Translate OSErrors so that they name the entry."""

    def __init__(self, entry: TarEntry) -> None:
        self._entry = entry

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A full disk is told further up, where the quota is known.
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise _entry_error(error, self._entry) from error


def _entry_error(error: OSError, entry: TarEntry) -> DsecError:
    if error.errno in _IN_THE_WAY:
        return UnsafeArchiveError(
            f"the archive entry {show(entry.name)} is refused: a parent of it is a link, a file or a mount",
            resolution="upload to the directory that the link names",
        )
    return file_error(error, entry.name)


def _open_or_make(parent: int, name: bytes) -> int:
    try:
        return open_child(parent, name, _DIRECTORY)
    except FileNotFoundError:
        pass
    try:
        make_child_directory(parent, name, 0o755)
    except FileExistsError:
        pass  # The guest was faster; what it made is checked by opening it.
    return open_child(parent, name, _DIRECTORY)


def _unlink_old(parent: int, name: bytes) -> None:
    """Make room for an entry. A directory is not replaced by what is none."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except IsADirectoryError as error:
        raise IsADirectoryInSandboxError(
            f"{show(name)} is a directory in the sandbox and not in the archive", resolution="remove it first"
        ) from error


def _climbs_out(target: bytes, depth: int) -> bool:
    """Return whether a link's target goes up further than the sandbox's root.

    Args:
        depth: how many directories are between the root and the link.
    """
    if target.startswith(b"/"):
        depth = 0
    for part in target.split(b"/"):
        if part == b"..":
            depth -= 1
        elif part not in (b"", b"."):
            depth += 1
        if depth < 0:
            return True
    return False
