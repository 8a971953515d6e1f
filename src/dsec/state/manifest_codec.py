"""Manifests as bytes (docs/formats/snapshots.md), and back, with a bound on everything."""

from __future__ import annotations

import struct
import sys
from typing import Annotated

import msgspec
from blake3 import blake3

from dsec.base.errors import LimitExceededError, StateCorruptedError
from dsec.state.manifest import MAXIMUM_ENTRIES, MAXIMUM_EXTENTS, Entry, File, Manifest, Patch, check

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAXIMUM_MANIFEST_BYTES = 128 << 20
_MAGIC = b"DSECMF01"
_HEAD = struct.Struct("<8sQ")
_LEVEL = 3
_encoder = msgspec.msgpack.Encoder()
_Pair = tuple[bytes, Entry]


class _Unread(Manifest, frozen=True):
    """A manifest whose entries are bytes still."""

    entries: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAXIMUM_ENTRIES)] = ()  # type: ignore[assignment]


_decoder = msgspec.msgpack.Decoder(_Unread)
_entry_decoder: msgspec.msgpack.Decoder[_Pair] = msgspec.msgpack.Decoder(_Pair)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest's object.

    Raises:
        LimitExceededError: it would not be read again.
    """
    try:
        check(manifest, "what is to be saved")
    except StateCorruptedError as error:
        raise _too_much(error.detail) from error
    document = _encoder.encode(manifest)
    if len(document) > MAXIMUM_MANIFEST_BYTES:
        raise _too_much(f"its manifest has {len(document)} bytes")
    return _HEAD.pack(_MAGIC, len(document)) + zstd.compress(document, _LEVEL)


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Return a manifest, checked.

    Args:
        data: the object.
        name: its key, for errors.

    Raises:
        StateCorruptedError: it is none; says why.
    """
    if len(data) < _HEAD.size:
        raise _damaged(name, f"it has {len(data)} bytes")
    magic, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or length > MAXIMUM_MANIFEST_BYTES:
        raise _damaged(name, "it does not begin as one")
    try:
        # A bound, since a forged frame could expand without one.
        document = zstd.ZstdDecompressor().decompress(data[_HEAD.size :], max_length=length + 1)
        if len(document) != length:
            raise _damaged(name, f"it tells of {length} bytes and holds {len(document)}")
        manifest = _decode(document)
    except (zstd.ZstdError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(name, str(error)) from error
    check(manifest, name)
    return manifest


def _decode(document: bytes) -> Manifest:
    """Read a document entry by entry: an extent of three bytes becomes eighty in memory, and a call that reads a whole
    tree lets no other thread run for seconds."""
    unread = _decoder.decode(document)
    entries: list[_Pair] = []
    extents = 0
    for raw in unread.entries:
        path, entry = _entry_decoder.decode(raw)
        extents += len(entry.extents) if isinstance(entry, (File, Patch)) else 0
        if extents > MAXIMUM_EXTENTS:
            raise ValueError(f"its files have more than {MAXIMUM_EXTENTS} extents")
        entries.append((path, entry))
    fields = {name: getattr(unread, name) for name in Manifest.__struct_fields__}
    return Manifest(**{**fields, "entries": tuple(entries)})


def manifest_name(data: bytes) -> bytes:
    """Return the name of a manifest's object: its BLAKE3."""
    return blake3(data).digest()


def _damaged(name: str, reason: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"{name} is no manifest of a snapshot",
        detail=reason,
        resolution="bring the object back from a copy of the store, or restore another snapshot",
    )


def _too_much(reason: str) -> LimitExceededError:
    return LimitExceededError(
        "the sandbox's files are more than a snapshot holds", detail=reason, resolution="remove what is not needed"
    )
