"""Hashes that are the same in every process and on every host.

Python's own ``hash`` of a text differs from process to process. BLAKE2b is in the standard library, and its first
eight bytes are as good as random for any input that nobody chose to collide; who can choose task ids gains no more
than a full shard.
"""

from __future__ import annotations

from hashlib import blake2b

_TWO_64 = 1 << 64


def hash64(*parts: str) -> int:
    """Return 64 bits that depend on the parts and on where one ends and the next begins."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def jump(key: int, buckets: int) -> int:
    """Return which of so many buckets a 64-bit key belongs to.

    With one bucket more, a key stays or goes to the new one, and as many go as make the buckets equal: Lamping and
    Veach, *A fast, minimal memory, consistent hash algorithm*, 2014. Takes about ln(buckets) steps.
    """
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        key = (key * 2862933555777941757 + 1) % _TWO_64
        following = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket
