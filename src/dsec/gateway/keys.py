"""Keys of projects: who may call, what, until when, for how much.

A key is ``dsk-<id>-<secret>``. The id is public: it stands in the ledger. The secret is 32 random bytes, of which the
file holds the SHA-256 alone; a plain hash is enough, since nobody can try out 2^256 secrets. Secrets are compared in
constant time. The file is replaced as a whole, under a lock, and a running gateway reads it again when it has
changed, so that a key that is made or revoked counts at once. See docs/formats/gateway-keys.md.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from dsec.base.errors import (
    HostDiskFullError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    StateCorruptedError,
)
from dsec.base.ids import RandomBytes, new_id
from dsec.gateway.config import Budget, Thinking
from dsec.model.value import Value

KEYS_FILE = "keys.json"
FORMAT_VERSION = 1
_SECRET_BYTES = 32
_KEY = re.compile(r"(dsk-[0-9a-z]{10})-([A-Za-z0-9_-]{43})")


class Key(Value, frozen=True):
    """One key, without its secret.

    Attributes:
        key_id: public, ``dsk-`` and ten symbols.
        secret_sha256: hexadecimal.
        project: whose calls it makes.
        models: names or patterns (``claude-*``) of what it may call; none: everything.
        budget: what it may spend in all.
        thinking: budgets of thinking, where they are stricter than the model's and the project's.
        created_wall_s: when, since the epoch.
        expires_wall_s: until when; None: for ever.
        note: for people.
        revoked: whether it was taken back.
    """

    key_id: str
    secret_sha256: str
    project: str
    models: tuple[str, ...] = ()
    budget: Budget = Budget()
    thinking: Thinking = Thinking()
    created_wall_s: float = 0.0
    expires_wall_s: float | None = None
    note: str = ""
    revoked: bool = False

    def allows(self, model: str) -> bool:
        """Say whether it may call a model."""
        return not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)


class KeysFile(Value, frozen=True):
    """What the file holds."""

    version: int = FORMAT_VERSION
    keys: tuple[Key, ...] = ()


def split_key(text: str) -> tuple[str, str] | None:
    """Return id and secret of a key as callers send it, or None if it is none."""
    match = _KEY.fullmatch(text)
    return None if match is None else (match[1], match[2])


def secret_matches(key: Key, secret: str) -> bool:
    """Compare a secret in constant time."""
    return hmac.compare_digest(hash_of(secret), key.secret_sha256)


def hash_of(secret: str) -> str:
    """Return what the file holds of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make_key(
    project: str,
    *,
    random_bytes: RandomBytes,
    now_wall_s: float,
    models: tuple[str, ...] = (),
    budget: Budget = Budget(),
    thinking: Thinking = Thinking(),
    lifetime_s: float | None = None,
    note: str = "",
) -> tuple[Key, str]:
    """Return a new key and its text, which is told once and kept nowhere."""
    key_id = new_id("dsk", random_bytes)
    secret = base64.urlsafe_b64encode(random_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    key = Key(
        key_id=key_id,
        secret_sha256=hash_of(secret),
        project=project,
        models=models,
        budget=budget,
        thinking=thinking,
        created_wall_s=now_wall_s,
        expires_wall_s=None if lifetime_s is None else now_wall_s + lifetime_s,
        note=note,
    )
    return key, f"{key_id}-{secret}"


def read_keys(file: Path) -> tuple[Key, ...]:
    """Return the keys of a file; none if there is no file.

    Raises:
        StateCorruptedError: it cannot be understood.
    """
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        found = msgspec.json.decode(data, type=KeysFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateCorruptedError(
            f"{file} holds no keys that can be read", detail=str(error), resolution="restore it from a copy"
        ) from error
    if found.version != FORMAT_VERSION:
        raise StateCorruptedError(
            f"{file} has version {found.version}; this program knows {FORMAT_VERSION}",
            resolution="use the program that wrote it",
        )
    return found.keys


def add_key(file: Path, key: Key) -> None:
    """Add a key."""
    _change(file, lambda keys: (*keys, key))


def revoke_key(file: Path, key_id: str) -> Key:
    """Take a key back; it stays in the file, so that the ledger's ids keep their meaning. Idempotent.

    Raises:
        NotFoundError: there is no such key.
    """

    def revoke(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        return tuple(msgspec.structs.replace(key, revoked=True) if key.key_id == key_id else key for key in keys)

    for key in _change(file, revoke):
        if key.key_id == key_id:
            return key
    raise NotFoundError(f"there is no key {key_id!r} in {file}", resolution="`dsec gateway keys ls` lists them")


def _change(file: Path, change: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> tuple[Key, ...]:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(file):
            keys = change(read_keys(file))
            _replace(file, msgspec.json.format(msgspec.json.encode(KeysFile(keys=keys)), indent=1) + b"\n")
    except OSError as error:
        message, resolution = f"{file} cannot be written: {error.strerror}", "the file is as it was; try again"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HostDiskFullError(message, resolution=f"make room; {resolution}") from error
        raise PermissionDeniedError(message, resolution=f"let this user write there; {resolution}") from error
    return keys


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    descriptor = os.open(file.with_name(file.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(file: Path, data: bytes) -> None:
    fresh = file.with_name(file.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(file)


def check_scope(key: Key, model: str) -> None:
    """Refuse a model that a key is not for.

    Raises:
        PermissionDeniedError: it is not.
    """
    if not key.allows(model):
        raise PermissionDeniedError(
            f"this key may not call the model {model!r}", resolution=f"it may call: {', '.join(key.models)}"
        )


def check_budget(budget: Budget) -> Budget:
    """Return a budget if it can be one.

    Raises:
        InvalidRequestError: something in it is negative.
    """
    for name in ("tokens", "usd", "calls"):
        value = getattr(budget, name)
        if value is not None and not value >= 0:
            raise InvalidRequestError(f"the budget of {name} is {value}", resolution="give a number of at least 0")
    return budget
