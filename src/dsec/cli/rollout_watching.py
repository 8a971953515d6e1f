"""The worker of a rollout's episodes: one in here, with a socket for `dsec episode` while it runs, or one elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from dsec.api.episode_server import serve_episodes
from dsec.base.errors import InvalidRequestError
from dsec.cli.output import note
from dsec.sdk.background import WORKER
from dsec.sdk.episodes import HttpEpisodes
from dsec.sdk.state import state_of
from dsec.sdk.workers import worker_endpoint
from dsec.service.episodes import EpisodeService
from dsec.service.port import SandboxService
from dsec.worker.episodes.standard import standard_worker


@asynccontextmanager
async def open_worker_elsewhere(
    url: str, token: str | None, directory: Path, service: SandboxService
) -> AsyncIterator[EpisodeService]:
    """Connect to a worker that drives the same node; its episodes go on whoever asks, or does not.

    Args:
        url, token: of its server; without a token, `DSEC_WORKER_TOKEN`.
        directory, service: of the rollout; that worker has its own.
    """
    del directory, service
    endpoint = worker_endpoint(url, token)
    assert endpoint is not None
    episodes = HttpEpisodes(endpoint)
    try:
        yield episodes
    finally:
        await episodes.aclose()


@asynccontextmanager
async def open_watched_worker(directory: Path, service: SandboxService) -> AsyncIterator[EpisodeService]:
    """Open a rollout's worker; episodes that an earlier run left open go on at once.

    Args:
        directory: of the worker; only its owner may read it: specs hold what tasks give their sandboxes.
        service: drives the sandboxes, of a node in this process or elsewhere.

    Raises:
        CapabilityMissingError: the service keeps no versions of a workspace.
        StateLockedError: another process has that worker.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with standard_worker(directory, service, state_of(service)) as worker, AsyncExitStack() as stack:
        socket = directory.absolute() / WORKER.socket
        try:
            await stack.enter_async_context(serve_episodes(worker, socket_path=socket))
        except InvalidRequestError as error:  # A socket's path is at most 107 bytes long.
            note(f"its episodes cannot be watched: {error.brief}")
        else:
            note(f"its episodes: dsec episode --worker unix:{socket} ls")
        yield worker
