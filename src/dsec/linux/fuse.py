"""The kernel's FUSE protocol, as far as a directory of read-only files needs it (fuse(4), ``linux/fuse.h``).

Without libfuse, since what is needed is small: one directory, no listing, files whose sizes never change, reads that
may be answered later and from any thread. Reads go past the page cache of the FUSE file (FOPEN_DIRECT_IO): whoever
reads, a file system on a loop device, caches what it has read itself.

A connection lives as long as somebody holds its descriptor. When its process is killed the kernel ends it: all requests
under way, and later ones, fail at once with an error. A request that is not answered within `request_timeout_s` ends
the connection likewise, where the kernel can do that (Linux 6.14).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsec.linux import mounts

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_INIT_IN = struct.Struct("<IIIII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHIIH22x")
_READ_IN = struct.Struct("<QQI")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_ATTRIBUTES_OUT = struct.Struct("<QII")
_OPEN_OUT = struct.Struct("<QIi")
_STATFS_BYTES = 80

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _DESTROY, _BATCH_FORGET = 26, 27, 28, 29, 36, 38, 42
_SILENT = frozenset((_FORGET, _INTERRUPT, _BATCH_FORGET))
_EMPTY = frozenset((_RELEASE, _FLUSH, _READDIR, _RELEASEDIR, _DESTROY))

_MAJOR, _MINOR = 7, 43
_ASYNC_READ, _ASYNC_DIO, _MAX_PAGES, _INIT_EXT = 1, 1 << 15, 1 << 22, 1 << 30
_REQUEST_TIMEOUT = 1 << 10
"""In the second word of flags."""
_NOTIFY_RESEND = 7
_DIRECT_IO = 1
_PAGES = 256
_READ_BYTES = _PAGES * 4096
_BUFFER_BYTES = _READ_BYTES + 4096
_ROOT = 1
_KEPT_S = 86_400
"""For how long the kernel may keep names and attributes: they never change."""


class ReadRequest:
    """A read that must be answered once, by `answer` or `fail`, from any thread.

    Attributes:
        name: of the file.
        start, length: what is to be read; the range lies in the file.
    """

    __slots__ = ("_session", "_unique", "length", "name", "start")

    def __init__(self, session: FuseSession, unique: int, name: str, start: int, length: int) -> None:
        self._session, self._unique = session, unique
        self.name, self.start, self.length = name, start, length

    def answer(self, data: bytes | memoryview) -> None:
        """Give what was read. Nothing happens when nobody waits any more."""
        self._session.reply(self._unique, data)

    def fail(self, code: int = errno.EIO) -> None:
        """Answer with an errno."""
        self._session.reply(self._unique, b"", code)


@dataclass(frozen=True, slots=True)
class ReadOnlyFiles:
    """What a session shows.

    Attributes:
        size_of: returns the size of the file of a name; None: there is none. What it said once holds for ever.
        read: takes a read; called from the threads that serve, and must not wait for long.
    """

    size_of: Callable[[str], int | None]
    read: Callable[[ReadRequest], None]


class FuseMount:
    """A mounted FUSE directory and the connection to the kernel behind it, which one session at a time serves.

    Processes that are forked share the connection: it ends with the last of them that holds it, so that one which keeps
    it and does nothing else lets another take over from a session that was killed.

    Args:
        target: an existing directory to mount at.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        # Closed with the last reference, never before: an answer that comes late must not go to a descriptor that has
        # become another file's.
        self._finalizer = weakref.finalize(self, os.close, self.device)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={_READ_BYTES}"
        mounts.mount("dsec", target, "fuse", mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV, options)
        self._is_mounted = True

    def close(self) -> None:
        """Unmount. Files that are held open fail from now on, and so does what is asked at the moment. Idempotent."""
        if not self._is_mounted:
            return
        self._is_mounted = False
        try:
            # By force: the connection ends, also for who holds a file open, so that nobody hangs on us.
            mounts.unmount(self.target, force=True)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            mounts.unmount(self.target, detach=True)


class FuseSession:
    """Serves a mounted directory of read-only files.

    Args:
        mount: the directory.
        files: what it shows.
        request_timeout_s: see the module; 0: none.
    """

    def __init__(self, mount: FuseMount, files: ReadOnlyFiles, *, request_timeout_s: int = 0) -> None:
        self._mount = mount
        self._device = mount.device
        self._files = files
        self._request_timeout_s = request_timeout_s
        self._sizes: dict[int, tuple[str, int]] = {}
        self._threads: list[threading.Thread] = []

    def start(self, threads: int = 2) -> None:
        """Serve from so many threads until the directory is unmounted."""
        for number in range(threads):
            thread = threading.Thread(target=self._serve, name=f"fuse-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def resume(self, threads: int = 2) -> None:
        """Serve on in place of a session that was killed: what the kernel had asked that one, it asks this one again
        (Linux 6.9). Call `know` first for every file that was shown.

        Args:
            threads: see `start`.
        """
        self.start(threads)
        self.ask_again()

    def know(self, name: str) -> None:
        """Answer reads of a file that the kernel may have opened while another session served."""
        self._number(name)

    def ask_again(self) -> None:
        """Have the kernel ask again what was asked and not answered: a process that was dying may have taken more. What
        this session is at is asked twice, and answered to whoever is first.
        """
        try:
            os.write(self._device, _OUT.pack(_OUT.size, _NOTIFY_RESEND, 0))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # An older kernel: who waits for an answer of the dead waits until the request times out.

    def join(self) -> None:
        """Wait until the directory is unmounted and nothing serves it any more."""
        for thread in self._threads:
            thread.join()

    def reply(self, unique: int, data: bytes | memoryview, code: int = 0) -> None:
        """Answer a request. Nothing happens when it was interrupted, or the session is over."""
        try:
            os.writev(self._device, [_OUT.pack(_OUT.size + len(data), -code, unique), data])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EPERM):
                raise

    def _serve(self) -> None:
        while True:
            try:
                message = os.read(self._device, _BUFFER_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # ENODEV: it was unmounted.
            length, operation, unique, node, *_ = _IN.unpack_from(message)
            try:
                self._handle(operation, unique, node, memoryview(message)[_IN.size : length])
            except Exception:  # noqa: BLE001
                # One request's trouble is its own: a thread that ended would leave all who ask later waiting.
                self.reply(unique, b"", errno.EIO)

    def _handle(self, operation: int, unique: int, node: int, body: memoryview) -> None:
        if node > _ROOT and node not in self._sizes and operation not in _SILENT:
            self.reply(unique, b"", errno.ESTALE)
        elif operation == _READ:
            self._read(unique, node, body)
        elif operation == _LOOKUP:
            self._look_up(unique, node, body)
        elif operation == _GETATTR:
            self.reply(unique, _ATTRIBUTES_OUT.pack(_KEPT_S, 0, 0) + self._attributes(node))
        elif operation == _OPEN:
            self.reply(unique, _OPEN_OUT.pack(0, _DIRECT_IO, 0))
        elif operation == _OPENDIR:
            self.reply(unique, _OPEN_OUT.pack(0, 0, 0))
        elif operation == _INIT:
            self._initialize(unique, body)
        elif operation == _STATFS:
            self.reply(unique, bytes(_STATFS_BYTES))
        elif operation in _EMPTY:
            self.reply(unique, b"")
        elif operation not in _SILENT:
            self.reply(unique, b"", errno.ENOSYS)

    def _initialize(self, unique: int, body: memoryview) -> None:
        _, minor, read_ahead, offered, *_ = _INIT_IN.unpack_from(body)
        offered_2 = struct.unpack_from("<I", body, 16)[0] if offered & _INIT_EXT else 0
        taken = offered & (_ASYNC_READ | _ASYNC_DIO | _MAX_PAGES | _INIT_EXT)
        taken_2 = offered_2 & _REQUEST_TIMEOUT if self._request_timeout_s else 0
        answer = _INIT_OUT.pack(
            _MAJOR, min(minor, _MINOR), read_ahead, taken, 64, 48, 4096, 1, _PAGES, 0, taken_2, 0,
            self._request_timeout_s if taken_2 else 0,
        )  # fmt: skip
        self.reply(unique, answer)

    def _look_up(self, unique: int, node: int, body: memoryview) -> None:
        name = bytes(body).rstrip(b"\0").decode(errors="replace")
        if node != _ROOT or self._files.size_of(name) is None:
            self.reply(unique, b"", errno.ENOENT)
            return
        number = self._number(name)
        self.reply(unique, _ENTRY.pack(number, 0, _KEPT_S, _KEPT_S, 0, 0) + self._attributes(number))

    def _number(self, name: str) -> int:
        """Return the number of a file that there is: the same in every process, since the kernel remembers it."""
        size = self._files.size_of(name)
        assert size is not None
        number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little") + _ROOT + 1
        self._sizes[number] = (name, size)
        return number

    def _attributes(self, node: int) -> bytes:
        mode, size = stat.S_IFDIR | 0o500, 0
        if node != _ROOT:
            mode, size = stat.S_IFREG | 0o400, self._sizes[node][1]
        return _ATTRIBUTES.pack(node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _read(self, unique: int, node: int, body: memoryview) -> None:
        _, start, length = _READ_IN.unpack_from(body)
        name, size = self._sizes[node]
        length = max(0, min(length, size - start))
        if length == 0:
            self.reply(unique, b"")
        else:
            self._files.read(ReadRequest(self, unique, name, start, length))
