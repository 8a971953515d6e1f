"""Where the SDK finds a worker: a server, or the worker of this host.

1. A URL (given, or `DSEC_WORKER_URL` with `DSEC_WORKER_TOKEN`) is a server.
2. Otherwise `worker.sock` in the worker's state directory: `DSEC_WORKER_STATE_DIR`, or `worker` in that of the node.
3. When nobody answers there, a worker is started in the background. It outlives whoever needed it first, since that is
   what it is for: loops go on while trainers come and go.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from dsec.sdk.background import WORKER, start_background, worker_argv
from dsec.sdk.connect import answers
from dsec.sdk.episodes import HttpEpisodes
from dsec.sdk.keepalive import Endpoint

FIRST_S = 30.0
"""How long a program waits for a worker that does not answer yet: both may have been started at the same time, or again
after the same failure."""

Start = Callable[[], Awaitable[None]]
"""Starts a worker and returns when it answers."""


def worker_state_dir(node_state_dir: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory of this host's worker."""
    chosen = environment.get("DSEC_WORKER_STATE_DIR")
    return Path(chosen).absolute() if chosen else node_state_dir / "worker"


def worker_endpoint(url: str | None, token: str | None, environment: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Return the worker that is named, or None for the one of this host."""
    chosen = url or environment.get("DSEC_WORKER_URL")
    if not chosen:
        return None
    return Endpoint(url=chosen, token=environment.get("DSEC_WORKER_TOKEN", "") if token is None else token)


@asynccontextmanager
async def open_episodes(
    *, url: str | None = None, token: str | None = None, state_dir: str | Path | None = None
) -> AsyncIterator[HttpEpisodes]:
    """Connect to a worker, and let go at the end. Episodes go on.

    Args:
        url, token: of a worker elsewhere.
        state_dir: of the node of this host, where no URL is given.

    Raises:
        NodeUnavailableError: the worker does not answer, or does not start.
    """
    endpoint = worker_endpoint(url, token)
    if endpoint is not None:
        async with _open(HttpEpisodes(endpoint, first_s=FIRST_S)) as episodes:
            yield episodes
        return
    from dsec.sdk.embedded import settings_of

    node_dir = Path(settings_of(state_dir).state_dir).absolute()
    worker_dir = worker_state_dir(node_dir)

    async def start() -> None:
        await start_background(worker_argv(node_dir, worker_dir), worker_dir, WORKER)

    async with open_local_episodes(worker_dir, start) as episodes:
        yield episodes


@asynccontextmanager
async def open_local_episodes(worker_dir: Path, start: Start) -> AsyncIterator[HttpEpisodes]:
    """Connect to the worker of a state directory, starting one where none answers: now, and whenever it is lost.

    Raises:
        NodeUnavailableError: it does not start.
    """
    socket = worker_dir / WORKER.socket
    starting = anyio.Lock()

    async def revive() -> None:
        async with starting:  # Hundreds may miss it at once, and one start is enough.
            if not await answers(socket):
                await start()

    await revive()
    async with _open(HttpEpisodes(Endpoint(url=f"unix:{socket}"), revive=revive)) as episodes:
        yield episodes


@asynccontextmanager
async def _open(episodes: HttpEpisodes) -> AsyncIterator[HttpEpisodes]:
    try:
        yield episodes
    finally:
        with anyio.CancelScope(shield=True):
            await episodes.aclose()
