"""Apply a send stream to a writable layer, from whoever sent it.

`btrfs receive` trusts its stream: it follows paths that the stream itself could have made links of, makes any device
node, and leaves what it made behind when it dies. Here the stream is input of another machine:

- every path is resolved by the kernel below the layer's root, through no link and no mount; the last step is one name;
- owners are ids of the sandbox, nodes are whiteouts, FIFOs and sockets, attributes are those that an overlay's upper
  directory has;
- all that is written counts against the layer's quota, and the volume keeps its reserve;
- what does not fit, for whatever reason, is an error after which the layer is discarded as a whole.

Needing no parent of the same lineage, it applies increments to the layer in place, on any file system.

Attributes that hold handles of the sender's file systems (`origin`, `impure`, `uuid`, `nlink`, `upper` of the overlay)
are left out: overlayfs would at best ignore them, and at worst find another file under the same handle.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dsec.base.errors import HostDiskFullError, InvalidRequestError, SandboxDiskFullError
from dsec.linux import inodes, openat2
from dsec.linux.btrfs_stream import Attribute, Command, Item, StreamError, read_items
from dsec.state import tree

_BENEATH = (
    openat2.RESOLVE_BENEATH | openat2.RESOLVE_NO_SYMLINKS | openat2.RESOLVE_NO_XDEV | openat2.RESOLVE_NO_MAGICLINKS
)
_PLACE = os.O_PATH | os.O_DIRECTORY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_IDS = 65_536
"""Ids that a sandbox has."""
_LOOK_EVERY_BYTES = 64 << 20
_ENTRY_BYTES = 4096
"""What a command costs beside the bytes that it writes: entries take room, too."""
_COPY_BYTES = 1 << 20
_FICLONERANGE = 0x4020940D
_OVERLAY = b"trusted.overlay."
_HOST_BOUND = frozenset(_OVERLAY + name for name in (b"origin", b"impure", b"uuid", b"nlink", b"upper"))
_KEPT = (_OVERLAY, b"user.", b"security.capability", b"system.posix_acl_")
_MAKING = frozenset({Command.MKFILE, Command.MKDIR, Command.MKNOD, Command.MKFIFO, Command.MKSOCK, Command.SYMLINK})
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV, errno.ENOTTY})


def receive_into(root_fd: int, stream: BinaryIO, check_room: Callable[[], None]) -> None:
    """Apply a stream to a layer; raises what `WritableLayers.receive` says."""
    try:
        Receiver(root_fd, check_room).apply(stream)
        if stream.read(1):
            raise StreamError("something follows its end")
    except (ValueError, OverflowError) as error:
        # Beside what is no stream: names and numbers that no system call takes.
        raise InvalidRequestError("what was received is not what a layer holds", detail=str(error)) from error
    except OSError as error:
        if error.errno == errno.EDQUOT:
            raise SandboxDiskFullError(
                "what was received of a layer does not fit its quota", resolution="give the sandbox a larger one"
            ) from error
        if error.errno == errno.ENOSPC:
            raise HostDiskFullError(
                "the volume of writable layers is full", resolution="free space on the host, or grow the volume"
            ) from error
        raise InvalidRequestError("what was received does not fit the layer it is for", detail=str(error)) from error


class Receiver:
    """One stream on its way into one layer.

    Args:
        root_fd: the layer's directory, which holds `upper` and `work` and is private to the caller.
        check_room: called now and then; raises when the volume is about to be full.
    """

    def __init__(self, root_fd: int, check_room: Callable[[], None]) -> None:
        self._root_fd = root_fd
        self._check_room = check_room
        self._places: dict[bytes, int] = {}
        self._file: tuple[bytes, int] | None = None
        self._unlooked_bytes = 0
        self._handlers: dict[Command, Callable[[Item], None]] = {
            Command.MKFILE: self._make_file,
            Command.MKDIR: self._make_directory,
            Command.MKNOD: self._make_node,
            Command.MKFIFO: lambda item: self._make_special(item, stat.S_IFIFO),
            Command.MKSOCK: lambda item: self._make_special(item, stat.S_IFSOCK),
            Command.SYMLINK: self._make_link,
            Command.RENAME: self._rename,
            Command.LINK: self._hard_link,
            Command.UNLINK: self._unlink,
            Command.RMDIR: self._remove_directory,
            Command.SET_XATTR: self._set_attribute,
            Command.REMOVE_XATTR: self._remove_attribute,
            Command.WRITE: self._write,
            Command.CLONE: self._clone,
            Command.TRUNCATE: self._truncate,
            Command.CHMOD: self._change_mode,
            Command.CHOWN: self._change_owner,
            Command.UTIMES: self._set_times,
        }

    def apply(self, file: BinaryIO) -> None:
        """Apply the whole stream.

        Raises:
            StreamError: it is none, or asks for what no layer may hold.
            OSError: it does not fit what the layer holds, or there is no room.
        """
        try:
            items = read_items(file)
            first = next(items, None)
            if first is None or first.command not in (Command.SUBVOL, Command.SNAPSHOT):
                raise StreamError("it does not begin with a subvolume")
            self._apply_all(items)
        finally:
            self._forget()
        _check_pair(self._root_fd)

    def _apply_all(self, items: Iterator[Item]) -> None:
        """The kernel makes every entry under a temporary name and renames it at once: it is made in its place."""
        made: Item | None = None
        for item in items:
            if made is not None:
                making, made = made, None
                if self._made_in_place(making, item):
                    continue
            if item.command in _MAKING:
                made = item
            else:
                self._do(item)
        if made is not None:
            self._do(made)

    def _made_in_place(self, making: Item, item: Item) -> bool:
        """Make an entry; return whether `item` is its rename, and done with that."""
        if item.command is Command.RENAME and item.data(Attribute.PATH) == making.data(Attribute.PATH):
            moved = Item(making.command, making.attributes | {Attribute.PATH: item.data(Attribute.PATH_TO)})
            try:
                self._do(moved)
                return True
            except FileExistsError:
                pass  # The rename replaces what is there.
        self._do(making)
        return False

    def _do(self, item: Item) -> None:
        handler = self._handlers.get(item.command)
        if handler is None:
            raise StreamError(f"{item.command.name} has no place in a layer")
        self._look(_ENTRY_BYTES)
        handler(item)

    # -- finding ----------------------------------------------------------------------------------------------------

    def _place(self, path: bytes) -> tuple[int, bytes]:
        """Return the directory that holds `path`, and the last name. The path of the root is ``.`` in it."""
        if not path:
            return self._root_fd, b"."
        above, _, name = path.rpartition(b"/")
        if name in (b"", b".", b"..") or b"\0" in path:
            raise StreamError(f"{path[:200]!r} is no path")
        if not above:
            return self._root_fd, name
        found = self._places.get(above)
        if found is None:
            if len(self._places) >= 8:
                self._forget_places()
            found = self._places[above] = openat2.openat2(self._root_fd, above, _PLACE, resolve=_BENEATH)
        return found, name

    def _of(self, item: Item, name: Attribute = Attribute.PATH) -> tuple[int, bytes]:
        return self._place(item.data(name))

    def _forget_places(self) -> None:
        while self._places:
            os.close(self._places.popitem()[1])

    def _forget(self) -> None:
        """Close what was opened by path: names change."""
        self._forget_places()
        if self._file is not None:
            os.close(self._file[1])
            self._file = None

    def _opened(self, path: bytes) -> int:
        """Open a file for writing, or return the one that is open already."""
        if self._file is not None:
            if self._file[0] == path:
                return self._file[1]
            os.close(self._file[1])
            self._file = None
        fd = self._open(path, os.O_RDWR)
        self._file = (path, fd)
        return fd

    def _open(self, path: bytes, flags: int) -> int:
        place, name = self._place(path)
        fd = openat2.openat2(place, name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, resolve=_BENEATH)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StreamError(f"{path[:200]!r} is no file")
        return fd

    # -- making -----------------------------------------------------------------------------------------------------

    def _make_file(self, item: Item) -> None:
        place, name = self._of(item)
        os.close(
            os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
        )

    def _make_directory(self, item: Item) -> None:
        place, name = self._of(item)
        os.mkdir(name, 0o700, dir_fd=place)

    def _make_node(self, item: Item) -> None:
        mode, device = item.number(Attribute.MODE), item.number(Attribute.RDEV)
        if stat.S_IFMT(mode) != stat.S_IFCHR or device != 0:
            raise StreamError("the only device that a layer holds is a whiteout")
        self._make_special(item, stat.S_IFCHR)

    def _make_special(self, item: Item, kind: int) -> None:
        place, name = self._of(item)
        os.mknod(name, kind | 0o600, 0, dir_fd=place)

    def _make_link(self, item: Item) -> None:
        place, name = self._of(item)
        os.symlink(item.data(Attribute.PATH_LINK), name, dir_fd=place)

    def _hard_link(self, item: Item) -> None:
        place, name = self._of(item)
        old_place, old_name = self._of(item, Attribute.PATH_LINK)
        os.link(old_name, name, src_dir_fd=old_place, dst_dir_fd=place, follow_symlinks=False)

    def _rename(self, item: Item) -> None:
        place, name = self._of(item)
        new_place, new_name = self._of(item, Attribute.PATH_TO)
        os.rename(name, new_name, src_dir_fd=place, dst_dir_fd=new_place)
        self._forget()

    def _unlink(self, item: Item) -> None:
        place, name = self._of(item)
        os.unlink(name, dir_fd=place)
        self._forget()

    def _remove_directory(self, item: Item) -> None:
        place, name = self._of(item)
        os.rmdir(name, dir_fd=place)
        self._forget()

    # -- content ----------------------------------------------------------------------------------------------------

    def _write(self, item: Item) -> None:
        fd = self._opened(item.data(Attribute.PATH))
        offset, data = item.number(Attribute.FILE_OFFSET), item.data(Attribute.DATA)
        self._look(len(data))
        if data.startswith(b"\0") and data.count(0) == len(data):
            # Version 1 has no holes: it spells them, and a sparse file would fill the quota.
            _make_zeros(fd, offset, len(data))
            return
        _write_all(fd, data, offset)

    def _look(self, count: int) -> None:
        self._unlooked_bytes += count
        if self._unlooked_bytes >= _LOOK_EVERY_BYTES:
            self._unlooked_bytes = 0
            self._check_room()

    def _clone(self, item: Item) -> None:
        target = self._opened(item.data(Attribute.PATH))
        length = item.number(Attribute.CLONE_LEN)
        source_offset, offset = item.number(Attribute.CLONE_OFFSET), item.number(Attribute.FILE_OFFSET)
        self._look(length)
        source = self._open(item.data(Attribute.CLONE_PATH), os.O_RDONLY)
        try:
            fcntl.ioctl(target, _FICLONERANGE, struct.pack("=qQQQ", source, source_offset, length, offset))
        except OSError as error:
            if error.errno not in _CANNOT_CLONE:
                raise
            _copy_range(source, target, source_offset, offset, length)
        finally:
            os.close(source)

    def _truncate(self, item: Item) -> None:
        os.ftruncate(self._opened(item.data(Attribute.PATH)), item.number(Attribute.SIZE))

    # -- attributes -------------------------------------------------------------------------------------------------

    def _change_mode(self, item: Item) -> None:
        with _Named(self._of(item)) as path:
            os.chmod(path, item.number(Attribute.MODE) & 0o7777)

    def _change_owner(self, item: Item) -> None:
        owner, group = item.number(Attribute.UID), item.number(Attribute.GID)
        if owner >= _IDS or group >= _IDS:
            raise StreamError(f"{owner}:{group} is no owner in a sandbox")
        place, name = self._of(item)
        os.chown(name, owner, group, dir_fd=place, follow_symlinks=False)

    def _set_times(self, item: Item) -> None:
        place, name = self._of(item)
        times = item.time_ns(Attribute.ATIME), item.time_ns(Attribute.MTIME)
        os.utime(name, ns=times, dir_fd=place, follow_symlinks=False)

    def _set_attribute(self, item: Item) -> None:
        name = item.data(Attribute.XATTR_NAME)
        if name in _HOST_BOUND:
            return
        if not name.startswith(_KEPT):
            raise StreamError(f"{name[:200]!r} is no attribute of an entry in a layer")
        with _Named(self._of(item)) as path:
            os.setxattr(path, name, item.data(Attribute.XATTR_DATA))

    def _remove_attribute(self, item: Item) -> None:
        name = item.data(Attribute.XATTR_NAME)
        if name in _HOST_BOUND:
            return
        with _Named(self._of(item)) as path:
            os.removexattr(path, name)


class _Named:
    """The path by which calls that take no directory reach one entry, a link itself and a whiteout too."""

    def __init__(self, place: tuple[int, bytes]) -> None:
        self._fd = openat2.openat2(place[0], place[1], os.O_PATH | os.O_NOFOLLOW, resolve=_BENEATH)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _check_pair(root_fd: int) -> None:
    """A layer is `upper` and `work` and nothing else, whatever came."""
    found = sorted(tree.names(root_fd))
    kinds = [stat.S_ISDIR(os.stat(name, dir_fd=root_fd, follow_symlinks=False).st_mode) for name in found]
    if found != ["upper", "work"] or not all(kinds):
        raise StreamError(f"the layer would hold {', '.join(found)[:200]!r}")


def _make_zeros(fd: int, offset: int, length: int) -> None:
    if os.fstat(fd).st_size < offset + length:
        os.ftruncate(fd, offset + length)
    if not inodes.punch_hole(fd, offset, length):
        _write_all(fd, bytes(length), offset)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:] if written else data, offset + written)


def _copy_range(source: int, target: int, source_offset: int, offset: int, length: int) -> None:
    done = 0
    while done < length:
        data = os.pread(source, min(_COPY_BYTES, length - done), source_offset + done)
        if not data:
            raise StreamError("a file is shorter than what is shared of it")
        _write_all(target, data, offset + done)
        done += len(data)
