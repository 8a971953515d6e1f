"""Read stored layers where they lie, without a mount that others see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dsec.images import erofs
from dsec.images.staging import WorkDirectory
from dsec.images.store import LocalImageStore
from dsec.model.image import LayerFormat


@contextmanager
def opened_layer(store: LocalImageStore, digest: str, work: WorkDirectory) -> Iterator[int]:
    """Yield a descriptor of a layer's root directory; a lazy layer is mounted as for a sandbox, and fetched when read.

    Args:
        work: a work directory of the store.

    Raises:
        StateCorruptedError: the layer is damaged, or not stored.
    """
    path, record = store.stored_layer(digest)
    if record.format is LayerFormat.EROFS:
        scratch = work.path / f"mount-{digest[7:]}"
        scratch.mkdir(exist_ok=True)
        with erofs.opened(path, scratch) as root_fd:
            yield root_fd
        return
    root = path if record.format is LayerFormat.DIRECTORY else store.mount_layers([digest])[0]
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
