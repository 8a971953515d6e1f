"""Manifests as bytes (docs/formats/snapshots.md), and back, with a bound on everything."""

from __future__ import annotations

import struct
import sys

import msgspec
from blake3 import blake3

from dsec.base.errors import LimitExceededError, StateCorruptedError
from dsec.state.manifest import Manifest, check

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAXIMUM_MANIFEST_BYTES = 128 << 20
_MAGIC = b"DSECMF01"
_HEAD = struct.Struct("<8sQ")
_LEVEL = 3
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Manifest)


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
        manifest = _decoder.decode(document)
    except (zstd.ZstdError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(name, str(error)) from error
    check(manifest, name)
    return manifest


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
