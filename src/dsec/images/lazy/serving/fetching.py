"""Bring chunks of cached layers here: each once, however many wait for it.

A chunk comes from another layer of the cache, or else from the sources, verified; it is kept where there is room. Those
who waited get its content in any case, so that a full disk or cache makes reads slow and never makes them fail. What a
source gives only in order is read by `passing`.
"""

from __future__ import annotations

import contextlib
import enum
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from dsec.base.errors import DsecError, ObjectNotFoundError, StoreUnavailableError
from dsec.base.units import MIB
from dsec.distribution.prefetch_budget import BandwidthMeter
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.cached_layer import METADATA, CachedLayer
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef
from dsec.images.lazy.in_order import InOrderSource, in_order_among
from dsec.images.lazy.serving.passing import Passes
from dsec.images.lazy.source import PEERS, ChunkSource, Neighbours, fetch_verified
from dsec.images.lazy.tracing.touches import Touches
from dsec.model.value import Value

FETCHES_AT_ONCE = 16
"""Each holds a chunk twice, stored and decoded, in memory: at most 128 MiB in all."""
_LARGE_METADATA_BYTES, _LARGE_AT_ONCE = 64 * MIB, 3
"""Metadata stands in memory while it comes: of layers that have more than this, no more than these at a time."""
UNKEPT_CHUNKS = 8
"""Chunks that there was no room for and that are remembered all the same, for the reads that follow at once."""

_Key = tuple[str, int]


class LayerEventKind(enum.Enum):
    """What happened to a layer that is loaded when touched."""

    READ_FAILED = "read_failed"
    """A read was answered with EIO."""
    SOURCE_FAILED = "source_failed"
    """A source did not answer, or gave what does not verify."""
    BAD_PEER = "bad_peer"
    """A node gave something else for a chunk, and is not asked for it again; `source` is its id."""
    NOT_KEPT = "not_kept"
    """A chunk was served and not kept: there is no room for it."""
    IN_ORDER = "in_order"
    """A source ignores ranges: what is missing of the layer, `length` stored bytes of it, is read as one stream."""
    COMPLETE = "complete"
    """All chunks are here; the kernel reads the local file from now on."""
    PREFETCHED = "prefetched"
    """All chunks of somebody's window came that could be had; `source` is whose."""


class LayerEvent(Value, frozen=True):
    """Something that happened to a layer.

    Attributes:
        kind: what.
        layer: the layer's digest.
        manifest: name of its manifest.
        start, length: the range of its file.
        source: name of the source, where it is about one.
        error_code: code of the error; empty: none.
        brief: in words.
    """

    kind: LayerEventKind
    layer: str
    manifest: str
    start: int = 0
    length: int = 0
    source: str = ""
    error_code: str = ""
    brief: str = ""


OnEvent = Callable[[LayerEvent], None]
"""Takes events from any thread; must not wait."""
SourcesOf = Callable[[CachedLayer], Awaitable[Sequence[ChunkSource]]]
"""Returns whom to ask for the chunks of a layer, in order. Raises nothing."""


def _nothing() -> None:
    """Nobody wants to know."""


class _Fetch:
    """One chunk under way.

    Attributes:
        come: set once there is a content, or an error.
        kept: set once it is on the disk too, or cannot be.
    """

    __slots__ = ("come", "content", "error", "kept")

    def __init__(self) -> None:
        self.come = anyio.Event()
        self.kept = anyio.Event()
        self.content = b""
        self.error: DsecError | None = None


class Fetcher:
    """Brings chunks to the layers of a cache; make it with `open_fetcher`. Used from one event loop.

    Attributes:
        fetched_bytes: content bytes that came from sources, not from the cache.
        touches: told what came from sources, and what came beforehand.
        meter: told how long it took.
        waiting_reads: reads that wait for a chunk now.
        on_idle: called when no read waits any more.
        neighbours: told what came; None: there are none.
    """

    def __init__(
        self,
        cache: LayerCache,
        sources_of: SourcesOf,
        group: TaskGroup,
        *,
        timeout_s: float,
        on_event: OnEvent,
    ) -> None:
        self._cache = cache
        self._sources_of = sources_of
        self._group = group
        self._timeout_s = timeout_s
        self._on_event = on_event
        self._under_way: dict[_Key, _Fetch] = {}
        self._unkept: OrderedDict[_Key, bytes] = OrderedDict()
        # No limiter, whose places belong to tasks: who waits for a pass gives the place away meanwhile.
        self._places = anyio.Semaphore(FETCHES_AT_ONCE)
        self._large_metadata = anyio.Semaphore(_LARGE_AT_ONCE)
        self._passes = Passes(group, _Taker(self, cache))
        self.fetched_bytes = 0
        self.touches = Touches()
        self.meter = BandwidthMeter()
        self.waiting_reads = 0
        self.on_idle: Callable[[], None] = _nothing
        self.neighbours: Neighbours | None = None

    async def read(self, layer: CachedLayer, start: int, length: int) -> bytes:
        """Return a range of a layer's file, fetching what is missing.

        Raises:
            DsecError: a chunk cannot be had; see `fetch_verified`.
        """
        self.waiting_reads += 1
        try:
            contents = await self._come(layer, layer.missing(start, length))
        finally:
            self.waiting_reads -= 1
            if not self.waiting_reads:
                self.on_idle()
        if contents.keys() >= set(layer.manifest.positions(start, length)):
            # All of it is in memory, which needs no thread.
            return _assembled(layer, start, length, contents)
        return await anyio.to_thread.run_sync(_assembled, layer, start, length, contents)

    def order(self, layer: CachedLayer) -> Sequence[int]:
        """Return the numbers of the chunks that a layer lacks, in the order in which to bring all of them."""
        neighbours = self.neighbours
        chunks = layer.manifest.chunks
        missing = [position for position in range(len(chunks)) if not layer.has(position)]
        if neighbours is None:
            return missing
        return [missing[number] for number in neighbours.order([chunks[position] for position in missing])]

    async def bring(self, layer: CachedLayer, positions: Sequence[int]) -> None:
        """Fetch those of the chunks, or `METADATA`, that are missing, and have them on the disk. Raises as `read`."""
        await self._kept(layer, [position for position in positions if not layer.has(position)])

    async def bring_metadata(self, layer: CachedLayer) -> None:
        """Fetch the metadata if it is missing, to the disk or at least to `CachedLayer.packed`. Raises as `read`."""
        if not layer.has(METADATA):
            await self._come(layer, [METADATA])

    async def settled(self) -> None:
        """Wait until what has come is on the disk, or cannot be."""
        for fetch in list(self._under_way.values()):
            if fetch.come.is_set():
                await fetch.kept.wait()

    async def bring_ahead(self, layer: CachedLayer, position: int) -> bool:
        """Fetch a chunk that nobody asked for, and return whether it is kept. Raises as `read`."""
        if not layer.has(position):
            if in_order_among(await self._sources_of(layer)) is not None:
                return False  # All of it comes as soon as somebody reads, and without that it would exceed any budget.
            touches = self.touches.of(layer.manifest)
            was_read = touches.was_read(position)
            await self._kept(layer, [position])
            if not was_read:
                touches.ahead(position)
        return layer.has(position)

    async def _come(self, layer: CachedLayer, positions: Sequence[int]) -> dict[int, bytes]:
        """Wait for the contents of chunks: a read need not wait for the disk."""
        fetches = self._all(layer, positions)
        for fetch in fetches.values():
            await fetch.come.wait()
            if fetch.error is not None:
                raise fetch.error
        return {position: fetch.content for position, fetch in fetches.items()}

    async def _kept(self, layer: CachedLayer, positions: Sequence[int]) -> None:
        """Wait until chunks are on the disk, or cannot be."""
        for fetch in self._all(layer, positions).values():
            await fetch.kept.wait()
            if fetch.error is not None:
                raise fetch.error

    def _all(self, layer: CachedLayer, positions: Sequence[int]) -> dict[int, _Fetch]:
        """Begin to fetch chunks. A fetch belongs to nobody: whoever gives up waiting takes it from no one else."""
        fetches = {}
        for position in positions:
            key = (layer.manifest.id, position)
            if key not in self._under_way:
                self._under_way[key] = _Fetch()
                self._group.start_soon(self._carry_out, layer, position, self._under_way[key])
            fetches[position] = self._under_way[key]
        return fetches

    async def _carry_out(self, layer: CachedLayer, position: int, fetch: _Fetch) -> None:
        fetch.error = StoreUnavailableError(
            f"chunk {position} of layer {layer.manifest.layer} is not being fetched any more",
            resolution="it is tried again when it is read",
        )
        try:
            async with self._places:
                key = (layer.manifest.id, position)
                is_unkept = key in self._unkept
                fetch.content = self._unkept[key] if is_unkept else await self._obtain(layer, position)
                fetch.error = None
                if position == METADATA:
                    layer.show_packed(fetch.content)
                fetch.come.set()
                if is_unkept:
                    self._unkept.move_to_end(key)
                elif not await anyio.to_thread.run_sync(self._keep, layer, position, fetch.content):
                    self._remember(layer, position, fetch.content)
        except DsecError as error:
            fetch.error = error
        except Exception as error:  # noqa: BLE001
            # This is the supervisor of fetches: what one meets, known to us or not, must not end the others.
            fetch.error = StoreUnavailableError(f"fetching a chunk failed: {error!r}", resolution="report this")
        finally:
            if position == METADATA:
                layer.show_packed(b"")
            del self._under_way[(layer.manifest.id, position)]
            fetch.come.set()
            fetch.kept.set()

    async def _obtain(self, layer: CachedLayer, position: int) -> bytes:
        if position != METADATA:
            return await self._chunk(layer, position)
        content = await self._metadata(layer)
        self.touches.of(layer.manifest).fetched(position)
        return content

    async def _metadata(self, layer: CachedLayer) -> bytes:
        """Return the packed metadata of a layer, its chunks fetched at once: a mount waits for it."""
        pieces: dict[int, bytes] = {}
        failures: list[DsecError] = []

        async def fetch(place: int, ref: ChunkRef) -> None:
            try:
                pieces[place] = await self._fetch(layer, ref, 0, 0)
            except DsecError as error:
                failures.append(error)

        is_large = layer.manifest.metadata_bytes > _LARGE_METADATA_BYTES
        async with self._large_metadata if is_large else contextlib.nullcontext():
            async with anyio.create_task_group() as group:
                for place, ref in enumerate(layer.manifest.metadata_chunks):
                    group.start_soon(fetch, place, ref)
            if failures:
                raise failures[0]
            return b"".join(pieces[place] for place in sorted(pieces))

    def _keep(self, layer: CachedLayer, position: int, content: bytes) -> bool:
        try:
            return self._cache.store(layer, position, content)
        except OSError:
            return False  # A disk that fails makes the cache useless, not the layer.

    async def _chunk(self, layer: CachedLayer, position: int) -> bytes:
        if self._cache.is_elsewhere(layer, position):
            try:
                here = await anyio.to_thread.run_sync(self._cache.from_another, layer, position)
            except OSError:
                here = None
            if here is not None:
                return here
        ref = layer.manifest.chunks[position]
        content = await self._fetch(layer, ref, position * CHUNK_BYTES, ref.content_bytes)
        self.touches.of(layer.manifest).fetched(position)
        return content

    async def _fetch(self, layer: CachedLayer, ref: ChunkRef, start: int, length: int) -> bytes:
        def report(source: str, error: DsecError) -> None:
            if source == PEERS and isinstance(error, ObjectNotFoundError):
                return
            if (in_order := in_order_among(sources)) is not None and in_order.name == source:
                return  # It is told once, when its stream begins.
            self.told(layer, LayerEventKind.SOURCE_FAILED, start, length, error, source)

        sources = await self._sources_of(layer)
        self.meter.began(anyio.current_time())
        received_bytes = 0
        try:
            content = await self._asked(layer, ref, sources, report)
            received_bytes = ref.stored_bytes
        finally:
            self.meter.ended(anyio.current_time(), received_bytes)
            if not received_bytes and self.neighbours is not None:
                self.neighbours.failed(ref)
        self.fetched_bytes += len(content)
        return content

    async def _asked(
        self,
        layer: CachedLayer,
        ref: ChunkRef,
        sources: Sequence[ChunkSource],
        report: Callable[[str, DsecError], None],
    ) -> bytes:
        try:
            return await fetch_verified(
                sources,
                ref,
                timeout_s=self._timeout_s,
                report=report,
                passed=self._passed(layer, ref),
                passing=None if self.neighbours is None else self.neighbours.passing,
            )
        except DsecError:
            in_order = in_order_among(sources)
            if in_order is None:
                raise
        self._places.release()
        try:
            return await self._passes.content(layer, ref, in_order)
        finally:
            await self._places.acquire()

    def _passed(self, layer: CachedLayer, ref: ChunkRef) -> Callable[[bytes], Awaitable[None]] | None:
        return None if self.neighbours is None else partial(self.neighbours.came, layer.manifest.id, ref)

    def _remember(self, layer: CachedLayer, position: int, content: bytes) -> None:
        self._unkept[(layer.manifest.id, position)] = content
        while len(self._unkept) > UNKEPT_CHUNKS:
            self._unkept.popitem(last=False)
        start = 0 if position == METADATA else position * CHUNK_BYTES
        self.told(layer, LayerEventKind.NOT_KEPT, start, len(content))

    def told(
        self,
        layer: CachedLayer,
        kind: LayerEventKind,
        start: int,
        length: int,
        error: DsecError | None = None,
        source: str = "",
    ) -> None:
        """Tell of an event."""
        self._on_event(layer_event(layer, kind, start=start, length=length, error=error, source=source))


class _Taker:
    """Keeps what passes by: see `dsec.images.lazy.serving.passing.Taker`."""

    def __init__(self, fetcher: Fetcher, cache: LayerCache) -> None:
        self._fetcher = fetcher
        self._cache = cache

    def begins(self, layer: CachedLayer, source: InOrderSource, size_bytes: int) -> None:
        self._fetcher.told(layer, LayerEventKind.IN_ORDER, 0, size_bytes, source=source.name)

    def is_wanted(self, layer: CachedLayer) -> bool:
        return self._cache.is_held(layer.manifest.id)

    async def passed(self, layer: CachedLayer, ref: ChunkRef, stored: bytes) -> None:
        if self._fetcher.neighbours is not None:
            await self._fetcher.neighbours.came(layer.manifest.id, ref, stored)

    def keep(self, layer: CachedLayer, position: int, content: bytes) -> bool:
        try:
            return self._cache.store(layer, position, content) or self._cache.is_guest
        except OSError:
            return False  # As with what is fetched.

    def failed(self, layer: CachedLayer, source: InOrderSource, start: int, length: int, error: DsecError) -> None:
        self._fetcher.told(layer, LayerEventKind.SOURCE_FAILED, start, length, error, source.name)


@asynccontextmanager
async def open_fetcher(
    cache: LayerCache, sources_of: SourcesOf, *, timeout_s: float, on_event: OnEvent
) -> AsyncIterator[Fetcher]:
    """Open a fetcher; at its end, what is under way is given up.

    Args:
        cache: where chunks are kept.
        sources_of: returns those of a layer's chunks, in the order in which they are asked.
        timeout_s: for each question to one.
        on_event: told what went wrong.
    """
    async with anyio.create_task_group() as group:
        yield Fetcher(cache, sources_of, group, timeout_s=timeout_s, on_event=on_event)
        group.cancel_scope.cancel()


def layer_event(
    layer: CachedLayer,
    kind: LayerEventKind,
    *,
    start: int = 0,
    length: int = 0,
    error: DsecError | None = None,
    source: str = "",
) -> LayerEvent:
    """Return an event of a layer."""
    return LayerEvent(
        kind=kind,
        layer=layer.manifest.layer,
        manifest=layer.manifest.id,
        start=start,
        length=length,
        source=source,
        error_code="" if error is None else error.code,
        brief="" if error is None else error.brief,
    )


def _assembled(layer: CachedLayer, start: int, length: int, contents: dict[int, bytes]) -> bytes:
    """Return a range: of the chunks that were just fetched from memory, of others from the disk."""
    parts, at, end = [], start, start + length
    while at < end:
        position = at // CHUNK_BYTES
        until = min(end, (position + 1) * CHUNK_BYTES)
        if position in contents:
            begin = position * CHUNK_BYTES
            parts.append(contents[position][at - begin : until - begin])
        else:
            parts.append(layer.read(at, until - at))
        at = until
    return b"".join(parts)
