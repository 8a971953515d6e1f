"""Fetch pieces of layers from one source or several, so many at a time, each verified; the memory is bounded.

What a source gives only in order (`dsec.images.lazy.in_order`) is taken from one stream at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import anyio.to_thread

from dsec.base.errors import DsecError, StateCorruptedError
from dsec.images.lazy.collection.opened import each
from dsec.images.lazy.formats.stored import decode
from dsec.images.lazy.in_order import InOrderSource, cut, in_order_among
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ChunkSource, fetch_verified
from dsec.images.lazy.verifying.pieces import Piece

AT_ONCE = 8
"""Each holds a chunk twice, stored and decoded: at most 64 MiB in all."""

Take = Callable[[Piece, bytes], Awaitable[None]]
Advance = Callable[[], None]


async def fetch_pieces(
    sources: Sequence[ChunkSource], pieces: Sequence[Piece], take: Take, advance: Advance
) -> dict[Piece, DsecError]:
    """Fetch pieces of a layer and give each to `take`, verified; return those that cannot be had, and why.

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
            if in_order_among(sources) is not None:
                return  # It is counted when it has passed by.
        else:
            await take(piece, content)
        advance()

    await each(pieces, fetch, at_once=AT_ONCE)
    in_order = in_order_among(sources)
    if in_order is not None and failures:
        await _pass(in_order, failures, take, advance)
    return failures


async def _pass(source: InOrderSource, failures: dict[Piece, DsecError], take: Take, advance: Advance) -> None:
    """Take from one stream what could not be fetched; leave, or write anew, why that could not be had either."""
    pieces = sorted(failures, key=lambda piece: piece.ref.blob_start)
    by_start = {piece.ref.blob_start: piece for piece in pieces}
    try:
        async with aclosing(cut(source, [piece.ref for piece in pieces])) as passing:
            async for ref, stored in passing:
                piece = by_start.pop(ref.blob_start)
                try:
                    content = await anyio.to_thread.run_sync(decode, ref, stored, source.name)
                except StateCorruptedError as error:
                    failures[piece] = error
                else:
                    del failures[piece]
                    await take(piece, content)
                advance()
    except DsecError as error:
        for piece in by_start.values():
            failures[piece] = error
            advance()
