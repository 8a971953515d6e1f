"""Images at the far end of a link, and what this host has of them: nothing, all, or what was touched.

Images are made for real: the default image, upon it a layer of many files whose bytes compress about two to one, as
libraries and data sets do. Half of them is a few large files, the other half thousands of small ones.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from dsec.base.units import KIB, MIB
from dsec.bench.shaped import ShapedStore
from dsec.bench.touched import Touched, touched
from dsec.images.importers.directory import import_directory
from dsec.images.importers.request import ImportRequest
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.lazy.serving.client import LAZY, LayerDaemon, end_daemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.lazy.tracing.image_use import ImageUse, image_uses
from dsec.images.lazy.tracing.traces import TraceShelf
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.linux.mounts import mounts_under, unmount
from dsec.stores.objects_folder import FolderObjectStore
from dsec.stores.opening import open_store

DATA = "opt/data"
_LARGE_FILES = 4
_SMALL_FILE_BYTES = 64 * KIB
_FILES_IN_DIRECTORY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An image that is to be made.

    Attributes:
        name: its name.
        base: the image below.
        added_bytes: of its own layer.
        seed: of its bytes.
    """

    name: str
    base: str
    added_bytes: int
    seed: int


def make_image(images: LocalImageStore, directory: Path, wanted: Wanted) -> int:
    """Make an image; return the bytes of all its layers. Blocks.

    Args:
        images: where the base is, and where it goes.
        directory: for the tree, which is removed again.
        wanted: what.
    """
    tree = directory / wanted.name
    _write_tree(tree / DATA, wanted)
    added = import_directory(images, ImportRequest(path=tree, name=f"{wanted.name}-layer"))
    remove_tree(tree)
    base = images.get(wanted.base)
    layers = [layer.digest for layer in (*base.layers, *added.layers)]
    made = images.add_image(wanted.name, layers, base.config, source="dsec bench")
    images.remove(added.name)
    return sum(layer.size_bytes for layer in made.layers)


def _write_tree(root: Path, wanted: Wanted) -> None:
    chance, half = random.Random(wanted.seed), wanted.added_bytes // 2
    root.mkdir(parents=True)
    for number in range(_LARGE_FILES):
        _write_file(root / f"large-{number}", half // _LARGE_FILES, chance)
    for number in range(half // _SMALL_FILE_BYTES):
        directory = root / f"part-{number // _FILES_IN_DIRECTORY}"
        directory.mkdir(exist_ok=True)
        _write_file(directory / str(number), _SMALL_FILE_BYTES, chance)


def _write_file(path: Path, size_bytes: int, chance: random.Random) -> None:
    piece = 16 * KIB
    with path.open("wb") as file:
        for _ in range(0, size_bytes, 2 * piece):
            line = b"%016x some words that come again\n" % chance.getrandbits(64)
            file.write(chance.randbytes(piece) + (line * (piece // len(line) + 1))[:piece])


class LazyImages:
    """The images of a node whose store is behind a link. Used while no sandbox uses them, and from one task.

    Args:
        root: of the node's image store.
        store: what is at the far end.
    """

    def __init__(self, root: Path, store: ShapedStore) -> None:
        self.daemon = LayerDaemon(root / LAZY, DaemonOptions(store_url=store.url))
        self._root = root
        self._store = store
        self._images = LocalImageStore(root, lazy=self.daemon)
        self._manifests: dict[str, tuple[LayerManifest, ...]] = {}

    async def publish(self, images: LocalImageStore, name: str, *, by_traces: bool = False) -> str:
        """Put an image of another store to the far end, not over the link; return its reference."""
        far = FolderObjectStore(self._store.directory)
        published = await publish_image(images, name, far, by_traces=by_traces)
        found = [await fetch_manifest(far, manifest) for manifest in published.manifests]
        self._manifests[published.reference] = tuple(found)
        return published.reference

    async def pull(self, reference: str, *, eager: bool = False) -> None:
        """Make an image known to the node, over the link; with `eager`, all of it."""
        await pull_image(self._images, reference, open_store(self._store.url), eager=eager)

    def forget_traces(self) -> None:
        """Leave no trace of any image on this host, so that nothing is prefetched. Blocks."""
        TraceShelf(self._root).prune(())

    def use(self, name: str) -> ImageUse:
        """Say what came of an image since it was mounted, and what of it was read. Blocks."""
        (use,) = image_uses(self._images, [self._images.get(name)], self.daemon)
        return use

    async def forget(self) -> None:
        """Leave nothing of any image on this host: names, layers, mounts, cache and what the kernel cached. The daemon
        runs, as it does on a node that has served lazy layers before.
        """
        await anyio.to_thread.run_sync(self._forget)

    def _forget(self) -> None:
        for image in self._images.list():
            self._images.remove(image.name)
        self._images.release()
        self.end()
        self.daemon.status()

    def end(self) -> None:
        """End the daemon and remove what it cached."""
        end_daemon(self.daemon.root)
        for entry in mounts_under(self.daemon.root):
            unmount(entry.target, detach=True)
        remove_tree(self.daemon.root)

    async def chill(self) -> None:
        """Drop what the kernel caches of layers that are here, and their mounts."""
        await anyio.to_thread.run_sync(self._chill)

    def _chill(self) -> None:
        self._images.release()
        drop_pages([*self._root.glob("layers/*/layer.erofs"), *self.daemon.root.glob("cache/*/data")])

    def size_bytes(self) -> int:
        """Return the bytes of all layers that were published, each counted once."""
        layers = {each.layer: each.size_bytes for published in self._manifests.values() for each in published}
        return sum(layers.values())

    async def touched(self, reference: str) -> tuple[Touched, ...]:
        """Say what of each layer of an image was touched since it was mounted; it was pulled whole."""
        return await anyio.to_thread.run_sync(self._touched, reference)

    def _touched(self, reference: str) -> tuple[Touched, ...]:
        mounts, found = self._root / "mounts", self._manifests[reference]
        return tuple(touched(mounts / manifest.layer.removeprefix("sha256:"), manifest) for manifest in found)

    def close(self) -> None:
        """Leave nothing that runs or is mounted."""
        self._images.close()
        self.end()


def drop_pages(files: Sequence[Path]) -> None:
    """Have the kernel cache nothing of files."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextmanager
def lazy_images(root: Path, store: ShapedStore) -> Iterator[LazyImages]:
    """Open the images of a node; nothing of its layers runs or is mounted at the end."""
    images = LazyImages(root, store)
    try:
        yield images
    finally:
        images.close()


def warm(store: ShapedStore) -> None:
    """Have all objects of the far end in memory: its disk is this host's, and not what is measured."""
    buffer = bytearray(MIB)
    for path in store.directory.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
