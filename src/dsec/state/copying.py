"""Copy a tree within one file system, sharing the contents of files (reflinks) where it can.

Owners, modes, times, extended attributes, hard links, devices, FIFOs and sockets are kept. Neither side is followed
out of its root: both are walked by descriptor. The target must be private to the caller; the source may be a layer
that is in use, from which entries may vanish meanwhile.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from dataclasses import dataclass, field

from dsec.linux import inodes
from dsec.state.tree import Cursor, listing

_COPY_BYTES = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_tree(source_fd: int, target_fd: int) -> None:
    """Copy what is below `source_fd` into the empty directory `target_fd`, and its own owner, mode and attributes."""
    copying = _Copying(source=Cursor(source_fd), target=Cursor(target_fd), root_fd=target_fd)
    try:
        copying.run()
    finally:
        copying.source.close()
        copying.target.close()


def can_share(directory_fd: int) -> bool:
    """Try whether files in a directory can share their contents."""
    names = (".share-source", ".share-target")
    fds = [
        os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=directory_fd) for name in names
    ]
    try:
        os.write(fds[0], bytes(4096))
        return inodes.clone_file(fds[0], fds[1])
    finally:
        for fd, name in zip(fds, names, strict=True):
            os.close(fd)
            os.unlink(name, dir_fd=directory_fd)


@dataclass(slots=True, kw_only=True)
class _Copying:
    source: Cursor
    target: Cursor
    root_fd: int
    path: list[str] = field(default_factory=list)
    linked: dict[tuple[int, int], str] = field(default_factory=dict)

    def run(self) -> None:
        pending = [self._copy_entries()]
        while pending:
            if pending[-1]:
                if self._enter(pending[-1].pop()):
                    pending.append(self._copy_entries())
                continue
            _copy_status(
                f"/proc/self/fd/{self.source.fd}/.", f"/proc/self/fd/{self.target.fd}/.", os.fstat(self.source.fd)
            )
            pending.pop()
            if pending:
                self._leave()

    def _enter(self, name: str) -> bool:
        try:
            self.source.enter(name)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False  # Gone since it was listed.
            raise
        os.mkdir(name, 0o700, dir_fd=self.target.fd)
        self.target.enter(name)
        self.path.append(name)
        return True

    def _leave(self) -> None:
        self.source.leave()
        self.target.leave()
        self.path.pop()

    def _copy_entries(self) -> list[str]:
        """Copy all but the subdirectories of the current directory, and return those."""
        directories: list[str] = []
        with listing(self.source.fd) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                    continue
                try:
                    self._copy_entry(entry.name, entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # Gone since it was listed.
        return directories

    def _copy_entry(self, name: str, status: os.stat_result) -> None:
        if status.st_nlink > 1 and self._link(name, status):
            return
        if stat.S_ISREG(status.st_mode):
            self._copy_file(name)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=self.source.fd), name, dir_fd=self.target.fd)
        else:
            os.mknod(name, status.st_mode, status.st_rdev, dir_fd=self.target.fd)
        _copy_status(f"/proc/self/fd/{self.source.fd}/{name}", f"/proc/self/fd/{self.target.fd}/{name}", status)

    def _link(self, name: str, status: os.stat_result) -> bool:
        """Link to an earlier copy of the same inode; a path too long to name becomes a copy of its own."""
        identity = (status.st_dev, status.st_ino)
        here = "/".join([*self.path, name])
        first = self.linked.setdefault(identity, here)
        if first == here:
            return False
        try:
            os.link(first, name, src_dir_fd=self.root_fd, dst_dir_fd=self.target.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.EMLINK, errno.ENOENT):
                return False
            raise
        return True

    def _copy_file(self, name: str) -> None:
        source = os.open(name, _READ, dir_fd=self.source.fd)
        try:
            target = os.open(name, _CREATE, 0o600, dir_fd=self.target.fd)
            try:
                if not inodes.clone_file(source, target):
                    _copy_bytes(source, target)
            finally:
                os.close(target)
        finally:
            os.close(source)


def _copy_bytes(source: int, target: int) -> None:
    with os.fdopen(os.dup(source), "rb") as reader, os.fdopen(os.dup(target), "wb") as writer:
        shutil.copyfileobj(reader, writer, _COPY_BYTES)


def _copy_status(source: str, target: str, status: os.stat_result) -> None:
    """Give `target` the owner, attributes, mode and times of `source`. The paths end in one name below a descriptor."""
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    for attribute in os.listxattr(source, follow_symlinks=False):
        os.setxattr(target, attribute, os.getxattr(source, attribute, follow_symlinks=False), follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
