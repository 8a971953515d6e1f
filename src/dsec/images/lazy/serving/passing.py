"""Read the blob of a layer once from its beginning into the cache, for all who wait: where its source gives chunks only
in order (`dsec.images.lazy.in_order`).

Theory. A *pass* begins at the first piece that is missing or waited for and goes on to the end, so that one of them
fills the layer. Each piece that passes by is verified by itself; who waits for it has it at once, and it is kept. There
is one pass a layer. It stands still while the disk takes a chunk, and so does the sender: two chunks are in memory.
What breaks off is gone on with by the source.

A pass ends early when nobody waits any more and either the layer is let go or there is no room to keep what passes by.
Where something could not be kept, reads of it would each cost the whole blob: they are refused for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from dsec.base.errors import DsecError, StateCorruptedError, StoreUnavailableError
from dsec.base.units import format_size
from dsec.images.lazy.caching.cached_layer import CachedLayer
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef, decode
from dsec.images.lazy.in_order import InOrderSource, blob_order, cut

NOT_AGAIN_S = 60.0
"""After a pass of which something was not kept, for want of room."""


class Taker(Protocol):
    """Whoever keeps what passes by. Its methods are called from the event loop, but for `keep`."""

    def begins(self, layer: CachedLayer, source: InOrderSource, size_bytes: int) -> None:
        """Take notice that a pass begins, of so many bytes."""

    def is_wanted(self, layer: CachedLayer) -> bool:
        """Return whether anybody uses a layer."""

    async def passed(self, layer: CachedLayer, ref: ChunkRef, stored: bytes) -> None:
        """Take notice of a verified chunk that passed by."""

    def keep(self, layer: CachedLayer, position: int, content: bytes) -> bool:
        """Keep a verified chunk that nobody need have asked for; return whether there was room. Blocks."""

    def failed(self, layer: CachedLayer, source: InOrderSource, start: int, length: int, error: DsecError) -> None:
        """Take notice of a chunk that does not verify, or of the end of a pass before its time."""


class _Waiter:
    """Those who wait for one chunk."""

    __slots__ = ("come", "content", "error")

    def __init__(self) -> None:
        self.come = anyio.Event()
        self.content = b""
        self.error: DsecError | None = None


class Passes:
    """The passes over layers of one cache. Used from one event loop.

    Args:
        group: that passes run in.
        taker: keeps what passes by.
    """

    def __init__(self, group: TaskGroup, taker: Taker) -> None:
        self._group = group
        self._taker = taker
        self._passes: dict[str, _Pass] = {}
        self._not_before_s: dict[str, float] = {}

    async def content(self, layer: CachedLayer, ref: ChunkRef, source: InOrderSource) -> bytes:
        """Wait until a piece of a layer has passed by, and return its content. It has no deadline of its own.

        Raises:
            StateCorruptedError: the source gave something else.
            ObjectNotFoundError, StoreUnavailableError: the pass ended before it came, or is not begun.
        """
        name = layer.manifest.id
        running = self._passes.get(name)
        if running is None:
            self._check_room(layer, source)
            running = self._passes[name] = _Pass(layer, source, self._taker)
            self._group.start_soon(self._run, running)
        return await running.content(ref)

    async def _run(self, running: _Pass) -> None:
        name = running.layer.manifest.id
        try:
            await running.run()
        finally:
            del self._passes[name]
            running.end()
            self._not_before_s.pop(name, None)
            if not running.has_room:
                self._not_before_s[name] = anyio.current_time() + NOT_AGAIN_S

    def _check_room(self, layer: CachedLayer, source: InOrderSource) -> None:
        rest_s = self._not_before_s.get(layer.manifest.id, 0.0) - anyio.current_time()
        if rest_s > 0:
            raise StoreUnavailableError(
                f"{source.name} gives this layer only from its beginning, and there is no room to keep it",
                detail=f"{format_size(layer.manifest.size_bytes)}; it is read again in {rest_s:.0f} s at the earliest",
                resolution="make room on the disk or in the layer cache, or have what is between this host and the "
                "registry honour ranges (RFC 9110, 14)",
            )


class _Pass:
    """One pass under way, begun anew as long as somebody waits for what has passed by.

    Attributes:
        layer: whose.
        has_room: whether all that passed by is kept.
    """

    def __init__(self, layer: CachedLayer, source: InOrderSource, taker: Taker) -> None:
        self.layer = layer
        self.has_room = True
        self._source = source
        self._taker = taker
        self._waiting: dict[str, _Waiter] = {}
        self._places: dict[str, list[int]] = {}
        for position, ref in enumerate(layer.manifest.chunks):
            self._places.setdefault(ref.id, []).append(position)

    async def content(self, ref: ChunkRef) -> bytes:
        """Return a chunk once it has passed by; raises as of `Passes`."""
        waiter = self._waiting.setdefault(ref.id, _Waiter())
        await waiter.come.wait()
        if waiter.error is not None:
            raise waiter.error
        return waiter.content

    async def run(self) -> None:
        """Read the blob, until nobody waits for anything of it."""
        try:
            while self._waiting and self.has_room:
                await self._once(self._rest())
        except DsecError as error:
            self._taker.failed(self.layer, self._source, 0, 0, error)
            for name in tuple(self._waiting):
                self._fail(name, error)

    def end(self) -> None:
        """Leave nobody waiting."""
        for name in tuple(self._waiting):
            brief = f"{self._source.name} is not being read any more"
            self._fail(name, StoreUnavailableError(brief, resolution="it is tried again when it is read"))

    def _rest(self) -> Sequence[ChunkRef]:
        """Return the pieces from the first that is of use on."""
        pieces = blob_order(self.layer.manifest)
        first = next(number for number, ref in enumerate(pieces) if ref.id in self._waiting or self._missing(ref.id))
        return pieces[first:]

    def _missing(self, name: str) -> list[int]:
        return [position for position in self._places.get(name, ()) if not self.layer.has(position)]

    async def _once(self, refs: Sequence[ChunkRef]) -> None:
        self._taker.begins(self.layer, self._source, sum(ref.stored_bytes for ref in refs))
        async with aclosing(cut(self._source, refs)) as passing:
            async for ref, stored in passing:
                await self._take(ref, stored)
                if not self._waiting and not (self.has_room and self._taker.is_wanted(self.layer)):
                    return

    async def _take(self, ref: ChunkRef, stored: bytes) -> None:
        missing = self._missing(ref.id)
        if not missing and ref.id not in self._waiting:
            return
        try:
            content = await anyio.to_thread.run_sync(decode, ref, stored, self._source.name)
        except StateCorruptedError as error:
            self._source.blame(ref, error)
            start = self._places.get(ref.id, [0])[0] * CHUNK_BYTES
            self._taker.failed(self.layer, self._source, start, ref.content_bytes, error)
            self._fail(ref.id, error)
            return
        self._give(ref.id, content)
        await self._taker.passed(self.layer, ref, stored)
        for position in missing:
            kept = await anyio.to_thread.run_sync(self._taker.keep, self.layer, position, content)
            self.has_room = self.has_room and kept
        self._give(ref.id, content)  # To whoever came while it was being kept.

    def _give(self, name: str, content: bytes) -> None:
        if (waiter := self._waiting.pop(name, None)) is not None:
            waiter.content = content
            waiter.come.set()

    def _fail(self, name: str, error: DsecError) -> None:
        if (waiter := self._waiting.pop(name, None)) is not None:
            waiter.error = error
            waiter.come.set()
