"""A node in a process of its own, to be killed.

`NodeProcess` starts `dsec up` on a state directory. With `die_after_lines` the process counts the lines of DSec's own
mechanisms that it executes and sends itself SIGKILL at that one: so a kill can come between any two effects, where a
kill by the clock nearly always comes while the node waits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.testing import step_kill
from dsec.testing.countdown import Countdown

_COUNTED = ("node", "runtimes", "state", "stores", "linux")
_START_TIMEOUT_S = 60.0
SWAP = "1GiB"
"""Room for the memory of what tests pause, and of what other nodes of the host may put there meanwhile."""


class NodeProcess:
    """A node that a test starts, talks to, and ends one way or the other.

    Args:
        state_dir: its state directory; the path must be short enough for a socket.
        environment: settings, as ``DSEC_...`` variables.
        tcp: also listen on a port of loopback.
        port: which; 0: a free one.

    Attributes:
        announced: what it said when it began to serve: `socket`, and with `tcp` also `url` and `token_file`.
    """

    def __init__(
        self, state_dir: Path, environment: dict[str, str] | None = None, *, tcp: bool = False, port: int = 0
    ) -> None:
        self.state_dir = state_dir
        self.announced: dict[str, str] = {}
        self._arguments = ["up", "--json", *(["--port", str(port)] if tcp else ["--socket-only"])]
        self._environment = {**os.environ, "DSEC_SWAP_BYTES": SWAP, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None

    def start(self, *, die_after_lines: int | None = None, die_at_step: int | None = None, armed: bool = False) -> bool:
        """Start it and wait until it serves; return whether it does (it may have died on the way, as it was told).

        Args:
            die_after_lines: SIGKILL at this line of its own mechanisms; None: never.
            die_at_step: SIGKILL at this step of its own mechanisms (`dsec.testing.step_kill`); None: never.
            armed: count from its first line or step on, not only after `arm`.
        """
        assert self._process is None
        command = [sys.executable, "-m", "dsec"]
        if die_after_lines is not None:
            command = [sys.executable, "-m", __name__, str(die_after_lines), "armed" if armed else "later"]
        elif die_at_step is not None:
            command = [sys.executable, "-m", step_kill.__name__, str(die_at_step)]
            command.append(step_kill.FROM_THE_START if armed else step_kill.ON_SIGNAL)
        command += ["--state-dir", str(self.state_dir), *self._arguments]
        with (self.state_dir / "node.log").open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True, env=self._environment
            )
        self.announced = announced = self._announcement()
        if not announced and self.wait_dead() != -signal.SIGKILL:
            raise AssertionError(f"the node did not start: {self.log_tail()}")
        return bool(announced)

    def _announcement(self) -> dict[str, str]:
        assert self._process is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_START_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        announced: dict[str, str] = json.loads(line) if line else {}
        return announced

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def arm(self) -> None:
        """Let it begin to count its lines or steps."""
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """SIGKILL, and see it gone."""
        if self._process is not None:
            self._process.kill()
            self.wait_dead()

    def stop(self) -> None:
        """SIGTERM: a graceful end. Raises `AssertionError` when it was none."""
        if self._process is None:
            return
        self._process.terminate()
        code = self.wait_dead()
        assert code == 0, f"the node ended with {code}: {self.log_tail()}"

    def wait_dead(self) -> int:
        """Wait for its end; return the exit code, or minus the signal's number."""
        process, self._process = self._process, None
        assert process is not None
        with process:
            return process.wait(timeout=_START_TIMEOUT_S)

    def log_tail(self) -> str:
        return (self.state_dir / "node.log").read_text(errors="replace")[-4000:]

    @asynccontextmanager
    async def service(self) -> AsyncIterator[HttpService]:
        """Yield a client of its own connections."""
        service = HttpService(Endpoint(url=f"unix:{self.state_dir / 'node.sock'}"))
        try:
            yield service
        finally:
            await service.aclose()


def _main(lines: str, when: str, *arguments: str) -> None:
    from dsec.cli.main import main

    countdown = Countdown(int(lines), _COUNTED)
    if when == "armed":
        countdown.begin()
    else:
        # Frames that are entered, or resumed, from then on are counted.
        signal.signal(signal.SIGUSR1, countdown.begin)
    sys.argv = ["dsec", *arguments]
    main()


if __name__ == "__main__":
    _main(*sys.argv[1:])
