"""Find the service that a command talks to.

With a URL it is a server. Without, it is the node of this host, behind `node.sock` in the state directory; when no node
answers there, one is started in the background. Several commands may start at once: each starts a node, one of them
gets the state directory's lock, and all talk to that one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from dsec.base.errors import InvalidRequestError, NodeUnavailableError, PlatformError
from dsec.cli.context import Options
from dsec.cli.output import note
from dsec.cli.settings import load
from dsec.sdk.connect import answers, open_local
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.service.port import SandboxService

START_TIMEOUT_S = 60.0
"""A node that adopts thousands of sandboxes needs some seconds; one that needs a minute has a problem to be told."""
IDLE_EXIT_S = 600
"""A background node leaves after this time without a request and without a sandbox to look after."""
_POLL_S = 0.02
_LOG_TAIL_LINES = 12


@asynccontextmanager
async def open_service(options: Options) -> AsyncIterator[SandboxService]:
    """Connect to the service that the options name, starting a node when none is there.

    Raises:
        NodeUnavailableError: the node does not start; the detail holds the end of its log.
        InvalidRequestError: the options contradict each other.
    """
    if options.url:
        endpoint = Endpoint(url=options.url, token=options.token or "")
    else:
        state_dir = options.state_dir
        if not await answers(state_dir / "node.sock"):
            await start_node(options, state_dir)
        endpoint = Endpoint(url=f"unix:{state_dir / 'node.sock'}")
    service = HttpService(endpoint)
    try:
        yield service
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5):
            await service.aclose()


@asynccontextmanager
async def open_service_inside(options: Options) -> AsyncIterator[SandboxService]:
    """As `open_service`, but where no node runs, be the node until the context ends: long work saves every hop to it.

    Raises:
        As `open_service`.
    """
    if options.url or os.geteuid() != 0:
        async with open_service(options) as service:
            yield service
        return
    loaded = load(options)
    async with open_local(msgspec.structs.replace(loaded.settings, state_dir=str(loaded.state_dir))) as service:
        yield service


async def start_node(options: Options, state_dir: Path) -> None:
    """Start a node in the background and return when its socket answers.

    Raises:
        NodeUnavailableError: it ended, or did not answer in time.
        InvalidRequestError: the state directory cannot be made.
    """
    _make_state_dir(state_dir)
    log = state_dir / "node.log"
    note(f"starting a node in {state_dir} (log: {log})")
    child = _spawn(options, state_dir, log)
    try:
        with anyio.move_on_after(START_TIMEOUT_S):
            await _wait_answers(child, state_dir, log)
            return
        raise NodeUnavailableError(
            f"the node in {state_dir} does not answer after {START_TIMEOUT_S:g} s", detail=_tail(log),
            resolution="run `dsec up` in the foreground and look what it waits for",
        )  # fmt: skip
    finally:
        child.returncode = child.returncode if child.poll() is not None else 0  # It outlives us: nobody waits for it.


def _make_state_dir(state_dir: Path) -> None:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequestError(
            f"{state_dir} cannot be made", detail=error.strerror or "", resolution="choose another with --state-dir"
        ) from error


def _spawn(options: Options, state_dir: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start `dsec up` in a session of its own (setsid(2)), so that no terminal's hang-up or interrupt reaches it."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            node_argv(options, state_dir),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def node_argv(options: Options, state_dir: Path) -> list[str]:
    """Return the command line of a background node with the same settings as ours."""
    argv = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "--log-format", "json"]
    if options.config_file is not None:
        argv += ["--config", str(options.config_file.absolute())]
    for override in options.overrides:
        argv += ["--set", override]
    return [*argv, "up", "--socket-only", "--exit-when-idle", str(IDLE_EXIT_S)]


async def _wait_answers(child: subprocess.Popen[bytes], state_dir: Path, log: Path) -> None:
    while not await answers(state_dir / "node.sock"):
        if child.poll() is not None and not is_held(state_dir):
            raise _ended(child.returncode, state_dir, log)
        await anyio.sleep(_POLL_S)


def _ended(status: int, state_dir: Path, log: Path) -> PlatformError:
    return NodeUnavailableError(
        f"the node in {state_dir} ended with status {status}", detail=_tail(log),
        resolution="`dsec doctor` says what this host lacks; `dsec up` shows the failure in the foreground",
    )  # fmt: skip


def is_held(state_dir: Path) -> bool:
    """Tell whether a live process holds the state directory's lock."""
    import fcntl

    try:
        with open(state_dir / "node.lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf8", errors="replace").splitlines()
    except OSError:
        return "it wrote no log"
    return "\n".join(lines[-_LOG_TAIL_LINES:])
