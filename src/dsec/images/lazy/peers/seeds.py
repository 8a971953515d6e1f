"""Whole layers that peers can be given chunks of: those that were published from here, or pulled whole.

A seed is a directory as the cache has one for a layer (docs/formats/layer-cache.md), whose ``data`` is a link to the
layer's file in the image store. It goes with that: a link that leads nowhere is no seed any more.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

from dsec.images.durable import write_atomically
from dsec.images.lazy.caching.cached_layer import DATA, MANIFEST
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import is_name
from dsec.images.staging import remove_tree

SEEDS = "seeds"
"""Name of their directory in a layer daemon's."""
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
        target = self._root / manifest.id
        if (target / DATA).exists():
            return
        remove_tree(target)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = self._root / f".new-{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)
        try:
            (made / DATA).symlink_to(file.absolute())
            write_atomically(made / MANIFEST, manifest.data)
            made.rename(target)
        except OSError:
            remove_tree(made)
            if not (target / DATA).exists():  # Otherwise somebody else was faster.
                raise

    def names(self) -> list[str]:
        """Return the names of the seeds' manifests; what is no seed any more is removed."""
        if not self._root.is_dir():
            return []
        found = []
        for entry in self._root.iterdir():
            if (entry / DATA).exists():
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
