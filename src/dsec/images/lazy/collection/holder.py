"""Who this host is to an object store: under which name it holds layers that it pulled, and which those are.

Whoever pulls pins layers in their store first, and stores them here next. In between they look like what this host has
no more, whose pins a collection here takes back. So a pull holds a lock, shared, from the one to the other; and a
collection takes nothing back while anybody does.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from dsec.base.errors import StateCorruptedError
from dsec.images.durable import full_disk_reported, write_atomically
from dsec.images.layers import read_record
from dsec.images.lazy.formats.stored import is_name
from dsec.model.image import LayerFormat

_FILE = "holder"
_HALF = 32
_LOCK = "pinning.lock"
_POLL_S = 0.02


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


@asynccontextmanager
async def pinning(images: Path) -> AsyncIterator[None]:
    """Have nobody on this host take pins back for the duration of the block, in which layers are pinned and stored."""
    descriptor = _open_lock(images)
    try:
        while not _is_taken(descriptor, fcntl.LOCK_SH):  # noqa: ASYNC110 - another process lets go of it.
            await anyio.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def taking_back(images: Path) -> Iterator[bool]:
    """Yield whether nobody is `pinning`, nor begins to for the duration of the block."""
    descriptor = _open_lock(images)
    try:
        yield _is_taken(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _open_lock(images: Path) -> int:
    with full_disk_reported("locking the image store"):
        return os.open(images / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_taken(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return text if is_name(text * 2) else None
