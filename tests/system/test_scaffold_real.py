"""A scaffold of a trainer's own on a real node: it outlives its worker and the node, and never runs twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import DsecError
from dsec.episode.log_events import RoundCommitted
from dsec.episode.spec import EpisodeEnvironment, EpisodeInfo, EpisodeSpec, EpisodeState, ScaffoldPolicy
from dsec.episode.tools import CommandOutput
from dsec.model.sandbox import SandboxSpec
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.worker.episodes.standard import standard_worker
from dsec.worker.episodes.worker import EpisodeWorker

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]
SCAFFOLD = """
echo begun >> /tmp/runs
while ! test -e /tmp/go; do sleep 0.02; done
cat "$DSEC_INSTRUCTION" > /tmp/answer
head -c 3000000 /dev/zero | tr '\\0' x
echo "patched by $AGENT"
exit 3
"""
EPISODE = "ep-scaffold"


async def read(node: Node, box: str, path: str) -> str:
    return b"".join([chunk async for chunk in node.read_file(box, path, user="0")]).decode()


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(60):
        while True:
            if await holds():
                return
            await anyio.sleep(0.02)


async def begun(node: Node) -> str:
    """Return the sandbox in which the scaffold has begun; empty: in none yet."""
    for info in await node.list():
        try:
            if await read(node, info.sandbox_id, "/tmp/runs"):
                return info.sandbox_id
        except DsecError:
            continue
    return ""


async def ended(worker: EpisodeWorker) -> EpisodeInfo:
    async with worker.events(EPISODE) as events:
        async for _ in events:
            pass
    return await worker.get(EPISODE)


async def test_a_scaffold_outlives_worker_and_node_and_is_attached_to_again(state_dir: Path, tmp_path: Path) -> None:
    spec = EpisodeSpec(
        task="t",
        instruction="mend it, with 'quotes' and $variables\n",
        policy=ScaffoldPolicy(command=SCAFFOLD, timeout_s=60, env={"AGENT": "mine"}),
        environment=EpisodeEnvironment(sandbox=SandboxSpec(image="guest"), cwd="/tmp", keep=True),
    )
    settings = NodeSettings(state_dir=str(state_dir))
    async with open_node(settings) as node, standard_worker(tmp_path / "w", node, node.state) as worker:
        await worker.start(spec, episode_id=EPISODE)
        await until(partial(begun, node))
        box = await begun(node)
    async with open_node(settings) as node:
        for _ in range(2):
            async with standard_worker(tmp_path / "w", node, node.state) as worker:
                await until(partial(running, worker))
        await node.write_file(box, "/tmp/go", b"")
        async with standard_worker(tmp_path / "w", node, node.state) as worker:
            info = await ended(worker)
            async with worker.events(EPISODE, follow=False) as events:
                rounds = [each.event.record async for each in events if isinstance(each.event, RoundCommitted)]
        assert (info.state, info.error_code, info.lives) == (EpisodeState.ENDED, "scaffold_failed", 4)
        assert "exited with 3" in info.reason
        assert await read(node, box, "/tmp/runs") == "begun\n", "it was begun once"
        assert await read(node, box, "/tmp/answer") == spec.instruction
        (record,) = rounds
        (result,) = record.results
        assert isinstance(result, CommandOutput)
        assert result.exit_code == 3
        assert result.stdout.text.endswith("patched by mine\n")
        assert len(result.stdout.data) <= 70_000
        assert record.attempts == (1,)
        assert record.workspace_after != record.workspace_before, "what it left behind is a version"


async def running(worker: EpisodeWorker) -> bool:
    return (await worker.get(EPISODE)).state is EpisodeState.RUNNING
