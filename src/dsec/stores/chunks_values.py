"""What passes between a chunk repository and those who use it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Set
from typing import NewType

from dsec.model.value import Value

ChunkId = NewType("ChunkId", bytes)
"""BLAKE3 of a chunk's content: 32 raw bytes."""

MAXIMUM_CHUNK_BYTES = 4 << 20
"""Longest chunk, uncompressed."""

DEFAULT_GRACE_S = 86_400.0
"""How long a doomed pack is kept, and how young a pack must be not to be doomed."""

Pieces = Iterable[bytes] | AsyncIterable[bytes]
"""Contents of chunks, one each, of 1 to `MAXIMUM_CHUNK_BYTES` bytes; cutting is the caller's."""

Reachable = Callable[[], Awaitable[Set[ChunkId]]]
"""Tells every chunk that some manifest names, as of the moment it is called, not before."""


class StoredBytes(Value, frozen=True):
    """What one writer stored.

    Attributes:
        chunks: pieces that were given.
        content_bytes: bytes of them.
        new_chunks: chunks that the store did not hold.
        stored_bytes: bytes of the packs written, indices included.
        objects: packs written.
        packs: every pack in which a given chunk stands, old or new. A manifest that keeps them as a hint
            (`ChunkRepository.learn`) can be read on a node that has not listed the store, or sees a stale list.
    """

    chunks: int = 0
    content_bytes: int = 0
    new_chunks: int = 0
    stored_bytes: int = 0
    objects: int = 0
    packs: tuple[str, ...] = ()


class CollectionReport(Value, frozen=True):
    """What a collection did.

    Attributes:
        packs: packs found.
        doomed: packs that it doomed; a collection after the grace period deletes them.
        waiting: doomed packs whose grace period runs.
        deleted: packs deleted.
        freed_bytes: bytes of those.
        copied_bytes: bytes of packs written to save what was reachable in them.
        damaged: packs that were due and hold reachable chunks that do not verify; they stay.
    """

    packs: int
    doomed: int = 0
    waiting: int = 0
    deleted: int = 0
    freed_bytes: int = 0
    copied_bytes: int = 0
    damaged: tuple[str, ...] = ()


class Problem(Value, frozen=True):
    """Something that `ChunkRepository.verify` found.

    Attributes:
        pack: name of the pack.
        chunk: the chunk, hexadecimal; empty: the pack as a whole.
        brief: what is wrong.
    """

    pack: str
    chunk: str
    brief: str


class VerificationReport(Value, frozen=True):
    """What `ChunkRepository.verify` found.

    Attributes:
        packs, chunks: how many were read.
        read_bytes: bytes of them.
        problems: what does not verify.
    """

    packs: int
    chunks: int
    read_bytes: int
    problems: tuple[Problem, ...] = ()


class RepositoryStatistics(Value, frozen=True):
    """What a repository holds, by the index on this node.

    Attributes:
        packs: packs, doomed ones included.
        doomed: doomed packs.
        pack_bytes: bytes of all packs.
        chunks: distinct chunks.
        content_bytes: bytes of the distinct chunks, uncompressed.
    """

    packs: int
    doomed: int
    pack_bytes: int
    chunks: int
    content_bytes: int
