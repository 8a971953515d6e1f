"""`dsec image publish --tag`, `ls --store`, `unpublish` and `gc`: what they print, and with what they exit."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from dsec.cli.main import cli
from dsec.images.lazy.collection.roots import put_document
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats.document import DocumentLayer, ImageDocument, encode_document
from dsec.images.lazy.formats.manifest import make
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.publication.conversion import manifest_key
from dsec.model.image import ImageConfig
from dsec.stores.objects_folder import FolderObjectStore


@pytest.fixture
def store(tmp_path: Path) -> FolderObjectStore:
    """A store with one image, tagged, whose layer has a manifest (and no chunks, for which nobody asks here)."""
    objects = FolderObjectStore(tmp_path / "objects")
    pieces = [("ab" * 32, 100)]
    digest = "sha256:" + "cd" * 32
    manifest = make(digest, CHUNK_BYTES, 1, chunks=pieces, metadata=[Extent(0, 4096)], metadata_chunks=pieces)
    layers = (DocumentLayer(digest=digest, manifest=manifest.id),)
    document = ImageDocument(version=1, name="env:v1", config=ImageConfig(), source="", layers=layers)

    async def fill() -> None:
        await objects.put(manifest_key(manifest.id), manifest.data)
        await put_document(objects, encode_document(document), tag="env:v1")

    anyio.run(fill)
    return objects


def _dsec(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--state-dir", str(tmp_path / "state"), "image", *arguments])


def test_what_a_store_has_is_listed_and_unpublished_by_its_tag(tmp_path: Path, store: FolderObjectStore) -> None:
    listed = _dsec(tmp_path, "ls", "--store", store.url, "--json")
    (image,) = json.loads(listed.output)
    assert (image["tags"], image["name"], image["layers"]) == (["env:v1"], "env:v1", 1)
    gone = _dsec(tmp_path, "unpublish", "env:v1", "--store", store.url, "--json")
    assert json.loads(gone.output) == {"reference": image["reference"]}
    assert json.loads(_dsec(tmp_path, "ls", "--store", store.url, "--json").output) == []
    assert _dsec(tmp_path, "unpublish", "env:v1", "--store", store.url).exit_code == 66


def test_a_collection_says_what_it_kept_and_that_it_cannot_read_everything(
    tmp_path: Path, store: FolderObjectStore
) -> None:
    done = _dsec(tmp_path, "gc", "--store", store.url)
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "images: 1, manifests: 1, chunks: 0, pins: 0")
    for document in (tmp_path / "objects/layers/images").iterdir():
        document.write_bytes(b"{}")
    done = _dsec(tmp_path, "gc", "--store", store.url, "--dry-run")
    assert done.exit_code == 70
    assert "cannot be read: b3:" in done.output


def test_another_grace_period_than_the_stores_is_refused(tmp_path: Path, store: FolderObjectStore) -> None:
    assert _dsec(tmp_path, "gc", "--store", store.url, "--grace", "2h").exit_code == 0
    refused = _dsec(tmp_path, "gc", "--store", store.url, "--grace", "1h")
    assert refused.exit_code != 0
    assert "grace period of 2" in refused.output
    assert _dsec(tmp_path, "gc", "--grace", "1h").exit_code == 2


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for command in (["gc"], ["ls"], ["unpublish", "env:v1"], ["pull", "env:v1"]):
        assert _dsec(tmp_path, *command, "--store", f"file://{tmp_path}/none").exit_code == 66
    assert not (tmp_path / "none").exists()


def test_without_a_url_it_is_the_store_of_this_hosts_node(tmp_path: Path, store: FolderObjectStore) -> None:
    settings = ["--state-dir", str(tmp_path / "state"), "--set", f"store={store.url}", "image"]
    listed = CliRunner().invoke(cli, [*settings, "ls", "--store", "--json"])
    assert [image["name"] for image in json.loads(listed.output)] == ["env:v1"]
    collected = CliRunner().invoke(cli, [*settings, "gc", "--store", "--dry-run"])
    assert collected.output.startswith("images: 1, manifests: 1, ")
