"""The spool of a background process: its output on disk, so that a node that starts after a crash can replay it.

Three files in ``<spool>/<instance>/<process>/``: ``head`` holds the first bytes, ``tail`` the newest, ``tail.old``
those before. When ``tail`` is full it becomes ``tail.old``. Each holds frames: stream (1 byte), offset in the stream
(8 bytes), length (4 bytes), data. A frame that a crash cut short is the last of its file and is left out. Nothing is
synced: the page cache survives the death of a process, and no instance outlives the kernel.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from dsec.model.process import Stream
from dsec.node.output import OutputLog

_HEADER = struct.Struct(">BQI")
_STREAMS = (Stream.STDOUT, Stream.STDERR)


class Spool:
    """Append-only output of one process, bounded to three times `limit_bytes`."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit = max(limit_bytes, 4096)
        self._descriptor = -1
        self._name = "head"
        self._size = 0

    def open(self) -> None:
        """Make the directory, or go on where an earlier node ended."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._name = "tail" if (self._directory / "tail").exists() else "head"
        self._open_file()

    def append(self, stream: Stream, offset: int, data: bytes) -> None:
        frame = _HEADER.pack(_STREAMS.index(stream), offset, len(data)) + data
        if self._size and self._size + len(frame) > self._limit:
            self._turn()
        os.write(self._descriptor, frame)
        self._size += len(frame)

    def _turn(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
        if self._name == "tail":
            (self._directory / "tail").replace(self._directory / "tail.old")
        self._name = "tail"
        self._open_file()

    def _open_file(self) -> None:
        path = self._directory / self._name
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        whole = sum(_HEADER.size + len(data) for _, _, data in _frames(path))
        if whole < self._size:
            # A crash cut the last frame short; what follows must begin at a frame's end.
            os.ftruncate(self._descriptor, whole)
            self._size = whole

    def replay(self, log: OutputLog) -> None:
        """Put into `log` what an earlier node kept; gaps count as dropped."""
        for name in ("head", "tail.old", "tail"):
            for stream, offset, data in _frames(self._directory / name):
                log.add(stream, data, offset=offset)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _frames(path: Path) -> Iterator[tuple[Stream, int, bytes]]:
    if not path.exists():
        return
    content = path.read_bytes()
    position = 0
    while position + _HEADER.size <= len(content):
        index, offset, length = _HEADER.unpack_from(content, position)
        position += _HEADER.size
        if position + length > len(content) or index >= len(_STREAMS):
            return
        yield _STREAMS[index], offset, content[position : position + length]
        position += length
