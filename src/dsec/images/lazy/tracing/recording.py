"""Show layers so that every block that is read of them is seen: mounted afresh, with nothing in the page cache.

Theory. Whether a block was read is seen best where it must come from: a file system that was mounted for the purpose
has no page, so that each first access goes down to the device. The device here is a loop device on a FUSE file of ours,
as that of a lazy layer is (`dsec.images.lazy.serving.server`), and behind the file lies what the host has of the layer:
its EROFS file, or the file that the layer daemon shows. What the kernel asks for is passed on and written down.

Why not the marks of the layer daemon (`dsec.images.lazy.tracing.touches`): a layer that is mounted already has pages,
which another mount of the same device shares, so that a second reader of what a first one read is not seen; they know
chunks only; and images that are wholly here have none. Why not fanotify or ptrace: they see files of a sandbox, page
faults of a mapped library they do not.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.tracing.traces import Read, ReadLog
from dsec.images.staging import remove_tree
from dsec.linux import loop, mounts
from dsec.linux.fuse import FuseMount, FuseSession, ReadOnlyFiles, ReadRequest

_FLAGS = mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLayer:
    """A layer whose reads are to be seen.

    Attributes:
        file: what is behind it.
        size_bytes: of that.
        metadata: extents that do not count.
        target: where it is to be mounted; made.
    """

    file: Path
    size_bytes: int
    metadata: Sequence[Extent]
    target: Path


class ReadRecorder:
    """Layers that are mounted and watched; make it with `recording`."""

    def __init__(self, layers: Sequence[RecordedLayer]) -> None:
        self._layers = layers
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._log = ReadLog([layer.metadata for layer in layers])
        self._files = [_opened(layer.file) for layer in layers]

    def begin(self) -> None:
        """Count time from now on; what was read so far stays."""
        self._began_s = time.monotonic()

    def reads(self) -> tuple[Read, ...]:
        """Return what was read so far."""
        with self._lock:
            return self._log.reads()

    def size_of(self, name: str) -> int | None:
        """Return the size of the file of a layer, named by its place."""
        return self._layers[int(name)].size_bytes if name.isdigit() and int(name) < len(self._layers) else None

    def serve(self, request: ReadRequest) -> None:
        """Write a read down and pass it on."""
        layer, after_s = int(request.name), time.monotonic() - self._began_s
        with self._lock:
            self._log.add(layer, request.start, request.length, after_s)
        try:
            data = os.pread(self._files[layer], request.length, request.start)
        except OSError as error:
            request.fail(error.errno or errno.EIO)
            return
        request.answer(data)

    def close(self) -> None:
        """Let go of the files behind the layers."""
        for descriptor in self._files:
            os.close(descriptor)


def _opened(file: Path) -> int:
    """Open what is behind a layer; a device is not to read ahead: a lazy layer would fetch what nobody wanted."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor


@contextmanager
def recording(directory: Path, layers: Sequence[RecordedLayer]) -> Iterator[ReadRecorder]:
    """Mount layers for the block and see what is read of them. Needs root.

    Args:
        directory: existing, of the caller's own; nothing is left in it.
        layers: which, and where.
    """
    served = directory / "served"
    with ExitStack() as stack:
        recorder = ReadRecorder(layers)
        stack.callback(recorder.close)
        served.mkdir(mode=0o700)
        stack.callback(remove_tree, served)
        mount = FuseMount(served)
        session = FuseSession(mount, ReadOnlyFiles(size_of=recorder.size_of, read=recorder.serve))
        stack.callback(session.join)
        stack.callback(mount.close)
        session.start()
        for place, layer in enumerate(layers):
            layer.target.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Unmounted before the server ends: whoever still reads then is told, and does not wait.
            stack.callback(remove_tree, layer.target)
            with loop.attached_read_only(served / str(place)) as device:
                mounts.mount(device, layer.target, "erofs", _FLAGS)
        recorder.begin()
        yield recorder
