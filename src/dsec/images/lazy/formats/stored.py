"""A stored chunk of a layer: how it is encoded and verified (docs/formats/layer-manifest.md). Pure.

Names, limits and encodings are those of the chunk packs; only the frame around the body differs, since a chunk of a
layer is an object of its own.
"""

from __future__ import annotations

import re

from dsec.base.errors import StateCorruptedError
from dsec.model.value import Value
from dsec.stores.chunks_pack import RAW, ZSTD, PackEntry, chunk_id, decode_chunk, encode_chunk
from dsec.stores.chunks_values import MAXIMUM_CHUNK_BYTES, ChunkId

CHUNK_BYTES = MAXIMUM_CHUNK_BYTES
"""Length of each chunk of a layer but the last."""
HEADER_BYTES = 8
MAXIMUM_STORED_BYTES = HEADER_BYTES + CHUNK_BYTES
_MAGIC = b"DSECLC1"
_ID = re.compile(r"[0-9a-f]{64}")


class ChunkRef(Value, frozen=True):
    """A chunk, as whoever wants it knows it.

    Attributes:
        id: BLAKE3 of its content, hexadecimal.
        content_bytes: length of its content.
        stored_bytes: length of the stored chunk in a blob.
        blob_start: where it begins in the blob of its layer.
    """

    id: str
    content_bytes: int
    stored_bytes: int
    blob_start: int


def name_of(content: bytes) -> str:
    """Return the name of a content."""
    return chunk_id(content).hex()


def is_name(text: str) -> bool:
    """Tell whether a text has the form of a name."""
    return _ID.fullmatch(text) is not None


def encode(content: bytes) -> tuple[str, bytes]:
    """Return the name of a chunk and its stored form, compressed where that pays."""
    name = chunk_id(content)
    stored = encode_chunk(name, content)
    return name.hex(), b"".join((_MAGIC, bytes([stored.encoding]), stored.body))


def decode(ref: ChunkRef, stored: bytes, whence: str) -> bytes:
    """Return a chunk's content, verified.

    Args:
        ref: what is wanted.
        stored: what was got.
        whence: the source, for the error.

    Raises:
        StateCorruptedError: it is not that chunk; names the chunk and the source.
    """
    encoding = stored[HEADER_BYTES - 1] if len(stored) >= HEADER_BYTES else -1
    if stored[: len(_MAGIC)] != _MAGIC or encoding not in (RAW, ZSTD):
        raise _damaged(ref, whence, "it does not begin as a stored chunk does")
    body = stored[HEADER_BYTES:]
    entry = PackEntry(
        chunk=ChunkId(bytes.fromhex(ref.id)),
        start=HEADER_BYTES,
        stored_bytes=len(body),
        content_bytes=ref.content_bytes,
        encoding=encoding,
    )
    try:
        return decode_chunk(entry, body, whence)
    except StateCorruptedError as error:
        raise _damaged(ref, whence, error.detail) from error


def _damaged(ref: ChunkRef, whence: str, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"chunk {ref.id[:12]} from {whence} does not verify",
        detail=detail,
        resolution="fetch it from another source, and look at the disk of this one",
    )
