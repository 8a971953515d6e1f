"""A connection to a worker for `AsyncEpisodes`, opened by its first use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from dsec.episode.spec import EpisodeInfo, EpisodeSpec, EpisodeState
from dsec.sdk import episode_jobs
from dsec.sdk.episode_jobs import Heard
from dsec.sdk.workers import open_episodes
from dsec.service.episodes import EpisodeService


class EpisodesKeeper:
    """One connection. The arguments are those of `dsec.sdk.workers.open_episodes`."""

    def __init__(
        self, *, url: str | None = None, token: str | None = None, state_dir: str | Path | None = None
    ) -> None:
        self._url = url
        self._token = token
        self._state_dir = state_dir
        self._opening = anyio.Lock()
        self._stack = AsyncExitStack()
        self._service: EpisodeService | None = None

    async def service(self) -> EpisodeService:
        """Return the worker; reaching it is tried again after it failed."""
        async with self._opening:
            if self._service is None:
                opened = open_episodes(url=self._url, token=self._token, state_dir=self._state_dir)
                self._service = await self._stack.enter_async_context(opened)
            return self._service

    async def start_many(
        self, specs: Sequence[EpisodeSpec], ids: Sequence[str] | None, at_once: int, on_progress: Heard | None
    ) -> list[EpisodeInfo]:
        """See `dsec.sdk.episode_jobs.start_many`."""
        service = await self.service()
        return await episode_jobs.start_many(service, specs, ids=ids, at_once=at_once, on_progress=on_progress)

    async def collect(
        self, job: str, known: Collection[str], final: Collection[EpisodeState], on_progress: Heard | None
    ) -> AsyncIterator[EpisodeInfo]:
        """See `dsec.sdk.episode_jobs.collect`."""
        service = await self.service()
        async for info in episode_jobs.collect(service, job, known=known, final=final, on_progress=on_progress):
            yield info

    async def aclose(self) -> None:
        """Close the connection; episodes go on. Idempotent."""
        self._service = None
        await self._stack.aclose()
