"""A pipe as a buffer that the kernel fills and empties without copying: splice(2).

What a file or a socket gives to a pipe is not its bytes but references to the pages that hold them, and what takes
from the pipe takes these over or copies them once, to where they stay. Bytes that pass a program instead are copied
into it and out of it, at each end.

A pipe holds a number of pages, not of bytes: a piece that does not fill its page occupies it all the same. So a fill
may be shorter than asked for, and both ends are non-blocking, so that a full or empty pipe is an answer and no wait.
References are to the page cache: what changes in a file between its read here and its arrival there arrives changed,
as it would from a read a moment later.
"""

from __future__ import annotations

import errno
import fcntl
import os

CAPACITY_BYTES = 1 << 20
"""What an ordinary user may ask for by default (`fs.pipe-max-size`)."""

_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_SPLICE_F_MOVE, _SPLICE_F_NONBLOCK, _SPLICE_F_MORE = 1, 2, 4
_MOVE = _SPLICE_F_MOVE | _SPLICE_F_NONBLOCK
_COPY_BYTES = 64 << 10
_CANNOT_SPLICE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class Pipe:
    """One pipe of the process with itself. A context manager; closing is idempotent.

    Attributes:
        capacity_bytes: the most it holds, in whole pages.
        piece_bytes: as much as is sure to fit, also where the pieces that arrive are cut differently from pages.
    """

    __slots__ = ("_in", "_out", "capacity_bytes", "piece_bytes")

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.capacity_bytes = fcntl.fcntl(self._in, _F_SETPIPE_SZ, capacity_bytes)
        except OSError:
            # The user's pipes hold all the pages that `fs.pipe-user-pages-soft` allows; a small pipe works as well.
            self.capacity_bytes = fcntl.fcntl(self._in, _F_GETPIPE_SZ)
        self.piece_bytes = self.capacity_bytes // 16 * 15

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for fd in (self._out, self._in):
            if fd >= 0:
                os.close(fd)
        self._out = self._in = -1

    def put(self, data: bytes | memoryview) -> int:
        """Put bytes in; return how many there was room for."""
        try:
            return os.write(self._in, data)
        except BlockingIOError:
            return 0

    def take(self, limit: int) -> bytes:
        """Take up to `limit` bytes out; none when it is empty."""
        try:
            return os.read(self._out, limit)
        except BlockingIOError:
            return b""

    def fill_from_file(self, fd: int, limit: int) -> int:
        """Put in what follows the offset of a file; return how many bytes, 0 at its end.

        Raises:
            BlockingIOError: there is no room.
        """
        try:
            return os.splice(fd, self._in, limit, flags=_MOVE)
        except OSError as error:
            if error.errno not in _CANNOT_SPLICE:
                raise
        # Some file systems do not splice. What does not fit is left to the next read.
        data = os.read(fd, min(limit, _COPY_BYTES))
        put = self.put(data)
        os.lseek(fd, put - len(data), os.SEEK_CUR)
        if data and not put:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return put

    def empty_to_file(self, fd: int, count: int) -> None:
        """Write `count` bytes, which the pipe holds, at a file's offset. Some may be written before an error."""
        while count:
            try:
                count -= os.splice(self._out, fd, count, flags=_MOVE)
            except OSError as error:
                if error.errno not in _CANNOT_SPLICE:
                    raise
                count -= self._copy_to_file(fd, count)

    def _copy_to_file(self, fd: int, count: int) -> int:
        """Files that are only appended to, and some file systems, take no pages."""
        data = memoryview(self.take(min(count, _COPY_BYTES)))
        left = data
        while left:
            left = left[os.write(fd, left) :]
        return len(data)

    def fill_from_socket(self, fd: int, limit: int) -> int:
        """Receive into the empty pipe; return how many bytes, 0 when the other side sends no more.

        Raises:
            BlockingIOError: nothing is there yet.
        """
        return os.splice(fd, self._in, limit, flags=_MOVE)

    def empty_to_socket(self, fd: int, count: int, *, more: bool = False) -> int:
        """Send up to `count` bytes, which the pipe holds; return how many the kernel took.

        Args:
            fd: a socket.
            count: at most that much.
            more: further data follows at once (TCP then fills its segments).

        Raises:
            BlockingIOError: it takes none now.
        """
        return os.splice(self._out, fd, count, flags=_MOVE | (_SPLICE_F_MORE if more else 0))
