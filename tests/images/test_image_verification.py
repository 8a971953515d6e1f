"""Verification names exactly what is wrong, and repair makes it good: real files, bit by bit, chunk by chunk."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
import pytest
from click.testing import CliRunner

from dsec.cli.main import cli
from dsec.images.lazy.collection.objects import Part, TombstoneState
from dsec.images.lazy.collection.roots import put_document, unpublish
from dsec.images.lazy.formats.document import image_key, name_in
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef, name_of
from dsec.images.lazy.publication.conversion import LayerFile, fetch_manifest, publish
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.lazy.tracing.traces import TraceShelf
from dsec.images.lazy.verifying.findings import Finding, VerifyOptions
from dsec.images.lazy.verifying.verification import verify_image
from dsec.images.registry.client import RegistryClient
from dsec.images.registry.pull import PullRequest, pull_from_registry
from dsec.images.registry.push import PushRequest, push_image
from dsec.images.registry.reference import parse_reference
from dsec.images.registry.source import RegistrySource, close_shared
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.image_hosts import ImageHosts, image_hosts
from dsec.testing.registry_server import RegistryServer
from dsec.testing.traces import trace_of_end

pytestmark = [pytest.mark.root, pytest.mark.slow]

T = TypeVar("T")
_NODE = "n0de1d"
_DATA = random.Random(11).randbytes(9 << 20)


def _run(act: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(act)


@dataclass(frozen=True, slots=True)
class _Published:
    """An image of two layers in a store that no test changes.

    Attributes:
        root: of the host that made it.
        objects: directory of the store.
        reference, digests: of the image and its layers.
    """

    root: Path
    objects: Path
    reference: str
    digests: list[str]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Published]:
    root = tmp_path_factory.mktemp("published")
    with image_hosts(root) as hosts:
        here, digests = hosts.host("here"), []
        for name, content in (("small", b"s" * 5000), ("data", _DATA)):
            (root / name).mkdir()
            (root / name / name).write_bytes(content)
            digests.append(here.add_layer(root / name))
        here.add_image("mine:v1", digests, ImageConfig(), source="test")
        reference = _run(lambda: publish_image(here, "mine:v1", hosts.objects)).reference
        yield _Published(root, root / "objects", reference, digests)


class _Image:
    """The published image, its store copied, on a host that pulled it and looks at it."""

    def __init__(self, hosts: ImageHosts, root: Path, published: _Published, *, eager: bool) -> None:
        self.hosts = hosts
        shutil.copytree(published.objects, root / "objects", dirs_exist_ok=True)
        self.reference, self.digests = published.reference, published.digests
        self.store = hosts.host("there")
        _run(lambda: pull_image(self.store, self.reference, hosts.objects, eager=eager))
        self.paths = self.store.mount(["mine:v1"]).layer_paths
        self.objects = root / "objects/layers"
        record = self.store.stored_layer(self.digests[1])[1]
        self.manifest: LayerManifest = _run(lambda: fetch_manifest(hosts.objects, record.manifest))

    @property
    def directory(self) -> Path:
        """Of the second layer in the image store."""
        return self.store.root / "layers" / self.digests[1].removeprefix("sha256:")

    @property
    def cached(self) -> Path:
        return self.store.root / "lazy/cache" / self.manifest.id / "data"

    def chunk_object(self, place: int) -> Path:
        return self.objects.parent / Part.chunk(self.manifest.chunks[place].id).key

    def read(self) -> bytes:
        return (self.paths[1] / "data").read_bytes()

    def findings(self, *, full: bool = False, repair: bool = False) -> dict[str, Finding]:
        options = VerifyOptions(node=_NODE, store_url=self.hosts.objects.url, full=full, repair=repair)

        async def collect() -> dict[str, Finding]:
            found = verify_image(self.store, "mine:v1", self.hosts.daemon(), options)
            return {finding.part: finding async for finding in found}

        return anyio.run(collect)

    def bad(self, *, full: bool = False, repair: bool = False) -> dict[str, Finding]:
        return {part: finding for part, finding in self.findings(full=full, repair=repair).items() if not finding.ok}

    def numbers(self, places: Sequence[int]) -> str:
        """Return how chunks are named, without those that the layer has not got."""
        return ", ".join(f"chunk {place}" for place in places if place < len(self.manifest.chunks))

    def is_good(self) -> bool:
        return not self.bad(full=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[ImageHosts]:
    with image_hosts(tmp_path) as made:
        yield made


@pytest.fixture
def lazy(hosts: ImageHosts, tmp_path: Path, published: _Published) -> _Image:
    return _Image(hosts, tmp_path, published, eager=False)


@pytest.fixture
def whole(hosts: ImageHosts, tmp_path: Path, published: _Published) -> _Image:
    return _Image(hosts, tmp_path, published, eager=True)


def _flip(path: Path, at: int) -> None:
    """Turn over one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def _swap(path: Path, one: int, other: int) -> None:
    """Exchange two chunks of a file."""
    with path.open("r+b") as file:
        contents = []
        for place in (one, other):
            file.seek(place * CHUNK_BYTES)
            contents.append(file.read(CHUNK_BYTES))
        for place, content in zip((other, one), contents, strict=True):
            file.seek(place * CHUNK_BYTES)
            file.write(content)


# Whole layers.


def _flip_one(file: Path) -> None:
    _flip(file, CHUNK_BYTES + 12_345)


def _swap_two(file: Path) -> None:
    _swap(file, 0, 1)


def _cut(file: Path) -> None:
    os.truncate(file, CHUNK_BYTES + 4096)


def _lose(file: Path) -> None:
    file.unlink()


def _empty(file: Path) -> None:
    os.truncate(file, 0)


@pytest.mark.parametrize(
    ("damage", "named"),
    [(_flip_one, [1]), (_swap_two, [0, 1]), (_cut, range(1, 9)), (_lose, range(9)), (_empty, range(9))],
)
def test_a_whole_layer_that_was_pulled_is_named_by_its_chunks_and_mended(
    whole: _Image, damage: Callable[[Path], None], named: Sequence[int]
) -> None:
    assert whole.is_good()
    damage(whole.directory / "layer.erofs")
    bad = whole.bad()
    assert set(bad) == {"layer-2"}
    assert bad["layer-2"].detail.endswith(f"chunks do not verify: {whole.numbers(named)}")
    assert (bad["layer-2"].node, bad["layer-2"].layer) == (_NODE, whole.digests[1])
    assert "--repair" in bad["layer-2"].advice
    repaired = whole.findings(repair=True)["layer-2"]
    assert (repaired.ok, repaired.repaired) == (True, True)
    assert whole.is_good()
    if damage is not _lose:  # Its mount has the lost file, which is sound.
        assert whole.read() == _DATA


def test_a_whole_layer_is_mended_under_a_reader_who_goes_on(whole: _Image) -> None:
    with (whole.paths[1] / "data").open("rb") as file:
        assert file.read(5000) == _DATA[:5000]
        _flip_one(whole.directory / "layer.erofs")
        whole.findings(repair=True)
        assert file.read() == _DATA[5000:]


def test_a_whole_layer_that_cannot_be_had_again_says_where_it_was_asked_for(whole: _Image) -> None:
    _flip_one(whole.directory / "layer.erofs")
    whole.chunk_object(1).unlink()
    bad = whole.bad(repair=True)
    assert "chunk 1: " in bad["layer-2"].detail
    assert whole.hosts.objects.url in bad["layer-2"].advice


def test_a_layer_that_was_made_here_is_named_by_its_hash(
    hosts: ImageHosts, tmp_path: Path, published: _Published
) -> None:
    image = _Image(hosts, tmp_path, published, eager=False)
    shutil.copytree(published.root / "here", tmp_path / "here", ignore=shutil.ignore_patterns("mounts"))
    image.store = hosts.host("here")
    path, _ = image.store.stored_layer(image.digests[1])
    _flip_one(path)
    bad = image.bad()
    assert set(bad) == {"layer-2"}
    assert f"expected {image.digests[1][7:19]}" in bad["layer-2"].detail
    assert "import or pull layer-2 again" in bad["layer-2"].advice
    os.truncate(path, 1)
    assert set(image.bad()) == {"layer-2"}
    shutil.rmtree(image.objects)
    assert "no copy can be had" in image.bad(repair=True)["layer-2"].detail


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "forgotten"])
def test_a_layer_that_was_made_here_is_replaced_by_what_its_store_has_of_it(
    hosts: ImageHosts, tmp_path: Path, published: _Published, *, noted: bool
) -> None:
    image = _Image(hosts, tmp_path, published, eager=False)
    shutil.copytree(published.root / "here", tmp_path / "here", ignore=shutil.ignore_patterns("mounts"))
    image.store = hosts.host("here")
    if not noted:
        shutil.rmtree(image.store.root / "cut")
    _flip_one(image.store.stored_layer(image.digests[1])[0])
    repaired = image.findings(repair=True)["layer-2"]
    assert (repaired.ok, repaired.repaired) == (True, True)
    assert image.is_good()
    image.paths = image.store.mount(["mine:v1"]).layer_paths
    assert image.read() == _DATA
    _flip_one(image.store.stored_layer(image.digests[1])[0])  # From now on it is known by its chunks.
    assert "chunk 1" in image.bad()["layer-2"].detail
    assert image.findings(repair=True)["layer-2"].repaired


# What is cached.


@pytest.mark.parametrize(
    ("damage", "bad"),
    [(_flip_one, "1 of"), (_swap_two, "2 of"), (_empty, "4 of")],
)
def test_a_cached_layer_is_named_by_its_chunks_and_fetched_again(
    lazy: _Image, damage: Callable[[Path], None], bad: str
) -> None:
    assert lazy.read() == _DATA
    assert lazy.is_good()
    damage(lazy.cached)
    finding = lazy.bad(repair=False)["layer-2 cache"]
    assert (finding.detail.startswith(bad), "chunk 1" in finding.detail) == (True, True)
    assert finding.node == _NODE
    assert lazy.read() == _DATA
    damage(lazy.cached)
    repaired = lazy.findings(repair=True)["layer-2 cache"]
    assert (repaired.ok, repaired.repaired) == (True, True)
    assert lazy.is_good()


@pytest.mark.parametrize("repair", [False, True])
def test_what_is_cached_is_mended_although_it_cannot_be_mounted(lazy: _Image, repair: bool) -> None:
    lazy.read()
    lazy.store.release()
    _flip(lazy.cached, 1024)  # Where the superblock begins.
    finding = lazy.findings(repair=repair)["layer-2 cache"]
    assert (finding.ok, "metadata" in finding.detail) == (repair, True)
    assert lazy.store.mount(["mine:v1"]).layer_paths == lazy.paths
    assert lazy.read() == _DATA


# Records and manifests.


def _other(path: Path) -> None:
    """Put the file of the other layer in its place."""
    mine = path.parent.name
    (other,) = (each for each in path.parent.parent.iterdir() if each.name != mine)
    path.write_bytes((other / path.name).read_bytes())


def _garbage(path: Path) -> None:
    path.write_bytes(b"{")


@pytest.mark.parametrize("file", ["layer.json", "manifest.json"])
@pytest.mark.parametrize("damage", [_garbage, _lose, _other])
def test_what_is_written_down_of_a_lazy_layer_is_named_and_written_anew(
    lazy: _Image, file: str, damage: Callable[[Path], None]
) -> None:
    damage(lazy.directory / file)
    bad = lazy.bad()
    assert set(bad) == {"manifest of layer-2"}
    assert "manifest" not in lazy.findings()
    assert bad["manifest of layer-2"].layer == lazy.digests[1]
    repaired = lazy.findings(repair=True)["manifest of layer-2"]
    assert (repaired.ok, repaired.repaired) == (True, True)
    assert lazy.is_good()
    assert lazy.read() == _DATA


@pytest.mark.parametrize("damage", [_garbage, _lose, _other])
def test_the_record_of_a_whole_layer_is_written_anew_from_its_file(
    whole: _Image, damage: Callable[[Path], None]
) -> None:
    damage(whole.directory / "layer.json")
    assert set(whole.bad()) == {"manifest of layer-2"}
    assert whole.findings(repair=True)["manifest of layer-2"].repaired
    assert whole.is_good()


def test_an_image_that_is_removed_while_it_is_verified_is_not_called_damaged(whole: _Image) -> None:
    whole.store.release()
    options = VerifyOptions(node=_NODE, store_url=whole.hosts.objects.url, full=True)

    async def collect() -> list[Finding]:
        found = []
        async for finding in verify_image(whole.store, "mine:v1", whole.hosts.daemon(), options):
            found.append(finding)
            if len(found) == 1:
                whole.store.remove("mine:v1")
        return found

    found = anyio.run(collect)
    assert [finding for finding in found if not finding.ok] == []
    assert len(found) > 2
    assert list((whole.store.root / "layers").iterdir()) == []


def test_a_record_that_was_lost_with_its_file_rotten_is_written_anew_and_the_file_mended(whole: _Image) -> None:
    (whole.directory / "layer.json").unlink()
    _flip(whole.directory / "layer.erofs", CHUNK_BYTES + 1)
    found = whole.findings(repair=True)
    assert [found[part].repaired for part in ("manifest of layer-2", "layer-2")] == [True, True]
    assert whole.is_good()


def test_a_record_that_was_lost_does_not_name_a_manifest_that_its_file_is_not_cut_by(whole: _Image) -> None:
    """As one that was made here is, and pulled afterwards: mending would write another file over it."""
    file = whole.directory / "layer.erofs"
    with file.open("r+b") as longer:
        longer.truncate(file.stat().st_size + 4096)
    (whole.directory / "layer.json").unlink()
    whole.findings(repair=True)
    assert whole.store.stored_layer(whole.digests[1])[1].manifest == ""
    assert whole.is_good()


def test_a_manifest_comes_from_the_cache_where_its_store_has_lost_it(lazy: _Image) -> None:
    (lazy.directory / "manifest.json").unlink()
    shutil.rmtree(lazy.objects / "manifests")
    assert lazy.findings(repair=True)["manifest of layer-2"].repaired


def test_a_manifest_that_its_store_lost_is_found_by_the_document_that_this_host_kept(lazy: _Image) -> None:
    (lazy.directory / "layer.json").unlink()
    (lazy.directory / "manifest.json").unlink()
    shutil.rmtree(lazy.objects)
    assert lazy.findings(repair=True)["manifest of layer-2"].repaired


def test_what_nobody_has_is_said(lazy: _Image) -> None:
    (lazy.directory / "layer.json").unlink()
    (lazy.directory / "manifest.json").unlink()
    shutil.rmtree(lazy.store.root / "pulled")
    shutil.rmtree(lazy.objects)
    bad = lazy.bad(repair=True)
    assert "cannot be written anew" in bad["manifest of layer-2"].detail
    assert "pull or import" in bad["manifest of layer-2"].advice


# Stores.


def _swap_objects(lazy: _Image) -> None:
    one, other = lazy.chunk_object(0), lazy.chunk_object(1)
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda lazy: _flip(lazy.chunk_object(1), 99), ["chunk 1: "]),
        (lambda lazy: os.truncate(lazy.chunk_object(1), 99), ["chunk 1: "]),
        (lambda lazy: _garbage(lazy.chunk_object(1)), ["chunk 1: "]),
        (lambda lazy: lazy.chunk_object(1).unlink(), ["chunk 1: it is not there"]),
        (_swap_objects, ["chunk 0: ", "chunk 1: "]),
        (lambda lazy: _garbage(lazy.objects / f"manifests/{lazy.manifest.id}.json"), ["manifest: "]),
        (lambda lazy: (lazy.objects / f"manifests/{lazy.manifest.id}.json").unlink(), ["manifest: it is not there"]),
    ],
)
def test_what_is_wrong_in_a_store_is_named_and_put_there_anew_from_here(
    lazy: _Image, damage: Callable[[_Image], None], named: list[str]
) -> None:
    assert lazy.read() == _DATA
    damage(lazy)
    assert lazy.bad() == {}
    finding = lazy.bad(full=True)["layer-2 store"]
    assert all(name in finding.detail for name in named)
    assert finding.node == lazy.hosts.objects.url
    repaired = lazy.findings(full=True, repair=True)["layer-2 store"]
    assert (repaired.ok, repaired.repaired) == (True, True)
    assert lazy.is_good()


def test_what_this_host_has_not_got_is_put_anew_from_another_origin(lazy: _Image, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "objects", tmp_path / "second")
    second = FolderObjectStore(tmp_path / "second")
    _run(lambda: pull_image(lazy.store, lazy.reference, second))
    lazy.chunk_object(1).unlink()
    bad = lazy.bad(full=True)
    assert [finding.node for finding in bad.values()] == [lazy.hosts.objects.url]
    assert lazy.findings(full=True, repair=True)["layer-2 store"].ok
    assert lazy.is_good()


def test_what_nobody_has_stays_wrong_and_is_named(lazy: _Image) -> None:
    lazy.chunk_object(1).unlink()
    bad = lazy.bad(full=True, repair=True)
    assert "chunk 1 is neither here nor in another origin" in bad["layer-2 store"].detail
    assert "publish the image again" in bad["layer-2 store"].advice


def test_a_store_is_not_given_what_it_is_deleting(lazy: _Image) -> None:
    assert lazy.read() == _DATA
    lazy.chunk_object(1).unlink()
    tombstone = lazy.objects.parent / Part.chunk(lazy.manifest.chunks[1].id).tombstone_key
    tombstone.parent.mkdir(parents=True)
    tombstone.write_bytes(TombstoneState.DELETED.value)
    assert "being deleted" in lazy.bad(full=True, repair=True)["layer-2 store"].detail


def test_a_store_that_is_not_there_is_named(lazy: _Image, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "objects")
    bad = lazy.bad(full=True)
    assert bad["layer-2 store"].node == lazy.hosts.objects.url
    assert "is not there" in bad["document"].detail
    assert not (tmp_path / "objects").exists()


# The document, and lies.


def test_a_document_that_was_changed_or_unpublished_is_named(lazy: _Image) -> None:
    found = lazy.findings(full=True)["document"]
    assert (found.ok, found.node) == (True, lazy.hosts.objects.url)
    path = lazy.objects.parent / image_key(name_in(lazy.reference))
    _flip(path, 10)
    assert "its name is" in lazy.bad(full=True)["document"].detail
    _flip(path, 10)
    _run(lambda: unpublish(lazy.hosts.objects, lazy.reference))
    assert "unpublished" in lazy.findings(full=True)["document"].detail
    assert lazy.is_good()


def _lying(hosts: ImageHosts, file: Path, entries: int) -> str:
    """Publish an image whose manifest says another layer than its chunks make, and return its reference."""
    lying = LayerFile(file, "sha256:" + "0" * 64, entries)
    manifest = _run(lambda: publish(lying, hosts.objects)).manifest
    data = msgspec.json.encode(
        {
            "version": 1,
            "name": "x",
            "config": {},
            "source": "",
            "layers": [{"digest": lying.layer, "manifest": manifest}],
        }
    )
    _run(lambda: hosts.objects.put(image_key(name_of(data)), data))
    return f"b3:{name_of(data)}"


def test_a_document_that_its_store_lost_or_has_otherwise_is_put_there_again(lazy: _Image) -> None:
    path = lazy.objects.parent / image_key(name_in(lazy.reference))
    sound = path.read_bytes()
    _flip(path, 10)
    repaired = lazy.findings(full=True, repair=True)["document"]
    assert (repaired.ok, repaired.repaired, path.read_bytes()) == (True, True, sound)
    _run(lambda: put_document(lazy.hosts.objects, sound, tag="mine:v1"))
    path.unlink()
    assert "is tagged mine:v1" in lazy.bad(full=True)["document"].detail
    # A document keeps its layers from being collected, and they are to be there.
    lost = lazy.chunk_object(1).read_bytes()
    lazy.chunk_object(1).unlink()
    assert "is not whole there" in lazy.bad(full=True, repair=True)["document"].detail
    assert not path.exists()
    lazy.chunk_object(1).write_bytes(lost)
    assert lazy.findings(full=True, repair=True)["document"].repaired
    assert path.read_bytes() == sound
    assert lazy.is_good()


def test_an_image_that_was_unpublished_stays_so(lazy: _Image) -> None:
    _run(lambda: unpublish(lazy.hosts.objects, lazy.reference))
    assert "unpublished" in lazy.findings(full=True, repair=True)["document"].detail
    assert not (lazy.objects.parent / image_key(name_in(lazy.reference))).exists()


@pytest.mark.parametrize("content", [b"all of it is metadata", _DATA], ids=["small", "large"])
def test_chunks_that_make_another_layer_than_their_manifest_says_are_found(
    hosts: ImageHosts, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(content)
    here = hosts.host("here")
    path, record = here.stored_layer(here.add_layer(tmp_path / "tree"))
    reference, there = _lying(hosts, path, record.entries), hosts.host("there")
    _run(lambda: pull_image(there, reference, hosts.objects, name="mine:v1"))

    def bad(*, full: bool) -> dict[str, Finding]:
        options = VerifyOptions(node=_NODE, store_url=hosts.objects.url, full=full, repair=False)

        async def collect() -> dict[str, Finding]:
            found = verify_image(there, "mine:v1", hosts.daemon(), options)
            return {finding.part: finding async for finding in found if not finding.ok}

        return _run(collect)

    assert bad(full=False) == {}
    assert set(found := bad(full=True)) == {"layer-1"}
    assert "expected 000000000000..., got " in found["layer-1"].detail
    assert "publish the image again" in found["layer-1"].advice


@dataclass(frozen=True, slots=True)
class _InRegistry:
    """The image in a registry, from a host that has it whole; `image` looks at it from another that pulled it."""

    image: _Image
    blob: Path

    def flip(self, at: int) -> str:
        """Turn over a bit of the blob; return which chunk that is."""
        _flip(self.blob, at)
        places = enumerate(self.image.manifest.chunks)
        (place,) = [place for place, ref in places if 0 <= at - ref.blob_start < ref.stored_bytes]
        return f"chunk {place}: "


@pytest.fixture
def in_registry(hosts: ImageHosts, published: _Published, tmp_path: Path, own_registry: RegistryServer) -> _InRegistry:
    image = _Image(hosts, tmp_path, published, eager=True)
    reference = parse_reference(f"{own_registry.host}/mine:v1")

    async def push_and_pull() -> None:
        client = RegistryClient(own_registry.host)
        try:
            await push_image(image.store, PushRequest(name="mine:v1", reference=reference), client)
            image.store = hosts.host("third")
            await pull_from_registry(image.store, PullRequest(reference=reference, name="mine:v1"), client)
        finally:
            await close_shared()
            await client.aclose()

    anyio.run(push_and_pull)
    image.paths = image.store.mount(["mine:v1"]).layer_paths
    blobs = [path for path in own_registry.directory.rglob("data") if path.is_file()]
    (blob,) = [path for path in blobs if path.stat().st_size > 8 << 20]
    assert image.bad(full=True) == {}
    return _InRegistry(image, blob)


def test_a_registry_that_rots_is_named_by_chunk(in_registry: _InRegistry, own_registry: RegistryServer) -> None:
    named = in_registry.flip(6 << 20)
    for repair in (False, True):  # This host has not got it either.
        bad = in_registry.image.bad(full=True, repair=repair)
        assert set(bad) == {"layer-2 registry"}
        assert named in bad["layer-2 registry"].detail
        assert bad["layer-2 registry"].node.startswith(f"oci://{own_registry.host}/mine@sha256:")
        assert "push" in bad["layer-2 registry"].advice
    assert "is neither here nor in another origin" in bad["layer-2 registry"].detail


def test_a_blob_that_a_registry_lost_is_sent_again_by_who_has_its_bytes(in_registry: _InRegistry) -> None:
    assert in_registry.image.read() == _DATA
    in_registry.blob.unlink()
    assert set(in_registry.image.bad(full=True)) == {"layer-2 registry"}
    assert in_registry.image.findings(full=True, repair=True)["layer-2 registry"].repaired
    assert in_registry.blob.exists()
    assert in_registry.image.is_good()


def test_documents_that_a_registry_lost_or_has_otherwise_are_sent_again_or_named(
    in_registry: _InRegistry, own_registry: RegistryServer
) -> None:
    image = in_registry.image
    found = image.findings(full=True)["document"]
    assert (found.ok, found.node) == (True, f"oci://{own_registry.host}/mine")
    documents = [path for path in own_registry.directory.rglob("data") if path.read_bytes()[:1] == b"{"]
    assert len(documents) == 4  # The image's manifest, its config, and two layers' manifests.
    for path in documents:
        path.unlink()
    bad = image.bad(full=True)
    assert set(bad) == {"document"}
    for what in ("image manifest", "config", "manifest of layer-1", "manifest of layer-2"):
        assert f"{what} sha256:" in bad["document"].detail
    assert image.findings(full=True, repair=True)["document"].repaired
    assert image.is_good()
    (manifest,) = [path for path in documents if path.parent.name in found.detail]
    (other, *_) = [path for path in documents if path != manifest]
    for path in (manifest, other):
        sound = path.read_bytes()
        _flip(path, 5)
        assert f"{path.parent.name}/data" in image.bad(full=True, repair=True)["document"].detail
        path.write_bytes(sound)


@pytest.mark.parametrize("damage", [lambda blob: _flip(blob, 6 << 20), lambda blob: os.truncate(blob, 99)])
def test_what_a_registry_keeps_wrong_although_it_was_sent_is_said_with_what_its_operator_removes(
    in_registry: _InRegistry, damage: Callable[[Path], None]
) -> None:
    assert in_registry.image.read() == _DATA
    damage(in_registry.blob)
    bad = in_registry.image.bad(full=True, repair=True)["layer-2 registry"].detail
    name = in_registry.blob.parent.name
    assert f"docker/registry/v2/blobs/sha256/{name[:2]}/{name}/data" in bad
    in_registry.blob.unlink()
    assert in_registry.image.findings(full=True, repair=True)["layer-2 registry"].repaired
    assert in_registry.image.is_good()


def test_a_registry_that_is_away_is_named_once_without_asking_it_for_pieces(
    in_registry: _InRegistry, own_registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_asked(source: RegistrySource, ref: ChunkRef, *, timeout_s: float) -> bytes:
        raise AssertionError("nobody is there to be asked")

    monkeypatch.setattr(RegistrySource, "fetch", not_asked)
    own_registry.process.kill()
    own_registry.process.wait()
    bad = in_registry.image.bad(full=True)
    assert set(bad) == {"document", "layer-1 registry", "layer-2 registry"}
    del bad["document"]
    assert all(f"see that {own_registry.host} can be reached" in finding.advice for finding in bad.values())


def test_who_published_a_layer_mends_what_its_store_has_of_it(
    hosts: ImageHosts, tmp_path: Path, published: _Published
) -> None:
    """Its own file is another than what was published, which was laid out anew."""
    image = _Image(hosts, tmp_path, published, eager=False)
    shutil.copytree(published.root / "here", tmp_path / "here", ignore=shutil.ignore_patterns("mounts"))
    image.store = hosts.host("here")
    assert image.is_good()
    assert "layer-2 store" in image.findings(full=True)
    image.chunk_object(1).unlink()
    _flip(image.chunk_object(0), 99)
    assert set(image.bad(full=True)) == {"layer-2 store"}
    assert image.findings(full=True, repair=True)["layer-2 store"].repaired
    assert image.is_good()


def test_who_published_an_image_by_its_traces_finds_and_mends_what_rots_there(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(3):
        (tmp_path / f"tree/file-{number}").write_bytes(_DATA[: (3 << 20) + number])
    images = LocalImageStore(tmp_path / "images")
    layer = images.add_layer(tmp_path / "tree")
    info = images.add_image("mine:v1", [layer], ImageConfig(), source="test")
    trace = trace_of_end(info)
    TraceShelf(images.root).put(trace)
    store = FolderObjectStore(tmp_path / "objects")
    anyio.run(lambda: publish_image(images, "mine:v1", store, by_traces=True))
    chunk = max((tmp_path / "objects/layers/chunks").glob("*/*"), key=lambda path: path.stat().st_size)
    _flip(chunk, 99)

    def looked(*, repair: bool) -> list[Finding]:
        options = VerifyOptions(node=_NODE, store_url=store.url, full=True, repair=repair)

        async def go() -> list[Finding]:
            return [finding async for finding in verify_image(images, "mine:v1", None, options)]

        return anyio.run(go)

    assert [finding.part for finding in looked(repair=False) if not finding.ok] == ["layer-1 store"]
    assert [finding.part for finding in looked(repair=True) if finding.repaired] == ["layer-1 store"]
    assert all(finding.ok for finding in looked(repair=False))
    images.close()


def test_progress_is_told_and_memory_is_bounded(lazy: _Image) -> None:
    told: list[tuple[str, int, int]] = []
    options = VerifyOptions(
        node=_NODE, store_url="", full=True, progress=lambda part, done, total: told.append((part, done, total))
    )

    async def go() -> None:
        async for finding in verify_image(lazy.store, "mine:v1", lazy.hosts.daemon(), options):
            assert finding.ok

    anyio.run(go)
    pieces = len({ref.id for ref in (*lazy.manifest.chunks, *lazy.manifest.metadata_chunks)})
    assert ("layer-2 store", pieces, pieces) in told


def test_the_command_names_part_and_node_and_exits_by_what_it_found(hosts: ImageHosts, tmp_path: Path) -> None:
    runner, state = CliRunner(), str(tmp_path / "state")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "data").write_bytes(_DATA[: 5 << 20])
    store = LocalImageStore(Path(state) / "images")
    digest = store.add_layer(tree)
    store.add_image("agent-runtime:v2.3", [digest], ImageConfig(), source="test")
    path, _ = store.stored_layer(digest)
    store.close()
    (Path(state) / "node.id").write_text("abc123\n")
    command = ["--state-dir", state, "image", "verify", "--image", "agent-runtime:v2.3", "--full"]
    result = runner.invoke(cli, command)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "[manifest] OK (1 layer, 0 of them lazy)")
    _flip(path, 3 << 20)
    result = runner.invoke(cli, command)
    assert result.exit_code == 70
    assert "[layer-1] FAILED on abc123 (hash mismatch" in result.output
    assert "advice: import or pull layer-1 again" in result.output
    (_, finding) = json.loads(runner.invoke(cli, [*command, "--json"]).output)
    assert (finding["part"], finding["node"], finding["ok"], finding["layer"]) == ("layer-1", "abc123", False, digest)
