"""EROFS files that strangers published: a kernel reads them, so that what is not made as ours are is refused before."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import InvalidRequestError, StateCorruptedError
from dsec.images.lazy.erofs.metadata import Extent, Walk, metadata_extents
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.document import (
    DocumentLayer,
    ImageDocument,
    encode_document,
    image_key,
    name_in,
    reference_of,
)
from dsec.images.lazy.formats.stored import encode
from dsec.images.lazy.publication.conversion import manifest_key
from dsec.images.lazy.publication.sharing import pull_image
from dsec.images.lazy.source import chunk_key
from dsec.images.listing import tree_digest
from dsec.model.image import ImageConfig
from dsec.testing.image_hosts import image_hosts

pytestmark = [pytest.mark.root]
_FEATURES_AT, _CHECKSUMMED = 1024 + 8, 1


def _publish(objects: Path, file: bytes) -> str:
    """Publish a file of at most a chunk as an image, whatever it is, and return its reference."""
    file += bytes(-len(file) % 4096)
    name, stored = encode(file)
    made = manifests.make(
        "sha256:" + "0" * 64,
        len(file),
        3,
        chunks=[(name, len(stored))],
        metadata=[Extent(0, len(file))],
        metadata_chunks=[(name, len(stored))],
    )
    layer = DocumentLayer(digest=made.layer, manifest=made.id)
    data = encode_document(ImageDocument(version=1, name="evil", config=ImageConfig(), source="", layers=(layer,)))
    reference = reference_of(data)
    for key, value in (
        (chunk_key(name), stored),
        (manifest_key(made.id), made.data),
        (image_key(name_in(reference)), data),
    ):
        (objects / key).parent.mkdir(parents=True, exist_ok=True)
        (objects / key).write_bytes(value)
    return reference


def _made(tmp_path: Path, *options: str) -> bytearray:
    """Return an EROFS file of two directories in a directory, and a file, without the checksum of its superblock."""
    for name in ("inner", "other"):
        (tmp_path / "tree/outer" / name).mkdir(parents=True)
    (tmp_path / "tree/file").write_bytes(b"hello " * 10_000)
    file = tmp_path / "made.erofs"
    subprocess.run(["mkfs.erofs", *options, file, tmp_path / "tree"], check=True, capture_output=True)
    data = bytearray(file.read_bytes())
    (features,) = struct.unpack_from("<I", data, _FEATURES_AT)
    struct.pack_into("<I", data, _FEATURES_AT, features & ~_CHECKSUMMED)
    return data


def _compressed(tmp_path: Path) -> bytearray:
    return _made(tmp_path, "-zlz4")


def _changed(data: bytearray, choose: Callable[[int, list[int]], int]) -> bytearray:
    """Have the last entry of `outer` be of an inode that is chosen by that of `outer`, and those of its entries."""
    with mmap.mmap(-1, len(data)) as memory:
        memory[:] = bytes(data)
        walk = Walk(memory)
        of_root = {number: walk._inode(number) for _, number in walk.entries(walk._inode(walk.root))}
        outer = next(number for number, each in of_root.items() if each.mode & 0o40000 and number != walk.root)
        places, numbers = zip(*walk.entries(of_root[outer]), strict=True)
        struct.pack_into("<Q", data, places[-1], choose(outer, list(numbers)))
    return data


def _in_a_circle(tmp_path: Path) -> bytearray:
    return _changed(_made(tmp_path), lambda outer, _: outer)


def _in_two_places(tmp_path: Path) -> bytearray:
    return _changed(_made(tmp_path), lambda _, numbers: numbers[-2])


def _far_away(tmp_path: Path) -> bytearray:
    """An entry is of an inode that the file does not reach to."""
    data = _made(tmp_path)
    with mmap.mmap(-1, len(data)) as memory:
        memory[:] = bytes(data)
        walk = Walk(memory)
        at = max(place for place, _ in walk.entries(walk._inode(walk.root)))
    struct.pack_into("<Q", data, at, 1 << 40)
    return data


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_compressed, "compression"),
        (_in_a_circle, "symbolic links"),
        (_in_two_places, "several places"),
        (_far_away, "outside"),
    ],
)
@pytest.mark.slow
def test_an_eager_pull_refuses_it_in_words_and_keeps_nothing(
    tmp_path: Path, make: Callable[[Path], bytearray], said: str
) -> None:
    with image_hosts(tmp_path) as hosts:
        reference = _publish(tmp_path / "objects", bytes(make(tmp_path)))
        store = hosts.host("there")
        with pytest.raises(StateCorruptedError, match="not a sound EROFS") as caught:
            anyio.run(lambda: pull_image(store, reference, hosts.objects, eager=True))
        assert said in caught.value.detail
        assert store.list() == ()


@pytest.mark.slow
def test_a_layer_that_wants_what_ours_do_not_is_not_shown_to_the_kernel(tmp_path: Path) -> None:
    with image_hosts(tmp_path) as hosts:
        reference = _publish(tmp_path / "objects", bytes(_compressed(tmp_path)))
        store = hosts.host("there")
        anyio.run(lambda: pull_image(store, reference, hosts.objects))
        with pytest.raises(StateCorruptedError) as caught:
            store.mount(["evil"])
        assert "compression" in caught.value.detail
        assert hosts.daemon().status().mounted == ()


def test_a_tree_of_more_bytes_than_its_file_can_hold_is_not_read(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / name).write_bytes(bytes(1000))
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert tree_digest(root, file_bytes=5000) == tree_digest(root)
        with pytest.raises(InvalidRequestError, match="more in it"):
            tree_digest(root, file_bytes=1000)
    finally:
        os.close(root)


def test_entries_are_bounded_also_where_inodes_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/first").touch()
    for number in range(20):
        (tmp_path / f"tree/{number}").hardlink_to(tmp_path / "tree/first")
    subprocess.run(["mkfs.erofs", tmp_path / "made.erofs", tmp_path / "tree"], check=True, capture_output=True)
    metadata_extents(tmp_path / "made.erofs")
    monkeypatch.setattr("dsec.images.lazy.erofs.metadata.MAXIMUM_INODES", 5)
    with pytest.raises(InvalidRequestError) as caught:
        metadata_extents(tmp_path / "made.erofs")
    assert "entries" in caught.value.detail
