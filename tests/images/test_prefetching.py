"""Chunks that are brought before they are read, through real mounts, and what is said of them afterwards."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import DsecError, InvalidRequestError, ObjectNotFoundError
from dsec.distribution.prefetch import PrefetchSettings
from dsec.distribution.prefetch_budget import BudgetSettings
from dsec.images import erofs
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.cached_layer import METADATA
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef
from dsec.images.lazy.publication.conversion import LayerFile, fetch_manifest, publish
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.lazy.serving.daemon_wire import Prefetch
from dsec.images.lazy.serving.layer_mounts import LazyMounts
from dsec.images.lazy.serving.server import LayerServer, LayerServerOptions, mount_below
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ChunkSource, ObjectSource
from dsec.images.lazy.tracing.touches import LayerTouches, Touches
from dsec.images.staging import remove_tree
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.ended_layers import end_layers

pytestmark = pytest.mark.root

_LAYER = "sha256:" + "ab" * 32
_FILES = 10
_AT_WILL = PrefetchSettings(budget=BudgetSettings(share=1.0, bandwidth_bytes_s=1e12))


@dataclass(frozen=True)
class Published:
    """A layer in a folder, with a chunk and a half in each of its files."""

    store: Path
    manifest: LayerManifest

    def source(self) -> ChunkSource:
        return ObjectSource(FolderObjectStore(self.store))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    root = tmp_path_factory.mktemp("published")
    chance = random.Random(1)
    (root / "tree").mkdir()
    for number in range(_FILES):
        (root / f"tree/large-{number}").write_bytes(chance.randbytes(6 << 20))
    erofs.make(root / "tree", root / "layer.erofs")
    store = FolderObjectStore(root / "store")

    async def put() -> LayerManifest:
        report = await publish(LayerFile(root / "layer.erofs", _LAYER, _FILES + 1), store)
        return await fetch_manifest(store, report.manifest)

    return Published(root / "store", anyio.run(put))


class GatedSource:
    """Gives chunks when it is let, and says in which order it was asked."""

    def __init__(self, below: ChunkSource, manifest: LayerManifest) -> None:
        self.name = "gated"
        self.asked: list[int] = []
        self.held: set[int] = set()
        self._below = below
        self._positions = {ref.id: position for position, ref in enumerate(manifest.chunks)}

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        position = self._positions.get(ref.id, METADATA)
        self.asked.append(position)
        while position in self.held:  # noqa: ASYNC110 - a thread of the test lets it go
            await anyio.sleep(0.005)
        return await self._below.fetch(ref, timeout_s=timeout_s)

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """Nothing is wrong with it."""


@dataclass
class Opened:
    """A server with a mounted layer."""

    server: LayerServer
    root: Path
    manifest: LayerManifest

    def prefetch(self, owner: str, *steps: tuple[tuple[int, int, int], ...], is_limited: bool = True) -> None:
        self.server.prefetch(Prefetch(owner=owner, layers=(self.manifest.id,), steps=steps, is_limited=is_limited))

    def wait_over(self, owner: str) -> None:
        wait_until(lambda: self.server.prefetch_progress(owner).is_over)

    def read(self, position: int) -> None:
        """Read a block that lies in a chunk and in no metadata."""
        starts = {extent.start for extent in self.manifest.metadata}
        assert not starts & {position * CHUNK_BYTES + (1 << 20)}
        number, offset = divmod(position * CHUNK_BYTES + (1 << 20), 6 << 20)
        path = self.root / f"large-{number}"
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            file.seek(min(offset, (6 << 20) - 4096))
            file.read(4096)


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(4000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came to be")


Open = Callable[..., Opened]


@pytest.fixture
def open_server(tmp_path: Path, published: Published) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(source: ChunkSource, settings: PrefetchSettings = _AT_WILL, limit_bytes: int = 1 << 30) -> Opened:
            cache = LayerCache(tmp_path / "cache", limit_bytes=limit_bytes)
            stack.callback(cache.close)
            touches = Touches(tmp_path / "touches")
            stack.callback(touches.close)
            options = LayerServerOptions(flush_interval_s=3600.0, touches=touches, prefetch=settings)
            server = LayerServer(cache, mount_below(tmp_path / "served")[0], [source], options)
            stack.callback(server.close)
            server.start()
            root = LazyMounts(tmp_path / "mounts", server).ensure(published.manifest)
            return Opened(server, root, published.manifest)

        stack.callback(remove_tree, tmp_path / "served")
        stack.callback(remove_tree, tmp_path / "mounts")
        yield open_one
        remove_tree(tmp_path / "mounts")


def test_what_was_read_what_came_beforehand_and_what_for_nothing(open_server: Open, published: Published) -> None:
    opened = open_server(published.source())
    opened.read(0)
    opened.prefetch("box", ((0, 2, 3),))
    opened.wait_over("box")
    opened.read(3)
    use = opened.server.use(published.manifest.id)
    assert use is not None
    touched = [touch.position for touch in opened.server.touched(published.manifest.id)]
    assert 3 in touched
    assert 4 not in touched
    assert use.touched_bytes == len(touched) * CHUNK_BYTES
    assert use.prefetched_bytes == len({2, 3} & set(touched)) * CHUNK_BYTES
    assert use.wasted_bytes == 3 * CHUNK_BYTES - use.prefetched_bytes
    assert use.fetched_bytes == use.cached_bytes
    assert use.metadata_bytes < use.fetched_bytes
    assert not use.is_complete


def test_marks_outlive_their_process(tmp_path: Path, published: Published) -> None:
    path = tmp_path / "layer.marks"
    now_s = 100.0
    first = LayerTouches(path, published.manifest, lambda: now_s)
    now_s = 102.5
    first.ahead(1)
    first.read([7, 1])
    first.read([7])
    first.fetched(METADATA)
    first.close()
    with path.open("ab") as file:
        file.write(b"[3,1")
    for _ in range(2):
        again = LayerTouches(path, published.manifest, lambda: now_s)
        assert again.use() == first.use()
        assert again.use().age_s == 2.5
        assert [(touch.position, touch.after_s) for touch in again.order()] == [(1, 2.5), (7, 2.5)]
        again.close()
    path.write_bytes(b"\xff\x00 nothing of ours\n")
    fresh = LayerTouches(path, published.manifest)
    assert fresh.use().touched_bytes == 0
    fresh.close()


def test_marks_that_cannot_be_written_keep_nobody_from_anything(tmp_path: Path, published: Published) -> None:
    (tmp_path / "file").write_bytes(b"")
    touches = Touches(tmp_path / "file/touches")
    touches.of(published.manifest).read([1])
    assert touches.of(published.manifest).use().touched_bytes == CHUNK_BYTES
    touches.close()


def test_marks_of_so_many_layers_are_kept(
    tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.images.lazy.tracing.touches.MAXIMUM_FILES", 3)
    for number in range(5):
        path = tmp_path / f"{number:064x}.marks"
        path.write_bytes(b"")
        os.utime(path, (number, number))
    touches = Touches(tmp_path)
    touches.of(published.manifest).read([1])
    left = sorted(path.stem for path in tmp_path.iterdir())
    assert left == sorted([f"{3:064x}", f"{4:064x}", published.manifest.id])
    touches.close()


def test_a_read_comes_before_what_nobody_asked_for(open_server: Open, published: Published) -> None:
    source = GatedSource(published.source(), published.manifest)
    source.held = {9}
    opened = open_server(source)
    child = os.fork()
    if child == 0:
        try:
            opened.read(9)
        finally:
            os._exit(0)
    wait_until(lambda: 9 in source.asked)
    opened.prefetch("box", ((0, 0, 4),))
    time.sleep(0.05)
    assert not {0, 1, 2, 3} & set(source.asked)
    source.held = set()
    os.waitpid(child, 0)
    opened.wait_over("box")
    assert source.asked.index(9) < source.asked.index(0)
    assert [position for position in source.asked if position in range(4)] == [0, 1, 2, 3]


def test_a_read_waits_for_the_chunk_that_is_on_its_way_and_fetches_it_not_again(
    open_server: Open, published: Published
) -> None:
    source = GatedSource(published.source(), published.manifest)
    source.held = {5}
    opened = open_server(source)
    opened.prefetch("box", ((0, 5, 1),))
    wait_until(lambda: 5 in source.asked)
    child = os.fork()
    if child == 0:
        try:
            opened.read(5)
        finally:
            os._exit(0)
    source.held = set()
    os.waitpid(child, 0)
    assert source.asked.count(5) == 1


def test_stopping_ends_it_after_what_is_under_way(open_server: Open, published: Published) -> None:
    source = GatedSource(published.source(), published.manifest)
    source.held = set(range(20))
    opened = open_server(source)
    opened.prefetch("box", ((0, 0, 8),))
    wait_until(lambda: 1 in source.asked)
    assert opened.server.stop_prefetch("box")
    source.held = set()
    opened.prefetch("other", ((0, 10, 1),))
    opened.wait_over("other")
    assert set(source.asked) - {METADATA} == {0, 1, 10}


def test_a_full_cache_ends_what_nobody_asked_for(open_server: Open, published: Published) -> None:
    limit_bytes = published.manifest.metadata_bytes + 2 * CHUNK_BYTES + 1
    opened = open_server(published.source(), limit_bytes=limit_bytes)
    opened.prefetch("box", ((0, 0, 10),))
    opened.wait_over("box")
    held_bytes, _ = opened.server.cache.held(published.manifest.id)
    assert held_bytes <= limit_bytes
    assert opened.server.fetched_bytes <= limit_bytes + 4 * CHUNK_BYTES


def test_what_does_not_exist_is_refused(open_server: Open, published: Published) -> None:
    opened = open_server(published.source())
    for steps in (((0, 0, 10_000),), ((1, 0, 1),), ((0, -1, 1),)):
        with pytest.raises(InvalidRequestError):
            opened.prefetch("box", steps)
    with pytest.raises(InvalidRequestError):
        opened.prefetch("", ())


class LosingSource:
    """Has nothing but the metadata."""

    name = "losing"

    def __init__(self, below: ChunkSource, manifest: LayerManifest) -> None:
        self._below = below
        self._metadata = {ref.id for ref in manifest.metadata_chunks}

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        if ref.id not in self._metadata:
            raise ObjectNotFoundError("lost")
        return await self._below.fetch(ref, timeout_s=timeout_s)

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """It lied about nothing."""


def test_what_cannot_be_had_is_told_and_ends(open_server: Open, published: Published) -> None:
    opened = open_server(LosingSource(published.source(), published.manifest))
    opened.prefetch("box", ((0, 0, 3),))
    opened.wait_over("box")
    progress = opened.server.prefetch_progress("box")
    assert (progress.wanted, progress.failed, progress.brought) == (3, 3, 0)
    use = opened.server.use(published.manifest.id)
    assert use is not None
    assert use.wasted_bytes == 0


@pytest.mark.slow
def test_a_daemon_prefetches_tells_and_remembers_when_it_was_killed(tmp_path: Path, published: Published) -> None:
    options = DaemonOptions(store_url=published.store.as_uri(), prefetch=_AT_WILL)
    daemon = LayerDaemon(tmp_path / "lazy", options)
    try:
        manifest = published.manifest
        daemon.mount(manifest.id)
        asked = daemon.prefetch(Prefetch(owner="box", layers=(manifest.id, "ff" * 32), steps=(((0, 1, 2), (1, 0, 9)),)))
        assert asked.wanted == 2
        wait_until(lambda: daemon.prefetch_progress("box").is_over)
        assert daemon.prefetch_progress("box").brought == 2
        (before,) = daemon.statistics([manifest.id, "ff" * 32])
        assert before.wasted_bytes == 2 * CHUNK_BYTES
        os.kill(daemon.status().pid, signal.SIGKILL)
        (after,) = daemon.statistics([manifest.id])
        assert after.wasted_bytes == before.wasted_bytes
        assert after.fetched_bytes == before.fetched_bytes
        assert daemon.touched(manifest.id) == ()
        assert daemon.stop_prefetch("box"), "the next server was told"
        assert "prefetched" in (tmp_path / "lazy/events.jsonl").read_text()
    finally:
        end_layers(tmp_path / "lazy")


@pytest.mark.slow
def test_what_a_killed_server_was_to_bring_the_next_one_brings(tmp_path: Path, published: Published) -> None:
    slow = PrefetchSettings(budget=BudgetSettings(share=1.0, bandwidth_bytes_s=4 * CHUNK_BYTES, burst_s=0.25))
    daemon = LayerDaemon(tmp_path / "lazy", DaemonOptions(store_url=published.store.as_uri(), prefetch=slow))
    try:
        name = published.manifest.id
        daemon.mount(name)
        daemon.prefetch(Prefetch(owner="box", layers=(name,), steps=(((0, 1, 8),),)))
        daemon.prefetch(Prefetch(owner="over", layers=(name,), steps=(((0, 9, 1),),)))
        daemon.stop_prefetch("over")
        os.kill(daemon.status().pid, signal.SIGKILL)
        wait_until(lambda: daemon.prefetch_progress("box").wanted > 0)
        wait_until(lambda: daemon.prefetch_progress("box").is_over)
        daemon.status()
        assert daemon.statistics([name])[0].wasted_bytes == 8 * CHUNK_BYTES
    finally:
        end_layers(tmp_path / "lazy")
