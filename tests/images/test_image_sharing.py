"""Images by way of an object store: what arrives is what was sent, what lies is refused, what is lazy is a layer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    InvalidRequestError,
    ObjectNotFoundError,
    StateCorruptedError,
)
from dsec.images.lazy.collection import publishing
from dsec.images.lazy.collection.objects import CHUNKS
from dsec.images.lazy.erofs.layout import LAYOUT
from dsec.images.lazy.formats.document import image_key
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, name_of
from dsec.images.lazy.publication.conversion import LayerFile, Sink, convert, publish
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.lazy.serving.client import kill_daemon
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, ImageInfo, LayerFormat
from dsec.stores.objects import ObjectStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.image_hosts import ImageHosts, image_hosts
from dsec.testing.image_suite import make_tree
from dsec.testing.releasing import release_all

pytestmark = pytest.mark.root

_CONFIG = ImageConfig(env={"A": "b"}, workdir="/w", user="1000")
T = TypeVar("T")


def _run(act: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(act)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[ImageHosts]:
    with image_hosts(tmp_path) as made:
        yield made


def _publish(hosts: ImageHosts, tmp_path: Path) -> tuple[ImageInfo, str]:
    here = hosts.host("here")
    layers = [here.add_layer(make_tree(tmp_path / name, **{name: name * 5000})) for name in "ab"]
    info = here.add_image("mine:v1", layers, _CONFIG, source="test")
    return info, _run(lambda: publish_image(here, "mine:v1", hosts.objects)).reference


def _pull(store: LocalImageStore, reference: str, objects: ObjectStore, name: str | None = None) -> ImageInfo:
    return _run(lambda: pull_image(store, reference, objects, name=name))


@pytest.mark.slow
def test_a_pulled_image_is_the_published_one_and_its_layers_are_read_lazily(hosts: ImageHosts, tmp_path: Path) -> None:
    info, reference = _publish(hosts, tmp_path)
    there = hosts.host("there")
    pulled = _pull(there, reference, hosts.objects)
    assert (pulled.name, pulled.image_id, pulled.config) == (info.name, info.image_id, info.config)
    assert [layer.digest for layer in pulled.layers] == [layer.digest for layer in info.layers]
    assert {layer.format for layer in pulled.layers} == {LayerFormat.LAZY}
    paths = there.mount(["mine:v1"]).layer_paths
    assert (paths[1] / "b").read_text() == "b" * 5000
    assert there.mount(["mine:v1"]).layer_paths == paths
    there.verify("mine:v1")


@pytest.mark.slow
def test_lazy_layers_are_unmounted_with_their_last_use_and_collected_with_their_last_name(
    hosts: ImageHosts, tmp_path: Path
) -> None:
    _, reference = _publish(hosts, tmp_path)
    used: set[str] = set()
    there = hosts.host("there", in_use=lambda: frozenset(used))
    pulled = _pull(there, reference, hosts.objects)
    used.update(layer.digest for layer in pulled.layers)
    there.mount(["mine:v1"])
    there.release()
    assert len(hosts.daemon().status().mounted) == 2
    used.clear()
    release_all(there, hosts.daemon())
    there.remove("mine:v1")
    assert list((there.root / "layers").iterdir()) == []


@pytest.mark.slow
def test_a_killed_daemon_is_no_matter_to_the_store(hosts: ImageHosts, tmp_path: Path) -> None:
    _, reference = _publish(hosts, tmp_path)
    used: set[str] = set()
    there = hosts.host("there", in_use=lambda: frozenset(used))
    used.update(layer.digest for layer in _pull(there, reference, hosts.objects).layers)
    paths = there.mount(["mine:v1"]).layer_paths
    kill_daemon(hosts.daemon())
    there.release()
    assert (paths[0] / "a").read_text() == "a" * 5000


def test_a_publication_of_something_long_says_how_far_it_is(
    hosts: ImageHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_LONG_BYTES", 2 * CHUNK_BYTES)
    here = hosts.host("here")
    tree = make_tree(tmp_path / "tree")
    (tree / "large").write_bytes(os.urandom(2 * CHUNK_BYTES))
    layers = [here.add_layer(tree), here.add_layer(make_tree(tmp_path / "small", a="a"))]
    here.add_image("mine:v1", layers, ImageConfig(), source="test")
    said: list[str] = []
    _run(lambda: publish_image(here, "mine:v1", hosts.objects, say=said.append))
    steps = [line for line in said if line.startswith("publishing layer")]
    assert [line.split()[2] for line in steps] == [f"{layers[0][7:19]}:"] * len(steps)
    assert len(steps) == 3
    *_, done, _, total = steps[-1].replace(" MiB", "").split()
    assert done == total


def test_an_eager_pull_makes_layers_like_those_that_were_made_here(hosts: ImageHosts, tmp_path: Path) -> None:
    info, reference = _publish(hosts, tmp_path)
    there = LocalImageStore(tmp_path / "there")
    try:
        pulled = _run(lambda: pull_image(there, reference, hosts.objects, eager=True))
        assert pulled.layers == info.layers
        assert (there.mount(["mine:v1"]).layer_paths[0] / "a").read_text() == "a" * 5000
        assert not (there.root / "lazy").exists()
    finally:
        there.close()
        remove_tree(there.root / "mounts")


def test_an_eager_pull_of_a_damaged_image_leaves_nothing(hosts: ImageHosts, tmp_path: Path) -> None:
    _, reference = _publish(hosts, tmp_path)
    for chunk in (tmp_path / "objects/layers/chunks").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    there = LocalImageStore(tmp_path / "there")
    try:
        with pytest.raises(StateCorruptedError):
            _run(lambda: pull_image(there, reference, hosts.objects, eager=True))
        assert there.list() == ()
        assert [*(there.root / "layers").iterdir(), *(there.root / "staging").iterdir()] == []
    finally:
        there.close()


def test_chunks_that_make_another_layer_than_was_said_are_refused(hosts: ImageHosts, tmp_path: Path) -> None:
    here = hosts.host("here")
    digest = here.add_layer(make_tree(tmp_path / "tree", a="1"))
    path, record = here.stored_layer(digest)
    lying = LayerFile(path, "sha256:" + "0" * 64, record.entries)
    manifest = _run(lambda: publish(lying, hosts.objects)).manifest
    layers = [{"digest": lying.layer, "manifest": manifest}]
    data = msgspec.json.encode({"version": 1, "name": "x", "config": {}, "source": "", "layers": layers})
    _run(lambda: hosts.objects.put(image_key(name_of(data)), data))
    with pytest.raises(StateCorruptedError, match="another one"):
        _run(lambda: pull_image(here, "b3:" + name_of(data), hosts.objects, eager=True))


def test_a_lazy_layer_says_where_it_comes_from(hosts: ImageHosts, tmp_path: Path) -> None:
    _, reference = _publish(hosts, tmp_path)
    there = hosts.host("there")
    digest = _pull(there, reference, hosts.objects).layers[0].digest
    assert there.stored_layer(digest)[1].origins == (hosts.objects.url,)
    elsewhere = FolderObjectStore(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "objects", tmp_path / "elsewhere", dirs_exist_ok=True)
    _pull(there, reference, elsewhere)
    assert there.stored_layer(digest)[1].origins == (elsewhere.url, hosts.objects.url)


def test_publishing_again_sends_nothing(hosts: ImageHosts, tmp_path: Path) -> None:
    _, reference = _publish(hosts, tmp_path)
    again = _run(lambda: publish_image(hosts.host("here"), "mine:v1", hosts.objects))
    assert (again.reference, again.new_chunks) == (reference, 0)


def test_what_a_store_has_is_not_cut_again(hosts: ImageHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, reference = _publish(hosts, tmp_path)
    here = hosts.host("here")
    cuts: list[LayerFile] = []

    def counted(file: LayerFile, sink: Sink) -> LayerManifest:
        cuts.append(file)
        return convert(file, sink)

    monkeypatch.setattr(publishing, "convert", counted)

    def publish_again() -> tuple[int, int]:
        cuts.clear()
        again = _run(lambda: publish_image(here, "mine:v1", hosts.objects))
        assert again.reference == reference
        return len(cuts), again.new_chunks

    assert publish_again() == (0, 0)
    # What is missing in the store is cut and sent, and only its layer.
    chunks = sorted((tmp_path / "objects/layers/chunks").glob("*/*"))
    kept = chunks[0].read_bytes()
    chunks[0].unlink()
    assert publish_again() == (1, 1)
    assert chunks[0].read_bytes() == kept
    manifest = next((tmp_path / "objects/layers/manifests").iterdir())
    manifest.unlink()
    assert publish_again() == (0, 0)
    assert manifest.exists()
    # So is what is noted wrongly, or not at all.
    first, second = (here.root / "cut").iterdir()
    first.write_bytes(first.read_bytes()[:-100])
    second.write_bytes(second.read_bytes().replace(b'"layout":%d' % LAYOUT, b'"layout":0'))
    assert publish_again() == (2, 0)
    assert publish_again() == (0, 0)
    elsewhere = FolderObjectStore(tmp_path / "elsewhere")
    assert _run(lambda: publish_image(here, "mine:v1", elsewhere)).new_chunks == len(chunks)
    assert len(cuts) == 2
    # Notes go with their layers.
    here.remove("mine:v1")
    other = here.add_layer(make_tree(tmp_path / "c", c="3"))
    here.add_image("mine:v2", [other], _CONFIG, source="test")
    _run(lambda: publish_image(here, "mine:v2", hosts.objects))
    assert [note.stem for note in (here.root / "cut").iterdir()] == [other.removeprefix("sha256:")]


def test_an_image_that_is_removed_while_it_is_published_is_published(hosts: ImageHosts, tmp_path: Path) -> None:
    here = hosts.host("here")
    layers = [here.add_layer(make_tree(tmp_path / name, **{name: name * 5000})) for name in "ab"]
    here.add_image("mine:v1", layers, ImageConfig(), source="test")

    class Removing(FaultyObjectStore):
        """A store to which chunks come after the image was removed by somebody else."""

        async def put(self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = 60.0) -> bool:
            if key.startswith(CHUNKS) and here.list():
                other = LocalImageStore(here.root)
                other.remove("mine:v1")
                other.close()
            return await self.inner.put(key, data, if_absent=if_absent, timeout_s=timeout_s)

    reference = anyio.run(publish_image, here, "mine:v1", Removing(hosts.objects)).reference
    assert list((here.root / "layers").iterdir()) == []
    there = hosts.host("there")
    anyio.run(pull_image, there, reference, hosts.objects)
    assert (there.mount(["mine:v1"]).layer_paths[1] / "b").read_text() == "b" * 5000


def test_a_pulled_image_can_be_published_where_its_layers_are_and_nowhere_else(
    hosts: ImageHosts, tmp_path: Path
) -> None:
    _, reference = _publish(hosts, tmp_path)
    there = hosts.host("there")
    _pull(there, reference, hosts.objects, name="other")
    again = _run(lambda: publish_image(there, "other", hosts.objects))
    assert again.new_chunks == 0
    elsewhere = FolderObjectStore(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequestError, match="only its name"):
        _run(lambda: publish_image(there, "other", elsewhere))


def test_a_layer_that_is_here_already_stays_as_it_is(hosts: ImageHosts, tmp_path: Path) -> None:
    _, reference = _publish(hosts, tmp_path)
    here = hosts.host("here")
    pulled = _pull(here, reference, hosts.objects, name="again")
    assert {layer.format for layer in pulled.layers} == {LayerFormat.EROFS}


@pytest.mark.slow
def test_no_document_takes_the_name_of_an_image_that_was_made_here(hosts: ImageHosts, tmp_path: Path) -> None:
    info, reference = _publish(hosts, tmp_path)
    there = hosts.host("there")
    made = there.add_image("mine:v1", [there.add_layer(make_tree(tmp_path / "c", c="c"))], _CONFIG, source="test")
    with pytest.raises(AlreadyExistsError, match="mine:v1"):
        _pull(there, reference, hosts.objects)
    assert there.get("mine:v1") == made
    assert _pull(there, reference, hosts.objects, name="mine:v1").image_id == info.image_id
    # What was pulled makes place for what is pulled next, and the same again is the same.
    third = hosts.host("third")
    third.add_image("mine:v1", [third.add_layer(make_tree(tmp_path / "d", d="d"))], _CONFIG, source="test")
    changed = _run(lambda: publish_image(third, "mine:v1", hosts.objects)).reference
    assert _pull(there, changed, hosts.objects).name == "mine:v1"
    assert _pull(there, reference, hosts.objects).image_id == info.image_id


@pytest.mark.parametrize("reference", ["b3:", "b3:../../x", "b3:" + "g" * 64])
def test_what_is_no_reference_is_refused_in_words(hosts: ImageHosts, reference: str) -> None:
    with pytest.raises(InvalidRequestError, match="reference"):
        _pull(hosts.host("there"), reference, hosts.objects)


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 300])
def test_what_is_no_tag_either_is_refused_in_words(hosts: ImageHosts, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"name|long"):
        _pull(hosts.host("there"), name, hosts.objects)


def test_an_image_that_is_not_there_is_said(hosts: ImageHosts) -> None:
    with pytest.raises(ObjectNotFoundError, match="no image"):
        _pull(hosts.host("there"), "b3:" + "ab" * 32, hosts.objects)


def test_a_document_that_was_changed_is_refused(hosts: ImageHosts, tmp_path: Path) -> None:
    _, reference = _publish(hosts, tmp_path)
    key = image_key(reference.removeprefix("b3:"))
    document = _run(lambda: hosts.objects.get(key))
    _run(lambda: hosts.objects.put(key, document.replace(b'"1000"', b'"0"')))
    with pytest.raises(StateCorruptedError, match="does not verify"):
        _pull(hosts.host("there"), reference, hosts.objects)


@pytest.mark.parametrize(
    "changes",
    [{"layers": []}, {"layers": [{"digest": "sha256:" + "0" * 64, "manifest": "../x"}]}, {"version": 2}, {"more": 1}],
)
def test_a_document_that_lies_leaves_nothing(hosts: ImageHosts, changes: dict[str, Any]) -> None:
    document = {"version": 1, "name": "x", "config": {}, "source": "", "layers": []} | changes
    data = msgspec.json.encode(document)
    _run(lambda: hosts.objects.put(image_key(name_of(data)), data))
    there = hosts.host("there")
    with pytest.raises((StateCorruptedError, CapabilityMissingError)):
        _pull(there, "b3:" + name_of(data), hosts.objects)
    assert there.list() == ()


def test_a_manifest_of_another_layer_is_refused(hosts: ImageHosts, tmp_path: Path) -> None:
    _, reference = _publish(hosts, tmp_path)
    document = msgspec.json.decode(_run(lambda: hosts.objects.get(image_key(reference.removeprefix("b3:")))))
    first, second = document["layers"]
    first["manifest"], second["manifest"] = second["manifest"], first["manifest"]
    data = msgspec.json.encode(document)
    _run(lambda: hosts.objects.put(image_key(name_of(data)), data))
    with pytest.raises(StateCorruptedError, match="another layer"):
        _pull(hosts.host("there"), "b3:" + name_of(data), hosts.objects)


def test_without_a_daemon_a_lazy_layer_says_what_is_missing(hosts: ImageHosts, tmp_path: Path) -> None:
    _, reference = _publish(hosts, tmp_path)
    there = LocalImageStore(tmp_path / "there")
    try:
        _pull(there, reference, hosts.objects)
        with pytest.raises(CapabilityMissingError, match="touched"):
            there.mount(["mine:v1"])
    finally:
        there.close()


def test_layers_that_are_directories_cannot_be_published(hosts: ImageHosts, tmp_path: Path) -> None:
    store = LocalImageStore(tmp_path / "plain", layer_format=LayerFormat.DIRECTORY)
    try:
        store.add_image("plain", [store.add_layer(make_tree(tmp_path / "t", a="1"))], _CONFIG, source="test")
        with pytest.raises(CapabilityMissingError, match="directory"):
            _run(lambda: publish_image(store, "plain", hosts.objects))
    finally:
        store.close()
