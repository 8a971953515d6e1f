"""A worker in a process of its own, to be killed: `dsec worker up` on a directory, against the node of a URL."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dsec.sdk.episodes import HttpEpisodes
from dsec.sdk.keepalive import Endpoint

_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 60.0


class WorkerProcess:
    """A worker that a test starts, talks to, and ends one way or the other.

    Args:
        directory: its state directory, which is there; the path must be short enough for a socket.
        node_url: of the node that it drives.
        arguments: further ones of ``dsec worker up``.

    Attributes:
        announced: what it said when it began to serve: `socket`, `pid`, and with ``--listen`` also `url` and
            `token_file`.
    """

    def __init__(self, directory: Path, node_url: str, *arguments: str) -> None:
        self.directory = directory
        self.announced: dict[str, str] = {}
        argv = [sys.executable, "-m", "dsec", "--url", node_url]
        self._argv = [*argv, "worker", "up", "--json", "--state-dir", str(directory), *arguments]
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Of its socket."""
        return f"unix:{self.directory / 'worker.sock'}"

    def start(self) -> None:
        """Start it and wait until it serves."""
        assert self._process is None
        with (self.directory / "worker.log").open("a") as log:
            self._process = subprocess.Popen(
                self._argv, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True
            )
        assert self._process.stdout is not None
        timer = threading.Timer(_START_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            code = self._wait_dead()
            raise AssertionError(f"the worker ended with {code}: {self.log_tail()}")
        self.announced = json.loads(line)

    def kill(self) -> None:
        """SIGKILL, and see it gone. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._wait_dead()

    def stop(self) -> None:
        """SIGTERM: a graceful end. Raises `AssertionError` when it was none. Idempotent."""
        if self._process is None:
            return
        self._process.terminate()
        code = self._wait_dead()
        assert code == 0, f"the worker ended with {code}: {self.log_tail()}"

    def wait(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        return self._wait_dead()

    def _wait_dead(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        with process:
            return process.wait(timeout=_END_TIMEOUT_S)

    def log_tail(self) -> str:
        """Return the last of what it said."""
        return (self.directory / "worker.log").read_text(errors="replace")[-4000:]

    @asynccontextmanager
    async def episodes(self) -> AsyncIterator[HttpEpisodes]:
        """Yield a client of its own connections."""
        episodes = HttpEpisodes(Endpoint(url=self.url))
        try:
            yield episodes
        finally:
            await episodes.aclose()
