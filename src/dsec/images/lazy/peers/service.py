"""The peers of a layer daemon: what it takes from others, gives to them, and tells the tracker.

One object for the layer server: it asks it for the source of a layer's chunks, and tells it what came. Behind it are
the source (`source`), the process that gives (`seeder`), and the announcements (`tracking`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.from_thread
import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.base.secret_file import read_secret
from dsec.distribution.order import spread
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.cached_layer import METADATA, CachedLayer
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef
from dsec.images.lazy.peers.calling import Caller
from dsec.images.lazy.peers.landing import Land
from dsec.images.lazy.peers.report import PeersReport
from dsec.images.lazy.peers.seeds import SEEDS, Seeds
from dsec.images.lazy.peers.settings import PeerSettings
from dsec.images.lazy.peers.source import Peers, open_peers
from dsec.images.lazy.peers.tracking import Announcing, HttpTracker
from dsec.images.lazy.peers.uploading import Seeding
from dsec.images.lazy.serving.fetching import LayerEvent, LayerEventKind, OnEvent
from dsec.images.lazy.source import ChunkSource
from dsec.model.peer import parse_tracker


class PeerSide:
    """What a layer server sees of the peers; make it with `open_peer_side`. Used from one event loop."""

    def __init__(self, node: str, peers: Peers, seeding: Seeding, announcing: Announcing) -> None:
        self._node = node
        self._peers = peers
        self._seeding = seeding
        self._announcing = announcing
        self._asked: dict[str, tuple[float, int]] = {}

    def order(self, chunks: Sequence[ChunkRef]) -> Sequence[int]:
        numbers: dict[str, list[int]] = {}
        for number, ref in enumerate(chunks):
            numbers.setdefault(ref.id, []).append(number)
        names = spread(numbers, self._node)
        self._peers.plan(names)
        return [number for name in names for number in numbers[name]]

    def report(self) -> PeersReport:
        """Say what was taken and given. May be called from any thread."""
        given, taken = self._seeding.status, self._peers.counts
        return PeersReport(
            node=self._node,
            **msgspec.structs.asdict(given),
            chunks=taken.chunks,
            received_bytes=taken.received_bytes,
            failures={kind.value: count for kind, count in taken.failures.items()},
        )

    def source(self, layer: str) -> ChunkSource:
        """Return the peers, as a source of the chunks of the layer with this manifest."""
        return self._peers.source(layer)

    def passing(self, ref: ChunkRef) -> Land:
        """Return who makes landings for a chunk that is asked of an origin now."""
        self._asked[ref.id] = (time.monotonic(), self._peers.speed.begin())
        return partial(self._seeding.land, ref.id, speed=self._peers.speed)

    async def came(self, layer: str, ref: ChunkRef, stored: bytes) -> None:
        """Give a verified chunk to those who wait for it, and say that it is here."""
        asked = self._asked.pop(ref.id, None)
        if asked is not None:
            self._peers.speed.end(asked[1], time.monotonic() - asked[0])
        await anyio.to_thread.run_sync(self._seeding.keep, ref.id, stored)
        self._seeding.settle(ref.id)
        self._announcing.gained(layer, ref.id)

    def failed(self, ref: ChunkRef) -> None:
        """Send those away who wait for a chunk that does not come."""
        self._asked.pop(ref.id, None)
        self._seeding.settle(ref.id)


@asynccontextmanager
async def open_peer_side(
    root: Path, settings: PeerSettings, on_event: OnEvent, cache: LayerCache
) -> AsyncIterator[PeerSide]:
    """Take part in giving and taking chunks until the context ends.

    Args:
        root: the daemon's directory.
        settings: of the peers.
        on_event: told who gave something else than it was asked for.
        cache: the layers of this host.
    """
    secret_file = Path(settings.secret_file)

    def secret() -> bytes:
        return read_secret(secret_file)

    tracker = HttpTracker(Caller(settings.node, parse_tracker(settings.tracker), secret))
    async with anyio.create_task_group() as group:
        token = anyio.lowlevel.current_token()

        def wake() -> None:
            anyio.from_thread.run_sync(announcing.wake, token=token)

        seeding = Seeding(root, settings, wake)
        inventory = _Held(Seeds(root / SEEDS), cache, seeding)
        async with open_peers(
            settings.node,
            secret,
            tracker,
            arrivals=seeding,
            clock=time.monotonic,
            on_bad_peer=partial(_say, cache, on_event),
            options=settings.asking(),
        ) as peers:
            tracker.on_news_s = peers.heed
            life = secrets.token_hex(8)
            announcing = Announcing(settings, tracker, life, inventory, lambda: seeding.status, peers.speed)
            seeding.start()
            group.start_soon(announcing.run)
            try:
                yield PeerSide(settings.node, peers, seeding, announcing)
            finally:
                await anyio.to_thread.run_sync(seeding.close)
                group.cancel_scope.cancel()


def _say(cache: LayerCache, on_event: OnEvent, layer: str, ref: ChunkRef, node: str, words: str) -> None:
    """Say which node gave something else for which chunk."""
    manifest = cache.manifest(layer)
    start = 0
    if manifest is not None and ref in manifest.chunks:
        start = manifest.chunks.index(ref) * CHUNK_BYTES
    brief = f"node {node} gave something else for chunk {ref.id[:12]}: {words}"
    on_event(
        LayerEvent(
            kind=LayerEventKind.BAD_PEER,
            layer="" if manifest is None else manifest.layer,
            manifest=layer,
            start=start,
            length=ref.content_bytes,
            source=node,
            error_code=StateCorruptedError.code,
            brief=brief,
        )
    )


class _Held:
    """What of layers is on this host: in the cache, and whole ones that have a manifest. Implements `Inventory`."""

    def __init__(self, seeds: Seeds, cache: LayerCache, seeding: Seeding) -> None:
        self._seeds = seeds
        self._cache = cache
        self._seeding = seeding

    def held(self) -> dict[str, frozenset[str] | None]:
        found: dict[str, frozenset[str] | None] = {
            layer.manifest.id: None if layer.is_complete else frozenset(_names(layer)) for layer in self._cache.layers()
        }
        found.update(dict.fromkeys(self._seeds.names()))
        return found

    def gives(self, chunk: str) -> bool:
        return self._seeding.has(chunk)


def _names(layer: CachedLayer) -> set[str]:
    names = {layer.manifest.chunks[position].id for position in layer.positions() if position != METADATA}
    if layer.has(METADATA):
        names.update(ref.id for ref in layer.manifest.metadata_chunks)
    return names
