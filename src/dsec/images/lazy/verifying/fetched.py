"""Fetch pieces of layers from one source or several, so many at a time, each verified; the memory is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dsec.base.errors import DsecError
from dsec.images.lazy.collection.opened import each
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ChunkSource, fetch_verified
from dsec.images.lazy.verifying.pieces import Piece

AT_ONCE = 8
"""Each holds a chunk twice, stored and decoded: at most 64 MiB in all."""

Take = Callable[[Piece, bytes], Awaitable[None]]
Advance = Callable[[], None]


async def fetch_pieces(
    sources: Sequence[ChunkSource], pieces: Sequence[Piece], take: Take, advance: Advance
) -> dict[Piece, DsecError]:
    """Fetch pieces and give each to `take`, verified; return those that cannot be had, and why.

    Args:
        sources: asked one after the other.
        pieces: what to fetch.
        take: gets each content.
        advance: told after each piece.
    """
    failures: dict[Piece, DsecError] = {}

    async def fetch(piece: Piece) -> None:
        try:
            content = await fetch_verified(sources, piece.ref, timeout_s=DEFAULT_TIMEOUT_S)
        except DsecError as error:
            failures[piece] = error
        else:
            await take(piece, content)
        advance()

    await each(pieces, fetch, at_once=AT_ONCE)
    return failures
