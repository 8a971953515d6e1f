"""The port of images: names to stacks of mounted read-only layers.

Contract of every driver:

- Images are immutable: importing under a taken name moves the name and leaves sandboxes of the old image alone.
- `mount` makes every layer of an image readable at a host path and keeps it so until `release`; one mount per
  layer per node is shared by all sandboxes, so that its pages are cached once.
- A store survives `kill -9`: a half-written layer is never visible under its digest.
- Nothing in an image is executed on the host, and no path of it is followed outside its layer.

A later driver may fetch layers lazily in chunks; nothing here assumes that a mounted layer is resident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dsec.model.image import ImageConfig, ImageInfo
from dsec.model.state import PackReport

if TYPE_CHECKING:
    from dsec.images.packing import PackOrder

_DIGEST_LENGTH = 64
"""Hexadecimal digits of a SHA-256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedImage:
    """An image whose layers can be read now.

    Attributes:
        info: the image; of several, the base with the layers and settings of the whole stack (`dsec.images.stacking`).
        layer_paths: mount point of every layer, from the lowest up.
    """

    info: ImageInfo
    layer_paths: tuple[Path, ...]


class ImageStore(Protocol):
    """Local images of one node."""

    def get(self, name: str) -> ImageInfo:
        """Return the image.

        Raises:
            ImageNotFoundError: no such name; the resolution says how to import or build it and names the closest.
        """

    def list(self) -> tuple[ImageInfo, ...]:
        """Return all images, by name."""

    def mount(self, names: Sequence[str]) -> MountedImage:
        """Mount the layers of the images `names`, stacked in order; what they say is merged (`dsec.images.stacking`).

        Raises:
            ImageNotFoundError: a name is unknown.
            ImagesConflictError: two of them say or hold what cannot be merged.
            InvalidRequestError: more layers than can be stacked.
            StateCorruptedError: a layer's file is missing or does not verify.
        """

    def mounted(self, names: Sequence[str]) -> MountedImage | None:
        """Return what `mount` would where that need not wait for anything; None: it may have to."""

    def mount_layers(self, digests: Sequence[str]) -> tuple[Path, ...]:
        """Mount layers by their digests, named or not, and return where each can be read.

        Raises:
            ImageNotFoundError: some are not stored here; names their digests.
            StateCorruptedError: a layer's file is missing or does not verify.
        """

    def pack(self, order: PackOrder) -> PackReport:
        """Store a frozen writable layer, scrubbed, and name the image of the layers below and this one on top: all or
        nothing, whatever kills us. Blocks for as long as the content takes.

        Raises:
            AlreadyExistsError: the name is taken.
            LimitExceededError: it has too many entries.
            HostDiskFullError: no space.
        """

    def add_layer(self, tree: Path) -> str:
        """Store the directory `tree` (owners, modes, xattrs, hard links, devices kept) and return its digest."""

    def add_image(self, name: str, layers: Sequence[str], config: ImageConfig, *, source: str) -> ImageInfo:
        """Give a stack of stored layers a name, replacing what had it."""

    def remove(self, name: str) -> None:
        """Forget a name; layers without a name are deleted once no sandbox uses them.

        Raises:
            ImageNotFoundError: no such name.
        """

    def release(self, *, idle_s: float = 0.0) -> None:
        """Unmount the layers that no live sandbox of this node uses, and delete those that have no name. Blocks.

        Safe beside creations: what `mount` or `mounted` returned stays mounted until the sandbox for which it was asked
        counts as a user, provided that nothing is awaited in between.

        Args:
            idle_s: those stay that were used or asked for in so many last seconds.
        """


def layer_digest(path: Path) -> str:
    """Return the digest of the layer that is read at a path: every store names its directories by them.

    Raises:
        ValueError: it is no layer's path.
    """
    for part in reversed(path.parts):
        digits = part.removeprefix("sha256:")
        if len(digits) == _DIGEST_LENGTH:
            return f"sha256:{digits}"
    raise ValueError(f"{path} is no path of a layer")
