"""Lazy layers become whole: from what is cached, beside live mounts, again after a kill, and not on a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import HostDiskFullError
from dsec.images.layer_mounts import NoLazyLayers
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.caching.whole import PULLS, fetch_whole
from dsec.images.lazy.collection.roots import fetch_document
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, decode, encode
from dsec.images.lazy.peers.seeds import SEEDS, Seeds
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.lazy.serving.client import LayerDaemon, end_daemon, kill_daemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.lazy.source import chunk_key
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.linux import mounts
from dsec.model.image import ImageConfig, ImageInfo, LayerFormat
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.countdown import Countdown
from dsec.testing.ended_layers import end_layers
from dsec.testing.releasing import release_all

pytestmark = [pytest.mark.root, pytest.mark.slow]

_FILES, _FILE_BYTES = 4, 5 << 20


@dataclass
class Published:
    """An image of one layer in a folder."""

    root: Path
    reference: str
    digest: str
    contents: dict[str, bytes]

    def copied(self, target: Path) -> FolderObjectStore:
        """Return a store of its own that has it."""
        shutil.copytree(self.root / "objects", target)
        return FolderObjectStore(target)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    root = tmp_path_factory.mktemp("published")
    contents = {f"file-{number}": os.urandom(_FILE_BYTES) for number in range(_FILES)}
    (root / "tree").mkdir()
    for name, content in contents.items():
        (root / "tree" / name).write_bytes(content)
    store = LocalImageStore(root / "images")
    digest = store.add_layer(root / "tree")
    store.add_image("env", [digest], ImageConfig(), source="test")
    reference = anyio.run(publish_image, store, "env", FolderObjectStore(root / "objects")).reference
    store.close()
    return Published(root, reference, digest, contents)


@dataclass
class Host:
    """An image store with its daemon."""

    store: LocalImageStore
    daemon: LayerDaemon
    objects: FolderObjectStore
    reference: str
    told: list[tuple[int, int]] = field(default_factory=list)

    def pull(self, *, eager: bool) -> ImageInfo:
        async def pull() -> ImageInfo:
            return await pull_image(
                self.store, self.reference, self.objects, eager=eager, progress=lambda *told: self.told.append(told)
            )

        return anyio.run(pull)

    def kill_daemon(self) -> None:
        kill_daemon(self.daemon)


OpenHost = Callable[..., Host]


@pytest.fixture
def open_host(tmp_path: Path, published: Published) -> Iterator[OpenHost]:
    hosts: list[Host] = []

    def open_one(
        name: str = "here",
        *,
        in_use: Callable[[], frozenset[str] | None] = frozenset,
        has_daemon: bool = True,
        limit_bytes: int = 1 << 30,
    ) -> Host:
        objects = published.copied(tmp_path / f"objects-{len(hosts)}")
        root = tmp_path / name
        daemon = LayerDaemon(root / "lazy", DaemonOptions(store_url=objects.url, cache_limit_bytes=limit_bytes))
        lazy = daemon if has_daemon else NoLazyLayers()
        hosts.append(Host(LocalImageStore(root, lazy=lazy, layers_in_use=in_use), daemon, objects, published.reference))
        return hosts[-1]

    yield open_one
    try:
        for host in hosts:
            host.store.close()
    finally:
        end_layers(*(host.daemon.root for host in hosts))


def _read(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}


def _only_format(image: ImageInfo) -> LayerFormat:
    (layer,) = image.layers
    return layer.format


def test_a_lazy_layer_becomes_whole_under_live_mounts_and_needs_nobody_any_more(
    open_host: OpenHost, published: Published
) -> None:
    used: set[str] = {published.digest}
    host = open_host(in_use=lambda: frozenset(used))
    assert _only_format(host.pull(eager=False)) is LayerFormat.LAZY
    host.store.tag("env", "other")
    (root,) = host.store.mount(["env"]).layer_paths
    with (root / "file-0").open("rb") as held:
        assert held.read(1000) == published.contents["file-0"][:1000]
        assert _only_format(host.pull(eager=True)) is LayerFormat.EROFS
        assert Seeds(host.daemon.root / SEEDS).names(), "peers can be given its chunks"
        host.kill_daemon()
        shutil.rmtree(host.objects.url.removeprefix("file://"))
        assert held.read() == published.contents["file-0"][1000:]
        assert host.store.mount(["env"]).layer_paths == (root,)
        assert _read(root) == published.contents, "sandboxes go on with the mount that they have"
    assert {_only_format(image) for image in host.store.list()} == {LayerFormat.EROFS}, "by any name"
    used.clear()
    release_all(host.store, host.daemon)
    end_daemon(host.daemon.root)
    (root,) = host.store.mount(["other"]).layer_paths
    assert _read(root) == published.contents
    assert host.daemon.mounted() == frozenset(), "nobody serves it"
    host.store.verify("env")


def test_what_was_read_before_is_not_fetched_again(open_host: OpenHost, published: Published) -> None:
    host = open_host()
    host.pull(eager=False)
    (root,) = host.store.mount(["env"]).layer_paths
    assert (root / "file-1").read_bytes() == published.contents["file-1"]
    before = host.daemon.status()
    host.pull(eager=True)
    status = host.daemon.status()
    _, record = host.store.stored_layer(published.digest)
    metadata_bytes = status.cached_bytes - record.size_bytes
    assert status.fetched_bytes == record.size_bytes + metadata_bytes
    assert before.fetched_bytes > CHUNK_BYTES
    here, totals = zip(*host.told, strict=True)
    assert list(here) == sorted(here)
    assert (here[-1], set(totals)) == (record.size_bytes, {record.size_bytes})


def test_a_layer_that_is_here_as_it_had_been_cut_before_is_made_whole_as_it_is(
    open_host: OpenHost, published: Published
) -> None:
    """A layer can be published in two ways; the image that is pulled later names the other one."""
    host = open_host()
    host.pull(eager=False)
    file, record = host.store.stored_layer(published.digest)
    known = manifests.decode(file.read_bytes(), "test", expected=record.manifest)
    other = manifests.make(
        known.layer,
        known.size_bytes,
        known.entries,
        chunks=[(ref.id, ref.stored_bytes) for ref in known.chunks],
        metadata=[*known.metadata, Extent(known.size_bytes - 4096, 4096)],
        metadata_chunks=[(ref.id, ref.stored_bytes) for ref in known.metadata_chunks],
    )
    assert host.store.add_lazy_layer(other, origins=["file:///nowhere"]) == known.layer
    anyio.run(lambda: fetch_whole(host.store, other, origins=["file:///nowhere"]))
    assert _read(host.store.mount(["env"]).layer_paths[0]) == published.contents
    assert host.store.stored_layer(published.digest)[1].format is LayerFormat.EROFS


def test_an_import_of_what_is_here_lazily_makes_it_whole_and_live_mounts_go_on(
    open_host: OpenHost, published: Published
) -> None:
    host = open_host()
    host.pull(eager=False)
    (root,) = host.store.mount(["env"]).layer_paths
    digest = host.store.add_layer(published.root / "tree")
    assert digest == published.digest
    assert _only_format(host.store.get("env")) is LayerFormat.EROFS
    assert _read(root) == published.contents
    release_all(host.store, host.daemon)
    (root,) = host.store.mount(["env"]).layer_paths
    assert _read(root) == published.contents
    assert host.daemon.mounted() == frozenset()


def test_pulls_at_the_same_time_both_succeed_and_fetch_each_chunk_once(
    open_host: OpenHost, published: Published
) -> None:
    host = open_host()
    outcomes: list[LayerFormat] = []

    def pull() -> None:
        outcomes.append(_only_format(host.pull(eager=True)))

    threads = [threading.Thread(target=pull) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [LayerFormat.EROFS] * 2
    assert host.daemon.status().fetched_bytes == host.store.stored_layer(published.digest)[1].size_bytes


@pytest.mark.parametrize("has_daemon", [True, False])
@pytest.mark.parametrize("start", [1024, 6 << 20])
def test_what_rotted_between_two_pulls_is_fetched_again(
    open_host: OpenHost, published: Published, has_daemon: bool, start: int
) -> None:
    """The first was killed before it took the layer, or its image was removed: the cache has all of it still."""
    host = open_host(has_daemon=has_daemon)
    if has_daemon:
        host.pull(eager=True)
        host.store.remove("env")
        (data,) = (host.store.root / "lazy/cache").glob("*/data")
    else:
        data = _brought_by_a_killed_pull(host)
    with data.open("r+b") as file:
        file.seek(start)
        file.write(b"rotten" * 100)
    assert _only_format(host.pull(eager=True)) is LayerFormat.EROFS
    assert _read(host.store.mount(["env"]).layer_paths[0]) == published.contents


def _brought_by_a_killed_pull(host: Host) -> Path:
    """Have all of the layer in the cache of pulls without a daemon, and return its file there."""
    (described,) = anyio.run(fetch_document, host.objects, host.reference).layers
    manifest = anyio.run(fetch_manifest, host.objects, described.manifest)
    cache = LayerCache(host.store.root / PULLS)
    layer = cache.hold(manifest)
    for place, ref in enumerate(manifest.chunks):
        assert cache.store(layer, place, decode(ref, anyio.run(host.objects.get, chunk_key(ref.id)), "test"))
    cache.close()
    return layer.path


def test_pulls_without_a_daemon_wait_for_each_other(open_host: OpenHost, published: Published) -> None:
    hosts = [open_host(has_daemon=False) for _ in range(2)]
    threads = [threading.Thread(target=host.pull, kwargs={"eager": True}) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _only_format(hosts[0].store.get("env")) is LayerFormat.EROFS
    assert [path.name for path in (hosts[0].store.root / "pulls").iterdir() if path.is_dir()] == []


def test_a_layer_that_is_larger_than_the_cache_is_fetched_beside_it(open_host: OpenHost, published: Published) -> None:
    host = open_host(limit_bytes=2 * CHUNK_BYTES)
    assert _only_format(host.pull(eager=True)) is LayerFormat.EROFS
    assert _read(host.store.mount(["env"]).layer_paths[0]) == published.contents


_KILLED = """
import os, signal, sys
from pathlib import Path
import anyio
from dsec.images.layer_mounts import NoLazyLayers
from dsec.images.lazy.caching import whole
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.publication.sharing import pull_image
from dsec.images.store import LocalImageStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.countdown import Countdown
from dsec.testing.releasing import release_all
root, objects, reference, has_daemon = Path(sys.argv[1]), FolderObjectStore(Path(sys.argv[2])), sys.argv[3], sys.argv[4]
lazy = LayerDaemon(root / "lazy", DaemonOptions(store_url=objects.url)) if has_daemon else NoLazyLayers()
bring_whole = whole.bring_whole

def die(here=0, total=0):
    os.kill(os.getpid(), signal.SIGKILL)

def recording(fetcher, layer, *, progress):
    return bring_whole(fetcher, layer, progress=lambda here, total: (layer.flush(), die()))

whole.bring_whole = recording
anyio.run(lambda: pull_image(LocalImageStore(root, lazy=lazy), reference, objects, eager=True, progress=die))
"""


@pytest.mark.parametrize("has_daemon", [True, False])
def test_a_pull_that_was_killed_goes_on_with_what_it_had(
    open_host: OpenHost, published: Published, has_daemon: bool
) -> None:
    host = open_host(has_daemon=has_daemon)
    folder = host.objects.url.removeprefix("file://")
    kind = "daemon" if has_daemon else ""
    command = [sys.executable, "-c", _KILLED, str(host.store.root), folder, host.reference, kind]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    end_daemon(host.daemon.root)
    (present,) = (host.store.root / ("lazy/cache" if has_daemon else "pulls")).glob("*/present")
    # What was written and never synced may be lost: whoever comes next fetches it again.
    recorded = [byte == 1 for byte in present.read_bytes()[1:]]
    assert any(recorded)
    host.pull(eager=False)
    manifest_file, _ = host.store.stored_layer(published.digest)
    manifest = manifests.decode(manifest_file.read_bytes(), "test", expected=present.parent.name)
    for position, ref in enumerate(manifest.chunks):
        if recorded[position]:
            Path(folder, chunk_key(ref.id)).unlink(missing_ok=True)
    assert _only_format(host.pull(eager=True)) is LayerFormat.EROFS
    assert _read(host.store.mount(["env"]).layer_paths[0]) == published.contents


@pytest.mark.parametrize("has_daemon", [True, False])
@pytest.mark.parametrize("is_seen_before", [True, False])
def test_a_full_disk_is_said_and_nothing_is_left(
    open_host: OpenHost,
    published: Published,
    tmp_path: Path,
    has_daemon: bool,
    is_seen_before: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_seen_before:  # It becomes full meanwhile.
        monkeypatch.setattr("dsec.images.lazy.caching.whole._check_room", lambda images, manifest: None)
    (tmp_path / "here").mkdir()
    mounts.mount("tmpfs", tmp_path / "here", "tmpfs", options="size=10m")
    try:
        host = open_host(has_daemon=has_daemon)
        with pytest.raises(HostDiskFullError):
            host.pull(eager=True)
        assert host.store.list() == ()
        left = [*(host.store.root / "layers").iterdir(), *(host.store.root / "staging").iterdir()]
        caches = [host.store.root / "lazy/cache", host.store.root / "pulls"]
        left += [path for cache in caches if cache.exists() for path in cache.iterdir() if path.is_dir()]
        assert left == []
        assert [cache for cache in caches if cache.exists()] == [] or not is_seen_before
        end_daemon(host.daemon.root)
    finally:
        mounts.unmount(tmp_path / "here", detach=True)


def test_a_disk_without_any_room_is_said_and_nothing_is_left(open_host: OpenHost, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    mounts.mount("tmpfs", tmp_path / "here", "tmpfs", options="size=1m")
    try:
        host = open_host(has_daemon=False)
        with (tmp_path / "here/filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        for eager in (False, True):
            with pytest.raises(HostDiskFullError):
                host.pull(eager=eager)
        assert host.store.list() == ()
        assert [*(host.store.root / "layers").iterdir(), *(host.store.root / "staging").iterdir()] == []
    finally:
        mounts.unmount(tmp_path / "here", detach=True)


def test_what_a_pull_left_that_nobody_goes_on_with_is_taken_away(open_host: OpenHost, published: Published) -> None:
    host = open_host(has_daemon=False)
    pulls = host.store.root / "pulls"
    with contextlib.closing(LayerCache(pulls)) as cache:
        given_up, going_on = (_a_layer(number) for number in range(2))
        for manifest in (given_up, going_on):
            cache.release(cache.hold(manifest))
    os.utime(pulls / given_up.id, (0, 0))
    host.pull(eager=True)
    assert [path.name for path in pulls.iterdir() if path.is_dir()] == [going_on.id]


def _a_layer(number: int) -> LayerManifest:
    name, stored = encode(bytes([number]) * 8192)
    piece, metadata = (name, len(stored)), [Extent(0, 8192)]
    layer = f"sha256:{number:064x}"
    return manifests.make(layer, 8192, 1, chunks=[piece], metadata=metadata, metadata_chunks=[piece])


def _made_whole(root: Path, tree: Path, lines: int) -> bool:
    """Import what is here lazily in a process that dies after so many lines of ours; return whether it did."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        store = LocalImageStore(root)
        Countdown(lines, ["images"]).begin()
        store.add_layer(tree)
        sys.settrace(None)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_kill_at_any_line_leaves_the_lazy_layer_or_the_whole_one(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"a" * 5000)
    objects = FolderObjectStore(tmp_path / "objects")
    origin = LocalImageStore(tmp_path / "origin")
    origin.add_image("env", [origin.add_layer(tree)], ImageConfig(), source="test")
    reference = anyio.run(publish_image, origin, "env", objects).reference
    origin.close()
    formats, lines, died = set(), 40, True
    while died:
        root = tmp_path / str(lines)
        store = LocalImageStore(root)
        digest = anyio.run(pull_image, store, reference, objects).layers[0].digest
        store.close()
        died = _made_whole(root, tree, lines)
        store = LocalImageStore(root)
        path, record = store.stored_layer(digest)
        formats.add((died, record.format))
        if record.format is LayerFormat.LAZY:
            manifests.decode(path.read_bytes(), "test", expected=record.manifest)
        else:
            store.verify("env")
        assert store.add_layer(tree) == digest
        assert _only_format(store.get("env")) is LayerFormat.EROFS
        store.verify("env")
        assert list((root / "staging").iterdir()) == []
        store.close()
        remove_tree(root)
        lines += 37
    assert formats == {(True, LayerFormat.LAZY), (True, LayerFormat.EROFS), (False, LayerFormat.EROFS)}


def test_sandboxes_of_an_image_that_is_deleted_go_on_reading(open_host: OpenHost, published: Published) -> None:
    used: set[str] = {published.digest}
    host = open_host(in_use=lambda: frozenset(used))
    host.pull(eager=False)
    (root,) = host.store.mount(["env"]).layer_paths
    assert (root / "file-0").read_bytes() == published.contents["file-0"]
    host.store.remove("env")
    host.store.release()
    assert _read(root) == published.contents, "what was not here comes yet"
    host.kill_daemon()
    host.store.release()
    assert _read(root) == published.contents
    used.clear()
    release_all(host.store, host.daemon)
    assert list((host.store.root / "layers").iterdir()) == []
