"""Chunks of cached layers are brought once each, and reads wait for the network only."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest

from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.cached_layer import CachedLayer
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.stored import CHUNK_BYTES, encode
from dsec.images.lazy.serving.fetching import LayerEvent, open_fetcher
from dsec.images.lazy.source import ChunkSource, MemorySource

pytestmark = pytest.mark.anyio


class _SlowDisk(LayerCache):
    """A cache whose disk takes nothing until it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_write = threading.Event()

    def store(self, layer: CachedLayer, position: int, content: bytes) -> bool:
        self.may_write.wait()
        return super().store(layer, position, content)


async def test_a_read_is_answered_before_the_disk_has_what_was_fetched_and_once_it_has_is_read_from_there(
    tmp_path: Path,
) -> None:
    contents = [bytes([fill]) * CHUNK_BYTES for fill in (1, 2)]
    stored = dict(map(encode, contents))
    pieces = [(name, len(body)) for name, body in stored.items()]
    extents = [Extent(0, 4096)]
    name, body = encode(contents[0][:4096])
    manifest = manifests.make(
        "sha256:" + "ab" * 32, 2 * CHUNK_BYTES, 1, chunks=pieces, metadata=extents, metadata_chunks=[(name, len(body))]
    )
    source, events = MemorySource(stored), list[LayerEvent]()

    async def sources_of(layer: CachedLayer) -> list[ChunkSource]:
        return [source]

    cache = _SlowDisk(tmp_path / "cache")
    layer = cache.hold(manifest)
    try:
        async with open_fetcher(cache, sources_of, timeout_s=10, on_event=events.append) as fetcher:
            for _ in range(2):
                assert await fetcher.read(layer, 5000, 4) == b"\1\1\1\1"
                assert await fetcher.read(layer, CHUNK_BYTES - 2, 4) == b"\1\1\2\2"
            assert not layer.has(0)
            assert fetcher.fetched_bytes == 2 * CHUNK_BYTES
            cache.may_write.set()
            with anyio.fail_after(60):
                await fetcher.bring(layer, [0, 1])
            assert layer.has(0)
            assert layer.read(CHUNK_BYTES - 1, 2) == b"\1\2"
            assert fetcher.fetched_bytes == 2 * CHUNK_BYTES
            assert not events
    finally:
        cache.may_write.set()
        cache.close()
