"""Who this host is to an object store: under which name it holds layers that it pulled, and which those are."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from dsec.base.errors import StateCorruptedError
from dsec.images.durable import write_atomically
from dsec.images.layers import read_record
from dsec.images.lazy.formats.stored import is_name
from dsec.model.image import LayerFormat

_FILE = "holder"
_HALF = 32


def holder_of(images: Path) -> str:
    """Return the name of the host of an image store, which is made up once: 32 hexadecimal digits.

    Args:
        images: directory of the image store.
    """
    path = images / _FILE
    if (known := _read(path)) is not None:
        return known
    mine = images / f"{_FILE}-{secrets.token_hex(6)}"
    write_atomically(mine, secrets.token_hex(_HALF // 2).encode())
    try:
        os.link(mine, path)
    except FileExistsError:
        if _read(path) is None:
            mine.rename(path)  # What was there says nothing.
    mine.unlink(missing_ok=True)
    return _read(path) or holder_of(images)


def stored_lazily(images: Path) -> dict[str, tuple[str, ...]]:
    """Return the origins of all layers that an image store has by their manifests, by the names of those."""
    found: dict[str, tuple[str, ...]] = {}
    for path in (images / "layers").glob("*"):
        try:
            record = read_record(path)
        except StateCorruptedError:
            continue  # Collected just now, or damaged: what is cached of it is fetched again.
        if record.format is LayerFormat.LAZY:
            found[record.manifest] = record.origins
    return found


def _read(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return text if is_name(text * 2) else None
