"""The superblock of an EROFS file that came from elsewhere, before a kernel mounts it. Pure.

What a stranger publishes is parsed by the kernel of whoever uses it. The part of EROFS that our layers consist of
(plain inodes, directories, attributes) was written to be mounted by anybody's hand; decompressors and files on further
devices are a lot more code, which nothing of ours needs. An image that asks for them is not one that we made.

Source: the kernel's ``fs/erofs/erofs_fs.h``.
"""

from __future__ import annotations

import struct

from dsec.base.errors import StateCorruptedError

SUPERBLOCK_START = 1024
_MAGIC_AND_BITS = struct.Struct("<I8xB")
_INCOMPATIBLE_AT = 80
_BYTES = 128
_MAGIC = 0xE0F5E1E2
_BLOCK_BITS = range(9, 17)


def check_superblock(beginning: bytes | memoryview, layer: str) -> None:
    """Refuse a file that no layer of ours begins as.

    Args:
        beginning: the first block of the file, or more of it.
        layer: digest of the layer, for the error.

    Raises:
        StateCorruptedError: it is no EROFS file, or uses what our layers do not.
    """
    superblock = beginning[SUPERBLOCK_START : SUPERBLOCK_START + _BYTES]
    if len(superblock) < _BYTES:
        raise _unsound(layer, "it is too short")
    magic, bits = _MAGIC_AND_BITS.unpack_from(superblock)
    (incompatible,) = struct.unpack_from("<I", superblock, _INCOMPATIBLE_AT)
    if magic != _MAGIC:
        raise _unsound(layer, "it has no superblock")
    if bits not in _BLOCK_BITS:
        raise _unsound(layer, f"blocks of 2^{bits} bytes are not known")
    if incompatible:
        raise _unsound(layer, f"it uses features {incompatible:#x}, such as compression or further devices")


def _unsound(layer: str, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"layer {layer} is not a sound EROFS file",
        detail=detail,
        resolution="convert the image again: its chunks are what its manifest says, and that is no layer",
    )
