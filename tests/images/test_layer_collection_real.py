"""Collection with real processes: collectors that are killed, daemons with caches, mounts, creates at the same time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from dsec.base.errors import ObjectNotFoundError
from dsec.images.lazy.collection.collector import collect_layers
from dsec.images.lazy.collection.local import collect_local
from dsec.images.lazy.collection.objects import FORMAT, PINS, Part
from dsec.images.lazy.collection.opened import open_layer_objects
from dsec.images.lazy.collection.renewing import renew
from dsec.images.lazy.collection.roots import fetch_document, unpublish
from dsec.images.lazy.formats.document import IMAGES
from dsec.images.lazy.formats.stored import encode
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.images.lazy.publication.pulled import PulledFrom, forget_others, note_pulled, pulled_from
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.stores.objects import ObjectInfo, ObjectStore
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.image_hosts import ImageHosts, image_hosts

pytestmark = [pytest.mark.root, pytest.mark.slow]

T = TypeVar("T")


def _run(act: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(act)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[ImageHosts]:
    with image_hosts(tmp_path) as made:
        yield made


def _publish(hosts: ImageHosts, tmp_path: Path, *, megabytes: int = 9) -> tuple[str, bytes]:
    """Publish an image of several chunks from a host; return its reference and the content of its file ``data``."""
    tree = tmp_path / "tree"
    tree.mkdir()
    content = random.Random(7).randbytes(megabytes << 20)
    (tree / "data").write_bytes(content)
    here = hosts.host("here")
    here.add_image("mine:v1", [here.add_layer(tree)], ImageConfig(), source="test")
    return _run(lambda: publish_image(here, "mine:v1", hosts.objects, tag="mine:v1")).reference, content


_COLLECT = """
import sys, anyio
from pathlib import Path
from dsec.images.lazy.collection.collector import collect_layers
from dsec.images.lazy.collection.opened import open_layer_objects
from dsec.stores.objects_folder import FolderObjectStore
async def main():
    store = FolderObjectStore(Path(sys.argv[1]))
    print("begun", flush=True)
    while True:
        await collect_layers(await open_layer_objects(store))
anyio.run(main)
"""
_DAYS_S = 3 * 86_400


def _age(root: Path) -> None:
    """Let days pass for what is to be deleted, and for its tombstones."""
    for path in [*root.rglob("doomed/*/*"), *root.rglob("chunks/*/*")]:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            os.utime(path, (status.st_atime - _DAYS_S, status.st_mtime - _DAYS_S))


def test_a_collector_that_is_killed_again_and_again_is_finished_by_the_next(hosts: ImageHosts, tmp_path: Path) -> None:
    """Two at a time, killed at any instant, over chunks that nothing names, beside an image that stays."""
    reference, _ = _publish(hosts, tmp_path, megabytes=1)
    root = tmp_path / "objects/layers"

    async def fill() -> None:
        for number in range(150):
            name, data = encode(str(number).encode())
            await hosts.objects.put(Part.chunk(name).key, data)

    _run(fill)
    draw = random.Random(5)
    for _ in range(3):
        _age(root)
        command = [sys.executable, "-c", _COLLECT, str(tmp_path / "objects")]
        collectors = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        for collector in collectors:
            assert collector.stdout is not None
            collector.stdout.readline()
        for collector in collectors:
            threading.Event().wait(draw.random() * 0.2)
            os.kill(collector.pid, signal.SIGKILL)
            collector.communicate()

    async def finish() -> None:
        for _ in range(5):
            _age(root)
            await collect_layers(await open_layer_objects(hosts.objects))
        manifest = await fetch_manifest(
            hosts.objects, (await fetch_document(hosts.objects, reference)).layers[0].manifest
        )
        needed = {Part.chunk(ref.id).key for ref in (*manifest.chunks, *manifest.metadata_chunks)}
        assert {info.key async for info in hosts.objects.list("layers/chunks/")} == needed
        assert [info.key async for info in hosts.objects.list("layers/doomed/")] == []

    _run(finish)


def test_a_pull_whose_image_is_unpublished_meanwhile_says_so_and_leaves_nothing(
    hosts: ImageHosts, tmp_path: Path
) -> None:
    reference, _ = _publish(hosts, tmp_path)

    class Racing(FaultyObjectStore):
        async def put(self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = 60.0) -> bool:
            if key.startswith(PINS):
                await unpublish(self.inner, "mine:v1")
            return await self.inner.put(key, data, if_absent=if_absent, timeout_s=timeout_s)

    there = hosts.host("there")
    with pytest.raises(ObjectNotFoundError, match="unpublished"):
        _run(lambda: pull_image(there, reference, Racing(hosts.objects)))
    assert there.list() == ()
    assert list((there.root / "layers").iterdir()) == []


def test_a_collection_here_leaves_the_pins_and_notes_of_a_pull_at_the_same_time(
    hosts: ImageHosts, tmp_path: Path
) -> None:
    reference, _ = _publish(hosts, tmp_path)
    there = hosts.host("there")
    taken_back = []

    class Collecting(FaultyObjectStore):
        """A store to which, after the pins are put, a collection comes first."""

        async def head(self, key: str, *, timeout_s: float = 60.0) -> ObjectInfo | None:
            if key.startswith(IMAGES):
                taken_back.append((await collect_local(there, None, self.inner.url)).unpinned)
            return await self.inner.head(key, timeout_s=timeout_s)

    image = _run(lambda: pull_image(there, reference, Collecting(hosts.objects)))
    assert (taken_back, _pins(hosts)) == ([0], 1)

    def known_a_moment_ago() -> frozenset[str]:
        note_pulled(there.root, "sha256:" + "ab" * 32, PulledFrom(reference=reference, store=hosts.objects.url))
        return frozenset({image.image_id})

    forget_others(there.root, known_a_moment_ago)
    assert pulled_from(there.root, "sha256:" + "ab" * 32) is not None


class _Later(FaultyObjectStore):
    """A store whose clock has gone on by two days for all objects but pins: nobody can wait for a grace period."""

    async def head(self, key: str, *, timeout_s: float = 60.0) -> ObjectInfo | None:
        info = await self.inner.head(key, timeout_s=timeout_s)
        if info is None or not key.startswith("layers/clock/"):
            return info
        return ObjectInfo(key=key, size_bytes=info.size_bytes, modified_at_s=info.modified_at_s + self.ahead_s)

    ahead_s = 0.0


def test_an_image_that_is_removed_and_unpublished_while_sandboxes_use_it_is_read_to_its_end(
    hosts: ImageHosts, tmp_path: Path
) -> None:
    reference, content = _publish(hosts, tmp_path)
    there = hosts.host("there")
    _run(lambda: pull_image(there, "mine:v1", hosts.objects))
    path = there.mount(["mine:v1"]).layer_paths[0] / "data"
    with path.open("rb") as file:
        assert file.read(10) == content[:10]
        there.remove("mine:v1")
        _run(lambda: unpublish(hosts.objects, "mine:v1"))
        _run(lambda: collect_local(there, hosts.daemon(), hosts.objects.url))
        later = _Later(hosts.objects)
        for ahead_s in (2.0, 4.0, 6.0):
            later.ahead_s = ahead_s * 86_400
            assert _run(lambda: _collect_at(later)) == 0
        assert content[:10] + file.read() == content
    assert reference


async def _collect_at(store: ObjectStore) -> int:
    return (await collect_layers(await open_layer_objects(store))).deleted


def test_what_is_cached_of_a_removed_image_goes_and_what_is_mounted_stays(hosts: ImageHosts, tmp_path: Path) -> None:
    _, content = _publish(hosts, tmp_path)
    there = hosts.host("there")
    _run(lambda: pull_image(there, "mine:v1", hosts.objects))
    path = there.mount(["mine:v1"]).layer_paths[0] / "data"
    assert path.read_bytes() == content
    cached_bytes = hosts.daemon().status().cached_bytes
    assert _here(there, hosts).cached_layers == 0
    there.remove("mine:v1")
    assert _here(there, hosts).cached_layers == 0
    assert _pins(hosts) == 1
    there.release()
    assert _here(there, hosts, dry_run=True).freed_bytes == cached_bytes
    assert hosts.daemon().status().cached_bytes == cached_bytes
    done = _here(there, hosts)
    assert (done.cached_layers, done.freed_bytes, done.unpinned) == (1, cached_bytes, 1)
    assert hosts.daemon().status().cached_bytes == 0
    assert _pins(hosts) == 0


def _here(there: LocalImageStore, hosts: ImageHosts, *, dry_run: bool = False):  # type: ignore[no-untyped-def]
    return _run(lambda: collect_local(there, hosts.daemon(), hosts.objects.url, dry_run=dry_run))


def _pins(hosts: ImageHosts) -> int:
    async def count() -> int:
        return len([info async for info in hosts.objects.list(PINS)])

    return _run(count)


def test_collecting_here_disturbs_no_create_at_the_same_time(hosts: ImageHosts, tmp_path: Path) -> None:
    reference, content = _publish(hosts, tmp_path, megabytes=5)
    there = hosts.host("there")
    ended = threading.Event()
    failures: list[BaseException] = []

    def collect_on_and_on() -> None:
        try:
            while not ended.is_set():
                _here(there, hosts)
        except BaseException as error:
            failures.append(error)
            raise

    collector = threading.Thread(target=collect_on_and_on)
    collector.start()
    try:
        for _ in range(12):
            _run(lambda: pull_image(there, reference, hosts.objects))
            mounted = there.mount(["mine:v1"]).layer_paths[0]
            assert (mounted / "data").read_bytes() == content
            there.remove("mine:v1")
            there.release()
    finally:
        ended.set()
        collector.join()
    assert failures == []
    assert list((there.root / "layers").iterdir()) == []


def test_whoever_serves_layers_renews_their_pins(hosts: ImageHosts, tmp_path: Path) -> None:
    _publish(hosts, tmp_path)
    there = hosts.host("there")
    pulled = _run(lambda: pull_image(there, "mine:v1", hosts.objects))
    _, record = there.stored_layer(pulled.layers[0].digest)

    async def pinned_at_s() -> list[float]:
        return [info.modified_at_s async for info in hosts.objects.list(PINS)]

    (before,) = _run(pinned_at_s)
    assert renew(there.root, {record.manifest: record.origins})
    (after,) = _run(pinned_at_s)
    assert after > before
    assert not renew(there.root, {record.manifest: (f"file://{tmp_path}/objects/{FORMAT}",)})
