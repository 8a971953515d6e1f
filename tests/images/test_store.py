"""The image store, in every format, and the in-memory fake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsec.base.errors import InvalidRequestError, StateCorruptedError, StoreUnavailableError
from dsec.images import erofs
from dsec.images.memory import MemoryImages
from dsec.images.port import ImageStore
from dsec.images.store import LocalImageStore
from dsec.linux import mounts
from dsec.model.image import LayerFormat
from dsec.testing.image_suite import CONFIG, ImageStoreSuite, StoredImageSuite, make_tree


class TestMemory(ImageStoreSuite):
    @pytest.fixture
    def store(self) -> ImageStore:
        return MemoryImages()


class TestDirectories(StoredImageSuite):
    layer_format = LayerFormat.DIRECTORY


@pytest.mark.root
class TestErofs(StoredImageSuite):
    layer_format = LayerFormat.EROFS

    def test_truncated_layer_file_is_damage(self, store: LocalImageStore, tmp_path: Path) -> None:
        file = self._layer_file(store, tmp_path)
        os.truncate(file, 100)
        with pytest.raises(StateCorruptedError, match="damaged"):
            store.mount(["mine"])

    def test_overwritten_superblock_is_damage(self, store: LocalImageStore, tmp_path: Path) -> None:
        file = self._layer_file(store, tmp_path)
        file.write_bytes(bytes(file.stat().st_size))
        with pytest.raises(StateCorruptedError, match="EROFS"):
            store.mount(["mine"])

    def test_changed_content_does_not_verify(self, store: LocalImageStore, tmp_path: Path) -> None:
        file = self._layer_file(store, tmp_path)
        data = file.read_bytes()
        assert data.count(b"precious") == 1
        file.write_bytes(data.replace(b"precious", b"tampered"))
        with pytest.raises(StateCorruptedError, match="does not verify"):
            store.verify("mine")

    def test_layer_file_mounts_through_a_loop_device(self, store: LocalImageStore, tmp_path: Path) -> None:
        file = self._layer_file(store, tmp_path)
        target = tmp_path / "target"
        target.mkdir()
        erofs.mount_file(file, target, loop=True)
        try:
            assert (target / "a").read_text().startswith("precious")
            (entry,) = mounts.mounts_under(target)
            assert entry.source.startswith("/dev/loop")
            assert {"ro", "nosuid", "nodev"} <= set(entry.options.split(","))
        finally:
            mounts.unmount(target)

    def test_layers_are_mounted_without_devices_and_set_uid(self, store: LocalImageStore, tmp_path: Path) -> None:
        self._layer_file(store, tmp_path)
        (path,) = store.mount(["mine"]).layer_paths
        (entry,) = mounts.mounts_under(path)
        assert {"ro", "nosuid", "nodev"} <= set(entry.options.split(","))

    def _layer_file(self, store: LocalImageStore, tmp_path: Path) -> Path:
        digest = store.add_layer(make_tree(tmp_path / "t", a="precious" + "x" * 10_000))
        store.add_image("mine", [digest], CONFIG, source="test")
        return store.root / "layers" / digest.removeprefix("sha256:") / "layer.erofs"


@pytest.mark.root
def test_layer_has_one_digest_in_both_formats(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "t", a="1", d__e__f="2")
    digests = set()
    for kind in (LayerFormat.EROFS, LayerFormat.DIRECTORY):
        store = LocalImageStore(tmp_path / kind.value, layer_format=kind)
        digests.add(store.add_layer(tree))
        store.close()
    assert len(digests) == 1


@pytest.mark.parametrize(("place", "is_directory"), [("", False), ("layers", False), ("lock", True)])
def test_a_directory_that_cannot_be_used_is_named_and_what_to_do(
    tmp_path: Path, place: str, is_directory: bool
) -> None:
    root = tmp_path / "images"
    if place:
        root.mkdir()
    (root / place).mkdir() if is_directory else (root / place).write_text("not a directory")
    with pytest.raises(StoreUnavailableError, match=f"the image store {root} cannot be used"):
        LocalImageStore(root)


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a:b:c", "../x", "a b", "a\n", "x" * 300, "-a", "a/"])
def test_malformed_name_is_refused(store: LocalImageStore, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="not an image name"):
        store.get(name)


def test_name_with_registry_and_path_is_a_plain_file_in_the_store(store: LocalImageStore, tmp_path: Path) -> None:
    name = "host.example:5000/team/image:v1"
    store.add_image(name, [store.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
    assert store.get(name).name == name
    assert len(list((store.root / "names").iterdir())) == 1


def test_damaged_record_of_a_name_is_reported(store: LocalImageStore, tmp_path: Path) -> None:
    store.add_image("mine", [store.add_layer(make_tree(tmp_path / "t", a="1"))], CONFIG, source="test")
    (store.root / "names" / "mine.json").write_text('{"version": 1}')
    with pytest.raises(StateCorruptedError, match="mine"):
        store.get("mine")
