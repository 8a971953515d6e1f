"""Keep a seeder running beside the layer server, and talk to it over its pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from dsec.distribution.speed import Speed
from dsec.images.lazy.peers.landing import Landing, State
from dsec.images.lazy.peers.seeder import COMING, LANDING, MORE, SETTLED, SHELF, SeederStatus
from dsec.images.lazy.peers.settings import PeerSettings
from dsec.images.lazy.peers.shelf import Shelf

_AGAIN_S = (0.2, 1.0, 5.0)
"""After a death it is started again; the third in a row is the longest wait."""
LOG = "seeder.log"


class Seeding:
    """A seeder that is started again whenever it ends. Methods may be called from any thread, and never wait.

    Args:
        root: the daemon's directory.
        settings: of the peers; without an address to listen on nothing is started.
        on_change: called from a thread when its status is another.
    """

    def __init__(self, root: Path, settings: PeerSettings, on_change: Callable[[], None]) -> None:
        self._root = root
        self._settings = settings
        self._on_change = on_change
        self._shelf = Shelf(root / SHELF, limit_bytes=settings.shelf_bytes)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._landings: dict[str, Landing] = {}
        self._thread = threading.Thread(target=self._keep, name="seeder", daemon=True)
        self.status = SeederStatus()
        """Without an address while none runs."""

    def start(self) -> None:
        """Start it. Called once."""
        if self._settings.listen:
            self._thread.start()

    def close(self) -> None:
        """End it, and wait for its end."""
        self._ended.set()
        with self._lock:
            if self._process is not None:
                self._process.kill()
        if self._thread.is_alive():
            self._thread.join()

    def expect(self, name: str) -> None:
        """Let peers wait for a chunk."""
        self._tell(COMING, name)

    def land(self, name: str, size: int, speed: Speed | None = None) -> Landing | None:
        """Let peers have a chunk while it comes; None: they wait until it has come.

        Args:
            name: of the chunk, which is expected.
            size: length of its stored form.
            speed: see `Landing`.
        """
        former = self._landings.get(name)
        if self._process is None or (former is not None and former.state is State.COMING):
            return None  # Another layer has the same chunk, and it is coming for that one already.
        try:
            landing = Landing(name, size, partial(self._tell, MORE, name), speed)
        except OSError:
            return None
        if former is not None:
            former.close()
        self._landings[name] = landing
        self._tell(LANDING, f"{name} {os.getpid()} {landing.descriptor} {size}")
        return landing

    def spoil(self, name: str) -> None:
        """Pass on nothing more of what has come of a chunk: it is something else."""
        landing = self._landings.get(name)
        if landing is not None:
            landing.spoil()

    def settle(self, name: str) -> None:
        """Answer those who wait for a chunk, which is on the shelf or not to be had."""
        landing = self._landings.pop(name, None)
        if landing is not None:
            landing.close()
        self._tell(SETTLED, name)

    def keep(self, name: str, stored: bytes) -> None:
        """Pass on the end of a chunk that was verified, and put it where the seeder finds it; where the disk is full it
        encodes it itself.
        """
        landing = self._landings.get(name)
        if landing is not None:
            landing.verified(stored)
        if self._settings.listen:
            with contextlib.suppress(OSError):
                self._shelf.put(name, stored)

    def has(self, name: str) -> bool:
        """Whether a stored chunk is kept for others."""
        return (self._root / SHELF / name).exists()

    def _tell(self, what: bytes, words: str) -> None:
        """Write a line, short enough to go into a pipe whole or not at all (pipe(7)); a full pipe loses it, after which
        somebody waits in vain for a while, or does not wait.
        """
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                os.write(process.stdin.fileno(), what + words.encode() + b"\n")

    def _keep(self) -> None:
        deaths = 0
        while not self._ended.is_set():
            self._run()
            lived = bool(self.status.address)
            self.status = SeederStatus()
            self._on_change()
            deaths = 0 if lived else min(deaths + 1, len(_AGAIN_S) - 1)
            self._ended.wait(_AGAIN_S[deaths])

    def _run(self) -> None:
        """Start one and listen to it until it ends."""
        with (self._root / LOG).open("wb") as log, self._lock:
            if self._ended.is_set():
                return
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "dsec.images.lazy.peers.seeder", str(self._root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        with process, contextlib.suppress(OSError):
            process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
            os.set_blocking(process.stdin.fileno(), False)
            for line in process.stdout:
                with contextlib.suppress(msgspec.MsgspecError):
                    self.status = msgspec.json.decode(line, type=SeederStatus)
                    self._on_change()
        with self._lock:
            self._process = None
