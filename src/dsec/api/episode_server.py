"""Serve the episodes of a worker: `dsec.api.server` with a worker's face."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dsec.api.application import Limits
from dsec.api.episode_handlers import EPISODES, Worker
from dsec.api.episode_wire import HEARTBEAT_S
from dsec.api.server import Serving, TcpAddress, serve
from dsec.service.episodes import EpisodeService


@asynccontextmanager
async def serve_episodes(
    episodes: EpisodeService,
    *,
    tcp: TcpAddress | None = None,
    socket_path: Path | None = None,
    limits: Limits = Limits(),
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncIterator[Serving]:
    """Serve until the context is left, as `dsec.api.server.serve` does: streams of events end with an error that says
    so, and whoever follows one comes back with its offset.

    Args:
        episodes: what drives them.
        tcp, socket_path: where to listen.
        limits: bounds of each.
        heartbeat_s: how often a quiet stream of events says that it is alive.

    Raises:
        InvalidRequestError: an address cannot be bound, or the token is empty.
    """
    worker = Worker(episodes, heartbeat_s)
    async with serve(worker, tcp=tcp, socket_path=socket_path, limits=limits, face=EPISODES) as serving:
        yield serving
