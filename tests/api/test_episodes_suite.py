"""The conformance suite of `EpisodeService` behind the server and the client, over a worker and a node of fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.api.episode_server import serve_episodes
from dsec.sdk.episodes import HttpEpisodes
from dsec.sdk.keepalive import Endpoint
from dsec.service.episodes import EpisodeService
from dsec.testing.episodes_suite import EpisodesSuite
from dsec.testing.memory_worker import MemoryWorker


class TestEpisodesOverHttp(EpisodesSuite):
    @pytest.fixture
    async def episodes(self, tmp_path: Path, short_dir: Path) -> AsyncIterator[EpisodeService]:
        socket = short_dir / "worker.sock"
        async with (
            MemoryWorker(tmp_path / "worker").opened() as worker,
            serve_episodes(worker, socket_path=socket),
        ):
            episodes = HttpEpisodes(Endpoint(url=f"unix:{socket}"))
            yield episodes
            await episodes.aclose()
