"""Look at many files in one hop to a thread: what a check does that is about a hundred paths and no single one.

Each path is resolved anew inside the root, so that what one leads to says nothing about the next; what is wrong with
one is told in its place. Between two blocks and between two paths the caller's cancellation is looked for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio.from_thread
import blake3

from dsec.base.errors import DsecError, IsADirectoryInSandboxError
from dsec.base.units import MIB
from dsec.runtimes.container.file_errors import show, typed_errors
from dsec.runtimes.container.root import encode_path, open_data
from dsec.runtimes.port import FileDigest

_BLOCK_BYTES = MIB
_T = TypeVar("_T")


def each_path(paths: Sequence[str], look: Callable[[bytes], _T]) -> tuple[_T | DsecError, ...]:
    """Return what `look` returns for each path, or what kept it from it. In a thread of an operation's."""
    found: list[_T | DsecError] = []
    for path in paths:
        anyio.from_thread.check_cancelled()
        try:
            raw = encode_path(path)
            with typed_errors(raw):
                found.append(look(raw))
        except DsecError as error:
            found.append(error)
    return tuple(found)


def digest_file(root_fd: int, path: bytes, limit_bytes: int) -> FileDigest:
    """Hash the first bytes of a regular file."""
    fd = open_data(root_fd, path, os.O_RDONLY)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryInSandboxError(f"{show(path)} is a directory", resolution="name a file")
        digest, left = blake3.blake3(), limit_bytes
        while left and (data := os.read(fd, min(left, _BLOCK_BYTES))):
            digest.update(data)
            left -= len(data)
            if len(data) == _BLOCK_BYTES:
                anyio.from_thread.check_cancelled()
    finally:
        os.close(fd)
    return FileDigest(status.st_size, digest.hexdigest())
