"""The port `Files` over a sandbox's root, from outside.

The theory is in four files: `root` (how paths are opened), `access` (threads, identity, bounds), `descent` (trees) and
`streams` (chunks). Here each operation of the port is put together from them.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Callable, Sequence

import anyio

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.linux.rename import rename_no_replace
from dsec.model.files import FileInfo
from dsec.runtimes.container.access import Access, CancellationCheck
from dsec.runtimes.container.contents import open_file, open_sink, put_file
from dsec.runtimes.container.digests import digest_file, each_path
from dsec.runtimes.container.file_errors import typed_errors
from dsec.runtimes.container.listing import Listing, stat_entry
from dsec.runtimes.container.removal import remove_entry
from dsec.runtimes.container.root import (
    RootHandle,
    encode_path,
    make_directories,
    open_data,
    open_directory,
    open_parent,
)
from dsec.runtimes.container.streams import AHEAD_BYTES, ChunkReader, ChunkWriter
from dsec.runtimes.container.tarpack import PackingSource
from dsec.runtimes.container.tarunpack import UnpackingSink
from dsec.runtimes.container.users import ResolvedUser, resolve_user
from dsec.runtimes.container.watch import InotifyEvents, WatchTree
from dsec.runtimes.port import FileDigest, WriteMode

MAXIMUM_PERMISSIONS = 0o7777


class ContainerFiles:
    """The files of one instance.

    Args:
        root: the sandbox's root directory; closed by `close`.
        first_host_id: host id of the sandbox's user 0.
        limiter: bounds the node's threads that work in files; shared by all sandboxes.
        disk_bytes: the quota, named when it is reached.
    """

    def __init__(
        self, root: RootHandle, first_host_id: int, limiter: anyio.CapacityLimiter, *, disk_bytes: int | None = None
    ) -> None:
        self._root = root
        self._first_host_id = first_host_id
        self._access = Access(root, first_host_id, limiter, disk_bytes=disk_bytes)
        self._watches: weakref.WeakSet[InotifyEvents] = weakref.WeakSet()

    def close(self) -> None:
        """End all work: new calls, and those on open readers, writers and watches, raise `SandboxExitedError`.

        From the event loop's thread. What a thread is doing right now is finished by it; descriptors of open readers
        and writers stay until their owners close them. Idempotent.
        """
        self._root.close()
        for watch in list(self._watches):
            watch.close()

    async def resolve_user(self, text: str) -> ResolvedUser:
        """Resolve ``name``, ``uid``, ``name:group`` or ``uid:gid`` by the sandbox's own databases.

        Raises:
            UserNotFoundError: unknown.
        """
        # As the sandbox's root: its databases are there for everybody in it.
        return await self._access.run_for(None, b"/etc/passwd", lambda root_fd, _: resolve_user(root_fd, text))

    async def open_read(self, path: str, *, offset: int = 0, user: str | None = None) -> ChunkReader:
        """Open a regular file. Its first 64 KiB come with it, so that small files cost one hop to a thread."""
        raw = encode_path(path)
        if offset < 0:
            raise InvalidRequestError(f"an offset of {offset}", resolution="give an offset of at least 0")
        opened, who = await self._access.run_for(user, raw, lambda root, who: (open_file(root, raw, offset), who))
        return ChunkReader(
            self._access,
            who,
            raw,
            opened.source,
            size_bytes=opened.size_bytes,
            ahead=opened.ahead,
            ended=len(opened.ahead) < AHEAD_BYTES,
        )

    async def open_write(
        self,
        path: str,
        *,
        mode: WriteMode = WriteMode.REPLACE,
        permissions: int = 0o644,
        user: str | None = None,
    ) -> ChunkWriter:
        """Open for writing; missing parents are made (0o755), and taken back by `abort`.

        Replacing keeps the mode, and as root the owner, of what was there; links at the end of the path are followed
        (not for CREATE). Appending writes in place: `abort` cuts off what was appended unless the guest has written
        since.
        """
        raw = encode_path(path)
        _check_permissions(permissions)
        sink, who = await self._access.run_for(
            user, raw, lambda root, who: (open_sink(root, raw, mode=mode, permissions=permissions), who)
        )
        return ChunkWriter(self._access, who, raw, sink)

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Describe one entry; a final symbolic link is not followed."""
        raw = encode_path(path)
        return await self._access.run_for(user, raw, lambda root, _: stat_entry(root, raw, self._first_host_id))

    async def put(self, path: str, data: bytes, *, permissions: int = 0o644, only_over_file: bool = False) -> bool:
        """Write a small file whole in one hop to a thread."""
        raw = encode_path(path)
        _check_permissions(permissions)

        def put(root_fd: int, _: ResolvedUser) -> bool:
            return put_file(root_fd, raw, data, permissions=permissions, only_over_file=only_over_file)

        return await self._access.run_for(None, raw, put)

    async def stat_all(self, paths: Sequence[str]) -> tuple[FileInfo | DsecError, ...]:
        """Describe many entries in one hop to a thread."""
        return await self._access.run_for(
            None, b"/", lambda root, _: each_path(paths, lambda raw: stat_entry(root, raw, self._first_host_id))
        )

    async def digest_all(self, paths: Sequence[str], *, limit_bytes: int) -> tuple[FileDigest | DsecError, ...]:
        """Hash the beginnings of many files in one hop to a thread."""
        return await self._access.run_for(
            None, b"/", lambda root, _: each_path(paths, lambda raw: digest_file(root, raw, limit_bytes))
        )

    async def list(
        self, path: str, *, depth: int = 1, limit: int = 10_000, user: str | None = None
    ) -> tuple[FileInfo, ...]:
        """List a directory to `depth` levels, each directory before what it holds. Other mounts are not entered."""
        raw = encode_path(path)
        if depth < 1 or limit < 1:
            raise InvalidRequestError(f"depth {depth} and limit {limit}", resolution="give at least 1")
        listing = Listing(
            raw, depth=depth, limit=limit, first_host_id=self._first_host_id, check=CancellationCheck()
        )  # fmt: skip
        return await self._access.run_for(user, raw, lambda root, _: listing.run(root))

    async def make_directory(self, path: str, *, permissions: int = 0o755, user: str | None = None) -> bool:
        """Make a directory and its missing parents; return whether it is new."""
        raw = encode_path(path)
        _check_permissions(permissions)
        made = await self._access.run_for(user, raw, lambda root, _: make_directories(root, raw, permissions))
        return bool(made)

    async def move(self, source: str, target: str, *, user: str | None = None) -> None:
        """Rename, replacing a file at `target` but not another directory. Onto itself changes nothing."""
        old, new = encode_path(source), encode_path(target)
        await self._access.run_for(user, new, lambda root, _: _move(root, old, new))

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file, link or empty directory, or a whole tree when `recursive`. Other mounts are not entered."""
        raw = encode_path(path)
        check = CancellationCheck()
        await self._access.run_for(user, raw, lambda root, _: _remove(root, raw, recursive, check))

    async def download(self, path: str, *, user: str | None = None) -> ChunkReader:
        """Return a tar stream; see `tarpack`. Its size is not known beforehand: `size_bytes` is 0."""
        raw = encode_path(path)
        source, who = await self._access.run_for(user, raw, lambda root, who: (self._open_packing(root, raw), who))
        return ChunkReader(self._access, who, raw, source, size_bytes=0)

    def _open_packing(self, root_fd: int, path: bytes) -> PackingSource:
        fd = open_data(root_fd, path, os.O_RDONLY)
        name = path.rstrip(b"/").rpartition(b"/")[2]
        return PackingSource(fd, name, first_host_id=self._first_host_id, check=CancellationCheck())

    async def upload(self, path: str, *, user: str | None = None) -> ChunkWriter:
        """Return a writer that unpacks a tar stream; see `tarunpack`. `abort` removes only the entry in hand."""
        raw = encode_path(path)
        sink, who = await self._access.run_for(user, raw, lambda root, who: (self._open_unpacking(root, raw, who), who))
        return ChunkWriter(self._access, who, raw, sink)

    def _open_unpacking(self, root_fd: int, path: bytes, user: ResolvedUser) -> UnpackingSink:
        make_directories(root_fd, path)
        return UnpackingSink(
            open_directory(root_fd, path),
            depth=_depth(path),
            first_host_id=self._first_host_id,
            keep_owners=user.uid == 0,
            check=CancellationCheck(),
        )

    async def watch(self, path: str, *, recursive: bool = False, user: str | None = None) -> InotifyEvents:
        """Watch a directory from now on. MOVED tells the old name of what was renamed, CREATED the new one."""
        raw = encode_path(path)

        def open_watch(root_fd: int, who: ResolvedUser) -> tuple[WatchTree, ResolvedUser]:
            tree = WatchTree(root_fd, raw, recursive=recursive, check=CancellationCheck())
            return tree, who

        tree, who = await self._access.run_for(user, raw, open_watch)
        events = InotifyEvents(self._access, who, raw, tree)
        self._watches.add(events)
        return events


def _check_permissions(permissions: int) -> None:
    if not 0 <= permissions <= MAXIMUM_PERMISSIONS:
        raise InvalidRequestError(f"permissions {permissions:#o}", resolution="give 0 to 0o7777")


def _move(root_fd: int, old: bytes, new: bytes) -> None:
    with typed_errors(old):
        old_parent, old_name = open_parent(root_fd, old)
    try:
        with typed_errors(old):
            status = os.stat(old_name, dir_fd=old_parent, follow_symlinks=False)
        new_parent, new_name = open_parent(root_fd, new)
        try:
            if stat.S_ISDIR(status.st_mode):
                _move_directory(old_parent, old_name, new_parent, new_name)
            else:
                os.rename(old_name, new_name, src_dir_fd=old_parent, dst_dir_fd=new_parent)
        finally:
            os.close(new_parent)
    finally:
        os.close(old_parent)


def _move_directory(old_parent: int, old_name: bytes, new_parent: int, new_name: bytes) -> None:
    """Rename a directory to a name that is free (rename(2) would replace an empty directory)."""
    try:
        rename_no_replace(old_parent, old_name, new_parent, new_name)
    except FileExistsError as error:
        there = os.stat(new_name, dir_fd=new_parent, follow_symlinks=False)
        if os.path.samestat(there, os.stat(old_name, dir_fd=old_parent, follow_symlinks=False)):
            return  # As rename(2) does where both names are one file.
        if stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), new_name) from error
        raise


def _remove(root_fd: int, path: bytes, recursive: bool, check: Callable[[], None]) -> None:
    parent, name = open_parent(root_fd, path)
    try:
        remove_entry(parent, name, recursive=recursive, check=check)
    finally:
        os.close(parent)


def _depth(path: bytes) -> int:
    """Return how many directories a path is below the root, as it is written."""
    return len([part for part in path.split(b"/") if part not in (b"", b".")])
