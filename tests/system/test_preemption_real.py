"""A trainer's preemption on a real node: a job's sandboxes stand still and give memory back, its loops are kept."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from dsec.base.units import MIB
from dsec.episode.spec import EpisodeEnvironment, EpisodeSpec, EpisodeState
from dsec.model.sandbox import SandboxFilter, SandboxSpec, SandboxState
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.episodes_suite import collected, outputs, script, until
from dsec.testing.leaks import Leaks
from dsec.worker.episodes.worker import EpisodeWorker

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]
COUNTS = """until [ -e /tmp/go ]; do sleep 0.01; done
i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i >> /tmp/count; sleep 0.05; done; tail -n 1 /tmp/count"""


async def begin(node: Node, sandbox_id: str) -> None:
    await node.write_file(sandbox_id, "/tmp/go", b"")


async def test_a_job_that_is_paused_stands_still_with_its_commands_and_goes_on_where_it_was(
    state_dir: Path, tmp_path: Path
) -> None:
    settings = NodeSettings(state_dir=str(state_dir), swap_bytes=256 * MIB)
    spec = EpisodeSpec(
        task="t",
        policy=script("echo one", COUNTS),
        environment=EpisodeEnvironment(sandbox=SandboxSpec(image="guest"), cwd="/tmp"),
        job="training",
    )
    names = [f"ep-{number}" for number in range(4)]
    async with open_node(settings) as node:
        async with EpisodeWorker(tmp_path / "worker", node, node.state) as worker:
            for name in names:
                await worker.start(spec, episode_id=name)
            for name in names:
                await until(worker, name, lambda now: now.rounds == 1)
            boxes = await node.list(SandboxFilter(metadata={"job": "training"}))
            async with anyio.create_task_group() as tasks:
                for box in boxes:
                    tasks.start_soon(begin, node, box.sandbox_id)
            paused = await worker.pause_job("training")
            assert [info.state for info in paused] == [EpisodeState.PAUSED] * 4, paused
            boxes = await node.list(SandboxFilter(metadata={"job": "training"}))
            assert {box.state for box in boxes} == {SandboxState.PAUSED}
            before = [(await worker.get(name)).next_sequence for name in names]
            await anyio.sleep(2.5)  # Longer than the commands take where nothing stops them.
            assert [(await worker.get(name)).next_sequence for name in names] == before
            assert {(await node.inspect(box.sandbox_id)).state for box in boxes} == {SandboxState.PAUSED}
            resumed = await worker.resume_job("training")
            assert EpisodeState.PAUSED not in [info.state for info in resumed]
            for name in names:
                assert outputs(await collected(worker, name))[1:] == ["40\n", "submitted"]
                assert (await worker.get(name)).lives == 1
        await node.shutdown(destroy=True)
    assert not Leaks.read(state_dir).described()
