"""The port of object stores: named, immutable byte strings, on a local folder or behind an S3-compatible service.

Contract of every driver:

- `put` returns once the object is durable where the store promises it: in a folder, after file and directory were
  synced; on a service, after it acknowledged. A put that failed or was cancelled may have happened; it has happened
  whole or not at all.
- Reads after an acknowledged put see it. `list` may be stale on services that say so; nobody may conclude from an
  absence in a list that an object does not exist: ask `head`.
- Keys are relative paths of ASCII letters, digits, ``.``, ``-``, ``_`` and ``/``; no part begins with a dot, and none
  is a beginning of another key's path (``a`` beside ``a/b``), which a folder could not hold; what stands
  under a key never changes its meaning, so that drivers and callers may cache.
- Every call ends within its deadline. A service that times out, throttles or answers 5xx is asked again by the one
  retry policy (`dsec.model.retry`) within the deadline; then `StoreUnavailableError` says what was seen.
- Drivers verify nothing about contents: whoever names objects by hashes checks them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dsec.base.errors import InvalidRequestError

DEFAULT_TIMEOUT_S = 60.0
MAXIMUM_KEY_LENGTH = 512
"""Characters of a key: a service's limit is 1,024 bytes, and its prefix has its share."""
MAXIMUM_PART_LENGTH = 200
"""Characters between two slashes: a file name has at most 255, and a put that is under way adds to it."""

_PART = rf"(?!\.)[A-Za-z0-9._-]{{1,{MAXIMUM_PART_LENGTH}}}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object.

    Attributes:
        key: its key.
        size_bytes: its size.
        modified_at_s: when it was put last, wall-clock seconds by the store's clock.
    """

    key: str
    size_bytes: int
    modified_at_s: float


class ObjectStore(Protocol):
    """A store of objects."""

    url: str
    """What it was opened from, without secrets: ``file:///var/lib/dsec/store``, ``s3://bucket/prefix``."""

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        """Store `data` under `key`, replacing what was there. With `if_absent`, return False and change nothing when
        something is there (by the store's own condition where it has one)."""

    async def get(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """Return an object. Raises `ObjectNotFoundError`."""

    async def get_range(self, key: str, start: int, length: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """Return `length` bytes from `start`, fewer where the object ends. Raises `ObjectNotFoundError`."""

    async def head(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ObjectInfo | None:
        """Describe an object; None when there is none."""

    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose keys begin with `prefix`, by key."""

    async def delete(self, keys: Sequence[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Delete objects. Idempotent."""

    async def aclose(self) -> None:
        """Let go of connections."""


Begin = Callable[[int], Callable[[bytes], None]]
"""Told how much comes; returns who takes it, piece by piece. Called again when all of it comes again from the first."""


@runtime_checkable
class PiecewiseObjectStore(Protocol):
    """A store over a network, of which what comes of an object can be used before it is whole."""

    async def get_pieces(
        self, key: str, start: int, length: int, begin: Begin, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bytes:
        """Do as `ObjectStore.get_range`, and give away what comes while it comes. Neither `begin` nor what it returns
        may wait.
        """


def check_key(key: str) -> str:
    """Return `key` if it is one.

    Raises:
        InvalidRequestError: it is not.
    """
    if len(key) > MAXIMUM_KEY_LENGTH or _KEY.fullmatch(key) is None:
        raise InvalidRequestError(
            f"{key[:80]!r} is no key of an object",
            resolution="use letters, digits, '.', '-' and '_' in parts parted by '/', none beginning with a dot",
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if keys can begin with it.

    Raises:
        InvalidRequestError: none can.
    """
    if len(prefix) > MAXIMUM_KEY_LENGTH or _PREFIX.fullmatch(prefix) is None:
        raise InvalidRequestError(f"no key of an object begins with {prefix[:80]!r}")
    return prefix


def check_range(start: int, length: int) -> None:
    """Refuse a range that begins before the object or holds nothing.

    Raises:
        InvalidRequestError: it does.
    """
    if start < 0 or length < 1:
        raise InvalidRequestError(f"no object has a range of {length} bytes from {start}")
