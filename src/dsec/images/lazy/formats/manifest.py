"""The manifest of a layer: which chunks its EROFS file consists of, and where its metadata lies
(docs/formats/layer-manifest.md). Pure.

Manifests come from others. One that was decoded is consistent in itself: every number that follows from others was
compared, and every extent lies in the file. That it is the manifest that was asked for says its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from dsec.base.errors import CapabilityMissingError, StateCorruptedError
from dsec.base.foreign_json import decode_foreign, version_of
from dsec.base.units import GIB, MIB, format_size
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats.stored import CHUNK_BYTES, HEADER_BYTES, MAXIMUM_STORED_BYTES, ChunkRef, is_name, name_of

VERSION = 1
BLOCK_BYTES = 4096
MAXIMUM_SIZE_BYTES = 1 << 40
MAXIMUM_EXTENTS = 1_000_000
MAXIMUM_METADATA_BYTES = GIB
"""It stands in memory while it comes, whatever little it is compressed to; that of a million small files has half."""
MAXIMUM_DOCUMENT_BYTES = 64 * MIB
MAXIMUM_MANIFESTS_BYTES = 128 * MIB
"""Of all layers of an image together: they stand in our memory. An image of a tebibyte has a sixth of it."""
_MAXIMUM_LISTS = 3 + MAXIMUM_EXTENTS + (MAXIMUM_SIZE_BYTES + MAXIMUM_METADATA_BYTES) // CHUNK_BYTES
_ENTRY_BYTES = 12
"""Of a directory, for each name in it: there are no smaller ones (erofs_dirent in the kernel's erofs_fs.h)."""
_LAYER = re.compile(r"sha256:[0-9a-f]{64}")

Piece = tuple[str, int]
"""Name and stored length of a chunk."""


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    layer: str
    size_bytes: int
    chunk_bytes: int
    entries: int
    chunks: tuple[Piece, ...]
    metadata: tuple[tuple[int, int], ...]
    metadata_chunks: tuple[Piece, ...]


class LayerManifest:
    """A manifest that is consistent in itself. Make it with `decode` or `make`.

    Attributes:
        id: BLAKE3 of its bytes, hexadecimal.
        layer: the layer's digest.
        size_bytes: of the EROFS file.
        entries: number of entries of the layer's tree.
        chunks: those of the file, in order.
        metadata: extents of the file that hold metadata.
        metadata_chunks: those of the metadata, in order.
    """

    def __init__(self, document: _Document, data: bytes) -> None:
        self.id = name_of(data)
        self.data = data
        self.layer = document.layer
        self.size_bytes = document.size_bytes
        self.entries = document.entries
        self.metadata = tuple(Extent(start, length) for start, length in document.metadata)
        # In a blob the metadata comes first, so that one request brings it.
        self.metadata_chunks = tuple(_refs(document.metadata_chunks, self.metadata_bytes, 0))
        begin = sum(stored for _, stored in document.metadata_chunks)
        self.chunks = tuple(_refs(document.chunks, self.size_bytes, begin))

    @property
    def metadata_bytes(self) -> int:
        return sum(extent.length for extent in self.metadata)

    def positions(self, start: int, length: int) -> range:
        """Return the numbers of the chunks that hold bytes of the file."""
        return range(start // CHUNK_BYTES, -(-(start + length) // CHUNK_BYTES)) if length else range(0)


def make(
    layer: str,
    size_bytes: int,
    entries: int,
    *,
    chunks: Sequence[Piece],
    metadata: Sequence[Extent],
    metadata_chunks: Sequence[Piece],
) -> LayerManifest:
    """Return the manifest of these parts.

    Raises:
        StateCorruptedError: they do not fit each other.
    """
    document = _Document(
        version=VERSION,
        layer=layer,
        size_bytes=size_bytes,
        chunk_bytes=CHUNK_BYTES,
        entries=entries,
        chunks=tuple(chunks),
        metadata=tuple((extent.start, extent.length) for extent in metadata),
        metadata_chunks=tuple(metadata_chunks),
    )
    return decode(msgspec.json.encode(document), "the layer being converted")


def decode(data: bytes, whence: str, *, expected: str | None = None) -> LayerManifest:
    """Read a manifest.

    Args:
        data: its bytes.
        whence: where they come from, for the error.
        expected: its name; None: it is not known yet.

    Raises:
        StateCorruptedError: it is another one than expected, or damaged, or contradicts itself.
        CapabilityMissingError: it is of a later version.
    """
    if expected is not None and name_of(data) != expected:
        raise _damaged(whence, f"its name is {name_of(data)}, not {expected}")
    if len(data) > MAXIMUM_DOCUMENT_BYTES:
        raise _damaged(whence, f"it is longer than {MAXIMUM_DOCUMENT_BYTES} bytes")
    if (lists := data.count(b"[")) > _MAXIMUM_LISTS:
        # Before they are in memory, where each takes ten times its text.
        raise _damaged(whence, f"it holds {lists} lists, more than {_MAXIMUM_LISTS}")
    try:
        version = version_of(data)
        if version and version != str(VERSION).encode():
            raise CapabilityMissingError(
                f"the layer manifest from {whence} is of version {version[:20]!r}; this program knows {VERSION}",
                resolution="use the DSec version that wrote it, or a later one",
            )
        document = decode_foreign(data, _Document)
    except msgspec.MsgspecError as error:
        raise _damaged(whence, str(error)) from error
    for problem in _problems(document):
        raise _damaged(whence, problem)
    return LayerManifest(document, data)


def _problems(document: _Document) -> Iterator[str]:
    """Yield what contradicts itself or could harm a reader; what comes later relies on what came before."""
    if _LAYER.fullmatch(document.layer) is None:
        yield f"{document.layer[:80]!r} is no layer's digest"
    if document.chunk_bytes != CHUNK_BYTES:
        yield f"its chunks have {document.chunk_bytes} bytes, not {CHUNK_BYTES}"
    if not BLOCK_BYTES <= document.size_bytes <= MAXIMUM_SIZE_BYTES or document.size_bytes % BLOCK_BYTES:
        yield f"a layer's file cannot have {document.size_bytes} bytes"
    if not 1 <= document.entries <= document.size_bytes // _ENTRY_BYTES + 1:
        yield f"a layer cannot have {document.entries} entries"
    yield from _problems_of_extents(document)
    total = sum(length for _, length in document.metadata)
    if total > MAXIMUM_METADATA_BYTES:
        yield f"its metadata has {format_size(total)}, more than {format_size(MAXIMUM_METADATA_BYTES)}"
    for what, pieces, size in (
        ("chunks", document.chunks, document.size_bytes),
        ("metadata chunks", document.metadata_chunks, total),
    ):
        if len(pieces) != -(-size // CHUNK_BYTES):
            yield f"it names {len(pieces)} {what} for {size} bytes"
        for name, stored_bytes in pieces:
            if not is_name(name):
                yield f"{name[:80]!r} is no name of a chunk"
            if not HEADER_BYTES < stored_bytes <= MAXIMUM_STORED_BYTES:
                yield f"no stored chunk has {stored_bytes} bytes"


def _problems_of_extents(document: _Document) -> Iterator[str]:
    extents = document.metadata
    if not 0 < len(extents) <= MAXIMUM_EXTENTS:
        yield f"it has {len(extents)} extents of metadata"
    for start, length in extents:
        if start < 0 or length < 1 or start % BLOCK_BYTES or length % BLOCK_BYTES:
            yield f"{length} bytes at {start} are no whole blocks"
        if start + length > document.size_bytes:
            yield f"{length} bytes at {start} lie outside its file"
    if any(left[0] + left[1] > right[0] for left, right in pairwise(extents)):
        yield "its extents of metadata overlap, or are not in order"


def _refs(pieces: Sequence[Piece], size_bytes: int, blob_start: int) -> Iterator[ChunkRef]:
    for position, (name, stored_bytes) in enumerate(pieces):
        content_bytes = min(CHUNK_BYTES, size_bytes - position * CHUNK_BYTES)
        yield ChunkRef(id=name, content_bytes=content_bytes, stored_bytes=stored_bytes, blob_start=blob_start)
        blob_start += stored_bytes


def _damaged(whence: str, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"the layer manifest from {whence} does not verify",
        detail=detail,
        resolution="fetch it from another source, or convert the image again",
    )
