"""Look into a rollout's worker while it runs, over a node elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.api.server import serve
from dsec.cli.rollout_watching import open_watched_worker
from dsec.episode.spec import EpisodeSpec, EpisodeState, ScriptPolicy
from dsec.sdk.episodes import HttpEpisodes
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
SPEC = EpisodeSpec(task="t", policy=ScriptPolicy(rounds=()))


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dsec") as path:
        yield Path(path)


async def test_the_episodes_of_a_rollout_are_watched_through_its_socket(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with MemoryHost().node() as node, serve(node, socket_path=directory / "node.sock"):
        service = HttpService(Endpoint(url=f"unix:{directory / 'node.sock'}"))
        async with open_watched_worker(directory / "w", service) as own:
            url = f"unix:{directory / 'w' / 'worker.sock'}"
            assert f"--worker {url} ls" in capsys.readouterr().err
            await own.start(SPEC, episode_id="ep-one")
            watcher = HttpEpisodes(Endpoint(url=url))
            async with watcher.events("ep-one") as events:
                told = [event.sequence async for event in events]
            assert told == list(range(1, len(told) + 1))
            assert (await watcher.get("ep-one")).state is EpisodeState.ENDED
            await watcher.aclose()
        await service.aclose()


async def test_a_directory_whose_path_is_too_long_for_a_socket_holds_nobody_up(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with MemoryHost().node() as node, open_watched_worker(directory / ("x" * 120), node) as own:
        assert "cannot be watched" in capsys.readouterr().err
        assert (await own.start(SPEC)).task == "t"
