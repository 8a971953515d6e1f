"""The keys that a running gateway knows: read when the file changes, asked at every call.

Expiry is decided on boot time: what is left of a key's life is taken when the file is read, so that a wall clock that
somebody sets to another year expires nothing and revives nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from dsec.base.clock import Clock
from dsec.base.errors import UnauthorizedError
from dsec.gateway.keys import Key, hash_of, read_keys, secret_matches, split_key

_CHECK_EVERY_S = 0.5
_NOBODY = Key(key_id="", secret_sha256=hash_of(""), project="")
_HOW = "send a project's key, as `Authorization: Bearer dsk-...` or `x-api-key: dsk-...`"

OPEN_KEY = Key(key_id="", secret_sha256="", project="open")
"""What callers without a key are, at a gateway that is open."""


class KeyRing:
    """The keys of one file.

    Args:
        file: see `dsec.gateway.keys`.
        clock: for expiry, and for how often the file is looked at.
        open_to_all: take callers without a key as the project "open".
    """

    def __init__(self, file: Path, clock: Clock, *, open_to_all: bool = False) -> None:
        self._file = file
        self._clock = clock
        self._open = open_to_all
        self._stamp: tuple[int, int, int] | None = None
        self._looked_at_s = -1.0
        self._keys: dict[str, tuple[Key, float | None]] = {}
        self._refresh(clock.boot_s())

    def keys(self) -> tuple[Key, ...]:
        """Return every key."""
        return tuple(key for key, _ in self._keys.values())

    def find(self, text: str | None) -> Key:
        """Return the key that a caller sent.

        Raises:
            UnauthorizedError: it sent none, or one that is unknown, wrong, revoked or expired.
        """
        now_s = self._clock.boot_s()
        if now_s - self._looked_at_s >= _CHECK_EVERY_S:
            self._refresh(now_s)
        parts = split_key(text) if text else None
        if parts is None:
            if self._open:
                return OPEN_KEY
            raise UnauthorizedError(
                "a key is missing" if not text else "this is not a key of the gateway", resolution=_HOW
            )
        key, expires_boot_s = self._keys.get(parts[0], (_NOBODY, None))
        # An unknown id costs the same comparison as a known one.
        if not secret_matches(key, parts[1]) or key is _NOBODY:
            raise UnauthorizedError("this key is not known here", resolution=_HOW)
        if key.revoked:
            raise UnauthorizedError(f"the key {key.key_id} was revoked", resolution="ask for a new one")
        if expires_boot_s is not None and now_s >= expires_boot_s:
            raise UnauthorizedError(f"the key {key.key_id} has expired", resolution="ask for a new one")
        return key

    def _refresh(self, now_s: float) -> None:
        self._looked_at_s = now_s
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        wall_s = self._clock.wall_s()
        known = self._keys
        self._keys = {
            key.key_id: self._dated(key, known.get(key.key_id), now_s, wall_s) for key in read_keys(self._file)
        }
        self._stamp = stamp

    def _dated(
        self, key: Key, before: tuple[Key, float | None] | None, now_s: float, wall_s: float
    ) -> tuple[Key, float | None]:
        if before is not None and before[0].expires_wall_s == key.expires_wall_s:
            return key, before[1]
        return key, None if key.expires_wall_s is None else now_s + key.expires_wall_s - wall_s

    def _stamp_now(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self._file)
        except FileNotFoundError:
            return (0, 0, 0)
        return (status.st_ino, status.st_mtime_ns, status.st_size)
