"""A stored chunk that is on its way here, in memory that the seeder reads while it grows.

Theory. If each node gave a chunk on only when it had all of it, a chain of nodes would take one transfer's time for
each of them. So what has come of a chunk is passed on at once (cut-through, as switches do: Kermani and Kleinrock,
1979), and a chain takes little longer than one transfer. Its bytes are not verified then. That harms nobody, since its
*last* bytes are kept back until they are: a chunk that turns out to be something else is never passed on whole, and
whoever gives all of a wrong chunk has lied and not been lied to.

The memory is a file without a name (memfd_create(2)) that the seeder opens through ``/proc/PID/fd``. The number there
may be another file's by then; the name that the memory was made with says whether it is the right one.

Layout: the stored chunk, of a known length, then how many of its bytes are there (8 bytes, little-endian), then its
state (1 byte, `State`), then whether somebody follows it (1 byte, which the seeder sets): without that nobody is woken.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
from collections.abc import Callable

from dsec.distribution.speed import Speed

_COUNT = struct.Struct("<Q")
_TAIL_BYTES = _COUNT.size + 2
_STEP_BYTES = 128 << 10
"""Of what came, the seeder is told in steps: each costs a write to a pipe, and is waited for by all further down."""
KEPT_BACK_BYTES = 1024
"""Not passed on before all is verified. One byte would do; a small piece makes no packet of its own in most cases."""


class State(enum.IntEnum):
    """What became of a chunk on its way."""

    COMING = 0
    VERIFIED = 1
    SPOILT = 2
    """It ended early, or is something else: nothing more of it is passed on."""


class Landing:
    """One stored chunk on its way, as whoever receives it fills it. Used from one event loop.

    Args:
        name: of the chunk.
        size: length of its stored form.
        tell: called when there is more to pass on, or it ended.
        speed: told what comes; None: whoever receives it tells it itself.

    Raises:
        OSError: there is no memory for it.
    """

    def __init__(self, name: str, size: int, tell: Callable[[], None], speed: Speed | None = None) -> None:
        self.size = size
        self._speed = speed
        self._came = 0
        self.descriptor = os.memfd_create(_memory_name(name), os.MFD_CLOEXEC)
        self._tell = tell
        self._told = 0
        try:
            os.ftruncate(self.descriptor, size + _TAIL_BYTES)
            self._map = mmap.mmap(self.descriptor, size + _TAIL_BYTES)
        except OSError:
            os.close(self.descriptor)
            raise
        self.view = memoryview(self._map)[:size]
        """Where the bytes belong."""

    @property
    def state(self) -> State:
        return State(self._map[self.size + _COUNT.size])

    def came(self, count: int) -> None:
        """Note that so many bytes are there."""
        if self._speed is not None:
            self._speed.came(count - self._came)
        self._came = count
        _COUNT.pack_into(self._map, self.size, count)
        if count - self._told >= _STEP_BYTES or count == self.size:
            self._told = count
            if self._map[self.size + _COUNT.size + 1]:
                self._tell()

    def verified(self, stored: bytes) -> None:
        """Note that the chunk was verified in this stored form. What lies here is spoilt if it is another one: somebody
        else may have given it.
        """
        self._end(State.VERIFIED if self._map[: self.size] == stored else State.SPOILT)

    def spoil(self) -> None:
        """Note that nothing will come of it. Harmless once it is verified."""
        self._end(State.SPOILT)

    def _end(self, state: State) -> None:
        if self.state is State.COMING:
            self._map[self.size + _COUNT.size] = state
            self._tell()

    def close(self) -> None:
        """Let go of the memory; who passes it on keeps it until that is done. Idempotent."""
        self.spoil()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


Land = Callable[[int], Landing | None]
"""Told the length of a stored chunk that begins to come; returns where it goes, None: to nobody but who asked."""


class Part:
    """The same, as who passes it on sees it.

    Args:
        descriptor: of the memory; closed by `close`.
        size: length of the stored chunk.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size

    @property
    def state(self) -> State:
        """What became of it."""
        said = os.pread(self.descriptor, 1, self.size + _COUNT.size)
        return State(said[0]) if said and said[0] in (State.COMING, State.VERIFIED) else State.SPOILT

    @property
    def sendable_bytes(self) -> int:
        """How many of its bytes may be passed on."""
        if self.state is State.VERIFIED:
            return self.size
        (count,) = _COUNT.unpack(os.pread(self.descriptor, _COUNT.size, self.size))
        return int(max(0, min(count, self.size - KEPT_BACK_BYTES)))

    def follow(self) -> None:
        """Have it be told when more of it comes."""
        os.pwrite(self.descriptor, b"\1", self.size + _COUNT.size + 1)

    def copy(self) -> Part:
        """Return one that is closed by itself."""
        return Part(os.dup(self.descriptor), self.size)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_part(pid: int, descriptor: int, name: str, size: int) -> Part | None:
    """Open what another process of this user receives; None: it is not that, or not any more.

    Args:
        pid, descriptor: the process, and the number of the memory there.
        name: of the chunk.
        size: length of its stored form.
    """
    try:
        own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    is_it = os.readlink(f"/proc/self/fd/{own}") == f"/memfd:{_memory_name(name)} (deleted)"
    if is_it and os.fstat(own).st_size == size + _TAIL_BYTES:
        return Part(own, size)
    os.close(own)
    return None


def _memory_name(chunk: str) -> str:
    return f"dsec-chunk-{chunk}"
