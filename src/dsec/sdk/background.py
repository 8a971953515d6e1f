"""Start a node of this host, or a worker, in the background: a process that outlives whoever needed it first.

Several programs may start at once: each starts one, one of them gets the state directory's lock, and all talk to that.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from dsec.base.errors import InvalidRequestError, NodeUnavailableError, PlatformError
from dsec.sdk.connect import answers

START_TIMEOUT_S = 60.0
"""A node that adopts thousands of sandboxes needs some seconds; one that needs a minute has a problem to be told."""
IDLE_EXIT_S = 600
"""A background node leaves after this time without a request and without a sandbox to look after; a worker, without a
request and without an episode that goes on."""
_POLL_S = 0.02
_LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is started: its files in its state directory are called after it.

    Attributes:
        name: ``node`` or ``worker``.
        command: by which it is started in the foreground.
    """

    name: str
    command: str

    @property
    def socket(self) -> str:
        return f"{self.name}.sock"

    @property
    def lock(self) -> str:
        return f"{self.name}.lock"

    @property
    def log(self) -> str:
        return f"{self.name}.log"


NODE = Server(name="node", command="dsec up")
WORKER = Server(name="worker", command="dsec worker up")


def node_argv(state_dir: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command line of a background node.

    Args:
        state_dir: its state directory.
        options: further global options of the command line.
    """
    argv = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "--log-format", "json", *options]
    return [*argv, "up", "--socket-only", "--exit-when-idle", str(IDLE_EXIT_S)]


def worker_argv(state_dir: Path, worker_dir: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command line of a background worker.

    Args:
        state_dir: of the node of this host, which it drives unless `options` name another.
        worker_dir: its own state directory.
        options: further global options of the command line.
    """
    argv = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "--log-format", "json", *options]
    return [*argv, "worker", "up", "--state-dir", str(worker_dir), "--exit-when-idle", str(IDLE_EXIT_S)]


async def start_background_node(argv: Sequence[str], state_dir: Path) -> None:
    """Start a node; see `start_background`."""
    await start_background(argv, state_dir, NODE)


async def start_background(
    argv: Sequence[str], state_dir: Path, server: Server, variables: Mapping[str, str] | None = None
) -> None:
    """Start a server and return when its socket answers. What it says is in its log in the state directory.

    Args:
        argv: its command line.
        state_dir: where it keeps its socket and log.
        server: what it is.
        variables: further ones of its environment, such as a token, which no command line should show.

    Raises:
        NodeUnavailableError: it ended, or did not answer in time.
        InvalidRequestError: the state directory cannot be made.
    """
    _make_state_dir(state_dir)
    log = _Log.of(state_dir / server.log)
    child = _spawn(argv, log.path, variables or {})
    try:
        with anyio.move_on_after(START_TIMEOUT_S):
            await _wait_answers(child, state_dir, server, log)
            return
        raise NodeUnavailableError(
            f"the {server.name} in {state_dir} does not answer after {START_TIMEOUT_S:g} s", detail=log.tail(),
            resolution=f"run `{server.command}` in the foreground and look what it waits for",
        )  # fmt: skip
    finally:
        child.returncode = child.returncode if child.poll() is not None else 0  # It outlives us: nobody waits for it.


@dataclass(frozen=True, slots=True)
class _Log:
    """What a server says from now on; why an earlier one ended would mislead.

    Attributes:
        path: the file, which all of the state directory write to.
        begin: where this one begins.
    """

    path: Path
    begin: int

    @classmethod
    def of(cls, path: Path) -> _Log:
        try:
            return cls(path, path.stat().st_size)
        except OSError:
            return cls(path, 0)

    def tail(self) -> str:
        """Return its last lines."""
        try:
            said = self.path.read_bytes()[self.begin :].decode(errors="replace")
        except OSError:
            said = ""
        return "\n".join(said.splitlines()[-_LOG_TAIL_LINES:]) or "it wrote no log"


def _make_state_dir(state_dir: Path) -> None:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequestError(
            f"{state_dir} cannot be made", detail=error.strerror or "", resolution="choose another with --state-dir"
        ) from error


def _spawn(argv: Sequence[str], log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start it in a session of its own (setsid(2)), so that no terminal's hang-up or interrupt reaches it."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            env={**os.environ, **variables},
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


async def _wait_answers(child: subprocess.Popen[bytes], state_dir: Path, server: Server, log: _Log) -> None:
    while not await answers(state_dir / server.socket):
        if child.poll() is not None and not is_held(state_dir, server):
            raise _ended(child.returncode, state_dir, server, log)
        await anyio.sleep(_POLL_S)


def _ended(status: int, state_dir: Path, server: Server, log: _Log) -> PlatformError:
    return NodeUnavailableError(
        f"the {server.name} in {state_dir} ended with status {status}", detail=log.tail(),
        resolution=f"`dsec doctor` says what this host lacks; `{server.command}` shows the failure in the foreground",
    )  # fmt: skip


def is_held(state_dir: Path, server: Server = NODE) -> bool:
    """Tell whether a live process holds the state directory's lock."""
    try:
        with open(state_dir / server.lock, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
