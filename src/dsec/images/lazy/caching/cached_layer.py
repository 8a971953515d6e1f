"""One layer in the local cache: a sparse file with chunks at their places, and a record of which are there
(docs/formats/layer-cache.md).

Once all are there, the sparse file *is* the layer's EROFS file, which the kernel can read without us.

What makes it survive `kill -9` and a loss of power: the record says "there" for a chunk only after the file was synced,
one byte a chunk, so that there is no half of an answer. What was fetched and not yet recorded is fetched again. Until
then the record says "written", for those who only look: a sync is seconds away, and `ls` would be behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from dsec.base.errors import DsecError, StateCorruptedError
from dsec.images.durable import write_atomically
from dsec.images.lazy.caching.recent import RecentChunks
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, name_of
from dsec.linux.direct_io import write_direct

MANIFEST, DATA, PRESENT, ORIGINS = "manifest.json", "data", "present", "origins.json"
_ABSENT, _THERE, _WRITTEN = b"\0", b"\1", b"\2"
_HERE = _THERE + _WRITTEN
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DIRECT_BYTES = 256 << 10
"""Chunks of that length are written past the page cache; shorter ones are not worth it."""
METADATA = -1
"""Stands for the metadata among the numbers of chunks."""


class CachedLayer:
    """A layer of the cache. Its methods may be called from any thread.

    Attributes:
        directory: where it lies; named by the manifest.
        manifest: what it consists of.
        origins: where its chunks can be had (`dsec.images.lazy.origins`); none: nobody said.
        recent: remembers what was written a moment ago.
    """

    def __init__(self, directory: Path, manifest: LayerManifest, *, as_guest: bool = False) -> None:
        self.directory = directory
        self.manifest = manifest
        self._lock = threading.Lock()
        self._starts = [extent.start for extent in manifest.metadata]
        self._packed_starts = [0, *accumulate(extent.length for extent in manifest.metadata)]
        self._packed = b""
        self.recent = RecentChunks()
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if as_guest else os.O_CREAT)
        self._data = os.open(directory / DATA, flags, 0o600)
        try:
            self._record = os.open(directory / PRESENT, flags, 0o600)
        except OSError:
            os.close(self._data)
            raise
        # Byte 0 is the metadata's, so that its number, one less than a chunk's, is its place as well.
        self._count = len(manifest.chunks) + 1
        self._there: set[int] = set()
        self._unsynced: set[int] = set()
        self._held_bytes = 0
        self.origins = _read_origins(directory / ORIGINS)
        if as_guest:
            self._read_record()
        else:
            self.begin_anew()

    @classmethod
    def create(cls, directory: Path, manifest: LayerManifest) -> CachedLayer:
        """Make a layer of which nothing is there yet, in a directory that is made too."""
        directory.mkdir(mode=0o700, exist_ok=True)
        # A mount waits for this, and a layer that a loss of power leaves without its manifest is begun again.
        write_atomically(directory / MANIFEST, manifest.data, durably=False)
        return cls(directory, manifest)

    @classmethod
    def open(cls, directory: Path, *, as_guest: bool = False) -> CachedLayer:
        """Open a layer again.

        Args:
            directory: where it lies.
            as_guest: write nothing, as somebody else may.

        Raises:
            StateCorruptedError: its manifest is not the one that its directory is named by; or that is no directory, or
                holds something else than files.
            FileNotFoundError: it was being created or removed when its process was killed.
        """
        _check_kinds(directory)
        data = (directory / MANIFEST).read_bytes()
        return cls(directory, manifests.decode(data, str(directory), expected=directory.name), as_guest=as_guest)

    def begin_anew(self) -> None:
        """Have what is recorded, as whoever opens the layer; whoever wrote to it before has ended."""
        self._make_whole()
        self._read_record()
        self._forget_unsynced()

    def _read_record(self) -> None:
        recorded = os.pread(self._record, self._count, 0)
        there = {place - 1 for place, value in enumerate(recorded) if value == _THERE[0]}
        with self._lock:
            self._there, self._unsynced = there, set()
            self._held_bytes = sum(map(self._length, there))

    def _forget_unsynced(self) -> None:
        """Say of what whoever had the layer before had not synced that it is not there, as nobody knows."""
        recorded = os.pread(self._record, self._count, 0)
        for place, value in enumerate(recorded):
            if value == _WRITTEN[0]:
                os.pwrite(self._record, _ABSENT, place)

    def keep_origins(self, origins: Sequence[str]) -> None:
        """Say where chunks can be had from now on, also for whoever opens the layer next; none: as before. Where the
        disk is full, whoever opens it next is not told.
        """
        if not origins or tuple(origins) == self.origins:
            return
        self.origins = tuple(origins)
        with contextlib.suppress(OSError):
            write_atomically(self.directory / ORIGINS, msgspec.json.encode(self.origins), durably=False)

    @property
    def path(self) -> Path:
        """The sparse file; once `is_complete`, the layer's EROFS file."""
        return self.directory / DATA

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is there, and will be after any crash."""
        with self._lock:
            return not self._unsynced and len(self._there - {METADATA}) == self._count - 1

    @property
    def held_bytes(self) -> int:
        """Content bytes that are there."""
        with self._lock:
            return self._held_bytes

    @property
    def chunk_bytes(self) -> int:
        """Content bytes of the chunks that are there; those of the metadata count with the chunks that hold them."""
        with self._lock:
            return self._held_bytes - (self._length(METADATA) if METADATA in self._there else 0)

    def holds_metadata(self, positions: Iterable[int]) -> bool:
        """Whether something of the metadata lies in chunks, or is the metadata itself."""
        wanted = set(positions)
        touched = (self.manifest.positions(extent.start, extent.length) for extent in self.manifest.metadata)
        return METADATA in wanted or any(not wanted.isdisjoint(place) for place in touched)

    def has(self, position: int) -> bool:
        """Whether a chunk, or `METADATA`, is there."""
        with self._lock:
            return position in self._there

    def needed(self, start: int, length: int) -> range:
        """Return the numbers of the chunks that a read of a range needs; none where the metadata answers it."""
        is_metadata = self._extent_of(start, length) is not None
        return range(0) if is_metadata and self._has_metadata() else self.manifest.positions(start, length)

    def _has_metadata(self) -> bool:
        return METADATA in self._there or bool(self._packed)

    def show_packed(self, content: bytes) -> None:
        """Let `packed` answer from the verified metadata until it is on the disk; empty: from now on it does not."""
        self._packed = content

    def packed(self, start: int, length: int) -> memoryview | None:
        """Return a range of the metadata from memory, if it is there at the moment."""
        content = self._packed
        if not content or (place := self._extent_of(start, length)) is None:
            return None
        begin = self._packed_starts[place] + start - self._starts[place]
        return memoryview(content)[begin : begin + length]

    def missing(self, start: int, length: int) -> list[int]:
        """Return the numbers of the chunks that must come before a range can be read; none if all of it is there."""
        with self._lock:
            # On the disk: what is in memory only may be gone when it is to be read.
            if METADATA in self._there and self._extent_of(start, length) is not None:
                return []
            return [position for position in self.manifest.positions(start, length) if position not in self._there]

    def read(self, start: int, length: int) -> bytes:
        """Return a range of which nothing is missing."""
        position, skipped = divmod(start, CHUNK_BYTES)
        content = self.recent.get(self.manifest.id, position)
        if content is not None and skipped + length <= len(content):
            return content[skipped : skipped + length]
        return self._on_disk(start, length)

    def _on_disk(self, start: int, length: int) -> bytes:
        return os.pread(self._data, length, start)

    def read_chunk(self, position: int) -> bytes:
        """Return a chunk that is there, as the disk has it."""
        return self._on_disk(position * CHUNK_BYTES, self._length(position))

    def store(self, position: int, content: bytes) -> bool:
        """Keep a verified chunk, or the whole metadata; return False where the disk is full, which changes nothing.

        Others see it at once; it survives a crash after `flush`.
        """
        try:
            if position == METADATA:
                self._scatter(content)
            else:
                self._write_chunk(position, content)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
        with self._lock:
            if position not in self._there:
                self._there.add(position)
                self._held_bytes += self._length(position)
                with contextlib.suppress(OSError):  # It is for those who look.
                    os.pwrite(self._record, _WRITTEN, position + 1)
            self._unsynced.add(position)
        return True

    def flush(self) -> int:
        """Bring what was stored to the disk, then record it; return how many chunks that were.

        A sync that fails takes them back: what it was to write may be lost although it can still be read (fsync(2)).

        Raises:
            OSError: the sync failed.
        """
        with self._lock:
            pending = set(self._unsynced)
        if not pending:
            return 0
        try:
            os.fdatasync(self._data)
        except OSError:
            self._forget(pending)
            raise
        recorded = set(self._recorded(pending))
        with self._lock:
            self._unsynced -= recorded
        return len(recorded)

    def _recorded(self, positions: Iterable[int]) -> Iterator[int]:
        """Record what was synced and yield it; what a full disk does not let us record is tried again."""
        for position in sorted(positions):
            try:
                os.pwrite(self._record, _THERE, position + 1)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                return
            yield position

    def verify(self, places: range | None = None) -> tuple[int, list[int]]:
        """Read the chunks that are there, and forget those that are not what their names say.

        Args:
            places: numbers of those to look at; None: all.

        Returns:
            How many were read, and the numbers of those that were forgotten.
        """
        # What the disk has counts, which is what the kernel reads, not what is still in the page cache of the file.
        os.posix_fadvise(self._data, 0, 0, os.POSIX_FADV_DONTNEED)
        there = [place for place in self.positions() if places is None or place in places]
        bad = [position for position in there if not self._is_sound(position)]
        self._forget(bad)
        return len(there), bad

    def close(self) -> None:
        """Let go of the files, recording what can be. Idempotent."""
        if self._data < 0:
            return
        with contextlib.suppress(OSError):
            self.flush()
        os.close(self._data)
        os.close(self._record)
        self._data = self._record = -1

    def _make_whole(self) -> None:
        """Give both files their lengths, which a killed creation may not have."""
        if os.fstat(self._data).st_size != self.manifest.size_bytes:
            os.ftruncate(self._record, 0)
            os.ftruncate(self._data, self.manifest.size_bytes)
        if os.fstat(self._record).st_size != self._count:
            os.ftruncate(self._record, self._count)
            # With blocks of its own, so that a disk that is full later does not keep us from recording.
            os.posix_fallocate(self._record, 0, self._count)

    def positions(self) -> list[int]:
        """Return the numbers of what is there, `METADATA` included."""
        with self._lock:
            return sorted(self._there)

    def _is_sound(self, position: int) -> bool:
        if position == METADATA:
            return [name_of(piece) for piece in self._gathered()] == [ref.id for ref in self.manifest.metadata_chunks]
        return name_of(self.read_chunk(position)) == self.manifest.chunks[position].id

    def _forget(self, positions: Iterable[int]) -> None:
        gone = set(positions)
        for position in sorted(gone):
            os.pwrite(self._record, _ABSENT, position + 1)
        with self._lock:
            self._held_bytes -= sum(map(self._length, self._there & gone))
            self._there -= gone
            self._unsynced -= gone

    def _length(self, position: int) -> int:
        manifest = self.manifest
        return manifest.metadata_bytes if position == METADATA else manifest.chunks[position].content_bytes

    def _extent_of(self, start: int, length: int) -> int | None:
        """Return the number of the extent of the metadata in which a range lies; they are merged, so that it can lie in
        no two."""
        place = bisect_right(self._starts, start) - 1
        return place if place >= 0 and start + length <= self.manifest.metadata[place].end else None

    def _write_chunk(self, position: int, content: bytes) -> None:
        """Write a chunk to its place, past the page cache: its pages would be filled for reads that may never come."""
        start, done = position * CHUNK_BYTES, 0
        if len(content) >= _DIRECT_BYTES:
            # A descriptor of its own, since where it stands and how it writes are the descriptor's.
            direct = os.open(f"/proc/self/fd/{self._data}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.lseek(direct, start, os.SEEK_SET)
                done = write_direct(direct, content)
            finally:
                os.close(direct)
        write_at(self._data, memoryview(content)[done:], start + done)
        if done:
            self.recent.put(self.manifest.id, position, content)

    def _scatter(self, content: bytes) -> None:
        """Write packed metadata to its places."""
        if len(content) != self.manifest.metadata_bytes:
            raise StateCorruptedError(f"the metadata of layer {self.manifest.layer} has {len(content)} bytes")
        view, done = memoryview(content), 0
        for extent in self.manifest.metadata:
            write_at(self._data, view[done : done + extent.length], extent.start)
            done += extent.length

    def _gathered(self) -> Iterator[bytes]:
        """Yield the packed metadata, as the disk has it, by the chunk."""
        pending = bytearray()
        for extent in self.manifest.metadata:
            for start in range(extent.start, extent.end, CHUNK_BYTES):
                pending += self._on_disk(start, min(CHUNK_BYTES, extent.end - start))
                while len(pending) >= CHUNK_BYTES:
                    yield bytes(pending[:CHUNK_BYTES])
                    del pending[:CHUNK_BYTES]
        if pending:
            yield bytes(pending)


def _check_kinds(directory: Path) -> None:
    """Refuse what is not as this program makes it. Through a link we would write to files that are not the cache's, a
    FIFO would keep us waiting, and a directory in place of one file would keep all other layers from being served.
    """
    kinds = {directory: stat.S_ISDIR} | {directory / name: stat.S_ISREG for name in (MANIFEST, DATA, PRESENT, ORIGINS)}
    for path, is_kind in kinds.items():
        with contextlib.suppress(FileNotFoundError):
            if not is_kind(path.lstat().st_mode):
                raise StateCorruptedError(f"{path} is of another kind than the layer cache has there")


def recorded_bytes(directory: Path, size_bytes: int) -> int:
    """Return how many bytes of a layer's file its record in the cache says are there, synced or not, whoever has it.

    Each byte counts once, whether it came with its chunk, with the metadata, or with both: all of them are the file.

    Args:
        directory: the layer's in the cache; one that is not there holds nothing.
        size_bytes: length of the layer's file.
    """
    try:
        _check_kinds(directory)
        metadata, *chunks = (directory / PRESENT).read_bytes() or _ABSENT
    except (OSError, StateCorruptedError):  # It is not there, or whoever opens the cache sees to it.
        return 0
    there = {number for number, value in enumerate(chunks) if value in _HERE}
    number_of_chunks = -(-size_bytes // CHUNK_BYTES)
    here_bytes = CHUNK_BYTES * len(there)
    if number_of_chunks - 1 in there:
        here_bytes -= CHUNK_BYTES * number_of_chunks - size_bytes
    if metadata in _HERE and len(there) < number_of_chunks:
        here_bytes += sum(_bytes_beside(there, extent) for extent in _recorded_metadata(directory))
    return here_bytes


def _recorded_metadata(directory: Path) -> Sequence[Extent]:
    """Return where the metadata of a cached layer lies; nowhere if its manifest is damaged, since this is a cache."""
    try:
        return manifests.decode((directory / MANIFEST).read_bytes(), str(directory)).metadata
    except (OSError, DsecError):
        return ()


def _bytes_beside(chunks: set[int], extent: Extent) -> int:
    """Return how many bytes of an extent lie in none of these chunks."""
    numbers = range(extent.start // CHUNK_BYTES, -(-extent.end // CHUNK_BYTES))
    return sum(
        min(extent.end, (number + 1) * CHUNK_BYTES) - max(extent.start, number * CHUNK_BYTES)
        for number in numbers
        if number not in chunks
    )


def _read_origins(path: Path) -> tuple[str, ...]:
    """Return the origins that were kept; none where they are damaged, since this is a cache."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[str, ...])
    except (FileNotFoundError, msgspec.MsgspecError):
        return ()


def write_at(descriptor: int, content: bytes | memoryview, start: int) -> None:
    """Write all of `content`."""
    rest = memoryview(content)
    while len(rest) > 0:
        written = os.pwrite(descriptor, rest, start)
        rest, start = rest[written:], start + written
