"""Bring chunks before they are read: the live half of `dsec.distribution.prefetch`, in the server's event loop.

What is decided there is carried out here: one question at a time, asked again when a chunk came, somebody's wishes
changed, the last waiting read was answered, or the budget has grown enough. A chunk that is fetched for a read
meanwhile is not fetched twice, and a read that wants one that is under way waits for that one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.distribution.prefetch import Piece, Prefetcher, PrefetchProgress, PrefetchSettings, Start
from dsec.images.lazy.caching.cached_layer import CachedLayer
from dsec.images.lazy.serving.daemon_wire import Prefetch
from dsec.images.lazy.serving.fetching import Fetcher, LayerEventKind, OnEvent, layer_event

MAXIMUM_PIECES = 1_000_000
"""Of one owner's window: 4 TiB."""
_MAXIMUM_OWNER_LENGTH = 200
LayerOf = Callable[[str], CachedLayer | None]
"""Returns a mounted layer by the name of its manifest."""


class Prefetching:
    """Brings chunks; make it with `open_prefetching`. Used from one event loop."""

    def __init__(
        self, fetcher: Fetcher, layer_of: LayerOf, settings: PrefetchSettings, group: TaskGroup, on_event: OnEvent
    ) -> None:
        self._fetcher = fetcher
        self._layer_of = layer_of
        self._prefetcher = Prefetcher(settings, fetcher.meter)
        self._group = group
        self._on_event = on_event
        self._changed = anyio.Event()
        fetcher.on_idle = self._look

    async def begin(self, request: Prefetch) -> None:
        """Take somebody's wishes. Raises `InvalidRequestError`: they name what does not exist."""
        if not 0 < len(request.owner) <= _MAXIMUM_OWNER_LENGTH:
            raise InvalidRequestError(f"an owner's name has 1 to {_MAXIMUM_OWNER_LENGTH} characters")
        layers = [self._layer_of(manifest_id) for manifest_id in request.layers]
        if sum(count for step in request.steps for _, _, count in step) > MAXIMUM_PIECES:
            raise InvalidRequestError(f"more than {MAXIMUM_PIECES} chunks are wanted at once")
        steps = [[piece for run in step for piece in _pieces(layers, run)] for step in request.steps]
        self._prefetcher.begin(request.owner, steps, is_limited=request.is_limited)
        self._look()

    async def stop(self, owner: str) -> bool:
        """Bring nothing more for somebody."""
        return self._prefetcher.stop(owner)

    async def progress(self, owner: str) -> PrefetchProgress:
        """Return how far it is."""
        return self._prefetcher.progress(owner)

    async def run(self) -> None:
        """Bring chunks, until cancelled."""
        while True:
            decision = self._prefetcher.next(
                anyio.current_time(), is_here=self._is_here, waiting_reads=self._fetcher.waiting_reads
            )
            if isinstance(decision, Start):
                self._group.start_soon(self._bring, decision)
                continue
            self._changed = anyio.Event()
            with anyio.move_on_after(decision.for_s):
                await self._changed.wait()

    def _look(self) -> None:
        self._changed.set()

    def _is_here(self, piece: Piece) -> bool:
        layer = self._layer_of(piece.layer)
        return layer is None or layer.has(piece.position)

    async def _bring(self, start: Start) -> None:
        piece, layer = start.piece, self._layer_of(start.piece.layer)
        was_brought = False
        try:
            if layer is not None:
                was_brought = await self._fetcher.bring_ahead(layer, piece.position)
                if not was_brought:
                    # There is no room for it, and none for the next one: what a read needs comes when it is read.
                    self._prefetcher.stop(start.owner)
        except (DsecError, OSError):
            pass  # The fetcher told of it, and a read of it will fail by itself; or its layer went meanwhile.
        finally:
            self._prefetcher.done(piece, was_brought=was_brought)
            self._look()
        progress = self._prefetcher.progress(start.owner)
        if layer is not None and progress.is_over and progress.wanted:
            self._on_event(
                layer_event(layer, LayerEventKind.PREFETCHED, length=progress.brought_bytes, source=start.owner)
            )


def _pieces(layers: list[CachedLayer | None], run: tuple[int, int, int]) -> list[Piece]:
    place, first, count = run
    if not 0 <= place < len(layers) or first < 0 or count < 0:
        raise InvalidRequestError(f"{count} chunks from {first} of layer {place} do not exist")
    layer = layers[place]
    if layer is None:
        return []
    chunks = layer.manifest.chunks
    if first + count > len(chunks):
        raise InvalidRequestError(f"layer {layer.manifest.id[:12]} has {len(chunks)} chunks, not {first + count}")
    name = layer.manifest.id
    return [Piece(name, position, chunks[position].stored_bytes) for position in range(first, first + count)]


@asynccontextmanager
async def open_prefetching(
    fetcher: Fetcher, layer_of: LayerOf, settings: PrefetchSettings, *, on_event: OnEvent
) -> AsyncIterator[Prefetching]:
    """Bring chunks for as long as the block runs; what is under way at its end is left to the fetcher.

    Args:
        fetcher: brings them.
        layer_of: finds mounted layers.
        settings: how.
        on_event: told when somebody's window is here.
    """
    async with anyio.create_task_group() as group:
        prefetching = Prefetching(fetcher, layer_of, settings, group, on_event)
        group.start_soon(prefetching.run)
        yield prefetching
        group.cancel_scope.cancel()
