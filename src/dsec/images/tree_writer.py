"""Write a tree from entries that nobody trusts.

An archive may name ``/etc/passwd``, ``../../x``, or make a symbolic link and then write through it. None of that
can reach the host here, by construction: a path is split into components, ``..`` is refused, and every directory on
the way is opened relative to its parent with ``O_NOFOLLOW``, which is `openat2` with
``RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`` for kernels and languages without it. Files are created with ``O_EXCL``.
Hard links are made from such a directory to such a directory and can therefore only join entries of the tree.

Owners and device nodes need root; an ordinary user owns all that is written, and nodes are left out, which `warnings`
reports. A node opens nothing wherever a layer or a sandbox's root is mounted (`dsec.runtimes.container.overlay`), and
until then lies in a directory that root alone enters. One that overlayfs would take for a whiteout, a character device
0:0, is left out unless an importer made it of what its format calls one.

An entry with the path of an earlier one replaces it, as tar(1) does, unless that one is a directory with content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from dsec.base.errors import HostDiskFullError, InvalidRequestError, UnsafeArchiveError
from dsec.base.units import GIB, KIB
from dsec.images.entries import KINDS, Entry, EntryKind
from dsec.images.listing import MAX_DEPTH, Node, walk
from dsec.images.tree_reader import content_of, entry_of

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_ID = (1 << 32) - 2
_SANDBOX_IDS = 65_536
MAX_NAME_BYTES = 254
"""One less than Linux takes: mkfs.erofs (1.5) cuts names of 255 bytes, and then does not find them."""
_XATTR_BYTES = 3 * KIB
"""Attributes of this length fit wherever attributes do."""
_HOLE_BYTES = 64 * KIB
_TOLD_KINDS, _TOLD_NAME = 100, 80
"""Kinds of warnings, and characters of what an archive calls something in one: it may call each of millions anew."""
_ZEROS = bytes(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Bounds on what one archive may unfold to; the first one passed raises `UnsafeArchiveError`.

    Attributes:
        total_bytes: content of all files, and of the unpacked stream. The default is far above any image in use
            and below what fills the disk of a host.
        entries: files, directories, links.
        path_bytes: one path. Below PATH_MAX (4096) by what the programs that read the tree put before it.
        names_bytes: all paths together, and the attributes of directories: what is known of directories stands in
            memory until the end, which an archive must not fill.
        depth: directories on the way to an entry.
        xattr_bytes: attributes of one entry.
    """

    total_bytes: int = 32 * GIB
    entries: int = 4_000_000
    path_bytes: int = 3_840
    names_bytes: int = GIB
    depth: int = MAX_DEPTH - 1
    xattr_bytes: int = 64 * KIB


DEFAULT_LIMITS = ArchiveLimits()


@dataclass(slots=True)
class _Directory:
    """What a directory gets when everything in it is written: its own times would change with every entry."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    xattrs: dict[bytes, bytes] = field(default_factory=dict)


class TreeWriter:
    """Write entries below a new directory. A context manager: leaving it without an error completes the directories.

    Args:
        root: the directory; it is made.
        limits: bounds.
        keep_devices: the tree is already ours: write whiteouts and all attributes as they are.
    """

    def __init__(self, root: Path, *, limits: ArchiveLimits = DEFAULT_LIMITS, keep_devices: bool = False) -> None:
        self._root = root
        self._limits = limits
        self._keep_devices = keep_devices
        self._privileged = os.geteuid() == 0
        self._directories: dict[bytes, _Directory] = {b"": _Directory()}
        self._further: dict[bytes, dict[bytes, bytes]] = {}
        """Attributes that directories get whatever their entries say, before or after."""
        self._parent_path = b""
        self._parent_fd = -1
        self._bytes = 0
        self._entries = 0
        self._names_bytes = 0
        self._left_out: Counter[str] = Counter()
        self._missing: set[bytes] = set()
        """Paths of nodes that were left out: so are further names of them."""

    def __enter__(self) -> TreeWriter:
        self._root.mkdir(mode=0o755)
        self._root_fd = os.open(self._root, _OPEN_DIRECTORY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close_parent()
            if kind is None:
                self._finish_directories()
        finally:
            os.close(self._root_fd)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left out or changed, one line a kind, with a count."""
        return tuple(f"{count} x {what}" for what, count in sorted(self._left_out.items()))

    def add(self, entry: Entry, content: Iterable[bytes] = ()) -> None:
        """Write one entry.

        Raises:
            UnsafeArchiveError: it would leave the tree, or a limit is passed. Nothing of it was written.
            HostDiskFullError: no space.
        """
        path = self._check(entry)
        try:
            self._write(path, entry, content)
        except OSError as error:
            raise self._translate(error, entry) from error

    def add_xattrs(self, path: bytes, xattrs: Mapping[bytes, bytes]) -> None:
        """Give a directory further attributes when the tree is completed. Counts as an entry."""
        self._count(path)
        clean = self.clean_path(path)
        self._open_parent(clean + b"/." if clean else b".", path)
        self._directories.setdefault(clean, _Directory())
        self._further.setdefault(clean, {}).update(xattrs)

    def kind_of(self, path: bytes) -> EntryKind | None:
        """Return what is at `path` now; None when nothing is."""
        clean = self.clean_path(path)
        parent = self._open_parent(clean, path)
        return _kind_at(parent, clean.rpartition(b"/")[2])

    def is_hidden(self, path: bytes) -> bool:
        """Tell whether there is a whiteout at `path` now."""
        clean = self.clean_path(path)
        status = _status_at(self._open_parent(clean, path), clean.rpartition(b"/")[2])
        return status is not None and stat.S_ISCHR(status.st_mode) and status.st_rdev == 0

    def clean_path(self, path: bytes) -> bytes:
        """Return `path` without ``.`` components and doubled slashes.

        Raises:
            UnsafeArchiveError: it is absolute, has ``..`` or a null byte, or passes a limit.
        """
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        reason = ""
        if path.startswith(b"/") and parts:  # A lone slash is how some writers name the root.
            reason = "is absolute"
        elif b".." in parts:
            reason = "leads out of the archive with '..'"
        elif b"\0" in path:
            reason = "holds a null byte"
        elif len(path) > self._limits.path_bytes or any(len(part) > MAX_NAME_BYTES for part in parts):
            reason = f"is longer than {self._limits.path_bytes} bytes, or a part of it than {MAX_NAME_BYTES}"
        elif len(parts) > self._limits.depth:
            reason = f"is deeper than {self._limits.depth} directories"
        if reason:
            raise _unsafe(path, f"its path {reason}")
        return b"/".join(parts)

    def _check(self, entry: Entry) -> bytes:
        self._bytes += entry.size_bytes
        self._count(entry.path)
        if self._bytes > self._limits.total_bytes:
            raise _unsafe(entry.path, f"the archive unfolds to more than {self._limits.total_bytes} bytes")
        if not (0 <= entry.uid <= _MAX_ID and 0 <= entry.gid <= _MAX_ID):
            raise _unsafe(entry.path, "its owner is not a valid id")
        if sum(len(name) + len(value) for name, value in entry.xattrs.items()) > self._limits.xattr_bytes:
            raise _unsafe(entry.path, f"its attributes are larger than {self._limits.xattr_bytes} bytes")
        if b"\0" in entry.link or any(b"\0" in name for name in entry.xattrs):
            raise _unsafe(entry.path, "its link or the name of an attribute holds a null byte")
        return self.clean_path(entry.path)

    def _count(self, path: bytes) -> None:
        self._entries += 1
        self._count_bytes(len(path), path)
        if self._entries > self._limits.entries:
            raise _unsafe(path, f"the archive has more than {self._limits.entries} entries")

    def _count_bytes(self, count: int, path: bytes) -> None:
        self._names_bytes += count
        if self._names_bytes > self._limits.names_bytes:
            what = "paths, and attributes of directories,"
            raise _unsafe(path, f"the archive's {what} have more than {self._limits.names_bytes} bytes together")

    def _write(self, path: bytes, entry: Entry, content: Iterable[bytes]) -> None:
        if entry.hides_by_accident and not self._keep_devices:
            self._leave_out(path, "character devices 0:0 left out, which would hide what lower layers have")
            return
        if not path:
            if entry.kind is not EntryKind.DIRECTORY:
                raise _unsafe(entry.path, "it would take the place of the root of the tree")
            self._directories[b""] = self._directory(entry)
            return
        if max(entry.uid, entry.gid) >= _SANDBOX_IDS:
            self._warn(f"owners above {_SANDBOX_IDS - 1}, which sandboxes show as nobody")
        parent = self._open_parent(path, entry.path)
        name = path.rpartition(b"/")[2]
        if entry.kind is EntryKind.DIRECTORY:
            self._make_directory(parent, name, path, entry)
            return
        if entry.kind is EntryKind.HARD_LINK:
            self._link(parent, name, path, entry)
            return
        self._make_room(parent, name, path, entry)
        if entry.kind is EntryKind.FILE:
            self._write_file(parent, name, entry, content)
        else:
            self._make_special(parent, name, path, entry)

    def _warn(self, what: str) -> None:
        if what not in self._left_out and len(self._left_out) >= _TOLD_KINDS:
            what = "further things left out or changed"
        self._left_out[what] += 1

    def _leave_out(self, path: bytes, why: str) -> None:
        self._warn(why)
        self._missing.add(path)

    def _make_directory(self, parent: int, name: bytes, path: bytes, entry: Entry) -> None:
        if _kind_at(parent, name) is not EntryKind.DIRECTORY:
            self._make_room(parent, name, path, entry)
            os.mkdir(name, 0o700, dir_fd=parent)
        self._directories[path] = self._directory(entry)

    def _directory(self, entry: Entry) -> _Directory:
        xattrs = dict(self._kept_xattrs(entry))
        self._count_bytes(sum(len(key) + len(value) for key, value in xattrs.items()), entry.path)
        return _Directory(mode=entry.mode, uid=entry.uid, gid=entry.gid, mtime_ns=entry.mtime_ns, xattrs=xattrs)

    def _make_room(self, parent: int, name: bytes, path: bytes, entry: Entry) -> None:
        """Remove what an earlier entry left at this path."""
        kind = _kind_at(parent, name)
        if kind is None:
            return
        if kind is not EntryKind.DIRECTORY:
            os.unlink(name, dir_fd=parent)
            return
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            raise _unsafe(entry.path, "it replaces a directory that has content") from error
        self._directories.pop(path, None)
        self._further.pop(path, None)

    def _write_file(self, parent: int, name: bytes, entry: Entry, content: Iterable[bytes]) -> None:
        fd = os.open(name, _CREATE, 0o600, dir_fd=parent)
        try:
            _write_content(fd, content)
            self._own(fd, entry.uid, entry.gid)
            os.fchmod(fd, entry.mode)
            for key, value in self._kept_xattrs(entry):
                self._set_xattr(fd, key, value)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)

    def _make_special(self, parent: int, name: bytes, path: bytes, entry: Entry) -> None:
        if entry.kind is EntryKind.SYMBOLIC_LINK:
            os.symlink(entry.link, name, dir_fd=parent)
        else:
            try:
                os.mknod(name, _NODE_TYPES[entry.kind] | 0o600, entry.device, dir_fd=parent)
            except PermissionError:
                if not entry.is_device or entry.is_whiteout or self._keep_devices:
                    raise
                self._leave_out(path, "device nodes left out, since making them needs root")
                return
        if self._privileged:
            os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if entry.kind is not EntryKind.SYMBOLIC_LINK:
            os.chmod(name, entry.mode, dir_fd=parent)
        for key, value in self._kept_xattrs(entry):
            self._set_xattr(b"/proc/self/fd/%d/%s" % (parent, name), key, value)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _link(self, parent: int, name: bytes, path: bytes, entry: Entry) -> None:
        target = self.clean_path(entry.link.lstrip(b"/"))
        link_fd, link_name = os.dup(parent), target.rpartition(b"/")[2]
        try:
            source = self._open_parent(target, entry.path) if target else -1
            if _kind_at(source, link_name) in (None, EntryKind.DIRECTORY) if target else True:
                if target in self._missing:
                    self._leave_out(path, "further names of device nodes left out")
                    return
                raise _unsafe(entry.path, f"it is a hard link to {_show(entry.link)}, which the archive does not hold")
            present = _status_at(link_fd, name)
            if present and present.st_ino == os.stat(link_name, dir_fd=source, follow_symlinks=False).st_ino:
                return
            self._make_room(link_fd, name, path, entry)
            os.link(link_name, name, src_dir_fd=source, dst_dir_fd=link_fd, follow_symlinks=False)
        finally:
            os.close(link_fd)

    def _open_parent(self, path: bytes, shown: bytes) -> int:
        """Return the directory that holds `path`, made if missing. It stays open until the next call."""
        wanted = path.rpartition(b"/")[0]
        if self._parent_fd >= 0 and wanted == self._parent_path:
            return self._parent_fd
        fd = os.dup(self._root_fd)
        try:
            walked = b""
            for part in wanted.split(b"/") if wanted else ():
                walked = walked + b"/" + part if walked else part
                fd = self._step(fd, part, walked, shown)
        except BaseException:
            os.close(fd)
            raise
        self._close_parent()
        self._parent_path, self._parent_fd = wanted, fd
        return fd

    def _step(self, fd: int, part: bytes, walked: bytes, shown: bytes) -> int:
        """Return the descriptor of `part` in `fd` and close `fd`."""
        if _kind_at(fd, part) is None:
            self._count(shown)
            os.mkdir(part, 0o700, dir_fd=fd)
            self._directories[walked] = _Directory()
        try:
            child = os.open(part, _OPEN_DIRECTORY, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _unsafe(shown, f"{_show(walked)} on its way is a link or a file of the archive") from error
            raise
        os.close(fd)
        return child

    def _close_parent(self) -> None:
        if self._parent_fd >= 0:
            os.close(self._parent_fd)
            self._parent_fd = -1

    def _finish_directories(self) -> None:
        """Set what directories get last, the deepest first, since a mode may shut us out as an ordinary user."""
        for path in sorted(self._directories, key=lambda path: path.count(b"/"), reverse=True):
            wanted = self._directories[path]
            parent = self._open_parent(path, path)
            fd = os.open(path.rpartition(b"/")[2] or b".", _OPEN_DIRECTORY, dir_fd=parent)
            try:
                self._own(fd, wanted.uid, wanted.gid)
                for key, value in (wanted.xattrs | self._further.get(path, {})).items():
                    self._set_xattr(fd, key, value)
                os.fchmod(fd, wanted.mode)
                os.utime(fd, ns=(wanted.mtime_ns, wanted.mtime_ns))
            finally:
                os.close(fd)
        self._close_parent()

    def _own(self, fd: int, uid: int, gid: int) -> None:
        if self._privileged:
            os.fchown(fd, uid, gid)
        elif (uid, gid) != (0, 0):
            self._warn("owners left out, since setting them needs root")

    def _kept_xattrs(self, entry: Entry) -> Iterable[tuple[bytes, bytes]]:
        """Leave out attributes that mean something to the host: an archive must not steer overlayfs or SELinux."""
        for name, value in entry.xattrs.items():
            if self._keep_devices or name == b"security.capability" or _is_free(name):
                yield name, value
            else:
                self._warn(f"attributes {_told(name)} left out")

    def _set_xattr(self, where: int | bytes, name: bytes, value: bytes) -> None:
        try:
            os.setxattr(where, name, value, follow_symlinks=isinstance(where, int))
        except OSError as error:
            if error.errno in (errno.E2BIG, errno.ERANGE) or (
                error.errno == errno.ENOSPC and len(value) > _XATTR_BYTES
            ):
                # ext4 keeps an entry's attributes in one block and says of a larger one that there is no space.
                raise InvalidRequestError(
                    f"attribute {_show(name)} has {len(value)} bytes, more than this host's file system keeps",
                    resolution="make the archive without it, or put the state directory on btrfs or XFS",
                ) from error
            if error.errno not in (errno.EPERM, errno.ENOTSUP):
                raise
            self._warn(f"attributes {_told(name)} refused by the host")

    def _translate(self, error: OSError, entry: Entry) -> Exception:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return HostDiskFullError(
                f"no space left for the image at {_show(entry.path)}",
                detail=str(error),
                resolution="free space in the state directory, or remove images (dsec image rm)",
            )
        return InvalidRequestError(f"cannot write {_show(entry.path)} of the archive", detail=str(error))


def _write_content(fd: int, content: Iterable[bytes]) -> None:
    """Write a file's content. Long runs of zeros become holes: an archive that holds few bytes of a large file must not
    fill the disk while it is read."""
    ends_in_hole = False
    for chunk in content:
        ends_in_hole = len(chunk) >= _HOLE_BYTES and chunk == _ZEROS[: len(chunk)]
        if ends_in_hole:
            os.lseek(fd, len(chunk), os.SEEK_CUR)
            continue
        view = memoryview(chunk)
        while view:
            view = view[os.write(fd, view) :]
    if ends_in_hole:
        os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))


_NODE_TYPES = {
    EntryKind.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryKind.BLOCK_DEVICE: stat.S_IFBLK,
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.SOCKET: stat.S_IFSOCK,
}


def _is_free(xattr: bytes) -> bool:
    """Whether an attribute means nothing to the host; an ordinary user's overlays read some of the user's own."""
    return xattr.startswith(b"user.") and not xattr.startswith(b"user.overlay.")


def _told(xattr: bytes) -> str:
    return xattr[:_TOLD_NAME].decode(errors="replace")


def _show(path: bytes) -> str:
    return repr(path[:200].decode("utf-8", "backslashreplace"))


def _unsafe(path: bytes, reason: str) -> UnsafeArchiveError:
    return UnsafeArchiveError(
        f"the archive's entry {_show(path)} is refused: {reason}",
        resolution="make the archive again without it, from the root of the tree (tar -C TREE -cf ARCHIVE .)",
    )


def _status_at(parent: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name or b".", dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _kind_at(parent: int, name: bytes) -> EntryKind | None:
    status = _status_at(parent, name)
    return None if status is None else KINDS[stat.S_IFMT(status.st_mode)]


def copy_tree(
    tree: Path,
    writer: TreeWriter,
    progress: Callable[[int], None] | None = None,
    placed: Callable[[Entry], Entry] = lambda entry: entry,
) -> None:
    """Copy a directory of the host into a tree: links are copied, never followed.

    Args:
        progress: told the number of entries from time to time.
        placed: says where and how each entry is written.
    """
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    linked: dict[tuple[int, int], bytes] = {}
    try:
        for count, node in enumerate(walk(fd)):
            _copy_node(node, writer, linked, placed)
            if progress is not None and count and count % 2000 == 0:
                progress(count)
    finally:
        os.close(fd)


def _copy_node(
    node: Node, writer: TreeWriter, linked: dict[tuple[int, int], bytes], placed: Callable[[Entry], Entry]
) -> None:
    entry, status = entry_of(node), node.status
    if entry.kind is not EntryKind.DIRECTORY and status.st_nlink > 1:
        first = linked.setdefault((status.st_dev, status.st_ino), node.path)
        if first != node.path:
            writer.add(placed(replace(entry, kind=EntryKind.HARD_LINK, link=first, size_bytes=0)))
            return
    writer.add(placed(entry), content_of(node) if entry.kind is EntryKind.FILE else ())
