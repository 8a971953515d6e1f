"""Tar streams between the event loop and the standard library's blocking tar, with bounded memory.

A thread reads or writes the archive; a channel of a few chunks stands between it and the loop, so that the slower side
holds back the faster one.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from dsec.base.errors import UnsafeArchiveError

_CHUNK_BYTES = 1 << 18
_CHUNKS = 8
_LEFT_OUT = "DSEC.left_out"
"""The record of the archive's last entry that names what the server left out: a JSON array."""


class _Writer(io.RawIOBase):
    """What the packing thread writes to."""

    def __init__(self, channel: MemoryObjectSendStream[bytes]) -> None:
        self._channel = channel
        self._broken = False

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        if not self._broken:  # tarfile writes its end mark even after an error.
            self._broken = True
            anyio.from_thread.run(self._channel.send, piece)
            self._broken = False
        return len(piece)


class _Reader(io.RawIOBase):
    """What the unpacking thread reads from."""

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        self._content = content
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, limit: int = -1) -> bytes:
        if not self._rest:
            self._rest = anyio.from_thread.run(self._next)
        size = len(self._rest) if limit < 0 else limit
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    async def _next(self) -> bytes:
        return await anext(self._content, b"")


@asynccontextmanager
async def pack(directory: Path, left_out: list[str]) -> AsyncIterator[MemoryObjectReceiveStream[bytes]]:
    """Return a tar stream of what is in `directory`. Leaving early ends the thread.

    Args:
        directory: whose content.
        left_out: takes the names of what is no file, directory or link.
    """
    send, receive = anyio.create_memory_object_stream[bytes](_CHUNKS)
    async with anyio.create_task_group() as group, receive:
        group.start_soon(_pack_in_thread, directory, send, left_out)
        yield receive


async def _pack_in_thread(directory: Path, channel: MemoryObjectSendStream[bytes], left_out: list[str]) -> None:
    async with channel:
        try:
            await anyio.to_thread.run_sync(_pack, directory, channel, left_out)
        except anyio.BrokenResourceError:
            return  # Nobody listens any more: the receiver has its own reason.


def _pack(directory: Path, channel: MemoryObjectSendStream[bytes], left_out: list[str]) -> None:
    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        """Leave out what is no file, directory or link; owners of this host mean nothing in a sandbox."""
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            left_out.append(member.name)
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    writer = _Writer(channel)
    with tarfile.open(fileobj=writer, mode="w|", bufsize=_CHUNK_BYTES, format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.iterdir()):
            # tarfile passes over a socket in silence.
            if path.is_socket():
                left_out.append(path.name)
            archive.add(path, arcname=path.name, filter=keep)


async def unpack(content: AsyncIterator[bytes], directory: Path) -> list[str]:
    """Unpack a tar stream into `directory` and return the names of entries that were left out.

    Raises:
        UnsafeArchiveError: the stream is not a tar archive.
    """
    reader = _Reader(content)
    left_out = await anyio.to_thread.run_sync(_unpack, reader, directory)
    while await reader._next():
        continue  # What follows the end mark (left-out names, padding) is read so that the transfer ends well.
    return left_out


def _unpack(reader: _Reader, directory: Path) -> list[str]:
    left_out: dict[str, None] = {}  # An ordered set: newer Pythons show a directory to the filter twice.

    def keep(member: tarfile.TarInfo, destination: str) -> tarfile.TarInfo | None:
        if _LEFT_OUT in member.pax_headers:
            left_out.update(dict.fromkeys(_names(member.pax_headers[_LEFT_OUT])))
        try:
            return tarfile.data_filter(member, destination)
        except tarfile.FilterError:
            left_out[member.name] = None
            return None

    try:
        with tarfile.open(fileobj=reader, mode="r|", bufsize=_CHUNK_BYTES) as archive:
            archive.extractall(directory, filter=keep)
    except tarfile.TarError as error:
        raise UnsafeArchiveError("what the sandbox sent is not a tar archive", detail=str(error)) from error
    return list(left_out)


def _names(text: str) -> list[str]:
    """Return the names of what the server left out (docs/http-api.md); the guest cannot have written them."""
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        return [text]
