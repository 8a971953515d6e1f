"""Who this host is to an object store: under which name it holds layers that it pulled."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from dsec.images.durable import write_atomically
from dsec.images.lazy.stored import is_name

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


def _read(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return text if is_name(text * 2) else None
