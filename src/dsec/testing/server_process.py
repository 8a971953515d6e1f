"""A server of somebody else's for the time of tests: started on loopback in a directory of its own, where its log is,
waited for, and killed at the end by its process id. It dies with the thread that started it, too, so that `kill -9` of
the tests leaves none.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_START_S = 60.0
_PAUSE_S = 0.02


@contextmanager
def running_server(
    argv: Sequence[str], directory: Path, answers: Callable[[], bool], *, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends.

    Args:
        argv: program and arguments.
        directory: where it runs and its file ``log`` is.
        answers: whether it answers by now; asked until it does.
        environment: variables beside those of this process.

    Raises:
        RuntimeError: it ended, or did not answer in time.
    """
    # Without setpriv(1) it only ends with the block.
    prefix = ["setpriv", "--pdeathsig=KILL", "--"] if shutil.which("setpriv") else []
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*prefix, *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env={**os.environ, **(environment or {})},
        )
    try:
        deadline_s = time.monotonic() + _START_S
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline_s:
                said = (directory / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{argv[0]} did not start: {said}")
            time.sleep(_PAUSE_S)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Stop a process for the block. None of its threads runs any more when it begins: a signal is only sent by kill(2),
    and a thread on another processor may answer meanwhile.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline_s = time.monotonic() + _START_S
        while not all(_is_stopped(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"process {pid} does not stop")
            time.sleep(_PAUSE_S)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True  # A thread that has ended.


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
