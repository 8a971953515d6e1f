"""Documents that strangers wrote to harm whoever reads them: each is refused in words, at once, and reaches nothing."""

from __future__ import annotations

import json
import lzma
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    CapabilityMissingError,
    InvalidRequestError,
    StateCorruptedError,
    UnsafeArchiveError,
)
from dsec.images.importers.compression import opened_archive
from dsec.images.importers.documents import read_document
from dsec.images.importers.oci_config import OciImageConfig
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats import document, manifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, name_of
from dsec.images.lazy.publication import sharing
from dsec.images.lazy.publication.conversion import manifest_key
from dsec.images.lazy.publication.published_traces import pull_traces
from dsec.images.lazy.tracing import traces
from dsec.images.registry import media
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, ImageInfo
from dsec.stores.objects import ObjectInfo
from dsec.stores.objects_memory import MemoryObjectStore

_NAME = "cd" * 32
_DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "read",
    [
        lambda data: media.decode_document(data, "a registry"),
        lambda data: manifest.decode(data, "a store"),
        lambda data: document.decode_document(data, document.reference_of(data), "a store"),
    ],
    ids=["OCI manifest", "layer manifest", "image"],
)
def test_one_that_is_nested_a_hundred_thousand_levels_deep_does_not_verify(read: Callable[[bytes], object]) -> None:
    with pytest.raises(StateCorruptedError) as caught:
        read(_DEEP)
    assert "deep" in caught.value.detail


def test_a_version_of_thousands_of_digits_is_a_later_one() -> None:
    data = b'{"version":' + b"9" * 5000 + b"}"
    with pytest.raises(CapabilityMissingError):
        document.decode_document(data, document.reference_of(data), "a store")


@pytest.mark.parametrize(
    "diff_id", ["sha256:/dev/zero", "sha256:../names", "sha256:", "", "md5:00", "sha256:" + "A" * 64]
)
def test_layers_that_would_be_files_of_this_host_are_no_layers(tmp_path: Path, diff_id: str) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps({"rootfs": {"type": "layers", "diff_ids": [diff_id]}}))
    with pytest.raises(InvalidRequestError) as caught:
        read_document(path, OciImageConfig)
    assert "no sha256 digest" in caught.value.detail


def test_fingerprint_rules_of_a_published_image_are_held_to_what_a_check_can_do() -> None:
    data = msgspec.json.encode(
        {
            "version": 1,
            "name": "x",
            "source": "",
            "config": {"fingerprint": {"contents": ["../../etc/shadow"]}},
            "layers": [{"digest": "sha256:" + _NAME, "manifest": _NAME}],
        }
    )
    with pytest.raises(InvalidRequestError, match="absolute"):
        document.decode_document(data, document.reference_of(data), "a store")


def test_metadata_that_would_fill_the_memory_is_refused() -> None:
    size_bytes = 2 << 30
    pieces = [[_NAME, 100]] * (size_bytes // CHUNK_BYTES)
    data = msgspec.json.encode(
        {
            "version": 1,
            "layer": "sha256:" + _NAME,
            "size_bytes": size_bytes,
            "chunk_bytes": CHUNK_BYTES,
            "entries": 1,
            "chunks": pieces,
            "metadata": [[0, size_bytes]],
            "metadata_chunks": pieces,
        }
    )
    with pytest.raises(StateCorruptedError) as caught:
        manifest.decode(data, "a store")
    assert "2.0 GiB" in caught.value.detail


@pytest.mark.parametrize(
    "repeated",
    [
        b'"metadata":[%s],' % b",".join([b"[0,4096]"] * 1_500_000),
        b",".join(b'"%x":0' % n for n in range(500_000)) + b",",
    ],
    ids=["lists", "fields"],
)
def test_a_manifest_of_millions_of_things_takes_little_more_memory_than_it_is_long(repeated: bytes) -> None:
    data = b"{" + repeated + b'"version":1}'
    tracemalloc.start()
    try:
        with pytest.raises(StateCorruptedError, match=r"more than|unknown field"):
            manifest.decode(data, "a store")
        assert tracemalloc.get_traced_memory()[1] < len(data)
    finally:
        tracemalloc.stop()


def test_manifests_that_are_large_together_are_not_all_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document may name the same one, of 64 MiB, five hundred times."""
    monkeypatch.setattr(sharing, "MAXIMUM_MANIFESTS_BYTES", 2000)
    made = manifest.make(
        "sha256:" + _NAME, 4096, 1, chunks=[(_NAME, 100)], metadata=[Extent(0, 4096)], metadata_chunks=[(_NAME, 100)]
    )
    layer = document.DocumentLayer(digest=made.layer, manifest=made.id)
    text = document.encode_document(
        document.ImageDocument(version=1, name="evil", config=ImageConfig(), source="", layers=(layer,) * 500)
    )
    reference, objects, images = document.reference_of(text), MemoryObjectStore(), LocalImageStore(tmp_path)

    async def pull() -> None:
        await objects.put(document.image_key(document.name_in(reference)), text)
        await objects.put(manifest_key(made.id), made.data)
        with pytest.raises(StateCorruptedError, match=r"those of \d of its 500 layers"):
            await sharing.pull_image(images, reference, objects)

    anyio.run(pull)
    images.close()


def test_a_trace_that_names_each_chunk_of_a_tebibyte_again_and_again_is_refused() -> None:
    blocks = (1 << 40) // 4096
    data = msgspec.json.encode(
        traces.Trace(
            version=1,
            image_id="sha256:" + _NAME,
            command="",
            argv=(),
            source="trace",
            runs=1,
            recorded_at_s=0.0,
            layers=(traces.TracedLayer(digest="sha256:" + _NAME, size_bytes=1 << 40),),
            reads=((0, 0, blocks, 0),) * traces.MAXIMUM_READS,
        )
    )
    with pytest.raises(StateCorruptedError) as caught:
        traces.decode(data, "a store")
    assert "64.0 GiB" in caught.value.detail


def _of_one_chunk(count: int, entries: int) -> manifest.LayerManifest:
    return manifest.decode(
        msgspec.json.encode(
            {
                "version": 1,
                "layer": "sha256:" + _NAME,
                "size_bytes": CHUNK_BYTES * count,
                "chunk_bytes": CHUNK_BYTES,
                "entries": entries,
                "chunks": [[name_of(bytes(CHUNK_BYTES)), 100]] * count,
                "metadata": [[0, 4096]],
                "metadata_chunks": [[name_of(bytes(4096)), 100]],
            }
        ),
        "here",
    )


@pytest.mark.slow
def test_layers_that_consist_of_one_chunk_a_hundred_thousand_times_are_found_and_taken_away_at_once(
    tmp_path: Path,
) -> None:
    cache = LayerCache(tmp_path / "cache")
    first, second = (cache.hold(_of_one_chunk(100_000, entries)) for entries in (1, 2))
    assert cache.store(first, 0, bytes(CHUNK_BYTES))
    # With a look at each place for each chunk, these two would take hours.
    assert all(cache.from_another(second, place) is not None for place in (0, 99_999))
    cache.release(first)
    cache.release(second)
    assert cache.prune([]) == (2, CHUNK_BYTES)
    cache.close()


def test_an_archive_that_wants_gigabytes_of_memory_to_be_unpacked_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.xz"
    path.write_bytes(lzma.compress(bytes(1000), filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]))
    with opened_archive(path, 1 << 30) as stream, pytest.raises(UnsafeArchiveError, match="memory"):
        stream.read(1)


def test_several_streams_of_xz_are_one_archive_and_half_of_one_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "archive.xz"
    path.write_bytes(lzma.compress(b"first") + bytes(4) + lzma.compress(b"second"))
    with opened_archive(path, 1 << 20) as stream:
        assert b"".join(iter(lambda: stream.read(3), b"")) == b"firstsecond"
    path.write_bytes(lzma.compress(b"first")[:-8])
    with opened_archive(path, 1 << 20) as stream, pytest.raises(InvalidRequestError, match="cut off"):
        list(iter(lambda: stream.read(3), b""))


class _EndlessStore(MemoryObjectStore):
    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        while True:
            yield ObjectInfo(key=f"{prefix}more", size_bytes=1 << 40, modified_at_s=0.0)


def test_a_store_that_lists_traces_for_ever_is_left(tmp_path: Path) -> None:
    images, info = LocalImageStore(tmp_path), ImageInfo(name="x", image_id="sha256:" + _NAME, layers=())
    assert anyio.run(pull_traces, images, info, f"b3:{_NAME}", _EndlessStore()) == 0
    images.close()
