"""What export hooks of images gave, one content for each frozen layer, under the layer's name.

It lies beside the writable layers and not in them: it is no file of the guest's, its quota does not pay for it, and a
layer that begins from the frozen one must not hold it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

from dsec.base.errors import HostDiskFullError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class Exports(Protocol):
    """A store of exported states. Calls block for as long as a file of that size takes."""

    def put(self, name: str, content: bytes) -> None:
        """Keep a content, whole or not at all. Raises `HostDiskFullError`."""

    def get(self, name: str) -> bytes | None:
        """Return a content; None when there is none of this name."""

    def discard(self, name: str) -> None:
        """Forget a content. Idempotent."""

    def names(self) -> frozenset[str]:
        """Names of all contents."""


class MemoryExports:
    """`Exports` in memory."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def put(self, name: str, content: bytes) -> None:
        self._contents[name] = content

    def get(self, name: str) -> bytes | None:
        return self._contents.get(name)

    def discard(self, name: str) -> None:
        self._contents.pop(name, None)

    def names(self) -> frozenset[str]:
        return frozenset(self._contents)


class DirectoryExports:
    """`Exports` as files of a directory that nobody but the node can enter.

    A file appears by a rename. It is not synced: as for the layers, no frozen state is promised over a loss of power.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)

    def put(self, name: str, content: bytes) -> None:
        new = self._directory / f".{name}"
        try:
            new.write_bytes(content)
            new.replace(self._directory / name)
        except OSError as error:
            new.unlink(missing_ok=True)
            if error.errno not in _NO_ROOM:
                raise
            raise HostDiskFullError(
                f"{self._directory} has no room for what a hook exported", resolution="free space on the host"
            ) from error

    def get(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def discard(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def names(self) -> frozenset[str]:
        return frozenset(os.listdir(self._directory))
