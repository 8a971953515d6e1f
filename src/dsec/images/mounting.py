"""The mounted layers of an image store: made, found mounted, and unmounted when nobody uses them.

An answer is given again without a lock for as long as it is true: the names mean what they meant, the layers are
mounted, and nobody is about to unmount them (`dsec.images.layer_use`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import InvalidRequestError
from dsec.images.catalog import Catalog
from dsec.images.durable import exclusive, full_disk_reported
from dsec.images.layer_mounts import LayerMounts
from dsec.images.layer_use import LayerUse
from dsec.images.layers import LayerRecord, hex_of, read_record
from dsec.images.names import canonical_name, layers_not_found
from dsec.images.port import MountedImage
from dsec.images.stacking import check_roots, stacked
from dsec.images.staging import Pins
from dsec.model.image import ImageInfo, LayerFormat

_PREPARED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _CachedMount:
    """An answer of `mount`, with what must still be true for it to be given again.

    Attributes:
        layers: hexadecimal digests of its layers.
        names: identity of each name's file: a name that moves gets a new file.
        devices: device number at each layer path: an unmounted one shows another.
    """

    mounted: MountedImage
    layers: tuple[str, ...]
    names: tuple[tuple[Path, tuple[int, int]], ...]
    devices: tuple[tuple[Path, int], ...]

    def is_valid(self) -> bool:
        try:
            names = all(_identity(path) == seen for path, seen in self.names)
            return names and all(os.stat(path).st_dev == device for path, device in self.devices)
        except FileNotFoundError:
            return False


class MountedLayers:
    """The mounts of one store. Methods may be called from any thread; the lock is the store's, and not held then.

    Args:
        lock: the store's lock file.
        layers: directory of the stored layers.
        catalog: names.
        get: returns the image of a name, or raises `ImageNotFoundError`.
        mounts: mounts one layer.
        pins: protects layers that are used where they lie, since no mount shows other processes that they are.
    """

    def __init__(
        self,
        lock: Path,
        layers: Path,
        *,
        catalog: Catalog,
        get: Callable[[str], ImageInfo],
        mounts: LayerMounts,
        pins: Pins,
    ) -> None:
        self._lock = lock
        self._layers = layers
        self._catalog = catalog
        self._get = get
        self._mounts = mounts
        self._pins = pins
        self._use = LayerUse()
        self._cache: dict[tuple[str, ...], _CachedMount] = {}
        self._held: dict[str, str] = {}
        """Digests of layers that are used where they lie, by their hexadecimal ones."""

    def mount(self, names: Sequence[str]) -> MountedImage:
        """Mount the layers of images. See the port; mounted already, it costs a few stat(2) calls."""
        mounted = self.mounted(names)
        if mounted is not None:
            return mounted
        key = tuple(names)
        self._prepare(layer.digest for name in key for layer in self._get(name).layers)
        with full_disk_reported("mounting an image"), exclusive(self._lock):
            cached = self._cache[key] = self._mount(key)
        return cached.mounted

    def mounted(self, names: Sequence[str]) -> MountedImage | None:
        """Return images where their layers are mounted; None: `mount` has work to do. See the port."""
        cached = self._cache.get(tuple(names))
        if cached is None or not self._use.touch(cached.layers) or not cached.is_valid():
            return None
        return cached.mounted

    def mount_layers(self, digests: Sequence[str]) -> tuple[Path, ...]:
        """Mount layers by their digests. See the port."""
        missing = [digest for digest in digests if not (self._layers / hex_of(digest)).is_dir()]
        if missing:
            raise layers_not_found(missing)
        self._prepare(digests)
        with full_disk_reported("mounting an image"), exclusive(self._lock):
            return self._ensure([self._record(digest) for digest in digests])

    def _prepare(self, digests: Iterable[str]) -> None:
        """Fetch the metadata of lazy layers, of all at once, before the lock is taken: that waits for the network."""
        records = [self._record(digest) for digest in digests]
        lazy = [record for record in records if record.format is LayerFormat.LAZY]
        if not lazy:
            return
        self._use.touch([record.manifest for record in lazy])
        with ThreadPoolExecutor(min(len(lazy), _PREPARED_AT_ONCE)) as threads:
            for _ in threads.map(self._mounts.prepare, lazy):
                pass  # The first error is raised, once all have ended.

    def _mount(self, names: tuple[str, ...]) -> _CachedMount:
        if not names:
            raise InvalidRequestError("no image to mount", resolution="name at least one image")
        # Identities are taken first: a name that moves meanwhile makes the answer stale, never wrongly fresh.
        paths = tuple(self._catalog.path(canonical_name(name)) for name in names)
        identities = tuple((path, _identity(path)) for path in paths if path.exists())
        images = tuple(self._get(name) for name in names)
        stack = stacked(images)
        targets = self._ensure([self._record(info.digest) for info in stack.layers])
        if len(images) > 1:
            check_roots(images, {info.digest: path for info, path in zip(stack.layers, targets, strict=True)})
        devices = tuple((target, os.stat(target).st_dev) for target in targets)
        mounted = MountedImage(info=stack, layer_paths=targets)
        return _CachedMount(mounted, tuple(hex_of(info.digest) for info in stack.layers), identities, devices)

    def _ensure(self, records: Sequence[LayerRecord]) -> tuple[Path, ...]:
        """Make layers readable and keep whoever is about to unmount them from it. The caller holds the lock."""
        names = [name for record in records for name in (hex_of(record.digest), record.manifest) if name]
        self._use.touch(names)
        self._use.stay(names)
        targets = tuple(self._mounts.ensure(record) for record in records)
        if not self._mounts.are_real:
            for record in records:
                if hex_of(record.digest) not in self._held:
                    self._pins.add(record.digest)
                    self._held[hex_of(record.digest)] = record.digest
        return targets

    def release(self, idle_s: float, layers_in_use: Callable[[], frozenset[str] | None]) -> frozenset[str] | None:
        """Unmount what nobody uses.

        Args:
            idle_s: those stay that were used or asked for in so many last seconds.
            layers_in_use: as the store was given it.

        Returns:
            The digests of the layers that are used; None: it is not known, and nothing was unmounted.
        """
        leaving = self._use.leave(self._mounts.mounted() | self._mounts.left_over() | self._held.keys(), idle_s)
        try:
            # Without the lock: who answers may be waiting for it.
            used = layers_in_use()
            if used is not None:
                self._unmount(leaving, used)
            return used
        finally:
            self._use.stay(leaving)

    def _unmount(self, leaving: frozenset[str], used: frozenset[str]) -> None:
        # What is used now was used now: it stays mounted for a while after its last sandbox.
        in_use = [hex_of(digest) for digest in used]
        self._use.touch(in_use)
        self._use.stay(in_use)
        for name in leaving:
            # The lock for each: whoever waits to mount another layer need not wait for all of them.
            with exclusive(self._lock):
                if not self._use.is_leaving(name):
                    continue
                if name in self._held:
                    self._pins.drop([self._held.pop(name)])
                elif not self._mounts.unmount(name):
                    self._use.touch([name])  # Somebody else has it open: not at each look is that to be tried.

    def _record(self, digest: str) -> LayerRecord:
        return read_record(self._layers / hex_of(digest))


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns
