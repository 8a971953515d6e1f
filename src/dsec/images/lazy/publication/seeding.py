"""Have peers be given what this host published: it is the first that has it, and everybody wants it at once.

A layer is laid out anew to be published, so that its chunks are none of the layer's own file. The file that it was laid
out to is there at that moment, and stays as a seed (`dsec.images.lazy.peers.seeds`): uncompressed, as every seed is,
until the layer is removed from this host, or later publications need the room. Only where this host gives chunks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from dsec.base.errors import DsecError
from dsec.base.units import GIB
from dsec.images.layers import hex_of
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.peers.seeds import SEEDS, Seeds
from dsec.images.lazy.publication.laid_out import LaidOut
from dsec.images.lazy.serving.client import LAZY
from dsec.images.lazy.serving.daemon_options import read_options
from dsec.images.store import LocalImageStore
from dsec.model.image import LayerFormat

MAXIMUM_BYTES = 8 * GIB
"""Of all files that are kept for peers alone: two or three whole images of the size that agents use."""
SHARE_OF_DISK = 0.1
"""And of what is free, for this is a kindness to others."""


def seed_published(
    images: LocalImageStore, manifests: Mapping[str, LayerManifest], layouts: Mapping[str, LaidOut]
) -> None:
    """Keep the files of layers that were just published for peers. Blocks; what cannot be kept is not.

    Args:
        images: has the layers.
        manifests: of those that were cut, by digest.
        layouts: the files of those that were laid out anew, which the caller removes.
    """
    root = images.root / LAZY
    if not _gives_chunks(images):
        return
    seeds = Seeds(root / SEEDS)
    for digest, manifest in manifests.items():
        with contextlib.suppress(DsecError, OSError):  # Peers have it from the store then.
            path, record = images.stored_layer(digest)
            layout = layouts.get(digest)
            if layout is not None:
                place = images.root / "layers" / hex_of(digest)
                seeds.keep(manifest, layout.file.path, place, limit_bytes=_limit_bytes(images))
            elif record.format is LayerFormat.EROFS:
                seeds.add(manifest, path)


def _gives_chunks(images: LocalImageStore) -> bool:
    """Return whether the layer daemon of this host was told to give chunks to others."""
    with contextlib.suppress(DsecError, OSError):
        peers = read_options(images.root / LAZY).peers
        return peers is not None and bool(peers.listen)
    return False


def _limit_bytes(images: LocalImageStore) -> int:
    free = os.statvfs(images.root)
    return min(MAXIMUM_BYTES, int(SHARE_OF_DISK * free.f_bavail * free.f_frsize))
