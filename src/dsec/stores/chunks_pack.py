"""One pack: chunks behind each other, an index, a trailer (docs/formats/chunk-packs.md). Pure; nothing here waits.

Whether a chunk is compressed is decided by a sample of 4 KiB from its middle, since beginnings are headers: content
that does not shrink there by a tenth (archives, pictures, weights) stays as it is. Level 1 of Zstandard writes faster
than a disk does; higher levels would cost more time than they save bytes.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from dsec.base.errors import StateCorruptedError
from dsec.stores.chunks_values import MAXIMUM_CHUNK_BYTES, ChunkId

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RAW, ZSTD = 0, 1
MAXIMUM_ENTRIES = 65_536
_MAGIC = b"DSECPK01"
_RECORD = struct.Struct("<32sIIB")
_TRAILER = struct.Struct("<8sI32s")
_BRING_BACK = "bring the pack back from a copy of the store; what names its chunks cannot be read without it"
_SAMPLE_BYTES = 4096
_WORTH = 0.9
TRAILER_BYTES = _TRAILER.size
RECORD_BYTES = _RECORD.size


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as it lies in a pack."""

    chunk: ChunkId
    encoding: int
    content_bytes: int
    body: bytes


@dataclass(frozen=True, slots=True)
class PackEntry:
    """Where a chunk lies in a pack."""

    chunk: ChunkId
    start: int
    stored_bytes: int
    content_bytes: int
    encoding: int


def chunk_id(content: bytes) -> ChunkId:
    """Return the name of a content."""
    return ChunkId(blake3(content).digest())


def encode_chunk(chunk: ChunkId, content: bytes) -> StoredChunk:
    """Compress a chunk where that pays."""
    middle = max(0, (len(content) - _SAMPLE_BYTES) // 2)
    sample = content[middle : middle + _SAMPLE_BYTES]
    packed = zstd.compress(sample, 1)
    if len(packed) <= len(sample) * _WORTH:
        body = packed if len(sample) == len(content) else zstd.compress(content, 1)
        if len(body) <= len(content) * _WORTH:
            return StoredChunk(chunk, ZSTD, len(content), body)
    return StoredChunk(chunk, RAW, len(content), content)


def decode_chunk(entry: PackEntry, body: bytes, pack: str) -> bytes:
    """Return a chunk's content.

    Raises:
        StateCorruptedError: it does not verify.
    """
    content = body
    if len(body) != entry.stored_bytes:
        raise _damaged(entry, pack, f"{len(body)} of {entry.stored_bytes} bytes are there")
    if entry.encoding == ZSTD:
        try:
            decoder = zstd.ZstdDecompressor()
            # A bound, since a forged pack could expand without one.
            content = decoder.decompress(body, max_length=entry.content_bytes + 1)
        except zstd.ZstdError as error:
            raise _damaged(entry, pack, str(error)) from error
    if len(content) != entry.content_bytes or chunk_id(content) != entry.chunk:
        raise _damaged(entry, pack, "its content is not what its name says")
    return content


def build_pack(chunks: Sequence[StoredChunk]) -> bytes:
    """Return a pack of 1 to `MAXIMUM_ENTRIES` chunks."""
    index = b"".join(_RECORD.pack(each.chunk, len(each.body), each.content_bytes, each.encoding) for each in chunks)
    return b"".join([*(each.body for each in chunks), index, _TRAILER.pack(_MAGIC, len(chunks), _sum(index))])


def index_bytes(trailer: bytes, pack: str, size_bytes: int) -> int:
    """Return the length of index and trailer together, from the trailer.

    Raises:
        StateCorruptedError: it is no trailer of a pack of that size.
    """
    if len(trailer) == TRAILER_BYTES:
        magic, count, _ = _TRAILER.unpack(trailer)
        length = int(count) * RECORD_BYTES + TRAILER_BYTES
        if magic == _MAGIC and 0 < count <= MAXIMUM_ENTRIES and length <= size_bytes:
            return length
    raise StateCorruptedError(f"pack {pack} has no trailer of this format", resolution=_BRING_BACK)


def read_index(tail: bytes, pack: str, size_bytes: int) -> list[PackEntry]:
    """Return the entries of a pack.

    Args:
        tail: index and trailer.
        pack: its name, for errors.
        size_bytes: the size of the whole pack.

    Raises:
        StateCorruptedError: the index does not verify.
    """
    length = index_bytes(tail[-TRAILER_BYTES:], pack, size_bytes)
    index = tail[-length:-TRAILER_BYTES]
    _, count, expected = _TRAILER.unpack(tail[-TRAILER_BYTES:])
    if len(index) != count * RECORD_BYTES or _sum(index) != expected:
        raise StateCorruptedError(f"the index of pack {pack} does not verify", resolution=_BRING_BACK)
    entries, start = [], 0
    for chunk, stored_bytes, content_bytes, encoding in _RECORD.iter_unpack(index):
        if encoding not in (RAW, ZSTD) or max(stored_bytes, content_bytes) > MAXIMUM_CHUNK_BYTES:
            raise StateCorruptedError(f"the index of pack {pack} holds an entry of no known kind")
        entries.append(PackEntry(ChunkId(chunk), start, stored_bytes, content_bytes, encoding))
        start += stored_bytes
    if start + length != size_bytes:
        raise StateCorruptedError(f"pack {pack} has {size_bytes} bytes; its index tells of {start + length}")
    return entries


def _sum(index: bytes) -> bytes:
    count = struct.pack("<I", len(index) // RECORD_BYTES)
    return blake3(index + count + _MAGIC).digest()


def _damaged(entry: PackEntry, pack: str, reason: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"chunk {entry.chunk.hex()} in pack {pack} does not verify",
        detail=reason,
        resolution=_BRING_BACK,
    )
