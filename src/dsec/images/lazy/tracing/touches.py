"""What of each layer was read, what came beforehand, and what of that was of use (docs/formats/layer-trace.md).

Theory. A chunk of a mounted layer gets at most three marks, each once, with the time since the layer's first mount:

- *read*: the kernel asked for something of it. That is a process that reads, or the kernel reading ahead for one: from
  here the two look alike. What the page cache has is not asked for again, so that this is the *first* touch.
- *fetched*: its bytes came from a source, whoever wanted them.
- *ahead*: it was brought before anybody had read it.

Ahead and read: a *prefetched* chunk, which spared somebody a wait. Ahead and not read: *wasted*, so far. Reads that the
metadata answers touch no chunk. Once the device of a layer reads the local file, nobody tells us of reads any more, so
that what is said of such a layer is true of the time before.

Marks are lines of a file that only grows, written without a sync: a killed server's are all there, a host that lost
power lost some. A file has at most three lines a chunk, and the number of files is bounded.
"""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from dsec.images.lazy.caching.cached_layer import METADATA
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.model.image_use import LayerUse as LayerUse
from dsec.model.value import Value

VERSION = 1
MAXIMUM_FILES = 512
"""The file of the layer that was marked longest ago goes first."""
_SUFFIX = ".marks"


class Mark(enum.IntFlag):
    """What happened to a chunk."""

    READ = 1
    FETCHED = 2
    AHEAD = 4


class Touch(Value, frozen=True):
    """The first read of a chunk.

    Attributes:
        position: number of the chunk.
        after_s: seconds since the layer was mounted first.
    """

    position: int
    after_s: float


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    began_s: float


class LayerTouches:
    """The marks of one layer. Methods may be called from any thread; marking what is marked costs a look into a set.

    Args:
        path: its file, made if missing; one that is damaged or of another version is begun anew. None: in memory only.
        manifest: the layer's.
        wall_s: wall clock, which goes on over a restart of the server.
    """

    def __init__(self, path: Path | None, manifest: LayerManifest, wall_s: Callable[[], float] = time.time) -> None:
        self.manifest = manifest
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._marks: dict[int, Mark] = {}
        self._reads: dict[int, float] = {}
        self._began_s = wall_s()
        self._file = -1
        if path is not None:
            with contextlib.suppress(OSError):  # A disk that is full loses marks, and no read.
                self._open(path)

    def _open(self, path: Path) -> None:
        data = path.read_bytes() if path.exists() else b""
        header, *lines = data.splitlines() or [b""]
        try:
            known = msgspec.json.decode(header, type=_Header)
        except msgspec.MsgspecError:
            known = None
        fresh = known is None or known.version != VERSION
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
        self._file = os.open(path, flags, 0o600)
        if known is None or fresh:
            self._write(msgspec.json.encode(_Header(VERSION, self._began_s)))
            return
        self._began_s = known.began_s
        for line in lines:
            self._restore(line)
        if not data.endswith(b"\n"):
            self._write(b"")  # The line that a kill cut off stays by itself.

    def _restore(self, line: bytes) -> None:
        try:
            position, mark, after_ms = msgspec.json.decode(line, type=tuple[int, int, int])
        except msgspec.MsgspecError:
            return
        if METADATA <= position < len(self.manifest.chunks) and 0 < mark < 2 * Mark.AHEAD:
            self._marks[position] = self._marks.get(position, Mark(0)) | Mark(mark)
            if mark & Mark.READ:
                self._reads.setdefault(position, after_ms / 1000)

    def read(self, positions: Iterable[int]) -> None:
        """Mark chunks as read."""
        for position in positions:
            if position not in self._reads:
                self._add(position, Mark.READ)

    def fetched(self, position: int) -> None:
        """Mark a chunk, or `METADATA`, as come from a source."""
        self._add(position, Mark.FETCHED)

    def ahead(self, position: int) -> None:
        """Mark a chunk as brought beforehand: when its fetch began, nobody had read it."""
        self._add(position, Mark.AHEAD)

    def was_read(self, position: int) -> bool:
        """Whether a chunk was read."""
        return position in self._reads

    def _add(self, position: int, mark: Mark) -> None:
        with self._lock:
            before = self._marks.get(position, Mark(0))
            if before & mark:
                return
            self._marks[position] = before | mark
            after_ms = max(0, round((self._wall_s() - self._began_s) * 1000))
            if mark is Mark.READ:
                self._reads[position] = after_ms / 1000
            self._write(msgspec.json.encode((position, int(mark), after_ms)))

    def _write(self, line: bytes) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.write(self._file, line + b"\n")

    def order(self) -> tuple[Touch, ...]:
        """Return the chunks that were read, in the order of their first reads."""
        with self._lock:
            reads = list(self._reads.items())
        return tuple(Touch(position=position, after_s=after_s) for position, after_s in sorted(reads, key=_when))

    def use(self) -> LayerUse:
        """Return what came of the layer, and what was read; what is here now the caller adds."""
        with self._lock:
            marks = list(self._marks.items())

        def sum_of(condition: Callable[[Mark], object]) -> int:
            return sum(self._length(position) for position, mark in marks if condition(mark))

        return LayerUse(
            manifest=self.manifest.id,
            layer=self.manifest.layer,
            size_bytes=self.manifest.size_bytes,
            metadata_bytes=self.manifest.metadata_bytes,
            touched_bytes=sum_of(lambda mark: mark & Mark.READ),
            prefetched_bytes=sum_of(lambda mark: mark & Mark.READ and mark & Mark.AHEAD),
            wasted_bytes=sum_of(lambda mark: mark & Mark.AHEAD and not mark & Mark.READ),
            fetched_bytes=sum_of(lambda mark: mark & Mark.FETCHED),
            age_s=max(0.0, self._wall_s() - self._began_s),
        )

    def _length(self, position: int) -> int:
        manifest = self.manifest
        return manifest.metadata_bytes if position == METADATA else manifest.chunks[position].content_bytes

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def _when(item: tuple[int, float]) -> tuple[float, int]:
    return item[1], item[0]


class Touches:
    """The marks of all layers of a daemon.

    Args:
        root: directory of their files; made if missing. None: in memory only.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._layers: dict[str, LayerTouches] = {}
        if root is not None:
            with contextlib.suppress(
                OSError
            ):  # A disk that is full or failing loses marks, and keeps nobody from reading.
                root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of(self, manifest: LayerManifest) -> LayerTouches:
        """Return the marks of a layer."""
        with self._lock:
            known = self._layers.get(manifest.id)
            if known is None:
                known = self._layers[manifest.id] = LayerTouches(self._path(manifest.id), manifest)
            return known

    def _path(self, manifest_id: str) -> Path | None:
        if self._root is None:
            return None
        with contextlib.suppress(OSError):
            self._make_room(self._root)
        return self._root / f"{manifest_id}{_SUFFIX}"

    def _make_room(self, root: Path) -> None:
        """Remove the files of layers that nobody has open, the oldest first, until one more fits."""
        files = [path for path in root.glob(f"*{_SUFFIX}") if path.stem not in self._layers]
        excess = max(0, len(files) + len(self._layers) + 1 - MAXIMUM_FILES)
        for path in sorted(files, key=lambda path: path.stat().st_mtime_ns)[:excess]:
            path.unlink(missing_ok=True)

    def forget(self, manifest_id: str) -> None:
        """Let go of a layer's file, which stays."""
        with self._lock:
            known = self._layers.pop(manifest_id, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        """Let go of all files. Idempotent."""
        with self._lock:
            for layer in self._layers.values():
                layer.close()
            self._layers.clear()
