"""The tree that a stack of layers shows, by metadata alone and without mounting it.

Overlayfs's own rules: the uppermost layer that has a path decides; a whiteout (a character device 0:0) hides a path of
lower layers, an opaque directory everything that they have below it, and a directory of a lower layer is merged unless
something else stands above it. Nothing is followed. Source: Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsec.images.overlay_merge import is_below
from dsec.linux.walk import walk

_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


@dataclass(frozen=True, slots=True)
class MergedEntry:
    """One path of an image.

    Attributes:
        path: from the image's root, absolute; bytes that are no UTF-8 as Python escapes them.
        mode: kind and permissions, as stat(2) has them.
        uid, gid: owner.
    """

    path: str
    mode: int
    uid: int
    gid: int


def merged_tree(layer_paths: Sequence[Path], *, limit: int) -> Iterator[MergedEntry]:
    """Yield what is in an image, its root left out.

    Args:
        layer_paths: directories of the layers, from the lowest up.
        limit: of the entries that are looked at in each layer.
    """
    decided: set[bytes] = set()
    """Paths that a higher layer has, as a whiteout too."""
    closed: set[bytes] = set()
    """Paths of which lower layers show nothing below: hidden, opaque, or no directories."""
    for layer in reversed(layer_paths):
        top = os.open(layer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        closing: set[bytes] = set()
        try:
            for path, status in walk(top, limit=limit):
                if path in closed or is_below(path, closed):
                    continue
                # Under a directory of a higher layer, too: nothing is merged through what is no directory.
                if not stat.S_ISDIR(status.st_mode) or _is_opaque(layer, path):
                    closing.add(path)
                if path in decided:
                    continue
                decided.add(path)
                if not (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0):
                    yield MergedEntry(f"/{os.fsdecode(path)}", status.st_mode, status.st_uid, status.st_gid)
        finally:
            os.close(top)
        closed |= closing


def _is_opaque(layer: Path, path: bytes) -> bool:
    for name in _OPAQUE:
        try:
            return os.getxattr(os.fsencode(layer) + b"/" + path, name, follow_symlinks=False) == b"y"
        except OSError:
            continue
    return False
