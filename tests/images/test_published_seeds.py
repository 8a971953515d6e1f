"""Whoever publishes an image gives its chunks to peers, from files that are kept for that within a bound."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, decode, encode
from dsec.images.lazy.peers.seeds import SEEDS, Seeds
from dsec.images.lazy.peers.settings import PeerSettings
from dsec.images.lazy.peers.shelf import LocalChunks, Shelf
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.images.lazy.publication.sharing import publish_image
from dsec.images.lazy.serving.client import LAZY
from dsec.images.lazy.serving.daemon_options import DaemonOptions, write_options
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.stores.objects_folder import FolderObjectStore


def _manifest(fill: int) -> tuple[bytes, LayerManifest]:
    content = bytes([fill]) * 8192
    (name, body), (small, packed) = encode(content), encode(content[:4096])
    made = manifests.make(
        "sha256:" + f"{fill:02x}" * 32,
        len(content),
        1,
        chunks=[(name, len(body))],
        metadata=[Extent(0, 4096)],
        metadata_chunks=[(small, len(packed))],
    )
    return content, made


def test_files_that_are_kept_for_peers_have_a_bound_and_go_with_their_layers(tmp_path: Path) -> None:
    seeds, made = Seeds(tmp_path / "seeds"), []
    for fill in (1, 2, 3):
        content, manifest = _manifest(fill)
        (tmp_path / "file").write_bytes(content)
        (tmp_path / f"layer-{fill}").mkdir()
        for _ in range(2):
            assert seeds.keep(manifest, tmp_path / "file", tmp_path / f"layer-{fill}", limit_bytes=2 * 8192)
        os.utime(tmp_path / "seeds" / manifest.id, (fill, fill))
        (tmp_path / "file").unlink()
        made.append(manifest)
    assert sorted(seeds.names()) == sorted([made[1].id, made[2].id]), "the oldest went"
    chunks = LocalChunks((tmp_path / "seeds",), Shelf(tmp_path / "shelf", limit_bytes=1 << 20))
    descriptor = chunks.made(made[2].chunks[0].id)
    assert descriptor is not None
    assert decode(made[2].chunks[0], os.read(descriptor, 1 << 20), "here") == _manifest(3)[0]
    os.close(descriptor)
    (tmp_path / "layer-3").rmdir()
    assert seeds.names() == [made[1].id]
    (tmp_path / "file").write_bytes(b"x" * 8192)
    assert not seeds.keep(made[0], tmp_path / "file", tmp_path / "layer-1", limit_bytes=8191)
    assert seeds.names() == [made[1].id], "nothing goes for what does not fit anyway"


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("listen", ["127.0.0.1:0", ""], ids=["gives", "gives-none"])
def test_a_host_that_gives_chunks_has_all_of_what_it_publishes(tmp_path: Path, listen: str) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(3):
        (tmp_path / "tree" / f"file-{number}").write_bytes(os.urandom(CHUNK_BYTES - 5000))
    images = LocalImageStore(tmp_path / "images")
    images.add_image("mine", [images.add_layer(tmp_path / "tree")], ImageConfig(), source="test")
    peers = PeerSettings(node="n0de1d", secret_file="none", tracker="n0de1d=http://127.0.0.1:1", listen=listen)
    lazy = tmp_path / "images" / LAZY
    lazy.mkdir(exist_ok=True)
    write_options(lazy, DaemonOptions(store_url="", peers=peers))
    store = FolderObjectStore(tmp_path / "objects")
    published = anyio.run(lambda: publish_image(images, "mine", store))
    manifest = anyio.run(lambda: fetch_manifest(store, published.manifests[0]))
    seeds = Seeds(lazy / SEEDS)
    assert seeds.names() == ([manifest.id] if listen else [])
    if listen:
        chunks = LocalChunks((lazy / SEEDS,), Shelf(tmp_path / "shelf", limit_bytes=1 << 30))
        for ref in (*manifest.metadata_chunks, *manifest.chunks):
            descriptor = chunks.made(ref.id)
            assert descriptor is not None
            os.close(descriptor)
        images.remove("mine")
        assert seeds.names() == []
    images.close()
