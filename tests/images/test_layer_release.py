"""Mounts go when nobody uses them, and never under somebody who is about to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from dsec.images.layer_use import LayerUse
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.ended_layers import layers_ended
from dsec.testing.image_suite import make_tree
from dsec.testing.releasing import release_all

_CREATIONS = 150


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_mount_leaves_when_it_was_not_used_for_long_enough() -> None:
    clock = _Clock()
    use = LayerUse(clock)
    use.touch(["a"])
    clock.now_s = 5.0
    use.touch(["b"])
    assert use.leave(["a", "b"], idle_s=5.0) == {"a"}
    assert use.is_leaving("a")
    assert not use.is_leaving("b")


def test_a_mount_that_was_found_counts_as_used_when_it_was_found() -> None:
    clock = _Clock()
    use = LayerUse(clock)
    assert use.leave(["a"], idle_s=5.0) == frozenset()
    clock.now_s = 5.0
    assert use.leave(["a"], idle_s=5.0) == {"a"}


def test_who_uses_a_mount_that_leaves_is_told_and_can_keep_it() -> None:
    clock = _Clock()
    use = LayerUse(clock)
    assert use.touch(["a", "b"])
    assert use.leave(["a", "b"], idle_s=0.0) == {"a", "b"}
    assert not use.touch(["b", "c"])
    use.stay(["b"])
    assert use.touch(["b", "c"])
    assert use.is_leaving("a")


class _Node:
    """Registers sandboxes as a node does: nothing comes between the look at a mount and the registration, and whoever
    asks what is used is answered when nobody is between the two.
    """

    def __init__(self) -> None:
        self._loop = threading.Lock()
        self._used: dict[int, frozenset[str]] = {}

    def layers_in_use(self) -> frozenset[str]:
        with self._loop:
            return frozenset().union(*self._used.values())

    def created(self, store: LocalImageStore, names: tuple[str, ...], number: int) -> tuple[Path, ...]:
        if store.mounted(names) is None:
            store.mount(names)
        with self._loop:
            image = store.mounted(names)
            if image is not None:
                self._used[number] = frozenset(layer.digest for layer in image.info.layers)
                return image.layer_paths
        return self.created(store, names, number)

    def removed(self, number: int) -> None:
        with self._loop:
            del self._used[number]


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[[_Node], LocalImageStore]]:
    """A store with an image of two layers, one of them lazy."""
    opened: list[LocalImageStore] = []

    def make(node: _Node) -> LocalImageStore:
        objects = FolderObjectStore(tmp_path / "objects")
        origin = LocalImageStore(tmp_path / "origin")
        origin.add_image("low", [origin.add_layer(make_tree(tmp_path / "l", a="1"))], ImageConfig(), source="test")
        reference = anyio.run(publish_image, origin, "low", objects).reference
        origin.close()
        daemon = LayerDaemon(tmp_path / "here/lazy", DaemonOptions(store_url=objects.url))
        store = LocalImageStore(tmp_path / "here", lazy=daemon, layers_in_use=node.layers_in_use)
        opened.append(store)
        low = anyio.run(pull_image, store, reference, objects).layers[0].digest
        high = store.add_layer(make_tree(tmp_path / "h", b="2"))
        store.add_image("mine", [low, high], ImageConfig(), source="test")
        return store

    with layers_ended(tmp_path / "here/lazy"):
        yield make
        for store in opened:
            store.close()


@pytest.mark.root
@pytest.mark.slow
def test_no_sandbox_loses_its_layers_to_a_release_beside_its_creation(
    make_store: Callable[[_Node], LocalImageStore],
) -> None:
    node = _Node()
    store = make_store(node)
    over = threading.Event()
    released = 0

    def release() -> None:
        nonlocal released
        while not over.is_set():
            store.release()
            released += 1

    def create(number: int) -> str:
        low, high = node.created(store, ("mine",), number)
        try:
            return (low / "a").read_text() + (high / "b").read_text()
        finally:
            node.removed(number)

    releaser = threading.Thread(target=release)
    releaser.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            assert set(pool.map(create, range(_CREATIONS))) == {"12"}
    finally:
        over.set()
        releaser.join()
    assert released > 1
    release_all(store, LayerDaemon(store.root / "lazy", DaemonOptions(store_url="file:///nowhere")))
    assert store.mounted(["mine"]) is None


@pytest.mark.root
@pytest.mark.slow
def test_what_was_just_used_stays_mounted_for_a_while_and_in_the_daemon_too(
    make_store: Callable[[_Node], LocalImageStore],
) -> None:
    store = make_store(_Node())
    paths = store.mount(["mine"]).layer_paths
    store.release(idle_s=3600.0)
    image = store.mounted(["mine"])
    assert image is not None
    assert image.layer_paths == paths


@pytest.mark.root
@pytest.mark.slow
def test_a_lazy_layer_that_was_open_when_it_was_to_go_goes_the_next_time(
    make_store: Callable[[_Node], LocalImageStore],
) -> None:
    store = make_store(_Node())
    daemon = LayerDaemon(store.root / "lazy", DaemonOptions(store_url="file:///nowhere"))
    (manifest,) = (store.stored_layer(layer.digest)[1].manifest for layer in store.get("low").layers)
    store.mount(["low"])
    with (store.root / "lazy/mounts" / manifest / "a").open():
        store.release()
        assert daemon.mounted() == {manifest}
    release_all(store, daemon)
