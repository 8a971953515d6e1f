"""The mounts of layers: one a layer a node, found again after a restart by the kernel's own table.

A layer is mounted at ``mounts/<hex>`` and stays so, shared by all sandboxes, so that its pages are cached once. The
check that a cached mount is still there is one stat(2): the device number of what is mounted differs from that of
the directory below.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dsec.base.errors import CapabilityMissingError, StateCorruptedError
from dsec.images import erofs
from dsec.images.layers import LayerRecord, content_path, hex_of, read_record
from dsec.linux import mounts
from dsec.linux.userns import is_host_root
from dsec.model.image import LayerFormat

LAZY_CACHE = Path("lazy/cache")
"""Where in an image store whoever serves lazy layers has what it fetched (docs/formats/layer-cache.md)."""
_BIND_FLAGS = mounts.MS_BIND | mounts.MS_REMOUNT | mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """How much of a layer is here.

    Attributes:
        here_bytes: content bytes of it.
        path: its file, if it is whole; it may go when others need the room.
    """

    here_bytes: int
    path: Path | None = None


class LazyLayers(Protocol):
    """Who mounts layers that are loaded when touched: `dsec.images.lazy.serving.client.LayerDaemon`."""

    def mount(self, manifest_id: str, *, origins: Sequence[str] = (), file: Path | None = None) -> Path:
        """Make a layer readable and return where. Idempotent.

        Args:
            manifest_id: name of its manifest.
            origins: where its chunks can be had; none: where they were had before.
            file: that has the manifest; None: an origin has it.
        """

    def bring(self, manifest_id: str, *, origins: Sequence[str], file: Path, within_s: float) -> Brought | None:
        """Fetch for a while what is missing of a layer, mounted or not; None: there is nobody to keep it, or it is too
        large for what is kept, so that whoever needs it must fetch it himself. Arguments as of `mount`.

        Raises:
            HostDiskFullError: no room for it.
        """

    def forget_rotten(self, manifest_id: str) -> bool:
        """Read what is kept of a layer, mounted or not, and forget what is not what it was when it came, so that it is
        brought again; return whether there was any.
        """

    def unmount(self, manifest_id: str) -> bool:
        """Serve a layer no more, unless something of it is open."""

    def mounted(self) -> frozenset[str]:
        """Return the names of the manifests of all layers that are mounted now."""

    def revive(self) -> None:
        """See to it that layers which are mounted are served, should who served them have been killed. Raises nothing
        that is about them: whoever needs one is told.
        """


class NoLazyLayers:
    """Mounts none."""

    def mount(self, manifest_id: str, *, origins: Sequence[str] = (), file: Path | None = None) -> Path:
        raise CapabilityMissingError(
            "layers that are loaded when touched need root, and a store that they come from",
            resolution="pull the image again with --eager",
        )

    def bring(self, manifest_id: str, *, origins: Sequence[str], file: Path, within_s: float) -> Brought | None:
        return None

    def forget_rotten(self, manifest_id: str) -> bool:
        return False

    def unmount(self, manifest_id: str) -> bool:
        return False

    def mounted(self) -> frozenset[str]:
        return frozenset()

    def revive(self) -> None:
        pass


class LayerMounts:
    """The mount points of a store.

    Args:
        root: their directory.
        layers: directory of the stored layers.
        lazy: mounts those that are loaded when touched; their mounts are bound to mount points of this store.
    """

    def __init__(self, root: Path, layers: Path, lazy: LazyLayers) -> None:
        self._root = root
        self._layers = layers
        self._lazy = lazy
        self.are_real = is_host_root()
        """Whether layers are mounted at all."""

    def ensure(self, record: LayerRecord) -> Path:
        """Make a layer readable and return where. The caller holds the writer lock.

        An ordinary user cannot mount: the directory itself is returned, which nothing but its permissions protects.
        """
        content = content_path(self._layers / hex_of(record.digest), record)
        if not self.are_real:
            if record.format is LayerFormat.LAZY:
                return self._mount_lazy(record)
            return content
        target = self._root / hex_of(record.digest)
        if str(target.resolve()) not in self._targets():
            target.mkdir(mode=0o755, exist_ok=True)
            self._mount(record, content, target)
        return target

    def prepare(self, record: LayerRecord) -> None:
        """Do beforehand what takes long about making a layer readable, without the lock."""
        if record.format is LayerFormat.LAZY:
            self._mount_lazy(record)

    def _mount_lazy(self, record: LayerRecord) -> Path:
        file = content_path(self._layers / hex_of(record.digest), record)
        return self._lazy.mount(record.manifest, origins=record.origins, file=file)

    def _mount(self, record: LayerRecord, content: Path, target: Path) -> None:
        if record.format is LayerFormat.EROFS:
            erofs.mount_file(content, target)
            return
        if record.format is LayerFormat.LAZY:
            content = self._mount_lazy(record)
        mounts.mount(str(content), target, "", mounts.MS_BIND)
        mounts.mount("", target, "", _BIND_FLAGS)

    def mounted(self) -> frozenset[str]:
        """Return the hex digests of the layers that are mounted now."""
        return frozenset(target.rpartition("/")[2] for target in self._targets())

    def left_over(self) -> frozenset[str]:
        """Return the names of the manifests of lazy layers that are mounted and bound to no mount point of this store:
        whoever bound them was killed before, or something of them was open when they were to be unmounted.
        """
        lazy = self._lazy.mounted()
        return lazy - {self._manifest_of(hex_digest) for hex_digest in self.mounted()} if lazy else lazy

    def _manifest_of(self, hex_digest: str) -> str:
        try:
            return read_record(self._layers / hex_digest).manifest
        except StateCorruptedError:
            return ""  # It is no layer of which more is known.

    def unmount(self, name: str) -> bool:
        """Unmount a layer, by its hexadecimal digest, or what is `left_over`, by its manifest; return False when a
        process holds something of it open. The caller holds the writer lock.
        """
        target = self._root / name
        if not target.exists():
            return name in self._lazy.mounted() and self._lazy.unmount(name)
        try:
            mounts.unmount(target)
        except OSError as error:
            if error.errno != 16:  # EBUSY
                raise
            return False
        target.rmdir()
        manifest_id = self._manifest_of(name)
        if manifest_id and manifest_id in self._lazy.mounted():
            self._lazy.unmount(manifest_id)
        return True

    def _targets(self) -> frozenset[str]:
        root = os.path.realpath(self._root)
        return frozenset(entry.target for entry in mounts.mounts_under(root) if entry.target != root)
