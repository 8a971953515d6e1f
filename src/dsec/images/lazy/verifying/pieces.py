"""The pieces of a layer in a file of this host: read them, tell which are not what their names say, write them anew.

Writing in place is safe as nothing but verified content is written: killed in between, a piece that was wrong is wrong
still. It is also what keeps mounts going, which read the same file, where a new file in its place would not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsec.images.lazy.caching.cached_layer import write_at
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef, name_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a layer.

    Attributes:
        is_metadata: whether it is one of the metadata, packed, and not of the file.
        place: its number.
        ref: which chunk it is.
    """

    is_metadata: bool
    place: int
    ref: ChunkRef

    def __str__(self) -> str:
        return f"{'metadata chunk' if self.is_metadata else 'chunk'} {self.place}"


def pieces_of(manifest: LayerManifest) -> list[Piece]:
    """Return all pieces of a layer, those of the metadata first, as in a blob."""
    metadata = [Piece(True, place, ref) for place, ref in enumerate(manifest.metadata_chunks)]
    return metadata + [Piece(False, place, ref) for place, ref in enumerate(manifest.chunks)]


class PieceFile:
    """The file of a layer, whole or with holes. Its methods block.

    Args:
        path: the EROFS file, or the sparse one of the cache.
        manifest: the layer's.
    """

    def __init__(self, path: Path, manifest: LayerManifest) -> None:
        self._path = path
        self._manifest = manifest

    def forget_cached(self) -> None:
        """Have the kernel read the disk again: what is in its page cache may be better than what the disk has."""
        with open(self._path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def content(self, piece: Piece) -> bytes | None:
        """Return the content of a piece, verified; None where the file has something else, or cannot be read there."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                content = b"".join(
                    os.pread(file.fileno(), extent.length, extent.start) for extent in self._extents(piece)
                )
        except OSError:
            return None
        return content if name_of(content) == piece.ref.id else None

    def bad(self, places: Sequence[int]) -> list[int]:
        """Return those numbers of chunks of the file that are not what their names say."""
        return [place for place in places if self.content(Piece(False, place, self._manifest.chunks[place])) is None]

    def write(self, place: int, content: bytes) -> None:
        """Write a verified chunk of the file in its place. Raises `OSError`."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_at(descriptor, content, place * CHUNK_BYTES)
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        """Give the file its length and bring it to the disk. Raises `OSError`."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != self._manifest.size_bytes:
                os.ftruncate(descriptor, self._manifest.size_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _extents(self, piece: Piece) -> Iterator[Extent]:
        if not piece.is_metadata:
            yield Extent(piece.place * CHUNK_BYTES, piece.ref.content_bytes)
            return
        skip, wanted = piece.place * CHUNK_BYTES, piece.ref.content_bytes
        for extent in self._manifest.metadata:
            if skip >= extent.length:
                skip -= extent.length
                continue
            length = min(extent.length - skip, wanted)
            yield Extent(extent.start + skip, length)
            wanted -= length
            skip = 0
            if not wanted:
                return
