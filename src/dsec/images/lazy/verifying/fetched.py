"""Fetch pieces of layers from one source or several, so many at a time, each verified; the memory is bounded.

One piece is fetched before all others, so that sources that cannot be reached are found out once, and not once a piece;
sources that go away meanwhile are given up after some pieces in a row. What a source gives only in order
(`dsec.images.lazy.in_order`) is taken from one stream at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import anyio.to_thread

from dsec.base.errors import DsecError, StateCorruptedError, StoreUnavailableError
from dsec.images.lazy.collection.opened import each
from dsec.images.lazy.formats.stored import decode
from dsec.images.lazy.in_order import InOrderSource, cut, in_order_among
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ChunkSource, fetch_verified
from dsec.images.lazy.verifying.pieces import Piece

AT_ONCE = 8
"""Each holds a chunk twice, stored and decoded: at most 64 MiB in all."""

FIRST_TIMEOUT_S = 15.0
"""For the smallest piece, by which sources are found to answer at all."""
GIVEN_UP_AFTER = 2 * AT_ONCE
"""So many pieces in a row that no source answered for."""

Take = Callable[[Piece, bytes], Awaitable[None]]
Advance = Callable[[], None]


async def fetch_pieces(
    sources: Sequence[ChunkSource], pieces: Sequence[Piece], take: Take, advance: Advance
) -> dict[Piece, DsecError]:
    """Fetch pieces of a layer and give each to `take`, verified; return those that cannot be had, and why.

    When no source answers, all are returned after one try, and no more is tried.

    Args:
        sources: asked one after the other.
        pieces: what to fetch.
        take: gets each content.
        advance: told after each piece.
    """
    if not pieces:
        return {}
    fetching = _Fetching(sources, take, advance)
    first = min(pieces, key=lambda piece: piece.ref.stored_bytes)
    await fetching.fetch(first, FIRST_TIMEOUT_S)
    if isinstance(fetching.failures.get(first), StoreUnavailableError):
        fetching.given_up = fetching.failures[first]
    await each([piece for piece in pieces if piece != first], fetching.fetch, at_once=AT_ONCE)
    in_order = in_order_among(sources)
    if in_order is not None and fetching.failures:
        await _pass(in_order, fetching.failures, take, advance)
    return fetching.failures


class _Fetching:
    """Pieces under way.

    Attributes:
        failures: those that cannot be had, and why.
        given_up: why nothing more is asked for; None: it is.
    """

    def __init__(self, sources: Sequence[ChunkSource], take: Take, advance: Advance) -> None:
        self._sources = sources
        self._take = take
        self._advance = advance
        self._in_a_row = 0
        self.failures: dict[Piece, DsecError] = {}
        self.given_up: DsecError | None = None

    async def fetch(self, piece: Piece, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Fetch a piece, unless that was given up."""
        try:
            if self.given_up is not None:
                raise self.given_up
            content = await fetch_verified(self._sources, piece.ref, timeout_s=timeout_s)
        except DsecError as error:
            self.failures[piece] = error
            if in_order_among(self._sources) is not None:
                return  # It is counted when it has passed by.
            self._in_a_row += isinstance(error, StoreUnavailableError)
            if self._in_a_row >= GIVEN_UP_AFTER:
                self.given_up = error
        else:
            self._in_a_row = 0
            await self._take(piece, content)
        self._advance()


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
