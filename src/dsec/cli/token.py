"""The token file of `dsec up`: readable by its owner alone, made in one step, kept across restarts."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from dsec.base.errors import InvalidRequestError

_TOKEN_BYTES = 32
_MINIMUM_LENGTH = 16


def obtain_token(path: Path) -> str:
    """Return the token in the file, making file and token when there is none.

    Raises:
        InvalidRequestError: others can read the file, it belongs to somebody else, or holds no usable token.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        return _make(path)
    except OSError as error:
        raise InvalidRequestError(
            f"{path}: {error.strerror}", resolution="the token must be a file of yours"
        ) from error


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, encoding="ascii", errors="replace") as file:
        status = os.fstat(descriptor)
        text = file.read(4096).strip()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise InvalidRequestError(
            f"others may read or change the token in {path}", resolution=f"rm {path}; the next start makes a new one"
        )
    if len(text) < _MINIMUM_LENGTH:
        raise InvalidRequestError(
            f"{path} holds no token of at least {_MINIMUM_LENGTH} characters",
            resolution=f"rm {path}; the next start makes a new one",
        )
    return text


def _make(path: Path) -> str:
    """Write a new file beside and link it into place: nobody ever sees half a token, and an existing one wins."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(descriptor)
        os.link(fresh, path)
    except FileExistsError:
        return _read(path)
    finally:
        fresh.unlink()
    return token
