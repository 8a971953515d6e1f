"""Manifests of layers: what a reader takes, and what it refuses in words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import CapabilityMissingError, InvalidRequestError, ObjectNotFoundError, StateCorruptedError
from dsec.images import erofs
from dsec.images.lazy.erofs.metadata import metadata_extents
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.stored import CHUNK_BYTES, decode, name_of
from dsec.images.lazy.publication.conversion import LayerFile, convert, fetch_manifest, manifest_key, publish
from dsec.images.lazy.source import MemorySource, ObjectSource, chunk_key, fetch_verified
from dsec.stores.objects_memory import MemoryObjectStore

_LAYER = "sha256:" + "ab" * 32
_NAME = "cd" * 32


def _document(**changes: Any) -> bytes:
    document = {
        "version": 1,
        "layer": _LAYER,
        "size_bytes": CHUNK_BYTES + 4096,
        "chunk_bytes": CHUNK_BYTES,
        "entries": 3,
        "chunks": [[_NAME, 100], ["ef" * 32, 20]],
        "metadata": [[0, 4096], [8192, 8192]],
        "metadata_chunks": [["01" * 32, 50]],
    }
    return msgspec.json.encode(document | changes)


def test_references_follow_from_the_document() -> None:
    manifest = manifests.decode(_document(), "here")
    assert [(ref.content_bytes, ref.blob_start) for ref in manifest.chunks] == [(CHUNK_BYTES, 50), (4096, 150)]
    assert [(ref.content_bytes, ref.blob_start) for ref in manifest.metadata_chunks] == [(12288, 0)]
    assert manifest.id == name_of(manifest.data)
    assert list(manifest.positions(CHUNK_BYTES - 1, 2)) == [0, 1]
    assert list(manifest.positions(0, 0)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer": "sha256:../../x"}, "digest"),
        ({"chunk_bytes": 1 << 20}, "not 4194304"),
        ({"size_bytes": 0}, "cannot have 0"),
        ({"size_bytes": CHUNK_BYTES + 4095}, "cannot have"),
        ({"size_bytes": 1 << 60}, "cannot have"),
        ({"size_bytes": -4096}, "cannot have"),
        ({"entries": 0}, "entries"),
        ({"entries": (1 << 63) - 1}, "entries"),
        ({"chunks": [[_NAME, 100]]}, "names 1 chunks"),
        ({"chunks": [[_NAME, 100]] * 3}, "names 3 chunks"),
        ({"chunks": [[_NAME, 100], ["../../../etc/passwd", 20]]}, "no name"),
        ({"chunks": [[_NAME, 100], [_NAME.upper(), 20]]}, "no name"),
        ({"chunks": [[_NAME, 100], [_NAME, 1 << 40]]}, "no stored chunk"),
        ({"chunks": [[_NAME, 100], [_NAME, 8]]}, "no stored chunk"),
        ({"chunks": [[_NAME, 100], [_NAME, -8]]}, "no stored chunk"),
        ({"metadata": []}, "0 extents"),
        ({"metadata": [[0, 4096], [4096, 1 << 40]]}, "outside"),
        ({"metadata": [[-4096, 4096], [8192, 8192]]}, "whole blocks"),
        ({"metadata": [[0, 4096], [8192, 0]]}, "whole blocks"),
        ({"metadata": [[0, 4096], [100, 4096]]}, "whole blocks"),
        ({"metadata": [[8192, 8192], [0, 4096]]}, "order"),
        ({"metadata": [[0, 12288], [8192, 4096]]}, "overlap"),
        ({"metadata_chunks": []}, "metadata chunks"),
        ({"more": 1}, "more"),
        ({"entries": "3"}, "entries"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(StateCorruptedError, match="node-17") as caught:
        manifests.decode(_document(**changes), "node-17")
    assert said in caught.value.detail


def test_a_later_version_is_said_to_be_one() -> None:
    with pytest.raises(CapabilityMissingError, match="later"):
        manifests.decode(_document(version=2, chunks="in another form"), "here")


@given(data=st.binary(max_size=300))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(StateCorruptedError):
        manifests.decode(data, "here")


@given(cut=st.integers(0, len(_document()) - 1))
def test_a_truncated_manifest_is_refused(cut: int) -> None:
    with pytest.raises(StateCorruptedError):
        manifests.decode(_document()[:cut], "here")


def test_another_manifest_than_the_one_asked_for_is_refused() -> None:
    with pytest.raises(StateCorruptedError, match="not verify"):
        manifests.decode(_document(), "here", expected=name_of(b"another"))


def make_file(directory: Path, *, data_bytes: int = 9 << 20) -> LayerFile:
    """Make the EROFS file of a small tree with files that are longer than chunks."""
    tree = directory / "tree"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "deep/er/large").write_bytes(os.urandom(data_bytes))
    (tree / "deep/text").write_text("words " * 2000)
    (tree / "deep/small").write_text("tail")
    (tree / "link").symlink_to("deep/er/large")
    for number in range(200):
        (tree / f"deep/file-{number}").write_text(str(number))
    erofs.make(tree, directory / "layer.erofs")
    return LayerFile(directory / "layer.erofs", _LAYER, 206)


def test_chunks_and_metadata_put_together_are_the_file(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    data = file.path.read_bytes()
    kept: dict[str, bytes] = {}
    manifest = convert(file, kept.__setitem__)
    assert manifest.size_bytes == len(data)
    whole = b"".join(_decoded(kept, manifest.chunks))
    assert whole == data
    metadata = b"".join(_decoded(kept, manifest.metadata_chunks))
    assert metadata == b"".join(data[extent.start : extent.end] for extent in manifest.metadata)
    assert len(metadata) < len(data) / 20


def _decoded(kept: dict[str, bytes], refs: Any) -> list[bytes]:
    return [decode(ref, kept[ref.id], "here") for ref in refs]


@pytest.mark.anyio
async def test_a_published_layer_can_be_had_again_and_is_sent_once(tmp_path: Path) -> None:
    file, store = make_file(tmp_path), MemoryObjectStore()
    first = await publish(file, store)
    second = await publish(file, store)
    assert first.manifest == second.manifest
    assert first.new_chunks > 0
    assert (second.new_chunks, second.stored_bytes) == (0, 0)
    manifest = await fetch_manifest(store, first.manifest)
    contents = [await fetch_verified([ObjectSource(store)], ref, timeout_s=5) for ref in manifest.chunks]
    assert b"".join(contents) == file.path.read_bytes()


@pytest.mark.anyio
async def test_two_layers_with_equal_content_share_their_chunks(tmp_path: Path) -> None:
    file, store = make_file(tmp_path), MemoryObjectStore()
    first = await publish(file, store)
    other = LayerFile(file.path, "sha256:" + "ff" * 32, file.entries)
    second = await publish(other, store)
    assert second.manifest != first.manifest
    assert second.new_chunks == 0


@pytest.mark.anyio
async def test_a_manifest_is_published_after_all_its_chunks(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    order: list[str] = []

    class Watched(MemoryObjectStore):
        async def put(self, key: str, data: bytes, **options: Any) -> bool:
            order.append(key)
            return await super().put(key, data, **options)

    report = await publish(file, Watched())
    assert order[-1] == manifest_key(report.manifest)
    assert all(key.startswith("layers/chunks/") for key in order[:-1])


@pytest.mark.anyio
async def test_a_manifest_that_was_exchanged_in_the_store_is_refused(tmp_path: Path) -> None:
    file, store = make_file(tmp_path), MemoryObjectStore()
    name = (await publish(file, store)).manifest
    await store.put(manifest_key(name), _document())
    with pytest.raises(StateCorruptedError, match=store.url):
        await fetch_manifest(store, name)
    with pytest.raises(ObjectNotFoundError, match="manifest"):
        await fetch_manifest(store, _NAME)
    assert chunk_key(_NAME) == f"layers/chunks/cd/{_NAME}"
    assert MemorySource({}).name == "memory"


@given(st.data())
def test_a_damaged_erofs_file_is_taken_apart_or_refused_but_never_more(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = _small_file(tmp_path_factory)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(1024, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = file.with_name("damaged.erofs")
    damaged.write_bytes(content[: data.draw(st.sampled_from([len(content), 4096, 100]))])
    try:
        extents = metadata_extents(damaged)
    except InvalidRequestError:
        return
    assert extents[-1].end <= len(content)


_made: dict[str, Path] = {}


def _small_file(factory: pytest.TempPathFactory) -> Path:
    if "file" not in _made:
        _made["file"] = make_file(factory.mktemp("small"), data_bytes=9000).path
    return _made["file"]
