"""Layers of a registry that ignores ranges: read once from the beginning, for all who wait."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import DsecError, StateCorruptedError, StoreUnavailableError
from dsec.images.lazy.caching.bringing import bring_whole
from dsec.images.lazy.caching.cache import DEFAULT_LIMIT_BYTES, LayerCache
from dsec.images.lazy.caching.cached_layer import CachedLayer
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef, encode
from dsec.images.lazy.in_order import blob_order, cut
from dsec.images.lazy.serving.fetching import Fetcher, LayerEvent, LayerEventKind, open_fetcher
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ChunkSource
from dsec.images.lazy.verifying.fetched import fetch_pieces
from dsec.images.lazy.verifying.findings import VerifyOptions
from dsec.images.lazy.verifying.pieces import Piece, pieces_of
from dsec.images.lazy.verifying.verification import verify_image
from dsec.images.registry.client import ClientOptions, RegistryClient, digest_of
from dsec.images.registry.http import Timeouts
from dsec.images.registry.pull import PullRequest, pull_from_registry
from dsec.images.registry.push import PushRequest, push_image
from dsec.images.registry.reference import Repository, parse_reference
from dsec.images.registry.retrying import Backoff
from dsec.images.registry.source import RegistrySource, close_shared
from dsec.images.registry.upload import BlobFile, upload_blob
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.model.image_work import ImageFinding
from dsec.testing.chunk_source_suite import ChunkSourceSuite, OpenSource
from dsec.testing.faulty_registry import Fault, FaultyRegistry, Seen, is_blob, run_faulty_registry
from dsec.testing.image_hosts import image_hosts
from dsec.testing.registry_server import RegistryServer

CONTENTS = [os.urandom(1000) + bytes([fill]) * (CHUNK_BYTES - 1000) for fill in range(6)]
"""Of a layer; they compress well, so that the blob is short."""


def _layer() -> tuple[LayerManifest, bytes]:
    """Return the manifest of a layer, and its blob."""
    metadata_name, metadata = encode(CONTENTS[0][:4096])
    stored = [encode(content) for content in CONTENTS]
    manifest = manifests.make(
        "sha256:" + "ab" * 32,
        sum(map(len, CONTENTS)),
        1,
        chunks=[(name, len(body)) for name, body in stored],
        metadata=[Extent(0, 4096)],
        metadata_chunks=[(metadata_name, len(metadata))],
    )
    return manifest, b"".join((metadata, *(body for _, body in stored)))


MANIFEST, BLOB = _layer()


class _Chunk(ChunkSource):
    """Single chunks out of what is given in order only."""

    def __init__(self, source: RegistrySource) -> None:
        self.name = source.name
        self._source = source

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        try:
            return await self._source.fetch(ref, timeout_s=timeout_s)
        except StoreUnavailableError:
            if not self._source.gives_in_order:
                raise
        async with aclosing(cut(self._source, [ref])) as passing:
            async for _, stored in passing:
                return stored
        raise AssertionError("a stream gives what was asked for, or fails")

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        self._source.blame(ref, error)


@pytest.mark.slow
class TestChunksOfARegistryThatIgnoresRanges(ChunkSourceSuite):
    """The suite, with every chunk but the first out of a stream."""

    @pytest.fixture
    async def open_source(self, registry: RegistryServer, tmp_path: Path) -> AsyncIterator[OpenSource]:
        with run_faulty_registry(registry.host) as proxy:
            proxy.rule = lambda seen: Fault(ignores_range=True) if is_blob(seen) else None
            client = RegistryClient(proxy.host, ClientOptions(environment={}))

            async def open_source(stored: Mapping[str, bytes], refs: Sequence[ChunkRef]) -> ChunkSource:
                repository = Repository(host=proxy.host, path=f"tests/{uuid.uuid4().hex}")
                data = b"".join(stored[ref.id] for ref in refs)
                if refs:
                    (tmp_path / "blob").write_bytes(data)
                    await upload_blob(client, repository, BlobFile(tmp_path / "blob", digest_of(data), len(data)))
                url = repository.blob_url(digest_of(data if refs else b"nobody has this"))
                return _Chunk(RegistrySource(url, client, maximum_skipped_bytes=0))

            yield open_source
            await client.aclose()


@pytest.fixture
def proxy() -> Iterator[FaultyRegistry]:
    """A registry that gives the whole blob whatever is asked for."""
    with run_faulty_registry("127.0.0.1:1") as running:
        running.rule = lambda seen: _WHOLE
        yield running


_WHOLE = Fault(content=BLOB, ignores_range=True)


@asynccontextmanager
async def _opened(
    proxy: FaultyRegistry, *, maximum_skipped_bytes: int = 0, tries: int = 3
) -> AsyncIterator[RegistrySource]:
    options = ClientOptions(
        environment={}, backoff=Backoff(tries=tries, first_pause_s=0.01), timeouts=Timeouts(stall_s=0.3)
    )
    client = RegistryClient(proxy.host, options)
    url = Repository(host=proxy.host, path="tests/layer").blob_url(digest_of(BLOB))
    yield RegistrySource(url, client, maximum_skipped_bytes=maximum_skipped_bytes)
    await client.aclose()


@asynccontextmanager
async def _fetcher(
    root: Path, source: ChunkSource, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> AsyncIterator[tuple[Fetcher, LayerCache, CachedLayer, list[LayerEvent]]]:
    events = list[LayerEvent]()

    async def sources_of(layer: CachedLayer) -> list[ChunkSource]:
        return [source]

    cache = LayerCache(root / "cache", limit_bytes=limit_bytes)
    try:
        layer = cache.hold(MANIFEST)
        async with open_fetcher(cache, sources_of, timeout_s=10, on_event=events.append) as fetcher:
            yield fetcher, cache, layer, events
    finally:
        cache.close()


def _streams(events: Sequence[LayerEvent]) -> list[LayerEvent]:
    return [event for event in events if event.kind is LayerEventKind.IN_ORDER]


async def _until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - nobody tells of it.
            await anyio.sleep(0.005)


@pytest.mark.anyio
async def test_one_read_far_on_fills_the_layer_by_one_stream_however_many_wait(
    proxy: FaultyRegistry, tmp_path: Path
) -> None:
    async with _opened(proxy) as source, _fetcher(tmp_path, source) as (fetcher, _, layer, events):
        probes = 0
        async with anyio.create_task_group() as group:
            for place in (5, 3, 5, 4):
                group.start_soon(_read_right, fetcher, layer, place)
        probes = len(proxy.blobs())
        await _until(lambda: all(map(layer.has, range(6))))
        assert len(_streams(events)) == 1
        assert [layer.read_chunk(place) for place in range(6)] == CONTENTS
        assert len(proxy.blobs()) == probes <= 5
        assert {event.kind for event in events} == {LayerEventKind.IN_ORDER}


async def _read_right(fetcher: Fetcher, layer: CachedLayer, place: int) -> None:
    start = place * CHUNK_BYTES + 500
    assert await fetcher.read(layer, start, 5000) == CONTENTS[place][500:5500]


@pytest.mark.anyio
async def test_a_layer_is_made_whole_in_one_stream(proxy: FaultyRegistry, tmp_path: Path) -> None:
    told: list[int] = []
    async with _opened(proxy) as source, _fetcher(tmp_path, source) as (fetcher, _, layer, events):
        assert await bring_whole(fetcher, layer, progress=lambda here, _: told.append(here))
        assert layer.chunk_bytes == MANIFEST.size_bytes == told[-1]
        assert len(told) == 6
        assert len(_streams(events)) == 1


@pytest.mark.anyio
async def test_a_stream_that_breaks_off_or_is_put_off_begins_again_and_skips_what_came(
    proxy: FaultyRegistry, tmp_path: Path
) -> None:
    cut_at = MANIFEST.chunks[3].blob_start + 7
    faults = [
        Fault(content=BLOB, ignores_range=True),  # Which is how it is found out.
        Fault(content=BLOB, ignores_range=True, cut_at=cut_at),
        Fault(status=429, headers={"Retry-After": "0"}),
        Fault(status=503),
        Fault(content=BLOB, ignores_range=True, stall_at=cut_at),
    ]

    def rule(seen: Seen) -> Fault:
        return faults.pop(0) if faults else _WHOLE

    proxy.rule = rule
    async with _opened(proxy, tries=4) as source, _fetcher(tmp_path, source) as (fetcher, _, layer, events):
        assert await bring_whole(fetcher, layer)
        assert [layer.read_chunk(place) for place in range(6)] == CONTENTS
        assert len(_streams(events)) == 1
        assert not faults


@pytest.mark.anyio
async def test_a_stream_that_is_given_up_fails_its_readers_and_the_next_read_begins_another(
    proxy: FaultyRegistry, tmp_path: Path
) -> None:
    async with _opened(proxy) as source, _fetcher(tmp_path, source) as (fetcher, _, layer, events):
        proxy.rule = lambda seen: Fault(content=BLOB, ignores_range=True, cut_at=MANIFEST.chunks[2].blob_start + 7)
        with pytest.raises(StoreUnavailableError):
            await fetcher.read(layer, 5 * CHUNK_BYTES, 10)
        assert [place for place in range(6) if layer.has(place)] == [0, 1]
        assert LayerEventKind.SOURCE_FAILED in {event.kind for event in events}
        proxy.rule = lambda seen: _WHOLE
        await _read_right(fetcher, layer, 5)
        assert _streams(events)[-1].length == len(BLOB) - MANIFEST.chunks[2].blob_start


@pytest.mark.anyio
async def test_a_blob_is_not_sent_any_number_of_times_over_a_link_that_breaks_often(
    proxy: FaultyRegistry, tmp_path: Path
) -> None:
    """Each time a little more comes, so that it would end some day."""
    content, times = os.urandom(4_000_000), 0

    def rule(seen: Seen) -> Fault:
        nonlocal times
        times += 1
        return Fault(content=content, ignores_range=True, cut_at=times * 100_000)

    proxy.rule = rule
    async with _opened(proxy) as source:
        with pytest.raises(StoreUnavailableError, match="beyond all measure"):
            async for _ in source.stream(0, len(content)):
                pass
    assert proxy.sent_bytes < 5 * len(content)


@pytest.mark.anyio
async def test_a_chunk_of_a_stream_that_is_something_else_fails_its_own_readers(
    proxy: FaultyRegistry, tmp_path: Path
) -> None:
    at = MANIFEST.chunks[3].blob_start + 20
    proxy.rule = lambda seen: Fault(content=BLOB[:at] + bytes([BLOB[at] ^ 255]) + BLOB[at + 1 :], ignores_range=True)
    async with _opened(proxy) as source, _fetcher(tmp_path, source) as (fetcher, _, layer, events):
        await _read_right(fetcher, layer, 5)
        await _until(lambda: layer.has(5))  # A read need not wait for the disk.
        assert [place for place in range(6) if layer.has(place)] == [0, 1, 2, 4, 5]
        with pytest.raises(StateCorruptedError, match=proxy.host):
            await fetcher.read(layer, 3 * CHUNK_BYTES, 10)
        assert {event.source for event in events if event.kind is LayerEventKind.SOURCE_FAILED} == {source.name}


@pytest.mark.anyio
async def test_where_there_is_no_room_readers_have_their_chunk_and_are_refused_another_stream_for_a_while(
    proxy: FaultyRegistry, tmp_path: Path
) -> None:
    async with (
        _opened(proxy) as source,
        _fetcher(tmp_path, source, limit_bytes=2 * CHUNK_BYTES + 8192) as (fetcher, _, layer, events),
    ):
        await _read_right(fetcher, layer, 3)
        assert layer.has(1)
        await _until(lambda: not fetcher._passes._passes)
        before = proxy.sent_bytes
        with pytest.raises(StoreUnavailableError, match="no room"):
            await fetcher.read(layer, 5 * CHUNK_BYTES, 10)
        assert proxy.sent_bytes == before
        assert len(_streams(events)) == 1


class _Turnstile:
    """Gives a blob in order, chunk by chunk as it is let to."""

    name = "turnstile"
    gives_in_order = True

    def __init__(self) -> None:
        self.may_give = anyio.Semaphore(0)
        self.is_ended = anyio.Event()

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        raise StoreUnavailableError("in order only")

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """Nothing."""

    async def stream(self, start: int, end: int) -> AsyncGenerator[bytes]:
        try:
            for ref in blob_order(MANIFEST):
                if ref.blob_start >= start:
                    await self.may_give.acquire()
                    yield BLOB[ref.blob_start : ref.blob_start + ref.stored_bytes]
        finally:
            self.is_ended.set()


@pytest.mark.anyio
async def test_a_stream_ends_once_nobody_waits_and_the_layer_is_let_go(tmp_path: Path) -> None:
    source = _Turnstile()
    async with _fetcher(tmp_path, source) as (fetcher, cache, layer, _):
        async with anyio.create_task_group() as group:
            group.start_soon(_read_right, fetcher, layer, 1)
            for _ in range(3):
                source.may_give.release()
        assert not source.is_ended.is_set()
        cache.release(layer)
        source.may_give.release()
        with anyio.fail_after(60):
            await source.is_ended.wait()
        assert not layer.has(4)


@pytest.mark.anyio
async def test_who_comes_when_his_chunk_has_passed_by_waits_for_nobody(tmp_path: Path) -> None:
    source = _Turnstile()
    async with _fetcher(tmp_path, source) as (fetcher, _, layer, events):
        async with anyio.create_task_group() as group:
            group.start_soon(_read_right, fetcher, layer, 5)
            for _ in range(4):
                source.may_give.release()
            await _until(lambda: layer.has(2))
            await _read_right(fetcher, layer, 2)
            for _ in range(3):
                source.may_give.release()
        assert len(_streams(events)) == 1


@pytest.mark.anyio
async def test_many_who_wait_for_a_stream_keep_nobody_from_other_sources(tmp_path: Path) -> None:
    """Places among those who fetch are for those whose chunks take memory."""
    source = _Turnstile()
    async with _fetcher(tmp_path, source) as (fetcher, _, layer, _events), anyio.create_task_group() as group:
        for place in range(6):
            group.start_soon(_read_right, fetcher, layer, place)
        await anyio.wait_all_tasks_blocked()
        assert fetcher._places.value == 16
        for _ in range(7):
            source.may_give.release()


@pytest.mark.anyio
async def test_a_check_reads_every_piece_by_one_stream_and_names_what_is_wrong(proxy: FaultyRegistry) -> None:
    at = MANIFEST.chunks[3].blob_start + 20
    proxy.rule = lambda seen: Fault(content=BLOB[:at] + bytes([BLOB[at] ^ 255]) + BLOB[at + 1 :], ignores_range=True)
    got: dict[Piece, bytes] = {}
    counted = 0

    async def take(piece: Piece, content: bytes) -> None:
        got[piece] = content

    def advance() -> None:
        nonlocal counted
        counted += 1

    async with _opened(proxy) as source:
        failures = await fetch_pieces([source], pieces_of(MANIFEST), take, advance)
        assert [str(piece) for piece in failures] == ["chunk 3"]
        assert isinstance(failures[Piece(False, 3, MANIFEST.chunks[3])], StateCorruptedError)
        assert {piece.place: got[piece] for piece in got if not piece.is_metadata} == {
            place: content for place, content in enumerate(CONTENTS) if place != 3
        }
        assert counted == 7
        proxy.rule = lambda seen: Fault(content=BLOB, ignores_range=True, cut_at=at)
        failures = await fetch_pieces([source], pieces_of(MANIFEST), take, advance)
        assert {piece.place for piece in failures} == {3, 4, 5}
        assert counted == 14


@pytest.mark.anyio
async def test_a_registry_that_ignores_ranges_is_asked_for_chunks_near_the_beginning(proxy: FaultyRegistry) -> None:
    async with _opened(proxy, maximum_skipped_bytes=len(BLOB)) as source:
        for ref in blob_order(MANIFEST):
            assert await source.fetch(ref) == BLOB[ref.blob_start : ref.blob_start + ref.stored_bytes]
            assert source.gives_in_order  # Known from the first answer on: what lies far on need not be tried.


class _Pieces(_Turnstile):
    """Gives a blob in pieces of drawn lengths."""

    def __init__(self, blob: bytes, lengths: Sequence[int]) -> None:
        super().__init__()
        self._blob = blob
        self._lengths = lengths

    async def stream(self, start: int, end: int) -> AsyncGenerator[bytes]:
        for length in itertools.cycle(self._lengths):
            if start >= end:
                return
            yield self._blob[start : min(end, start + length)]
            start += length


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    wanted=st.sets(st.integers(0, 11)),
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=5),
)
def test_whatever_is_wanted_of_a_stream_is_cut_out_of_it_however_it_comes(
    sizes: list[int], wanted: set[int], lengths: list[int]
) -> None:
    blob, refs, start = os.urandom(sum(sizes)), list[ChunkRef](), 0
    for size in sizes:
        refs.append(ChunkRef(id="", content_bytes=0, stored_bytes=size, blob_start=start))
        start += size
    chosen = [ref for place, ref in enumerate(refs) if place in wanted]

    async def act() -> list[tuple[ChunkRef, bytes]]:
        return [found async for found in cut(_Pieces(blob, lengths), chosen)]

    expected = [(ref, blob[ref.blob_start : ref.blob_start + ref.stored_bytes]) for ref in chosen]
    assert anyio.run(act) == expected


@pytest.mark.root
@pytest.mark.slow
def test_an_image_behind_a_proxy_without_ranges_is_mounted_read_to_its_end_pulled_whole_and_verified(
    registry: RegistryServer, tmp_path: Path
) -> None:
    content = os.urandom(3 * CHUNK_BYTES)  # Its end lies beyond what is skipped.
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(content)
    with image_hosts(tmp_path) as hosts, run_faulty_registry(registry.host) as proxy:
        here = hosts.host("here")
        here.add_image("mine", [here.add_layer(tmp_path / "tree")], ImageConfig(), source="test")
        proxy.rule = lambda seen: Fault(ignores_range=True) if is_blob(seen) else None
        reference = parse_reference(f"{proxy.host}/{uuid.uuid4().hex}:v1")

        async def through_registry(store: LocalImageStore, *, push: bool = False, eager: bool = False) -> None:
            client = RegistryClient(proxy.host)
            try:
                if push:
                    await push_image(store, PushRequest(name="mine", reference=reference), client)
                else:
                    await pull_from_registry(store, PullRequest(reference=reference, name="mine", eager=eager), client)
            finally:
                await close_shared()
                await client.aclose()

        anyio.run(partial(through_registry, here, push=True))
        for name, eager in (("lazy", False), ("whole", True)):
            there = hosts.host(name)
            anyio.run(partial(through_registry, there, eager=eager))
            before = proxy.sent_bytes
            (root,) = there.mount(["mine"]).layer_paths
            with (root / "file").open("rb") as file:
                file.seek(-5000, os.SEEK_END)
                assert file.read() == content[-5000:]
                file.seek(0)
                assert file.read() == content
            if not eager:
                # One stream, and what it took to find out that one is needed.
                assert proxy.sent_bytes - before < 4 * len(content)

            async def look(store: LocalImageStore = there) -> list[ImageFinding]:
                options = VerifyOptions(node="n0de1d", full=True)
                return [finding async for finding in verify_image(store, "mine", hosts.daemon(), options)]

            findings = anyio.run(look)
            assert all(finding.ok for finding in findings), findings
            assert "layer-1 registry" in {finding.part for finding in findings}
