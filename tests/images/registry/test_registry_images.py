"""Images by way of a registry: ours, mounted from it and read when touched, and ordinary ones, converted."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    CapabilityMissingError,
    HostDiskFullError,
    InvalidRequestError,
    ObjectNotFoundError,
    StateCorruptedError,
    StoreUnavailableError,
)
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.lazy.collection.local import collect_local
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.publication.conversion import LayerFile, Sink, convert
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.lazy.tracing.traces import TraceShelf
from dsec.images.oci_export import export_oci_layout
from dsec.images.registry import media, push
from dsec.images.registry.client import ClientOptions, RegistryClient, digest_of
from dsec.images.registry.downloads import DOWNLOADS, Downloads
from dsec.images.registry.pull import PullRequest, pull_from_registry
from dsec.images.registry.push import PushedImage, PushRequest, push_image
from dsec.images.registry.reference import Reference, parse_reference
from dsec.images.registry.retrying import Backoff
from dsec.images.registry.upload import BlobFile, put_manifest, upload_blob
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, ImageInfo, LayerFormat
from dsec.testing.ended_layers import end_layers
from dsec.testing.faulty_registry import (
    Fault,
    FaultyRegistry,
    Seen,
    is_blob,
    is_manifest,
    run_faulty_registry,
    wait_until,
)
from dsec.testing.image_suite import make_tree, tree_with_everything
from dsec.testing.oci_layouts import tar_of, write_layout
from dsec.testing.registry_server import RegistryServer
from dsec.testing.releasing import unmount_when_free
from dsec.testing.traces import trace_of_end

pytestmark = [pytest.mark.root, pytest.mark.slow]

needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
_CONFIG = ImageConfig(env={"A": "b"}, workdir="/w", user="1000")
T = TypeVar("T")


class Hosts:
    """Hosts with image stores, and a registry behind a proxy."""

    def __init__(self, root: Path, proxy: FaultyRegistry) -> None:
        self._root = root
        self.proxy = proxy
        self._stores: list[LocalImageStore] = []

    def host(self, name: str) -> LocalImageStore:
        root = self._root / name
        daemon = LayerDaemon(root / "lazy", DaemonOptions(store_url=(self._root / "objects").as_uri()))
        self._stores.append(LocalImageStore(root, lazy=daemon))
        return self._stores[-1]

    def reference(self, tag: str = "v1") -> Reference:
        return parse_reference(f"{self.proxy.host}/t/{uuid.uuid4().hex}:{tag}")

    def speak(self, act: Callable[[RegistryClient], Awaitable[T]]) -> T:
        """Do something with a client of the registry that gives up soon."""

        async def run() -> T:
            options = ClientOptions(backoff=Backoff(tries=3, first_pause_s=0.01), environment={})
            client = RegistryClient(self.proxy.host, options)
            try:
                return await act(client)
            finally:
                await client.aclose()

        return anyio.run(run)

    def push(self, store: LocalImageStore, name: str, reference: Reference, *, by_traces: bool = False) -> PushedImage:
        request = PushRequest(name=name, reference=reference, by_traces=by_traces)
        return self.speak(partial(push_image, store, request))

    def pull(self, store: LocalImageStore, reference: Reference | str, **options: object) -> ImageInfo:
        parsed = parse_reference(reference) if isinstance(reference, str) else reference
        request = PullRequest(reference=parsed, **options)  # type: ignore[arg-type]
        return self.speak(partial(pull_from_registry, store, request))

    def close(self) -> None:
        try:
            for store in self._stores:
                store.close()
        finally:
            end_layers(*(store.root / "lazy" for store in self._stores))


@pytest.fixture
def hosts(tmp_path: Path, registry: RegistryServer) -> Iterator[Hosts]:
    with run_faulty_registry(registry.host) as proxy:
        made = Hosts(tmp_path, proxy)
        try:
            yield made
        finally:
            made.close()


def _image(store: LocalImageStore, tmp_path: Path, name: str = "mine:v1") -> ImageInfo:
    layers = [store.add_layer(make_tree(tmp_path / f"{each}-tree", **{each: each * 5000})) for each in "ab"]
    return store.add_image(name, layers, _CONFIG, source="test")


def test_a_pushed_image_is_pulled_at_once_and_read_from_the_registry_when_touched(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    info = _image(here, tmp_path)
    pushed = hosts.push(here, "mine:v1", reference)
    assert pushed.reference.startswith(f"{reference}@sha256:")
    pulled = hosts.pull(there, pushed.reference)
    assert (pulled.name, pulled.image_id, pulled.config) == (str(reference), info.image_id, info.config)
    assert {layer.format for layer in pulled.layers} == {LayerFormat.LAZY}
    before = len(hosts.proxy.blobs())
    paths = there.mount([str(reference)]).layer_paths
    assert (paths[1] / "b").read_text() == "b" * 5000
    there.verify(str(reference))
    assert all("range" in seen.headers for seen in hosts.proxy.blobs()[before:])
    assert len(hosts.proxy.blobs()) > before


def test_what_the_registry_has_is_not_cut_again(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, reference = hosts.host("here"), hosts.reference()
    info = _image(here, tmp_path)
    first = hosts.push(here, "mine:v1", reference)
    cuts: list[LayerFile] = []

    def counted(file: LayerFile, sink: Sink) -> LayerManifest:
        cuts.append(file)
        return convert(file, sink)

    monkeypatch.setattr(push, "convert", counted)
    again = hosts.push(here, "mine:v1", reference)
    assert (again.reference, again.sent_bytes, cuts) == (first.reference, 0, [])
    assert again.present_bytes == first.sent_bytes
    elsewhere = hosts.push(here, "mine:v1", hosts.reference())
    assert (elsewhere.present_bytes > 0, cuts) == (True, []), "another repository takes them over"
    assert [layer.digest for layer in hosts.pull(hosts.host("there"), elsewhere.reference).layers] == [
        layer.digest for layer in info.layers
    ]
    (here.root / "cut").rename(here.root / "gone")
    hosts.push(here, "mine:v1", reference)
    assert len(cuts) == 2


def test_what_the_registry_has_is_not_sent_again(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    _image(here, tmp_path)
    first = hosts.push(here, "mine:v1", reference)
    again = hosts.push(here, "mine:v1", reference)
    assert (first.present_bytes, again.sent_bytes) == (0, 0)
    assert again.reference == first.reference
    assert again.present_bytes == first.sent_bytes
    hosts.pull(there, reference, name="mine:v1")
    elsewhere = hosts.reference()
    moved = hosts.push(there, "mine:v1", elsewhere)  # It has manifests only, and needs no more.
    assert moved.sent_bytes < first.sent_bytes
    hosts.pull(hosts.host("third"), moved.reference)


def test_pulled_eagerly_it_needs_the_registry_no_more(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    info = _image(here, tmp_path)
    hosts.push(here, "mine:v1", reference)
    pulled = hosts.pull(there, reference, eager=True, name="other:v2")
    assert pulled.name == "other:v2"
    assert pulled.layers == info.layers
    hosts.proxy.rule = lambda seen: Fault(status=500)
    there.verify("other:v2")


def test_a_lazy_layer_that_the_registry_has_not_got_is_not_pushed(hosts: Hosts, tmp_path: Path) -> None:
    here, there = hosts.host("here"), hosts.host("there")
    _image(here, tmp_path)
    reference = hosts.reference()
    hosts.push(here, "mine:v1", reference)
    hosts.pull(there, reference, name="mine:v1")
    with run_faulty_registry(hosts.proxy.target, name="localhost") as other:
        request = PushRequest(name="mine:v1", reference=parse_reference(f"{other.host}/x/y:v1"))

        async def act() -> None:
            client = RegistryClient(other.host)
            try:
                await push_image(there, request, client)
            finally:
                await client.aclose()

        with pytest.raises(InvalidRequestError, match="manifest only"):
            anyio.run(act)


def test_a_registry_that_lies_about_an_image_of_ours_is_found_out(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    _image(here, tmp_path)
    digest = hosts.push(here, "mine:v1", reference).reference

    def spoiled(data: bytes) -> bytes:
        return data.replace(b"b", b"c", 1)

    for matches in (is_manifest, is_blob):
        hosts.proxy.rule = lambda seen, it=matches: Fault(spoil=spoiled) if it(seen) else None  # type: ignore[misc]
        with pytest.raises(StateCorruptedError):
            hosts.pull(there, digest)
    assert there.list() == ()
    assert list((there.root / "layers").iterdir()) == []


def test_manifests_that_do_not_fit_their_document_are_refused(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    _image(here, tmp_path)
    hosts.push(here, "mine:v1", reference)

    async def put(change: Callable[[media.Document], media.Document], client: RegistryClient) -> None:
        found = await client.manifest(reference.repository, "v1")
        data = media.encode_document(change(found.document))
        await put_manifest(client, reference.repository, "bad", media.OCI_MANIFEST, data)

    for change in (
        lambda document: msgspec.structs.replace(document, layers=document.layers[:2]),
        lambda document: msgspec.structs.replace(document, layers=document.layers[::-1]),
        lambda document: msgspec.structs.replace(document, layers=[*document.layers[2:], *document.layers[:2]]),
    ):
        hosts.speak(partial(put, change))
        with pytest.raises(StateCorruptedError):
            hosts.pull(there, str(reference).replace(":v1", ":bad"))


def test_mounts_outlive_a_registry_that_is_away_and_reads_say_so(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    layer = here.add_layer(make_tree(tmp_path / "tree", large=os.urandom(100_000).hex()))
    here.add_image("mine:v1", [layer], _CONFIG, source="test")
    hosts.push(here, "mine:v1", reference)
    hosts.pull(there, reference, name="mine:v1")
    (path,) = there.mount(["mine:v1"]).layer_paths
    hosts.proxy.rule = lambda seen: Fault(status=403)
    with pytest.raises(OSError, match="Input/output"):
        (path / "large").read_text()
    hosts.proxy.rule = lambda seen: None
    assert len((path / "large").read_text()) == 200_000
    assert "oci://" in (there.root / "lazy/events.jsonl").read_text()


def test_reads_are_right_whatever_a_registry_does_meanwhile(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    chance = random.Random(6)
    contents = {f"f{number}": chance.randbytes(2 << 20).hex() for number in range(8)}
    layer = here.add_layer(make_tree(tmp_path / "tree", **contents))
    here.add_image("mine:v1", [layer], _CONFIG, source="test")
    hosts.push(here, "mine:v1", reference)
    hosts.pull(there, reference)
    (path,) = there.mount([str(reference)]).layer_paths
    faults = [Fault(status=503), Fault(status=429, headers={"Retry-After": "0"}), Fault(cut_first=True)]
    faults += [Fault(cut_at=at) for at in (0, 1, 500_000, 1_500_000)] + [Fault(spoil=lambda body: body[:-1] + b"?")]
    drawn = dict.fromkeys(range(len(faults)), 0)

    def rule(seen: Seen) -> Fault | None:
        kind = chance.randrange(3 * len(faults))
        if not is_blob(seen) or kind >= len(faults):
            return None
        drawn[kind] += 1
        return faults[kind]

    hosts.proxy.rule = rule

    def read(name: str) -> bool:
        for _ in range(5):  # Bytes that do not verify are an error to this read, and the next asks again.
            try:
                return (path / name).read_text() == contents[name]
            except OSError:
                continue
        return False

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, sorted(contents, key=lambda name: chance.random())))
    assert sum(drawn.values()) > 2


def test_traces_go_with_an_image_and_lay_its_layers_out(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    layer = here.add_layer(make_tree(tmp_path / "tree", **{each: os.urandom(50_000).hex() for each in "abc"}))
    info = here.add_image("mine:v1", [layer], _CONFIG, source="test")
    trace = trace_of_end(info)
    with pytest.raises(InvalidRequestError, match="trace"):
        hosts.push(here, "mine:v1", reference, by_traces=True)
    plain = hosts.push(here, "mine:v1", reference)
    TraceShelf(here.root).put(trace)
    pushed = hosts.push(here, "mine:v1", reference, by_traces=True)
    assert pushed.reference != plain.reference
    hosts.pull(there, reference)
    (got,) = TraceShelf(there.root).of(info.image_id)
    assert (got.command, got.layers[0].digest) == ("python3", layer)
    assert got.reads != trace.reads  # They speak of the file that was laid out anew,
    assert got.layers[0].manifest == there.stored_layer(layer)[1].manifest  # and say of which.
    there.verify(str(reference))
    other = hosts.host("other")
    hosts.proxy.rule = lambda seen: Fault(content=b"[]") if "/manifests/traces-" in seen.path else None
    hosts.pull(other, reference)
    assert TraceShelf(other.root).of(info.image_id) == ()


def test_a_layer_stored_as_a_directory_is_not_pushed(hosts: Hosts, tmp_path: Path) -> None:
    store = LocalImageStore(tmp_path / "directories", layer_format=LayerFormat.DIRECTORY)
    _image(store, tmp_path)
    with pytest.raises(CapabilityMissingError):
        hosts.push(store, "mine:v1", hosts.reference())
    store.close()


def _skopeo(layout: Path, reference: Reference, *options: str) -> None:
    command = ["skopeo", "copy", "--insecure-policy", "--quiet", "--dest-tls-verify=false", *options]
    subprocess.run([*command, f"oci:{layout}:latest", f"docker://{reference}"], check=True)


@needs_skopeo
@pytest.mark.parametrize(
    "options", [["--format=oci"], ["--format=v2s2"], ["--format=oci", "--dest-compress-format=zstd"]], ids=str
)
def test_an_image_that_skopeo_pushed_is_entry_by_entry_the_import_of_its_layout(
    hosts: Hosts, tmp_path: Path, options: list[str]
) -> None:
    here, there, reference = hosts.host("here"), hosts.host("there"), hosts.reference()
    tree = tree_with_everything(tmp_path / "everything")
    (tree / "gone").unlink()  # In the lowest layer a whiteout hides nothing, and is not kept.
    layers = [here.add_layer(tree)]
    upper = tar_of(WHfile="", d=None, **{"d__WHWH.opq": ""}, d__new="1")
    layers += [layer.digest for layer in _imported(here, write_layout(tmp_path / "top", [upper])).layers]
    here.add_image("mine:v1", layers, _CONFIG, source="test")
    export_oci_layout(here, "mine:v1", tmp_path / "layout")
    _skopeo(tmp_path / "layout", reference, *options)
    types = {layer.media_type.rpartition(".")[2] for layer in _manifest(hosts, reference).layers}
    assert types == {"gzip" if "v2s2" in options[0] else "tar+zstd" if len(options) > 1 else "tar+gzip"}
    pulled = hosts.pull(there, reference)
    assert pulled.name == str(reference)
    assert pulled.source.startswith(f"{reference}@sha256:")
    # A digest is taken over the listing of all entries: kinds, modes, owners, times, links, contents, attributes.
    assert pulled.layers == _imported(hosts.host("other"), tmp_path / "layout").layers
    assert pulled.config == _CONFIG
    assert list((there.root / "downloads").iterdir()) == []
    before = len(hosts.proxy.blobs())
    assert hosts.pull(there, reference, name="again").layers == pulled.layers
    assert len(hosts.proxy.blobs()) == before + 1  # The config; layers are here.


@needs_skopeo
def test_our_images_are_carried_by_tools_that_know_nothing_of_them(hosts: Hosts, tmp_path: Path) -> None:
    here, there, reference, mirror = hosts.host("here"), hosts.host("there"), hosts.reference(), hosts.reference()
    info = _image(here, tmp_path)
    pushed = hosts.push(here, "mine:v1", reference)
    carried = tmp_path / "carried"
    command = ["skopeo", "copy", "--insecure-policy", "--quiet", "--preserve-digests", "--src-tls-verify=false"]
    subprocess.run([*command, f"docker://{reference}", f"oci:{carried}:latest"], check=True)
    _skopeo(carried, mirror, "--preserve-digests")
    pulled = hosts.pull(there, f"{mirror.repository}@{pushed.reference.rpartition('@')[2]}")
    assert pulled.image_id == info.image_id
    assert pulled.name == f"{mirror.repository}:{pushed.reference.rpartition(':')[2][:12]}"
    there.verify(pulled.name)


def _imported(store: LocalImageStore, layout: Path) -> ImageInfo:
    return import_image(store, ImportRequest(path=layout, name="imported"))


def _manifest(hosts: Hosts, reference: Reference) -> media.Document:
    return hosts.speak(lambda client: client.manifest(reference.repository, reference.target)).document


def _push_layout(hosts: Hosts, layout: Path, reference: Reference) -> media.Document:
    """Push a layout of the tests, whose layers are plain tars, and return its manifest."""
    blobs = layout / "blobs/sha256"
    (entry,) = msgspec.json.decode((layout / "index.json").read_bytes())["manifests"]
    found = msgspec.json.decode((blobs / entry["digest"].removeprefix("sha256:")).read_bytes())

    def described(media_type: str, digest: str) -> media.Descriptor:
        return media.Descriptor(media_type, digest, (blobs / digest.removeprefix("sha256:")).stat().st_size)

    document = media.Document(
        schema_version=2,
        media_type=media.OCI_MANIFEST,
        config=described("application/vnd.oci.image.config.v1+json", found["config"]["digest"]),
        layers=[described("application/vnd.oci.image.layer.v1.tar", layer["digest"]) for layer in found["layers"]],
    )

    async def act(client: RegistryClient) -> None:
        for blob in blobs.iterdir():
            file = BlobFile(blob, f"sha256:{blob.name}", blob.stat().st_size)
            await upload_blob(client, reference.repository, file)
        data = media.encode_document(document)
        await put_manifest(client, reference.repository, reference.tag, media.OCI_MANIFEST, data)

    hosts.speak(act)
    return document


def test_a_pull_that_breaks_off_goes_on_where_it_was(hosts: Hosts, tmp_path: Path) -> None:
    there, reference = hosts.host("there"), hosts.reference()
    content = os.urandom(1_500_000).hex()
    layout = write_layout(tmp_path / "layout", [tar_of(a=content), tar_of(b="2")])
    _push_layout(hosts, layout, reference)
    sent = hosts.proxy.sent_bytes
    hosts.proxy.rule = lambda seen: (
        Fault(cut_at=1_200_000 if seen.headers.get("range", "bytes=0-").startswith("bytes=0-") else 0)
        if is_blob(seen) and "range" in seen.headers
        else None
    )
    with pytest.raises(StoreUnavailableError):
        hosts.pull(there, reference)
    assert any(path.stat().st_size == 1_200_000 for path in (there.root / "downloads").iterdir())
    hosts.proxy.rule = lambda seen: None
    pulled = hosts.pull(there, reference)
    assert hosts.proxy.sent_bytes - sent < 3_300_000
    assert pulled.layers == _imported(hosts.host("here"), layout).layers
    assert list((there.root / "downloads").iterdir()) == []


def test_a_pull_that_was_killed_is_gone_on_with(hosts: Hosts, tmp_path: Path) -> None:
    there, reference = hosts.host("state/images"), hosts.reference()
    content = os.urandom(3_000_000).hex()
    layout = write_layout(tmp_path / "layout", [tar_of(a=content)])
    (layer,) = _push_layout(hosts, layout, reference).layers
    hosts.proxy.rule = lambda seen: Fault(stall_at=2_000_000) if "range" in seen.headers else None
    before = hosts.proxy.sent_bytes
    command = [sys.executable, "-m", "dsec", "--state-dir", str(tmp_path / "state"), "image", "pull", str(reference)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part = there.root / "downloads" / layer.digest.removeprefix("sha256:")
    wait_until(lambda: part.exists() and part.stat().st_size >= 1 << 20)
    process.kill()
    process.wait()
    hosts.proxy.rule = lambda seen: None
    assert hosts.pull(there, reference).layers == _imported(hosts.host("here"), layout).layers
    assert hosts.proxy.sent_bytes - before < layer.size + 1_500_000
    assert list((there.root / "downloads").iterdir()) == []


def test_what_a_crash_left_damaged_is_fetched_again(hosts: Hosts, tmp_path: Path) -> None:
    there, reference = hosts.host("there"), hosts.reference()
    layout = write_layout(tmp_path / "layout", [tar_of(a="x" * 50_000)])
    (layer,) = _push_layout(hosts, layout, reference).layers
    downloads = there.root / "downloads"
    downloads.mkdir()
    (downloads / layer.digest.removeprefix("sha256:")).write_bytes(bytes(5_000))
    (downloads / "of-another-pull").touch()
    os.utime(downloads / "of-another-pull", (0, 0))
    assert hosts.pull(there, reference).layers == _imported(hosts.host("here"), layout).layers
    assert list(downloads.iterdir()) == []


def test_a_layer_that_lies_is_refused_and_nothing_of_the_image_is_kept(hosts: Hosts, tmp_path: Path) -> None:
    there, reference = hosts.host("there"), hosts.reference()
    layout = write_layout(tmp_path / "layout", [tar_of(a="x" * 50_000), tar_of(b="2")])
    document = _push_layout(hosts, layout, reference)
    last = document.layers[-1].digest
    hosts.proxy.rule = lambda seen: Fault(spoil=lambda data: data[::-1]) if last in seen.path else None
    with pytest.raises(StateCorruptedError, match=last):
        hosts.pull(there, reference)
    assert there.list() == ()
    assert list((there.root / "layers").iterdir()) == []


def test_a_full_disk_is_said_and_nothing_fills_it_further(hosts: Hosts, tmp_path: Path) -> None:
    reference, small = hosts.reference(), tmp_path / "small"
    layout = write_layout(tmp_path / "layout", [tar_of(a=os.urandom(2_000_000).hex())])
    _push_layout(hosts, layout, reference)
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
    try:
        there = LocalImageStore(small / "images")
        with pytest.raises(HostDiskFullError):
            hosts.pull(there, reference)
        assert sum(path.stat().st_size for path in (there.root / "downloads").iterdir()) == 0
        assert list((there.root / "staging").iterdir()) == []
        there.close()
    finally:
        unmount_when_free(small)


def test_an_image_for_many_machines_is_pulled_for_this_one(hosts: Hosts, tmp_path: Path) -> None:
    there, reference = hosts.host("there"), hosts.reference("one")
    layout = write_layout(tmp_path / "layout", [tar_of(a="1")])
    document = _push_layout(hosts, layout, reference)
    data = media.encode_document(document)

    async def put_index(client: RegistryClient) -> None:
        found = await client.manifest(reference.repository, "one")
        entry = {"mediaType": media.OCI_MANIFEST, "digest": found.digest, "size": len(found.data)}
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
        # Descriptors are alike: the manifest stands for those of the others, which the registry wants to have.
        entries = [
            entry | {"platform": {"os": "linux", "architecture": "s390x"}},
            entry | {"platform": {"os": "linux", "architecture": machine}},
        ]
        index = msgspec.json.encode({"schemaVersion": 2, "mediaType": media.OCI_INDEX, "manifests": entries})
        await put_manifest(client, reference.repository, "many", media.OCI_INDEX, index)
        entries.pop()
        other = msgspec.json.encode({"schemaVersion": 2, "mediaType": media.OCI_INDEX, "manifests": entries})
        await put_manifest(client, reference.repository, "other", media.OCI_INDEX, other)

    hosts.speak(put_index)
    assert data
    assert len(hosts.pull(there, str(reference).replace(":one", ":many")).layers) == 1
    with pytest.raises(InvalidRequestError, match="s390x"):
        hosts.pull(there, str(reference).replace(":one", ":other"))
    with pytest.raises(ObjectNotFoundError):
        hosts.pull(there, str(reference).replace(":one", ":none"))


def test_a_collection_takes_the_downloads_that_nobody_works_on(hosts: Hosts) -> None:
    there = hosts.host("there")
    downloads = Downloads(there.root / DOWNLOADS)
    for name in ("left", "held"):
        (downloads.root / name).write_bytes(bytes(1000))

    async def collect() -> int:
        async with downloads.held("held"):
            assert (await collect_local(there, None, "", dry_run=True)).freed_bytes == 1000
            return (await collect_local(there, None, "")).freed_bytes

    assert anyio.run(collect) == 1000
    assert [path.name for path in downloads.root.iterdir()] == ["held"]


def test_two_pulls_of_one_image_at_once_fetch_it_once(hosts: Hosts, tmp_path: Path) -> None:
    there, reference = hosts.host("there"), hosts.reference()
    layout = write_layout(tmp_path / "layout", [tar_of(a="x" * 50_000), tar_of(b="2"), tar_of(c="3")])
    _push_layout(hosts, layout, reference)

    async def both(client: RegistryClient) -> None:
        async with anyio.create_task_group() as group:
            for name in ("one", "two"):
                request = PullRequest(reference=reference, name=name)
                group.start_soon(pull_from_registry, there, request, client)

    hosts.speak(both)
    assert there.get("one").layers == there.get("two").layers
    layers = [seen.path for seen in hosts.proxy.blobs() if "range" in seen.headers]
    assert len(layers) == len(set(layers)) == 3


def test_an_ordinary_user_pulls_ordinary_images(hosts: Hosts, tmp_path: Path) -> None:
    reference = hosts.reference()
    _push_layout(hosts, write_layout(tmp_path / "layout", [tar_of(a="1"), tar_of(b="2")]), reference)
    with TemporaryDirectory(prefix="dsec-ordinary-") as place:
        os.chmod(place, 0o777)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                store = LocalImageStore(Path(place) / "images")
                status = 0 if len(hosts.pull(store, reference).layers) == 2 else 2
                store.close()
            finally:
                os._exit(status)  # Not even pytest's own clean-up may run in the child.
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_no_image_is_refused_by_name(hosts: Hosts, tmp_path: Path) -> None:
    there, reference = hosts.host("there"), hosts.reference()

    async def put(layer_type: str, config: bytes, client: RegistryClient) -> None:
        (tmp_path / "blob").write_bytes(config)
        blob = BlobFile(tmp_path / "blob", digest_of(config), len(config))
        await upload_blob(client, reference.repository, blob)
        described = media.Descriptor("application/vnd.oci.image.config.v1+json", blob.digest, blob.size_bytes)
        layers = [media.Descriptor(layer_type, blob.digest, blob.size_bytes)] if layer_type else []
        document = media.Document(schema_version=2, media_type=media.OCI_MANIFEST, config=described, layers=layers)
        data = media.encode_document(document)
        await put_manifest(client, reference.repository, reference.tag, media.OCI_MANIFEST, data)

    tar = "application/vnd.oci.image.layer.v1.tar"
    for layer_type, config, words in (
        (f"{tar}+encrypted", b"{}", "encrypted"),
        ("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"{}", "no file system"),
        ("", b"{}", "0 layers"),
        (tar, b"{}", "configuration"),
        (tar, b'{"rootfs": {"diff_ids": []}}', "diff ids"),
    ):
        hosts.speak(partial(put, layer_type, config))
        with pytest.raises(InvalidRequestError) as caught:
            hosts.pull(there, reference)
        assert words in str(caught.value)
