"""Where lazy layers come from: one daemon for layers of many places, which it goes on knowing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import CapabilityMissingError, InvalidRequestError, ObjectNotFoundError, StoreUnavailableError
from dsec.images import erofs
from dsec.images.layers import LayerRecord
from dsec.images.lazy import origins as origins_module
from dsec.images.lazy.origins import Origins, open_origin
from dsec.images.lazy.publication.conversion import LayerFile, manifest_key, publish
from dsec.images.lazy.serving.client import LayerDaemon, kill_daemon, looked_after
from dsec.images.lazy.serving.daemon_options import DaemonOptions, read_options
from dsec.images.lazy.source import ObjectSource
from dsec.model.image import LayerFormat
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.chunk_source_suite import stored_chunks
from dsec.testing.ended_layers import layers_ended

_FILE_BYTES = 9 << 20


class Place:
    """An object store with one layer, of one large file."""

    def __init__(self, root: Path, name: str) -> None:
        self.content = os.urandom(_FILE_BYTES)
        tree = root / name / "tree"
        tree.mkdir(parents=True)
        (tree / "large").write_bytes(self.content)
        erofs.make(tree, root / name / "layer.erofs")
        self.store = FolderObjectStore(root / name / "store")
        self.url = self.store.url
        file = LayerFile(root / name / "layer.erofs", "sha256:" + "ab" * 32, 2)
        self.manifest = anyio.run(publish, file, self.store).manifest


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Place]:
    root = tmp_path_factory.mktemp("places")
    return Place(root, "one"), Place(root, "other")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "lazy"
    with layers_ended(root):
        yield root


@pytest.mark.root
@pytest.mark.slow
def test_one_daemon_serves_layers_of_many_places_and_so_does_the_next(root: Path, places: tuple[Place, Place]) -> None:
    one, other = places
    daemon = LayerDaemon(root, DaemonOptions(store_url=one.url))
    with pytest.raises(ObjectNotFoundError):
        daemon.mount(other.manifest)
    paths = [daemon.mount(one.manifest), daemon.mount(other.manifest, origins=[other.url])]
    kill_daemon(daemon)
    assert daemon.mount(one.manifest) == paths[0]
    for path, place in zip(paths, places, strict=True):
        assert (path / "large").read_bytes() == place.content


@pytest.mark.root
@pytest.mark.slow
def test_a_mounted_layer_is_read_from_where_it_was_pulled_last(
    root: Path, tmp_path: Path, places: tuple[Place, Place]
) -> None:
    one, other = places
    daemon = LayerDaemon(root, DaemonOptions(store_url=(tmp_path / "nothing").as_uri()))
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(anyio.run(one.store.get, manifest_key(one.manifest)))
    with pytest.raises(ObjectNotFoundError, match="chunk"):
        daemon.mount(one.manifest, origins=[other.url], file=manifest)
    path = daemon.mount(one.manifest, origins=[one.url], file=manifest)
    daemon.mount(one.manifest, origins=[other.url], file=manifest)
    with pytest.raises(OSError, match="Input/output"):
        (path / "large").read_bytes()
    daemon.mount(one.manifest, origins=[other.url, one.url])
    assert (path / "large").read_bytes() == one.content


@pytest.mark.root
@pytest.mark.slow
def test_a_daemon_that_was_started_with_other_options_takes_ours_and_no_read_fails(
    root: Path, tmp_path: Path, places: tuple[Place, Place]
) -> None:
    one, _ = places
    before = LayerDaemon(root, DaemonOptions(store_url=(tmp_path / "old").as_uri()))
    path = before.mount(one.manifest, origins=[one.url])
    first = before.status()
    ours = DaemonOptions(store_url=one.url, idle_s=30)
    daemon = LayerDaemon(root, ours)
    with (path / "large").open("rb") as file:
        assert file.read(1 << 20) == one.content[: 1 << 20]
        daemon.configure()
        assert file.read() == one.content[1 << 20 :]
    second = daemon.status()
    assert second.keeper_pid == first.keeper_pid
    assert second.pid != first.pid
    assert read_options(root) == ours
    daemon.configure()
    assert daemon.status().pid == second.pid


@pytest.mark.root
@pytest.mark.slow
def test_a_node_gives_its_options_to_a_daemon_that_a_command_started(root: Path, places: tuple[Place, Place]) -> None:
    one, _ = places
    ours = DaemonOptions(store_url=one.url, idle_s=30)
    with looked_after(LayerDaemon(root, ours), interval_s=0.05):
        command = LayerDaemon(root, DaemonOptions(store_url=one.url))
        path = command.mount(one.manifest)
        while read_options(root) != ours:
            time.sleep(0.01)
        assert (path / "large").read_bytes() == one.content


@pytest.mark.root
@pytest.mark.slow
def test_a_server_that_is_replaced_while_it_mounts_ends_and_the_layer_is_mounted(
    tmp_path: Path, places: tuple[Place, Place]
) -> None:
    one, _ = places
    for number in range(6):
        root = tmp_path / str(number)
        with layers_ended(root):
            daemon = LayerDaemon(root, DaemonOptions(store_url=one.url))
            daemon.status()
            # The moment is the input of this test: before, within and after the mount.
            other = LayerDaemon(root, DaemonOptions(store_url=one.url, idle_s=30))
            replacing = threading.Timer(0.002 * number, other.configure)
            replacing.start()
            path = daemon.mount(one.manifest)
            replacing.join()
            assert (path / "large").read_bytes() == one.content


def test_the_place_that_a_layer_was_pulled_from_last_is_asked_first_and_the_oldest_forgotten() -> None:
    record = LayerRecord(version=1, digest="sha256:x", format=LayerFormat.LAZY, size_bytes=1, entries=1, manifest="m")
    record = record.pulled_from(["a"]).pulled_from(["b"]).pulled_from(["a"])
    assert record.origins == ("a", "b")
    for number in range(9):
        record = record.pulled_from([f"c{number}"])
    assert record.origins == tuple(f"c{number}" for number in range(8, 0, -1))


def test_what_is_no_origin_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match="ftp"):
        open_origin("ftp://somewhere")
    monkeypatch.setattr(origins_module, "_REGISTRY_SOURCE", "dsec.images.none")
    with pytest.raises(CapabilityMissingError, match="registry"):
        open_origin("oci://registry:5000/env@sha256:" + "ab" * 32)


@pytest.mark.anyio
async def test_an_origin_that_cannot_be_opened_does_not_keep_others_from_being_asked(tmp_path: Path) -> None:
    _, (ref, *_) = stored_chunks()
    folder = (tmp_path / "store").as_uri()
    origins = Origins(default=folder)
    broken, whole = await origins.sources(["ftp://somewhere", folder])
    with pytest.raises(StoreUnavailableError, match="ftp"):
        await broken.fetch(ref)
    assert isinstance(whole, ObjectSource)
    assert await origins.sources([]) == (whole,), "nobody said where, and it is opened once"
