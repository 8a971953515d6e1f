"""The process that gives this host's chunks to others: ``python -m dsec.images.lazy.peers.seeder ROOT``.

Why a process of its own. Uploads must not delay a read of a sandbox, and Python runs one thread of a process at a time;
and what strangers can talk to should not be what holds mounts. It needs nothing from the layer server but a pipe:

- lines on its standard input: first its settings; then ``+NAME``, a chunk is on its way here; ``:NAME PID FD SIZE``, it
  begins to come there (`dsec.images.lazy.peers.landing`); ``=NAME``, there is more of it; and ``-NAME``, it came, or
  does not come after all. The end of the pipe is the end of this process, so that it outlives nobody.
- lines on its standard output: its `SeederStatus`, at once when it listens and then when something changed.

What it gives it finds itself on the disk (`dsec.images.lazy.peers.shelf`).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import anyio
import msgspec

from dsec.base.secret_file import read_secret
from dsec.distribution.uploads import Uploads
from dsec.images.lazy.formats.stored import is_name
from dsec.images.lazy.peers.chunk_server import ChunkServer
from dsec.images.lazy.peers.landing import open_part
from dsec.images.lazy.peers.seeds import SEEDS
from dsec.images.lazy.peers.settings import PeerSettings
from dsec.images.lazy.peers.shelf import LocalChunks, Shelf
from dsec.model.peer import parse_listen
from dsec.model.peer_proof import PeerGate
from dsec.model.value import Value

CACHE, SHELF = "cache", "shelf"
"""Below the daemon's directory: layers of the cache; stored chunks."""
COMING, LANDING, MORE, SETTLED = b"+", b":", b"=", b"-"
_STATUS_S = 0.25
_TIDY_S = 5.0
_PIPE_BYTES = 64 << 10
_NICENESS = 5
"""Reads of sandboxes come first; what others want can wait a moment."""


class SeederStatus(Value, frozen=True):
    """How a seeder is.

    Attributes:
        address: where chunks are had.
        sending: transfers under way.
        waiting: peers that wait for a chunk which is on its way here.
        sent_bytes: since it began.
        refused: requests that were sent away as too many.
    """

    address: str = ""
    sending: int = 0
    waiting: int = 0
    sent_bytes: int = 0
    refused: int = 0


class _Seeder:
    def __init__(self, root: Path, settings: PeerSettings) -> None:
        self._shelf = Shelf(root / SHELF, limit_bytes=settings.shelf_bytes)
        chunks = LocalChunks((root / CACHE, root / SEEDS), self._shelf)
        self._uploads = Uploads(settings.uploads, time.monotonic())
        gate = PeerGate(settings.node, read_secret(Path(settings.secret_file)))
        self._server = ChunkServer(gate, chunks, self._uploads, time.monotonic)
        self._listener = _listen(*parse_listen(settings.listen))

    async def run(self) -> None:
        """Give chunks until the pipe ends."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._server.serve, self._listener)
            group.start_soon(self._say)
            group.start_soon(self._tidy)
            await self._hear()
            group.cancel_scope.cancel()

    async def _hear(self) -> None:
        os.set_blocking(0, False)
        left = b""
        while True:
            await anyio.wait_readable(0)
            try:
                data = os.read(0, _PIPE_BYTES)
            except BlockingIOError:
                continue
            if not data:
                return
            *lines, left = (left + data).split(b"\n")
            for line in lines:
                self._heed(line[:1], *line[1:].decode("ascii", "replace").split(" "))

    def _heed(self, what: bytes, name: str, *rest: str) -> None:
        if not is_name(name):
            return
        if what == COMING:
            self._server.expect(name)
        elif what == SETTLED:
            self._server.settle(name)
        elif what == MORE:
            self._server.progress(name)
        elif what == LANDING and len(rest) == 3 and all(number.isdecimal() for number in rest):
            pid, descriptor, size = map(int, rest)
            part = open_part(pid, descriptor, name, size)
            if part is not None:
                self._server.land(name, part)

    async def _say(self) -> None:
        said = None
        while True:
            status = self._status()
            if status != said:
                said = status
                sys.stdout.buffer.write(msgspec.json.encode(status) + b"\n")
                sys.stdout.buffer.flush()
            await anyio.sleep(_STATUS_S)

    def _status(self) -> SeederStatus:
        host, port = self._listener.getsockname()[:2]
        uploads = self._uploads
        return SeederStatus(
            address=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
            sending=uploads.sending,
            waiting=uploads.held,
            sent_bytes=uploads.sent_bytes,
            refused=uploads.refused,
        )

    async def _tidy(self) -> None:
        while True:
            await anyio.to_thread.run_sync(self._shelf.tidy)
            await anyio.sleep(_TIDY_S)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=256)
    listener.setblocking(False)
    return listener


def main(arguments: list[str]) -> None:
    """Give chunks of a daemon's directory, with the settings that are the first line of the standard input."""
    (root,) = arguments
    os.nice(_NICENESS)
    settings = msgspec.json.decode(_first_line(), type=PeerSettings)
    anyio.run(_Seeder(Path(root), settings).run)


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1)  # Byte by byte: what follows is for the event loop.
        if not more:
            sys.exit(0)
        line += more
    return line


if __name__ == "__main__":
    main(sys.argv[1:])
