"""Fingerprints of a prompt's prefixes, block by block.

Backends keep prefixes in blocks and find them by the hash of everything up to a block's end. The gateway has text and
no tokeniser, so its blocks are bytes. A fingerprint covers all that stands before it: two prompts share a fingerprint
only if they are equal from their first byte to that block's end, and what one appends leaves the earlier ones as they
were. What is left over at the end, less than a block, has none. A block of 1 KiB is about 256 tokens of English: finer
ones would cost more than they find, coarser ones would miss short shared instructions.

The bytes have to be in the order in which the model sees them (tools, system, messages), or nothing is shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

BLOCK_BYTES = 1024
_FINGERPRINT_BYTES = 8
_SEPARATOR = b"\x1e"


def prefix_blocks(parts: Iterable[bytes], *, block_bytes: int = BLOCK_BYTES, salt: bytes = b"") -> tuple[int, ...]:
    """Return the fingerprints of a prompt.

    Args:
        parts: its parts in the order in which the model sees them; where one ends counts.
        block_bytes: length of a block.
        salt: prompts of different salts share nothing; at most 16 bytes count.
    """
    text = _SEPARATOR.join(parts)
    rolling = blake2b(digest_size=_FINGERPRINT_BYTES, salt=salt[:16])
    fingerprints = []
    view = memoryview(text)
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        rolling.update(view[start : start + block_bytes])
        fingerprints.append(int.from_bytes(rolling.copy().digest(), "big"))
    return tuple(fingerprints)
