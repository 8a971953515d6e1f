"""The conformance suite of `EpisodeService`, over a worker in this process and a node of fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.testing.episodes_suite import EpisodesSuite
from dsec.testing.memory_worker import MemoryWorker
from dsec.worker.episodes.worker import EpisodeWorker


class TestEpisodeWorker(EpisodesSuite):
    @pytest.fixture
    async def episodes(self, tmp_path: Path) -> AsyncIterator[EpisodeWorker]:
        async with MemoryWorker(tmp_path / "worker").opened() as worker:
            yield worker
