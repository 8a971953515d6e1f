"""The image store of a node, on disk (docs/formats/image-store.md).

What makes it safe for several processes and for `kill -9` at any instruction:

- A layer is built in a private staging directory and appears by one rename; a name by another. There is no third
  kind of change, so that no crash leaves half of anything visible.
- Writers hold one lock file for the moment of the rename, never while they build.
- Garbage is whatever no name, no mount and no live process's pin refers to. It is collected when the store is
  opened and when a name is removed.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec

from dsec.base.errors import AlreadyExistsError, CapabilityMissingError, InvalidRequestError, StateCorruptedError
from dsec.images import erofs, layers
from dsec.images.below import Below
from dsec.images.catalog import Catalog, image_id
from dsec.images.durable import exclusive, full_disk_reported, sync_path, usable, write_atomically
from dsec.images.history import History, LayerStory
from dsec.images.layer_mounts import LAZY_CACHE, LayerMounts, LazyLayers, NoLazyLayers
from dsec.images.layers import LayerRecord, hex_of
from dsec.images.lazy.caching.cached_layer import recorded_bytes
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.tracing.traces import TraceShelf
from dsec.images.listing import directory_digest
from dsec.images.mounting import MountedLayers
from dsec.images.names import canonical_name, not_found
from dsec.images.packing import Kept, Packing, PackOrder
from dsec.images.port import MountedImage
from dsec.images.stacking import check_count
from dsec.images.staging import Pins, Staging, WorkDirectory, remove_tree
from dsec.images.tree_reader import entries_of_upper
from dsec.images.tree_writer import TreeWriter
from dsec.model.image import ImageConfig, ImageInfo, LayerFormat, LayerInfo
from dsec.model.state import PackReport

_DIRECTORIES = ("layers", "names", "history", "diffs", "mounts", "staging", "pins")
_PREPARED_AT_ONCE = 8


def nothing_in_use() -> frozenset[str]:
    """Say that no sandbox uses a layer."""
    return frozenset()


class LocalImageStore:
    """Images in a directory of this host; implements `dsec.images.port.ImageStore`.

    Args:
        root: the directory, ``<state>/images``; made if missing.
        layers_in_use: digests of the layers that sandboxes use, or are about to; None: not known yet, so that nothing
            may be unmounted or collected. Asked at once, since opening collects, and by `release` and `remove`; from
            the thread that calls those, while no lock of the store is held. Sandboxes that were given a mount before it
            is asked must be in the answer.
        layer_format: how to store new layers; None: EROFS where the host has it, otherwise directories.
        wall_s: wall clock, for `created_at_s`.
        lazy: mounts the layers that are loaded when touched.

    Raises:
        StoreUnavailableError: the directory cannot be read or written.
        HostDiskFullError: no space.
    """

    def __init__(
        self,
        root: Path,
        *,
        layers_in_use: Callable[[], frozenset[str] | None] = nothing_in_use,
        layer_format: LayerFormat | None = None,
        wall_s: Callable[[], float] = time.time,
        lazy: LazyLayers = NoLazyLayers(),
    ) -> None:
        self.root = root.absolute()
        self._layers_in_use = layers_in_use
        self._lazy = lazy
        self._wanted_format = layer_format
        self._format: tuple[LayerFormat, str] | None = None
        self._wall_s = wall_s
        with full_disk_reported("opening the image store"), usable("image store", self.root):
            for name in _DIRECTORIES:
                (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self.root / "lock"
        self._layers = self.root / "layers"
        self._diffs = self.root / "diffs"
        self._catalog = Catalog(self.root / "names")
        self.history = History(self.root / "history")
        self._staging = Staging(self.root / "staging", self._lock)
        self._mounts = LayerMounts(self.root / "mounts", self._layers, lazy)
        self._pins = Pins(self.root / "pins")
        self._mounting = MountedLayers(
            self._lock, self._layers, catalog=self._catalog, get=self.get, mounts=self._mounts, pins=self._pins
        )
        self._lazy_seen = (-1, False)
        lazy.revive()
        used = layers_in_use()
        with full_disk_reported("opening the image store"), usable("image store", self.root):
            with exclusive(self._lock):
                self._staging.sweep()
                self._collect(used)
                with suppress(OSError):  # A full disk. It is said the next time.
                    self._describe_anew()
            self._delete_doomed()

    @property
    def lazy(self) -> LazyLayers:
        """Who mounts the layers that are loaded when touched."""
        return self._lazy

    def close(self) -> None:
        """Let go of pins; mounts stay for the next process. Idempotent."""
        self._pins.close()

    def get(self, name: str) -> ImageInfo:
        """Return the image. See the port."""
        known = canonical_name(name)
        image = self._catalog.read(known)
        if image is None:
            raise not_found(known, self._catalog.names())
        return image

    def list(self) -> tuple[ImageInfo, ...]:
        """Return all images, by name."""
        return tuple(self._catalog.images())

    def mount(self, names: Sequence[str]) -> MountedImage:
        """Mount the layers of the images `names`. See the port. Mounted already, it costs a few stat(2) calls."""
        return self._mounting.mount(names)

    def mounted(self, names: Sequence[str]) -> MountedImage | None:
        """Return the images `names` where their layers are mounted; None: `mount` has work to do. See the port."""
        return self._mounting.mounted(names)

    def mount_layers(self, digests: Sequence[str]) -> tuple[Path, ...]:
        """Mount layers by their digests. See the port."""
        return self._mounting.mount_layers(digests)

    def pack(self, order: PackOrder) -> PackReport:
        """Make an image of a frozen writable layer. See the port."""
        name = canonical_name(order.name)
        with Below(order.layer_paths) as below:
            packing = Packing(order.scrub, below.is_directory)
            kept = packing.kept(entries_of_upper(order.upper, order.check))
            if order.dry_run:
                deque(kept, maxlen=0)
                return packing.report()
            self._check_free(name)
            layer = self._pack(order, name, kept)
        return packing.report(name=name, layer=layer)

    def _pack(self, order: PackOrder, name: str, kept: Iterable[Kept]) -> str:
        pinned = list(order.base)
        with full_disk_reported("packing a sandbox"), self.work_directory() as work, self.undone_on_failure(pinned):
            with exclusive(self._lock):
                for digest in pinned:
                    self._pins.add(digest)
            tree = work.path / "tree"
            with TreeWriter(tree, keep_devices=True) as writer:
                for entry, content in kept:
                    writer.add(entry, content())
            order.check()
            pinned.append(self.take_layer(tree))
            order.check()
            self.add_image(name, pinned, order.config, source=order.source, replace=False)
            return pinned[-1]

    def _check_free(self, name: str) -> None:
        if self._catalog.read(name) is not None:
            raise AlreadyExistsError(
                f"there is an image {name!r}",
                resolution=f"choose another name, or remove it first: dsec image rm {name}",
            )

    def add_layer(self, tree: Path) -> str:
        """Store a copy of the directory `tree`. See the port."""
        return self._store_layer(tree, take=False)

    def take_layer(self, tree: Path) -> str:
        """Store the directory `tree` of a work directory of this store; the tree belongs to the store from now on."""
        return self._store_layer(tree, take=True)

    def add_lazy_layer(self, manifest: LayerManifest, *, origins: Sequence[str] = ()) -> str:
        """Store a layer of which nothing but its manifest is here, and return its digest.

        One that is here stays as it is. If it is a lazy one, it comes from these origins first from now on.

        Args:
            manifest: the layer's.
            origins: where its chunks can be had (`dsec.images.lazy.origins`).
        """
        with full_disk_reported("storing a layer"), self._staging.directory() as work:
            digest = self._place(*layers.write_lazy(manifest, work, tuple(origins)))
            self._add_origins(digest, manifest.id, origins)
        return digest

    def _add_origins(self, digest: str, manifest_id: str, origins: Sequence[str]) -> None:
        with exclusive(self._lock):
            record = self._record(digest)
            if record.format is not LayerFormat.LAZY or record.manifest != manifest_id:
                return  # It is whole, or cut otherwise, so that these origins need not have its chunks.
            changed = record.pulled_from(origins)
            if changed != record:
                layers.write_record(self._layers / hex_of(digest), changed)

    def has_layer(self, digest: str) -> bool:
        """Tell whether a layer is stored, in whatever form."""
        return (self._layers / hex_of(digest)).is_dir()

    def take_erofs_file(self, file: Path, work: WorkDirectory, *, expected: str, protect: bool = True) -> str:
        """Store the EROFS file that was brought into a work directory of this store, and return its digest.

        Args:
            file: in `work`; it belongs to the store from now on.
            work: from `work_directory`.
            expected: the digest that what is in it must have.
            protect: keep it until it is named. False: it is protected already, being stored lazily.

        Raises:
            StateCorruptedError: it has another one, or is no sound EROFS file.
            CapabilityMissingError: it has to be unpacked here, and cannot be as it is.
        """
        with full_disk_reported("storing a layer"):
            lost: tuple[str, ...] = ()
            if self.layer_format()[0] is LayerFormat.EROFS:
                made, record = layers.adopt_erofs(file, work)
            else:
                made, record, lost = layers.unpack_erofs_file(file, work)
            if record.digest != expected and lost:
                raise CapabilityMissingError(
                    f"layer {expected[:19]} cannot be unpacked here as it is",
                    detail="; ".join(lost),
                    resolution="pull the image as root, on a host that can mount EROFS (dsec doctor says why)",
                )
            if record.digest != expected:
                raise StateCorruptedError(
                    f"what was fetched as layer {expected} is another one",
                    detail=f"its content has the digest {record.digest}",
                    resolution="publish the image again",
                )
            return self._place(made, record, protect=protect)

    def replace_layer(self, file: Path, work: WorkDirectory, manifest: LayerManifest, origins: tuple[str, ...]) -> None:
        """Put an EROFS file, brought into a work directory of this store, in place of one whose disk has rotted.

        Mounts go on to read the old file. The layer is known by its chunks from now on.

        Args:
            file: in `work`; it belongs to the store from now on.
            work: from `work_directory`.
            manifest: of the file.
            origins: where its chunks can be had.

        Raises:
            StateCorruptedError: it is another layer's, or no sound EROFS file.
        """
        made, record = layers.adopt_erofs(file, work)
        if record.digest != manifest.layer:
            raise StateCorruptedError(
                f"what was fetched as layer {manifest.layer} is another one",
                detail=f"its content has the digest {record.digest}",
                resolution="publish the image again",
            )
        with exclusive(self._lock):
            layers.put_anew(self._layers / hex_of(record.digest), made, record, manifest, origins)

    def stored_layer(self, digest: str) -> tuple[Path, LayerRecord]:
        """Return the file, directory or manifest that a layer is stored as, and its record.

        Raises:
            StateCorruptedError: it is damaged, or not there.
        """
        record = self._record(digest)
        return layers.content_path(self._layers / hex_of(digest), record), record

    def has_lazy_layers(self) -> bool:
        """Whether any stored layer is loaded when touched. Costs a stat(2) while layers neither come nor go."""
        changed_ns = self._layers.stat().st_mtime_ns
        if self._lazy_seen[0] != changed_ns:
            self._lazy_seen = (changed_ns, any(map(layers.is_lazy, self._layers.iterdir())))
        return self._lazy_seen[1]

    def here_bytes(self, digest: str) -> int:
        """Return how many bytes of a stored layer are on this host, metadata included: of a lazy one those that are
        cached. Costs two or three small reads.

        Raises:
            StateCorruptedError: it is damaged, or not there.
        """
        record = self._record(digest)
        if record.format is not LayerFormat.LAZY:
            return record.size_bytes
        return recorded_bytes(self.root / LAZY_CACHE / record.manifest, record.size_bytes)

    def here_of(self, image: ImageInfo) -> tuple[int, ...]:
        """Return how many bytes of each layer of an image are on this host; nothing of one that is damaged."""

        def here(digest: str) -> int:
            try:
                return self.here_bytes(digest)
            except StateCorruptedError:
                return 0

        return tuple(here(layer.digest) for layer in image.layers)

    def _store_layer(self, tree: Path, *, take: bool) -> str:
        with full_disk_reported("storing a layer"), self._staging.directory() as work:
            if self.layer_format()[0] is LayerFormat.EROFS:
                return self._place(*layers.write_erofs(tree, work))
            return self._place(*layers.write_directory(tree, work, take=take))

    def _place(self, made: Path, record: LayerRecord, *, protect: bool = True) -> str:
        """Give a layer made in a work directory its place, unless it is there; protect it until it is named.

        A whole one takes the place of a lazy one. Mounts of that go on as they are.
        """
        with exclusive(self._lock):
            target = self._layers / hex_of(record.digest)
            if protect:
                self._pins.add(record.digest)
            if not target.exists():
                sync_path(made)
                made.rename(target)
                sync_path(self._layers)
            elif record.format is not LayerFormat.LAZY:
                there = self._record(record.digest)
                if there.format is LayerFormat.LAZY:
                    layers.make_whole(target, made, record, there)
                    self._describe_anew()
        return record.digest

    def _describe_anew(self) -> None:
        """Let images say of layers that were lazy and are whole how they are stored now. The caller holds the lock."""
        for image in list(self._catalog.images()):
            infos = tuple(map(self._described, image.layers))
            if infos != image.layers:
                self._catalog.write(msgspec.structs.replace(image, layers=infos))

    def _described(self, info: LayerInfo) -> LayerInfo:
        if info.format is not LayerFormat.LAZY:
            return info
        try:
            return self._record(info.digest).info
        except StateCorruptedError:
            return info

    def add_image(
        self,
        name: str,
        layers: Sequence[str],
        config: ImageConfig,
        *,
        source: str,
        replace: bool = True,
        stories: Mapping[str, LayerStory] = {},
    ) -> ImageInfo:
        """Give a stack of stored layers a name. See the port.

        Args:
            stories: what is told of its layers, by digest.

        Raises:
            StateCorruptedError: a layer is not stored.
            AlreadyExistsError: the name is taken, and `replace` is False.
        """
        known = canonical_name(name)
        if not layers:
            raise InvalidRequestError(f"image {known!r} would have no layer", resolution="give it at least one")
        check_count(len(layers), f"image {known!r}")
        with full_disk_reported(f"naming image {known!r}"), exclusive(self._lock):
            if not replace:
                self._check_free(known)
            infos = tuple(self._record(digest).info for digest in layers)
            image = ImageInfo(
                name=known,
                image_id=image_id(infos, config),
                layers=infos,
                config=config,
                created_at_s=self._wall_s(),
                source=source,
            )
            self._catalog.write(image)
            self._pins.drop(layers)
            # The image has its name, and a full disk may not take that back for the sake of a note.
            with suppress(OSError):
                self.history.note(image, stories)
        return image

    def tag(self, source: str, name: str) -> ImageInfo:
        """Give the image `source` another name too."""
        image = self.get(source)
        return self.add_image(name, [layer.digest for layer in image.layers], image.config, source=image.source)

    def remove(self, name: str) -> None:
        """Forget a name and collect what nothing refers to any more. See the port."""
        known = canonical_name(name)
        used = self._layers_in_use()
        with exclusive(self._lock):
            if not self._catalog.delete(known):
                raise not_found(known, self._catalog.names())
            self.history.keep(self._catalog.names())
            self._collect(used)
        self._delete_doomed()

    def release(self, *, idle_s: float = 0.0) -> None:
        """Unmount the layers that no live sandbox uses, and collect. See the port."""
        self._lazy.revive()
        used = self._mounting.release(idle_s, self._layers_in_use)
        if used is not None:
            with exclusive(self._lock):
                self._collect(used)
        self._delete_doomed()

    def _collect(self, used: frozenset[str] | None) -> None:
        """Take away the layers that no name, mount, sandbox or live process refers to. The caller holds the lock.

        Args:
            used: digests of the layers that sandboxes use. What they use since it was asked is mounted, or held.
        """
        if used is None:
            return
        images = list(self._catalog.images())
        named = {hex_of(layer.digest) for image in images for layer in image.layers}
        others = {hex_of(digest) for digest in used | self._pins.pinned()}
        kept = named | others | self._mounts.mounted()
        for layer in list(self._layers.iterdir()):
            if layer.name not in kept:
                # Deleting takes time and can be cut short, so that it happens elsewhere, and without the lock.
                layer.rename(self.root / "staging" / f"{layer.name}.{secrets.token_hex(4)}.doomed")
        TraceShelf(self.root).prune(image.image_id for image in images)
        for unfinished in [*self._diffs.glob(".*.tmp"), *(self.root / "names").glob(".*.tmp")]:
            unfinished.unlink(missing_ok=True)
        for diff in list(self._diffs.iterdir()):
            if not (self._layers / hex_of(_read_text(diff))).exists():
                diff.unlink(missing_ok=True)

    def _delete_doomed(self) -> None:
        """Delete what `_collect` took away, here or in a process that was killed."""
        for doomed in (self.root / "staging").glob("*.doomed"):
            remove_tree(doomed)

    def layer_format(self) -> tuple[LayerFormat, str]:
        """Return how new layers are stored, and why not as EROFS (empty when they are)."""
        if self._wanted_format is not None:
            return self._wanted_format, "" if self._wanted_format is LayerFormat.EROFS else "directories were asked for"
        if self._format is None:
            with self._staging.directory() as work:
                reason = erofs.missing_reason(work.path)
            self._format = (LayerFormat.DIRECTORY if reason else LayerFormat.EROFS, reason)
        return self._format

    def verify(self, name: str) -> None:
        """Read every byte of an image's layers and compare their digests.

        Raises:
            StateCorruptedError: a layer is not what its digest says.
        """
        for info in self.get(name).layers:
            found = self.layer_content_digest(info.digest)
            if found != info.digest:
                raise StateCorruptedError(
                    f"layer {info.digest} of image {name!r} does not verify",
                    detail=f"its content has the digest {found}",
                    resolution="remove the images that use it and import them again",
                )

    def layer_content_digest(self, digest: str) -> str:
        """Read every byte of a stored layer, fetching those of a lazy one, and return the digest of what is there.

        Raises:
            StateCorruptedError: it cannot be read.
        """
        record = self._record(digest)
        if record.format is LayerFormat.LAZY:
            return directory_digest(self.mount_layers([digest])[0])[0]
        with self._staging.directory() as work:
            return layers.compute_digest(self._layers / hex_of(digest), record, work.path)

    @contextmanager
    def undone_on_failure(self, digests: Sequence[str]) -> Iterator[None]:
        """Give up the layers in `digests`, which the block fills, when the block fails before it names them."""
        try:
            yield
        except BaseException:
            self.let_go(digests)
            raise

    def let_go(self, digests: Sequence[str]) -> None:
        """Give up layers that this process stored and does not name, and collect."""
        used = self._layers_in_use()
        with exclusive(self._lock):
            self._pins.drop(digests)
            self._collect(used)
        self._delete_doomed()

    @contextmanager
    def protected(self, digests: Sequence[str]) -> Iterator[None]:
        """Keep stored layers from being collected for the duration of the block, whatever happens to their names."""
        with exclusive(self._lock):
            for digest in digests:
                self._pins.add(digest)
        try:
            yield
        finally:
            with exclusive(self._lock):
                self._pins.drop(digests)

    @contextmanager
    def held(self, name: str) -> Iterator[ImageInfo]:
        """Return an image whose layers stay for the duration of the block, whatever happens to its name.

        Raises:
            ImageNotFoundError: no such image.
        """
        with full_disk_reported(f"holding image {name!r}"), exclusive(self._lock):
            image = self.get(name)
            for layer in image.layers:
                self._pins.add(layer.digest)
        try:
            yield image
        finally:
            self.let_go([layer.digest for layer in image.layers])

    def work_directory(self) -> AbstractContextManager[WorkDirectory]:
        """Return a private directory on the store's file system, for importers; a crash leaves nothing of it."""
        return self._staging.directory()

    def layer_of_diff(self, diff_id: str) -> str | None:
        """Return the stored layer that was made from the OCI layer with this diff id, protected until it is named."""
        with exclusive(self._lock):
            if not self.has_diff(diff_id):
                return None
            digest = _read_text(self._diffs / hex_of(diff_id))
            self._pins.add(digest)
            return digest

    def has_diff(self, diff_id: str) -> bool:
        """Tell whether `layer_of_diff` would find a layer now."""
        path = self._diffs / hex_of(diff_id)
        return path.exists() and (self._layers / hex_of(_read_text(path))).exists()

    def remember_diff(self, diff_id: str, digest: str) -> None:
        """Note that the OCI layer with this (verified) diff id unfolds to a stored layer."""
        with exclusive(self._lock):
            write_atomically(self._diffs / hex_of(diff_id), digest.encode())

    def _record(self, digest: str) -> LayerRecord:
        return layers.read_record(self._layers / hex_of(digest))


def _read_text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
