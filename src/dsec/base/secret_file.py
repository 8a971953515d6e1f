"""The file that holds what the nodes of a fleet share: read by its owner alone, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dsec.base.errors import InvalidRequestError

MINIMUM_SECRET_LENGTH = 16
_MAXIMUM_SECRET_BYTES = 4096


def read_secret(path: Path) -> bytes:
    """Return the secret that a file holds.

    Raises:
        InvalidRequestError: there is none, others may read it, or it is too short; names the file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequestError(
            f"{path} holds the secret of the peers and cannot be read: {error.strerror}",
            resolution=f"make it once, `(umask 077; openssl rand -hex 32 > {path})`, and copy it to all nodes",
        ) from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        secret = file.read(_MAXIMUM_SECRET_BYTES).strip()
    if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o077:
        raise InvalidRequestError(f"others may read the secret in {path}", resolution=f"chmod 600 {path}")
    if len(secret) < MINIMUM_SECRET_LENGTH:
        raise InvalidRequestError(
            f"{path} holds no secret of at least {MINIMUM_SECRET_LENGTH} characters",
            resolution=f"(umask 077; openssl rand -hex 32 > {path}), on one node, and copy it to the others",
        )
    return secret
