"""The stored chunks that this host can give to others, found by name on its own disk.

Theory. A chunk's name is the hash of its content, so that nothing has to be believed about what lies where: a manifest
says where a chunk *would* be, the bytes there are read and encoded, and what does not hash to the name is not given.
Holes of a layer that is still being fetched, half-written chunks, rotten disks and layers that are taken away meanwhile
all come out as "not here". So this can be a process of its own that reads beside the one that writes, without a lock
between the two, and what leaves this host was right when it was encoded.

Encoding costs processor time (13 ms for 4 MiB that shrink to a third, 3 ms where nothing shrinks) and saves the link
more than that below some 2 Gbit/s. It is done once: stored chunks lie on a *shelf*, a directory with a bound whose
least used go first. Whoever fetched a chunk puts the stored form there as it came, which costs a tenth of encoding.

Layout of a root of layers: `<manifest>/manifest.json` and `<manifest>/data`, as in docs/formats/layer-cache.md; the
second may be a link to a layer's EROFS file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from dsec.base.errors import DsecError
from dsec.images.lazy.caching.cached_layer import DATA, MANIFEST
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, encode, is_name

LOOK_INTERVAL_S = 0.5
"""Layers that came or went are looked for at most that often, however many unknown chunks are asked for."""
_TEMPORARY = ".new-"


class Shelf:
    """Stored chunks in a directory, each a file under its name; the least used go when there are too many.

    Several processes may put chunks there; one, which calls `opened` and `tidy`, takes them away. Methods may be called
    from any thread.

    Args:
        root: the directory; made if missing.
        limit_bytes: bound on what `tidy` leaves.
    """

    def __init__(self, root: Path, *, limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._used: OrderedDict[str, None] = OrderedDict()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, name: str, stored: bytes) -> bool:
        """Keep a stored chunk that was verified; return False where the disk is full. Not synced: it can be lost."""
        path = self._root / name
        temporary = self._root / f"{_TEMPORARY}{secrets.token_hex(8)}"
        if path.exists():
            return True
        try:
            temporary.write_bytes(stored)
            temporary.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        return True

    def opened(self, name: str) -> int | None:
        """Return a descriptor of a stored chunk, which the caller closes; None: it is not here."""
        try:
            descriptor = os.open(self._root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with self._lock:
            self._used[name] = None
            self._used.move_to_end(name)
        return descriptor

    def tidy(self) -> int:
        """Take away what is too much, and what a killed writer left; return the bytes that stay."""
        found: dict[str, int] = {}
        for entry in list(os.scandir(self._root)):
            with contextlib.suppress(OSError):  # Another process renamed it meanwhile.
                status = entry.stat(follow_symlinks=False)
                if not is_name(entry.name):
                    if time.time() - status.st_mtime > 60:
                        os.unlink(entry.path)
                    continue
                found[entry.name] = status.st_size
        with self._lock:
            for name in [name for name in self._used if name not in found]:
                del self._used[name]
            # What nobody has asked for yet is what was fetched last, and most wanted: it counts as used just now.
            for name in found:
                self._used.setdefault(name)
            order = list(self._used)
        total = sum(found.values())
        for name in order:
            if total <= self._limit_bytes:
                break
            (self._root / name).unlink(missing_ok=True)
            total -= found[name]
        return total


class _Layer:
    """One layer of a root: how to read its chunks."""

    def __init__(self, directory: Path, manifest: LayerManifest) -> None:
        self._data = directory / DATA
        self.manifest = manifest
        self._packed_starts = list(accumulate((extent.length for extent in manifest.metadata), initial=0))

    def read(self, position: int, *, is_metadata: bool) -> bytes:
        """Return what lies where a chunk would be. Raises `OSError`."""
        descriptor = os.open(self._data, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if is_metadata:
                return self._gathered(descriptor, position)
            start = position * CHUNK_BYTES
            if os.lseek(descriptor, start, os.SEEK_DATA) != start:
                return b""  # A hole: it was not fetched, which is told without reading 4 MiB of zeros.
            return os.pread(descriptor, self.manifest.chunks[position].content_bytes, start)
        finally:
            os.close(descriptor)

    def _gathered(self, descriptor: int, position: int) -> bytes:
        """Return a chunk of the packed metadata, from the extents that it consists of."""
        at, end = position * CHUNK_BYTES, position * CHUNK_BYTES + self.manifest.metadata_chunks[position].content_bytes
        parts = []
        while at < end:
            place = bisect_right(self._packed_starts, at) - 1
            extent, inside = self.manifest.metadata[place], at - self._packed_starts[place]
            count = min(end - at, extent.length - inside)
            parts.append(os.pread(descriptor, count, extent.start + inside))
            at += count
        return b"".join(parts)


class LocalChunks:
    """Finds a chunk by its name among the layers of this host, and gives it in its stored form.

    Methods may be called from any thread; `made` reads and encodes, and should run where nobody waits.

    Args:
        roots: directories of layers.
        shelf: keeps what was encoded.
        clock: seconds that only go forward.
    """

    def __init__(self, roots: Sequence[Path], shelf: Shelf, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._roots = tuple(roots)
        self.shelf = shelf
        self._clock = clock
        self._lock = threading.Lock()
        self._making = tuple(threading.Lock() for _ in range(16))
        self._looked = -LOOK_INTERVAL_S
        self._layers: dict[Path, _Layer] = {}
        self._refused: set[Path] = set()
        self._where: dict[str, list[tuple[Path, int, bool]]] = {}

    def opened(self, name: str) -> int | None:
        """Return a descriptor of a chunk that lies on the shelf; the caller closes it."""
        return self.shelf.opened(name)

    def made(self, name: str) -> int | None:
        """Return a descriptor of a chunk that is on this host somewhere; None where it is not. The caller closes it."""
        with self._making[int(name[0], 16)]:
            found = self.shelf.opened(name)
            if found is not None:
                return found
            stored = self._encoded(name)
            if stored is None:
                return None
            if self.shelf.put(name, stored):
                return self.shelf.opened(name)
            return _in_memory(stored)

    def _encoded(self, name: str) -> bytes | None:
        for directory, position, is_metadata in self._places(name):
            layer = self._layers.get(directory)
            if layer is None:
                continue
            with contextlib.suppress(OSError):  # It was taken away, or its disk fails: perhaps another layer has it.
                content = layer.read(position, is_metadata=is_metadata)
                if content:
                    found, stored = encode(content)
                    if found == name:
                        return stored
        return None

    def _places(self, name: str) -> list[tuple[Path, int, bool]]:
        with self._lock:
            if name not in self._where and self._clock() - self._looked >= LOOK_INTERVAL_S:
                self._looked = self._clock()
                self._look()
            return list(self._where.get(name, ()))

    def _look(self) -> None:
        """Note layers that came, forget those that went."""
        there = {
            directory
            for root in self._roots
            if root.is_dir()
            for directory in root.iterdir()
            if is_name(directory.name)
        }
        self._refused &= there
        for directory in self._layers.keys() - there:
            del self._layers[directory]
            self._where = {
                name: left
                for name, places in self._where.items()
                if (left := [place for place in places if place[0] != directory])
            }
        for directory in there - self._layers.keys() - self._refused:
            self._note(directory)

    def _note(self, directory: Path) -> None:
        try:
            data = (directory / MANIFEST).read_bytes()
            manifest = manifests.decode(data, str(directory), expected=directory.name)
        except FileNotFoundError:
            return  # It is being made.
        except (DsecError, OSError):
            self._refused.add(directory)
            return
        self._layers[directory] = _Layer(directory, manifest)
        for is_metadata, refs in ((True, manifest.metadata_chunks), (False, manifest.chunks)):
            for position, ref in enumerate(refs):
                self._where.setdefault(ref.id, []).append((directory, position, is_metadata))


def _in_memory(stored: bytes) -> int:
    """Return a descriptor of a file that lies in memory alone, for a disk that is full."""
    descriptor = os.memfd_create("chunk", os.MFD_CLOEXEC)
    os.write(descriptor, stored)
    return descriptor
