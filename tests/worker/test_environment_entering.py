"""An episode that is cancelled while its environment is being entered ends like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from dsec.episode.spec import EpisodeSpec, EpisodeState, ScriptPolicy
from dsec.node.node import Node
from dsec.testing.memory_worker import QUICK, MemoryWorker
from dsec.worker.episodes.standard import standard_worker

pytestmark = pytest.mark.anyio


class Silent:
    """A node that does not say what a sandbox uses."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.asked = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    async def statistics(self, sandbox_id: str) -> None:
        del sandbox_id
        self.asked.set()
        await anyio.sleep_forever()


async def test_an_episode_is_cancelled_while_its_environment_is_entered(tmp_path: Path) -> None:
    async with MemoryWorker(tmp_path / "w").node() as node:
        silent: Any = Silent(node)
        async with standard_worker(tmp_path / "w", silent, node.state, settings=QUICK) as worker:
            await worker.start(EpisodeSpec(task="t", policy=ScriptPolicy(rounds=())), episode_id="ep-one")
            with anyio.fail_after(5):
                await silent.asked.wait()
                await worker.cancel("ep-one", reason="enough")
            info = await worker.get("ep-one")
            assert (info.state, info.reason) == (EpisodeState.ENDED, "enough")
