"""Produce a pax archive of a file or directory of a hostile sandbox, in chunks, with flat memory.

Names are relative to the directory; a single file has its own name. Hard links are kept. What is neither file,
directory nor link, lies on another mount, or has a path longer than the kernel takes, is left out, and so is nothing
else: a file that the user may not read ends the download with an error. A file that shrinks while it is read is filled
with zeros, one that grows is cut. Both lists are told in the pax records `DSEC.left_out` and `DSEC.changed` of a final
entry for the directory itself (a JSON array of names: the first `MAXIMUM_NAMED`; how many there are stands in
`DSEC.left_out_count` and `DSEC.changed_count`). A trailing *global* header would be tidier, but common readers take it
for a cut-off archive.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import tarfile
from collections.abc import Callable, Generator, Iterator

from dsec.base.errors import ConflictError, LimitExceededError, UnsupportedFileError
from dsec.base.units import GIB, KIB
from dsec.linux.openat2 import open_child, reopen
from dsec.linux.pipes import Pipe
from dsec.model.files import MAXIMUM_PATH_BYTES
from dsec.runtimes.container.descent import OPEN_LEVELS, Descent
from dsec.runtimes.container.file_errors import file_error, show
from dsec.runtimes.container.listing import inner_id
from dsec.runtimes.container.root import check_data

LEFT_OUT = "DSEC.left_out"
CHANGED = "DSEC.changed"
MAXIMUM_NAMED = 1000
MAXIMUM_BYTES = 1024 * GIB
"""Contents in one archive: a sparse file claims any size and costs a guest nothing."""

MAXIMUM_HARD_LINKS = 100_000
"""Files with several links whose first name is remembered; later ones are stored in full."""

MAXIMUM_WAITING_NAMES = 200_000
"""Names held in memory for levels that had to be closed because the tree is deep."""

_PIECE_BYTES = 256 * KIB
_LARGE_BYTES = 64 * KIB
_END = bytes(2 * tarfile.BLOCKSIZE)
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class PackingSource:
    """A `Source` of the archive of one directory or file.

    Args:
        fd: the opened directory or file; owned.
        name: name of the entry for a file.
        first_host_id: host id of the sandbox's user 0.
        check: called for every entry; raises to stop.
    """

    def __init__(self, fd: int, name: bytes, *, first_host_id: int, check: Callable[[], None]) -> None:
        self._fd = fd
        self._first_host_id = first_host_id
        self._check = check
        self._links: dict[tuple[int, int], bytes] = {}
        self._left_out = _Noted()
        self._changed = _Noted()
        self._total_bytes = 0
        self._descent: Descent | None = None
        self._open_file: int | None = None
        self._rest: bytes | _Content = b""
        self._pieces = self._directory() if stat.S_ISDIR(os.fstat(fd).st_mode) else self._single(name)

    def take(self, limit: int) -> bytes:
        """Gather small pieces up to `limit`; a large one passes through alone, without being copied again."""
        gathered: list[bytes] = []
        size = 0
        while size < limit:
            piece = self._next()
            if isinstance(piece, _Content):
                if gathered and piece.left > _LARGE_BYTES:
                    self._rest = piece
                    break
                data = piece.take(min(limit - size, _PIECE_BYTES))
                self._rest = piece if piece.left else b""
            else:
                data, self._rest = piece[: limit - size], piece[limit - size :]
            if not data:
                break
            gathered.append(data)
            size += len(data)
        return gathered[0] if len(gathered) == 1 else b"".join(gathered)

    def fill(self, pipe: Pipe) -> int:
        size = 0
        while size < pipe.piece_bytes:
            piece = self._next()
            if isinstance(piece, _Content):
                count = piece.fill(pipe, pipe.piece_bytes - size)
                self._rest = piece if piece.left else b""
            else:
                count = pipe.put(piece) if piece else 0
                self._rest = piece[count:]
            if not count:
                break
            size += count
        return size

    def _next(self) -> bytes | _Content:
        """Return what is left of the piece in hand, or the next one; nothing at the end."""
        piece, self._rest = self._rest or next(self._pieces, b""), b""
        return piece

    def close(self) -> None:
        self._pieces = iter(())
        if self._descent is not None:
            self._descent.__exit__(None, None, None)
            self._descent = None
        for fd in (self._open_file, self._fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._open_file, self._fd = None, -1

    def _single(self, name: bytes) -> Iterator[bytes | _Content]:
        fd, self._open_file, self._fd = self._fd, self._fd, -1
        yield from self._file(name, fd, os.fstat(fd))
        if self._changed.count:
            raise ConflictError(f"{show(name)} changed while it was read", resolution="download it again")
        yield _END

    def _directory(self) -> Iterator[bytes | _Content]:
        self._descent = Descent(self._fd)
        yield from self._walk(self._descent)
        if self._left_out.count or self._changed.count:
            yield self._remark()
        yield _END

    def _walk(self, descent: Descent) -> Iterator[bytes | _Content]:
        waiting = _Waiting()
        waiting.push(_names(descent.fd))
        while waiting:
            name = waiting.next_name()
            if name is None:
                waiting.pop()
                if waiting:
                    descent.up()
                continue
            self._check()
            below = descent.path()
            path = below + b"/" + name if below else name
            entered = yield from self._entry(descent, name, path)
            if entered:
                waiting.push(_names(descent.fd))

    def _entry(self, descent: Descent, name: bytes, path: bytes) -> Generator[bytes | _Content, None, bool]:
        """Yield an entry of the lowest directory; return whether it is a directory that was entered."""
        try:
            status = os.stat(name, dir_fd=descent.fd, follow_symlinks=False)
            if len(path) > MAXIMUM_PATH_BYTES or stat.S_IFMT(status.st_mode) not in _STORED:
                self._left_out.add(path)
            elif stat.S_ISDIR(status.st_mode):
                descent.down(name)
                yield self._header(path, os.fstat(descent.fd), tarfile.DIRTYPE)
                return True
            elif stat.S_ISLNK(status.st_mode):
                link = os.readlink(name, dir_fd=descent.fd)
                yield self._header(path, status, tarfile.SYMTYPE, link=link)
            else:
                yield from self._regular(descent.fd, name, path)
        except OSError as error:
            self._tolerate(error, path)
        return False

    def _tolerate(self, error: OSError, path: bytes) -> None:
        """Leave out mounts; what vanished or changed its kind is the guest's doing and simply not there."""
        if error.errno == errno.EXDEV:
            self._left_out.add(path)
        elif error.errno not in _GONE and error.errno != errno.EINVAL:
            raise file_error(error, path) from error

    def _regular(self, parent: int, name: bytes, path: bytes) -> Iterator[bytes | _Content]:
        found = open_child(parent, name, os.O_PATH | os.O_NOFOLLOW)
        try:
            status = check_data(found, path)
            if stat.S_ISDIR(status.st_mode):
                return
            fd = self._open_file = reopen(found, os.O_RDONLY | os.O_NONBLOCK)
        except UnsupportedFileError:
            self._left_out.add(path)
            return
        finally:
            os.close(found)
        yield from self._file(path, fd, status)

    def _file(self, path: bytes, fd: int, status: os.stat_result) -> Iterator[bytes | _Content]:
        """Yield header and content of an opened file, then close it."""
        inode = (status.st_dev, status.st_ino)
        first = self._links.get(inode) if status.st_nlink > 1 else None
        if first is not None:
            yield self._header(path, status, tarfile.LNKTYPE, link=first)
        else:
            if status.st_nlink > 1 and len(self._links) < MAXIMUM_HARD_LINKS:
                self._links[inode] = path
            self._count(status.st_size, path)
            yield self._header(path, status, tarfile.REGTYPE, size=status.st_size)
            yield from self._content(fd, status.st_size, path)
        self._open_file = None
        os.close(fd)

    def _content(self, fd: int, size: int, path: bytes) -> Iterator[bytes | _Content]:
        content = _Content(fd, size)
        if size:
            yield content
        if content.is_cut or os.fstat(fd).st_size > size:
            self._changed.add(path)
        # Never an empty piece: that would look like the end.
        if padding := -size % tarfile.BLOCKSIZE:
            yield bytes(padding)

    def _count(self, size: int, path: bytes) -> None:
        self._total_bytes += size
        if self._total_bytes > MAXIMUM_BYTES:
            raise LimitExceededError(
                f"the contents up to {show(path)} sum up to more than {MAXIMUM_BYTES} bytes",
                resolution="download less at a time; look for sparse files",
            )

    def _header(
        self, path: bytes, status: os.stat_result, kind: bytes, *, link: bytes = b"", size: int = 0
    ) -> bytes:  # fmt: skip
        info = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
        info.type, info.size = kind, size
        info.linkname = link.decode("utf-8", "surrogateescape")
        info.mode = stat.S_IMODE(status.st_mode)
        info.uid, info.gid = inner_id(status.st_uid, self._first_host_id), inner_id(status.st_gid, self._first_host_id)
        info.mtime = int(status.st_mtime)
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")

    def _remark(self) -> bytes:
        status = os.fstat(self._fd)
        info = tarfile.TarInfo(".")
        info.type, info.mode, info.mtime = tarfile.DIRTYPE, stat.S_IMODE(status.st_mode), int(status.st_mtime)
        info.uid, info.gid = inner_id(status.st_uid, self._first_host_id), inner_id(status.st_gid, self._first_host_id)
        records: dict[str, str] = {}
        for keyword, noted in ((LEFT_OUT, self._left_out), (CHANGED, self._changed)):
            if noted.count:
                records |= {keyword: json.dumps(noted.names), f"{keyword}_count": str(noted.count)}
        info.pax_headers = records
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


_STORED = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK})


class _Content:
    """The content of one file, as long as its header says, whatever becomes of the file meanwhile.

    Attributes:
        left: how many bytes are still to come. Never 0 while it is waiting to be taken from.
        is_cut: the file ended before its time; zeros stand for what it lacks.
    """

    __slots__ = ("_fd", "is_cut", "left")

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._fd = fd
        self.left = size_bytes
        self.is_cut = False

    def take(self, limit: int) -> bytes:
        limit = min(limit, self.left)
        data = b"" if self.is_cut else os.read(self._fd, limit)
        if not data:
            self.is_cut = True
            data = bytes(limit)
        self.left -= len(data)
        return data

    def fill(self, pipe: Pipe, limit: int) -> int:
        """Put some into a pipe; return how many bytes, 0 when there is no room."""
        count = 0
        if not self.is_cut:
            try:
                count = pipe.fill_from_file(self._fd, min(self.left, limit))
            except BlockingIOError:
                return 0
            self.is_cut = not count
        if self.is_cut:
            count = pipe.put(bytes(min(self.left, limit, _LARGE_BYTES)))
        self.left -= count
        return count


class _Noted:
    """Names to tell about, the first of them kept."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.count = 0

    def add(self, path: bytes) -> None:
        self.count += 1
        if len(self.names) < MAXIMUM_NAMED:
            self.names.append(show(path))


class _Waiting:
    """The names that are still to be visited, level by level. Only the lowest levels keep their directory open for
    reading; the names left in the ones above are read into memory."""

    def __init__(self) -> None:
        self._levels: list[Iterator[bytes] | list[bytes]] = []
        self._held = 0

    def __bool__(self) -> bool:
        return bool(self._levels)

    def push(self, names: Iterator[bytes]) -> None:
        self._levels.append(names)
        if len(self._levels) > OPEN_LEVELS:
            self._hold(len(self._levels) - OPEN_LEVELS - 1)

    def _hold(self, at: int) -> None:
        level = self._levels[at]
        if isinstance(level, list):
            return
        held = list(itertools.islice(level, MAXIMUM_WAITING_NAMES + 1 - self._held))
        self._levels[at] = held
        self._held += len(held)
        if self._held > MAXIMUM_WAITING_NAMES:
            raise LimitExceededError(
                "the directory is too deep and wide to be downloaded at once", resolution="download parts of it"
            )

    def pop(self) -> None:
        self._levels.pop()

    def next_name(self) -> bytes | None:
        level = self._levels[-1]
        if not isinstance(level, list):
            return next(level, None)
        if not level:
            return None
        self._held -= 1
        return level.pop()


def _names(fd: int) -> Iterator[bytes]:
    with os.scandir(fd) as entries:
        for entry in entries:
            yield os.fsencode(entry.name)
