"""Layers that are loaded when touched: real mounts, real kills, sources that fail in every way."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
import pytest

from dsec.base.errors import DsecError, StateCorruptedError, StoreUnavailableError
from dsec.images import erofs
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.cached_layer import METADATA
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef, encode
from dsec.images.lazy.publication.conversion import LayerFile, fetch_manifest, publish
from dsec.images.lazy.serving.fetching import LayerEvent, LayerEventKind
from dsec.images.lazy.serving.layer_mounts import LazyMounts
from dsec.images.lazy.serving.server import LayerServer, LayerServerOptions, mount_below
from dsec.images.lazy.source import ChunkSource, MemorySource, ObjectSource
from dsec.images.staging import remove_tree
from dsec.linux import page_cache, page_eviction
from dsec.stores.objects_folder import FolderObjectStore

pytestmark = pytest.mark.root

_LAYER = "sha256:" + "ab" * 32


@dataclass(frozen=True)
class Published:
    """A layer in a folder: some large files, many small ones."""

    store: Path
    manifest: LayerManifest
    large: dict[str, bytes]

    def source(self) -> ChunkSource:
        return ObjectSource(FolderObjectStore(self.store))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    root = tmp_path_factory.mktemp("published")
    chance = random.Random(1)
    large = {f"large-{number}": chance.randbytes(3 << 20) for number in range(6)}
    for name, content in large.items():
        path = root / "tree/data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for number in range(300):
        path = root / f"tree/small/{number % 10}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"small {number}")
    (root / "tree/link").symlink_to("target of the link")
    erofs.make(root / "tree", root / "layer.erofs")
    store = FolderObjectStore(root / "store")

    async def put() -> LayerManifest:
        report = await publish(LayerFile(root / "layer.erofs", _LAYER, 300), store)
        return await fetch_manifest(store, report.manifest)

    return Published(root / "store", anyio.run(put), large)


@dataclass
class Opened:
    """A server with its mounts and what it told."""

    cache: LayerCache
    server: LayerServer
    mounts: LazyMounts
    events: list[LayerEvent] = field(default_factory=list)

    def kinds(self) -> set[LayerEventKind]:
        return {event.kind for event in self.events}


Open = Callable[..., Opened]


@pytest.fixture
def open_server(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(
            *sources: ChunkSource,
            limit_bytes: int = 1 << 30,
            read_timeout_s: float = 20.0,
            source_timeout_s: float = 5.0,
        ) -> Opened:
            events: list[LayerEvent] = []
            cache = LayerCache(tmp_path / "cache", limit_bytes=limit_bytes)
            stack.callback(cache.close)
            options = LayerServerOptions(
                read_timeout_s=read_timeout_s,
                source_timeout_s=5.0,
                flush_interval_s=3600.0,
                on_event=events.append,
            )
            mount, _ = mount_below(tmp_path / "served")
            server = LayerServer(cache, mount, sources, options)
            stack.callback(server.close)
            server.start()
            return Opened(cache, server, LazyMounts(tmp_path / "mounts", server), events)

        stack.callback(remove_tree, tmp_path / "served")
        stack.callback(remove_tree, tmp_path / "mounts")
        yield open_one
        # Mounts go before the server that they read from.
        remove_tree(tmp_path / "mounts")


def _device(opened: Opened, manifest: LayerManifest) -> str:
    return opened.mounts._devices()[manifest.id].removeprefix("/dev/")


def _backing_file(device: str) -> str:
    return Path(f"/sys/block/{device}/loop/backing_file").read_text().strip()


def test_a_walk_fetches_the_metadata_and_nothing_else(open_server: Open, published: Published) -> None:
    opened = open_server(published.source())
    root = opened.mounts.ensure(published.manifest)
    found = sum(len(files) for _, _, files in os.walk(root))
    assert found == 307
    assert (root / "small/3/3").read_text() == "small 3", "small files are in the metadata"
    assert opened.server.fetched_bytes == published.manifest.metadata_bytes


def test_what_is_read_is_fetched_and_little_more(open_server: Open, published: Published) -> None:
    opened = open_server(published.source())
    root = opened.mounts.ensure(published.manifest)
    assert (root / "data/large-3").read_bytes() == published.large["large-3"]
    chunks = opened.server.fetched_bytes - published.manifest.metadata_bytes
    assert 0 < chunks <= 3 * CHUNK_BYTES
    assert opened.events == []


def test_every_byte_of_the_mount_is_that_of_the_tree(open_server: Open, published: Published) -> None:
    opened = open_server(published.source())
    root = opened.mounts.ensure(published.manifest)
    with ThreadPoolExecutor(6) as pool:
        contents = list(pool.map(lambda name: (root / "data" / name).read_bytes(), published.large))
    assert contents == list(published.large.values())
    assert opened.server.fetched_bytes <= published.manifest.metadata_bytes + published.manifest.size_bytes


def test_asking_for_a_mount_again_gives_the_same_one(open_server: Open, published: Published) -> None:
    opened = open_server(published.source())
    root = opened.mounts.ensure(published.manifest)
    assert opened.mounts.ensure(published.manifest) == root
    assert opened.mounts.mounted() == {published.manifest.id}
    with (root / "data/large-0").open("rb"):
        assert not opened.mounts.unmount(published.manifest.id)
    assert opened.mounts.unmount(published.manifest.id)
    assert opened.mounts.mounted() == frozenset()
    assert opened.cache.remove(published.manifest.id), "nobody holds it any more"


def test_once_all_is_here_the_kernel_reads_the_local_file_and_needs_no_server(
    open_server: Open, published: Published
) -> None:
    opened = open_server(published.source())
    root = opened.mounts.ensure(published.manifest)
    device = _device(opened, published.manifest)
    assert "/served/" in _backing_file(device)
    opened.server.bring(published.manifest.id, range(len(published.manifest.chunks)))
    opened.server.flush()
    assert _backing_file(device).endswith(f"/cache/{published.manifest.id}/data")
    assert opened.kinds() == {LayerEventKind.COMPLETE}
    opened.server.close()
    assert (root / "data/large-5").read_bytes() == published.large["large-5"]


def _corrupt(opened: Opened, manifest: LayerManifest, content: bytes, wrong: bytes) -> None:
    """Let the disk give something else in place of content, and the kernel read it."""
    path = opened.server.layer(manifest.id).path
    with path.open("r+b") as file:
        data = file.read()
        while (start := data.find(content)) >= 0:
            file.seek(start)
            file.write(wrong)
            data = data[:start] + wrong + data[start + len(wrong) :]
        file.flush()
        os.fsync(file.fileno())
    opened.mounts.evict(manifest.id, range(-1, len(manifest.chunks)))


def test_what_the_kernel_cached_of_a_rotten_file_goes_when_it_is_repaired(
    open_server: Open, published: Published
) -> None:
    manifest = published.manifest
    opened = open_server(published.source())
    root = opened.mounts.ensure(manifest)
    opened.server.bring(manifest.id, range(len(manifest.chunks)))
    opened.server.flush()
    good = published.large["large-3"]
    _corrupt(opened, manifest, good[4096:8192], b"x" * 4096)
    _corrupt(opened, manifest, b"small 77", b"SMALL 77")
    _corrupt(opened, manifest, b"target of the link", b"TARGET of the link")
    seen = ((root / "data/large-3").read_bytes(), (root / "small/7/77").read_text(), os.readlink(root / "link"))
    assert seen[0][4096:8192] == b"x" * 4096, "the kernel does not verify"
    assert seen[1:] == ("SMALL 77", "TARGET of the link")
    checked, bad = opened.mounts.verify(manifest.id)
    assert METADATA in bad
    assert len(bad) > 1
    opened.server.on_complete(manifest.id)
    assert "/served/" in _backing_file(_device(opened, manifest)), "it was complete a moment ago"
    opened.server.bring(manifest.id, bad)
    opened.server.flush()
    opened.mounts.evict(manifest.id, bad)
    assert (root / "data/large-3").read_bytes() == good
    assert (root / "small/7/77").read_text() == "small 77"
    assert os.readlink(root / "link") == "target of the link"
    assert opened.mounts.verify(manifest.id) == (checked, [])


def test_who_serves_a_layer_can_ask_where_its_files_lie(open_server: Open, published: Published) -> None:
    """The kernel may have to read them for that, and the answer comes from another thread of this very process."""
    opened = open_server(published.source(), read_timeout_s=2.0)
    root = opened.mounts.ensure(published.manifest)
    for number in range(10):
        with (root / f"small/{number}/{number}").open("rb") as file:
            page_eviction.evict_device(f"/dev/{_device(opened, published.manifest)}")
            assert list(page_cache.extents(file.fileno()))


def test_pages_that_a_program_has_mapped_stay_until_it_ends(open_server: Open, published: Published) -> None:
    manifest = published.manifest
    opened = open_server(published.source())
    root = opened.mounts.ensure(manifest)
    opened.server.bring(manifest.id, range(len(manifest.chunks)))
    opened.server.flush()
    good = published.large["large-3"][:4096]
    _corrupt(opened, manifest, good, b"x" * 4096)
    with (root / "data/large-3").open("rb") as file:
        with mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == b"x" * 4096
            _, bad = opened.mounts.verify(manifest.id)
            assert opened.mounts.evict(manifest.id, bad) == ("data/large-3",)
            assert mapped[:] == b"x" * 4096
            assert (root / "data/large-3").read_bytes()[:4096] == b"x" * 4096
        assert opened.mounts.evict(manifest.id, bad) == ()
    assert (root / "data/large-3").read_bytes()[:4096] == good


class Switched:
    """A source that can be told to fail."""

    name = "switched"

    def __init__(self, inner: ChunkSource) -> None:
        self._inner = inner
        self.fails: Callable[[ChunkRef], bool] = lambda ref: False
        self.hangs = False
        self.hangs_for = ""
        self.reached, self.released = threading.Event(), threading.Event()
        self.asked: list[str] = []

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = 1.0) -> bytes:
        self.asked.append(ref.id)
        if self.hangs:
            await anyio.sleep_forever()
        if ref.id == self.hangs_for:
            self.reached.set()
            await anyio.to_thread.run_sync(self.released.wait)
        if self.fails(ref):
            raise StoreUnavailableError("the link is cut")
        return await self._inner.fetch(ref, timeout_s=timeout_s)

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        pass


def _error_of(path: Path) -> int | None:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


def test_a_chunk_that_cannot_be_had_is_an_error_of_that_read_alone(open_server: Open, published: Published) -> None:
    source = Switched(published.source())
    opened = open_server(source)
    root = opened.mounts.ensure(published.manifest)
    source.fails = lambda ref: True
    assert _error_of(root / "data/large-1") == errno.EIO
    assert LayerEventKind.READ_FAILED in opened.kinds()
    failed = next(event for event in opened.events if event.kind is LayerEventKind.READ_FAILED)
    assert (failed.layer, failed.error_code) == (_LAYER, "store_unavailable")
    assert (root / "small/7/7").read_text() == "small 7", "what is here can be read"
    source.fails = lambda ref: False
    assert (root / "data/large-1").read_bytes() == published.large["large-1"]


def test_a_source_that_hangs_fails_the_read_at_its_deadline_and_holds_up_no_other(
    open_server: Open, published: Published
) -> None:
    source = Switched(published.source())
    opened = open_server(source, read_timeout_s=0.2)
    root = opened.mounts.ensure(published.manifest)
    assert (root / "data/large-2").read_bytes() == published.large["large-2"]
    source.hangs = True
    assert _error_of(root / "data/large-5") == errno.EIO
    assert (root / "data/large-2").read_bytes() == published.large["large-2"]
    assert "within 0.2 s" in next(event.brief for event in opened.events)


def test_a_mount_ends_at_its_deadline_when_the_metadata_does_not_come(open_server: Open, published: Published) -> None:
    source = Switched(published.source())
    source.hangs = True
    opened = open_server(source, read_timeout_s=0.2)
    with pytest.raises(StoreUnavailableError, match=r"within 0\.2 s"):
        opened.mounts.ensure(published.manifest)
    assert opened.mounts.mounted() == frozenset()


def test_a_source_that_lies_is_named_and_the_next_one_asked(open_server: Open, published: Published) -> None:
    lies = {ref.id: encode(b"x" * ref.content_bytes)[1] for ref in published.manifest.chunks}
    opened = open_server(MemorySource(lies, "node-17"), published.source())
    root = opened.mounts.ensure(published.manifest)
    assert (root / "data/large-1").read_bytes() == published.large["large-1"]
    assert {(event.source, event.error_code) for event in opened.events if "verify" in event.brief} == {
        ("node-17", "state_corrupted")
    }


def test_many_readers_of_a_chunk_fetch_it_once(open_server: Open, published: Published) -> None:
    source = Switched(published.source())
    opened = open_server(source)
    root = opened.mounts.ensure(published.manifest)
    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(lambda _: (root / "data/large-4").read_bytes(), range(8)))
    assert contents == [published.large["large-4"]] * 8
    assert len(source.asked) == len(set(source.asked))


def test_what_finds_no_room_is_served_and_not_kept(open_server: Open, published: Published) -> None:
    limit = published.manifest.metadata_bytes + CHUNK_BYTES
    opened = open_server(published.source(), limit_bytes=limit)
    root = opened.mounts.ensure(published.manifest)
    for name, content in published.large.items():
        assert (root / "data" / name).read_bytes() == content
    assert opened.kinds() == {LayerEventKind.NOT_KEPT}
    assert opened.cache.statistics().content_bytes <= limit


def test_a_layer_whose_source_hangs_keeps_no_other_from_being_mounted(open_server: Open, published: Published) -> None:
    source = Switched(published.source())
    opened = open_server(source)
    name, stored = encode(bytes(8192))
    hanging = manifests.make(
        _LAYER, 8192, 1, chunks=[(name, len(stored))], metadata=[manifests.Extent(0, 8192)],
        metadata_chunks=[(name, len(stored))],
    )  # fmt: skip
    source.hangs_for = name
    refused: list[DsecError] = []

    def mount() -> None:
        try:
            opened.mounts.ensure(hanging)
        except DsecError as error:
            refused.append(error)

    waiting = threading.Thread(target=mount)
    waiting.start()
    source.reached.wait()
    assert (opened.mounts.ensure(published.manifest) / "small/3/3").read_text() == "small 3"
    source.released.set()
    waiting.join()
    assert refused
    assert opened.mounts.mounted() == {published.manifest.id}
    assert opened.cache.statistics().held_layers == 1


def test_what_a_source_does_that_nobody_foresaw_fails_that_read_alone(open_server: Open, published: Published) -> None:
    source = Switched(published.source())
    opened = open_server(source)
    root = opened.mounts.ensure(published.manifest)

    def surprise(ref: ChunkRef) -> bool:
        raise ZeroDivisionError

    source.fails = surprise
    assert _error_of(root / "data/large-1") == errno.EIO
    source.fails = lambda ref: False
    assert (root / "data/large-1").read_bytes() == published.large["large-1"]


def test_a_layer_without_its_metadata_is_not_mounted(open_server: Open, published: Published) -> None:
    opened = open_server(MemorySource({}))
    with pytest.raises(DsecError):
        opened.mounts.ensure(published.manifest)
    assert opened.mounts.mounted() == frozenset()
    assert opened.cache.statistics().held_layers == 0


def test_chunks_that_are_no_file_system_are_refused(open_server: Open) -> None:
    name, stored = encode(bytes(8192))
    piece = (name, len(stored))
    extents = [manifests.Extent(0, 8192)]
    lying = manifests.make(_LAYER, 8192, 1, chunks=[piece], metadata=extents, metadata_chunks=[piece])
    opened = open_server(MemorySource({name: stored}))
    with pytest.raises(StateCorruptedError, match="EROFS"):
        opened.mounts.ensure(lying)
    assert opened.mounts.mounted() == frozenset()


_SERVE = """
import sys, time
from pathlib import Path
import anyio
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.images.lazy.serving.layer_mounts import LazyMounts
from dsec.images.lazy.serving.server import LayerServer, mount_below
from dsec.images.lazy.source import ObjectSource
from dsec.stores.objects_folder import FolderObjectStore
root, store = Path(sys.argv[1]), FolderObjectStore(Path(sys.argv[2]))
server = LayerServer(LayerCache(root / "cache"), mount_below(root / "served")[0], [ObjectSource(store)])
server.start()
mounts = LazyMounts(root / "mounts", server)
print(mounts.ensure(anyio.run(fetch_manifest, store, sys.argv[3])), flush=True)
time.sleep(600)
"""


def _killed_server(root: Path, published: Published, *, read: Sequence[str] = ()) -> Path:
    """Mount a layer from a process, read from it, kill the process, and return the mount point."""
    command = [sys.executable, "-c", _SERVE, str(root), str(published.store), published.manifest.id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        target = Path(process.stdout.readline().strip())
        for name in read:
            (target / "data" / name).read_bytes()
        process.send_signal(signal.SIGKILL)
    return target


@pytest.mark.slow
def test_after_a_kill_reads_fail_until_the_next_server_takes_the_same_mount_over(
    open_server: Open, published: Published, tmp_path: Path
) -> None:
    target = _killed_server(tmp_path, published, read=["large-0"])
    assert (target / "data/large-0").read_bytes() == published.large["large-0"], "its pages are the kernel's"
    with (target / "data/large-4").open("rb") as held:
        assert _error_of(target / "data/large-4") == errno.EIO
        opened = open_server(published.source())
        assert opened.mounts.adopt(lambda name: published.manifest) == (published.manifest.id,)
        assert held.read() == published.large["large-4"], "a file that was open goes on"
    assert opened.mounts.ensure(published.manifest) == target


@pytest.mark.slow
def test_a_layer_whose_manifest_is_lost_stays_mounted_and_fails_its_reads(
    open_server: Open, published: Published, tmp_path: Path
) -> None:
    target = _killed_server(tmp_path, published)
    shutil.rmtree(tmp_path / "cache")
    opened = open_server(published.source())

    def lost(name: str) -> LayerManifest:
        raise StoreUnavailableError(name)

    assert opened.mounts.adopt(lost) == ()
    assert _error_of(target / "data/large-4") == errno.EIO
    assert opened.mounts.mounted() == {published.manifest.id}


def test_reads_under_way_when_the_file_is_exchanged_are_all_answered(open_server: Open, published: Published) -> None:
    opened = open_server(published.source())
    root = opened.mounts.ensure(published.manifest)
    wrong: list[str] = []

    def read_all() -> None:
        for name in random.Random(threading.get_ident()).sample(sorted(published.large), 6):
            if (root / "data" / name).read_bytes() != published.large[name]:
                wrong.append(name)

    readers = [threading.Thread(target=read_all) for _ in range(4)]
    for reader in readers:
        reader.start()
    opened.server.bring(published.manifest.id, range(len(published.manifest.chunks)))
    opened.server.flush()
    for reader in readers:
        reader.join()
    assert wrong == []
