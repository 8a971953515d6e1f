"""Find the worker that a command talks to: a server, or the worker of this host, which is started when none answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dsec.cli.context import Options
from dsec.cli.output import note
from dsec.sdk.background import WORKER, start_background, worker_argv
from dsec.sdk.episodes import HttpEpisodes
from dsec.sdk.workers import open_local_episodes, worker_endpoint, worker_state_dir

if TYPE_CHECKING:
    from dsec.service.episodes import EpisodeService

T = TypeVar("T")


@asynccontextmanager
async def open_episodes(options: Options) -> AsyncIterator[HttpEpisodes]:
    """Connect to the worker that the options name, starting one on this host when none is there.

    Raises:
        NodeUnavailableError: it does not answer, or does not start; the detail holds the end of its log.
    """
    endpoint = worker_endpoint(options.worker_url, options.worker_token)
    if endpoint is not None:
        episodes = HttpEpisodes(endpoint)
        try:
            yield episodes
        finally:
            await episodes.aclose()
        return
    worker_dir = worker_state_dir(options.state_dir)

    async def start() -> None:
        note(f"starting a worker in {worker_dir} (log: {worker_dir / WORKER.log})")
        token = {"DSEC_TOKEN": options.token} if options.token else {}
        await start_background(background_argv(options, worker_dir), worker_dir, WORKER, token)

    async with open_local_episodes(worker_dir, start) as episodes:
        yield episodes


def background_argv(options: Options, worker_dir: Path) -> list[str]:
    """Return the command line of a background worker that drives the same node as ours; the node's token is not on it,
    since others see command lines."""
    further: list[str] = []
    if options.url:
        further += ["--url", options.url]
    if options.config_file is not None:
        further += ["--config", str(options.config_file.absolute())]
    for override in options.overrides:
        further += ["--set", override]
    return worker_argv(options.state_dir, worker_dir, further)


def run_episodes(options: Options, act: Callable[[EpisodeService], Awaitable[T]]) -> T:
    """Connect to the worker, run `act` with it, and return its result."""

    async def connected() -> T:
        async with open_episodes(options) as episodes:
            return await act(episodes)

    return options.run_alone(connected)
