"""Whole layers that peers can be given chunks of: those that were published from here, or pulled whole.

A seed is a directory as the cache has one for a layer (docs/formats/layer-cache.md), whose ``data`` is a link to the
layer's file in the image store. It goes with that: a link that leads nowhere is no seed any more. Or ``data`` is a file
of its own, since what was published is laid out otherwise; then ``layer`` is a link to the layer, and the seed goes
with that, or when there are too many.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path

from dsec.images.durable import write_atomically
from dsec.images.lazy.caching.cached_layer import DATA, MANIFEST
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import is_name
from dsec.images.staging import remove_tree

SEEDS = "seeds"
"""Name of their directory in a layer daemon's."""
LAYER = "layer"
_MAKING_S = 60.0


class Seeds:
    """The seeds of a directory. Methods may be called from any thread and process.

    Args:
        root: the directory; made when the first seed is.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, manifest: LayerManifest, file: Path) -> None:
        """Have a layer's chunks be given from a file. Idempotent. Raises `OSError`."""
        if not (self._root / manifest.id / DATA).exists():
            self._place(manifest, lambda made: (made / DATA).symlink_to(file.absolute()))

    def _place(self, manifest: LayerManifest, fill: Callable[[Path], None]) -> None:
        target = self._root / manifest.id
        remove_tree(target)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = self._root / f".new-{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)
        try:
            fill(made)
            write_atomically(made / MANIFEST, manifest.data)
            made.rename(target)
        except OSError:
            remove_tree(made)
            if not (target / DATA).exists():  # Otherwise somebody else was faster.
                raise

    def keep(self, manifest: LayerManifest, file: Path, layer: Path, *, limit_bytes: int) -> bool:
        """Have a layer's chunks be given from a file that is kept for it alone. Idempotent. Raises `OSError`.

        Args:
            manifest: of the file.
            file: on the same file system; it may be removed afterwards.
            layer: the seed goes with this directory.
            limit_bytes: bound on all such files; the oldest go for it.

        Returns:
            Whether it is there. False: it is too large for the bound.
        """
        target = self._root / manifest.id
        if (target / DATA).exists():
            return True
        if not self._make_room(file.stat().st_size, limit_bytes):
            return False

        def fill(made: Path) -> None:
            os.link(file, made / DATA)
            (made / LAYER).symlink_to(layer.absolute())

        self._place(manifest, fill)
        return True

    def _make_room(self, wanted_bytes: int, limit_bytes: int) -> bool:
        """Remove the oldest files that are kept for seeds alone until so many more bytes are within the bound."""
        kept = []
        for entry in self._root.iterdir() if self._root.is_dir() else ():
            with contextlib.suppress(OSError):
                status = (entry / DATA).lstat()
                if stat.S_ISREG(status.st_mode):
                    kept.append((entry.lstat().st_mtime_ns, status.st_size, entry))
        excess = sum(size for _, size, _ in kept) + wanted_bytes - limit_bytes
        for _, size, entry in sorted(kept) if wanted_bytes <= limit_bytes else ():
            if excess <= 0:
                break
            remove_tree(entry)
            excess -= size
        return excess <= 0

    def names(self) -> list[str]:
        """Return the names of the seeds' manifests; what is no seed any more is removed."""
        if not self._root.is_dir():
            return []
        found = []
        for entry in self._root.iterdir():
            if (entry / DATA).exists() and not _leads_nowhere(entry / LAYER):
                if is_name(entry.name):
                    found.append(entry.name)
            elif is_name(entry.name) or self._is_left_over(entry):
                remove_tree(entry)
        return found

    def _is_left_over(self, entry: Path) -> bool:
        """Whether somebody was killed while he made it."""
        with contextlib.suppress(OSError):
            return time.time() - entry.lstat().st_mtime > _MAKING_S
        return False


def _leads_nowhere(link: Path) -> bool:
    return link.is_symlink() and not link.exists()
