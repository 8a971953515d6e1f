"""The loop of an episode on a real node: checkpoints of btrfs, real commands, and one that outlives its worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.errors import PlatformError
from dsec.episode.agent_calls import EditFile, ReadLines, Search, Submit
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_content import Completeness
from dsec.episode.operations import Operation
from dsec.episode.tools import CommandOutput, FileContent, Run, ToolResult
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.stores.episode_log_group import GroupCommit
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.testing.episodes import ended_as
from dsec.testing.leaks import Leaks
from dsec.worker.episodes.environments.workspace import SandboxWorkspace
from dsec.worker.episodes.hands import SandboxHands
from dsec.worker.episodes.loop import EpisodeLoop
from dsec.worker.episodes.policies.scripted import ScriptedPolicy
from dsec.worker.episodes.policies.tools import standard_tools
from dsec.worker.episodes.ports import Proposal

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]
EPISODE = "ep-real"
STAYS = "echo two >> log; (while :; do echo late >> log; sleep 0.01; done) > /dev/null 2>&1 &"
HUGE = "head -c 50000000 /dev/zero"


class DyingHands(SandboxHands):
    """The worker dies while its first command still writes."""

    dies = True

    async def run(self, operation: Operation) -> ToolResult:
        outcome = await super().run(operation)
        if self.dies and isinstance(operation.call, Run):
            raise PlatformError("the worker died")
        return outcome


async def _live(node: Node, box: str, directory: Path, *, dies: bool) -> None:
    tools = standard_tools()
    script = ScriptedPolicy(
        [
            Proposal(calls=(EditFile(path="log", new="one\n"),)),
            Proposal(calls=(Run(script=STAYS if dies else "echo two >> log"), ReadLines(path="log"))),
            Proposal(calls=(tools.call("shell", f'{{"command": "{HUGE}"}}'), Search(pattern="^tw.$", path="log"))),
            Proposal(calls=(Submit(),)),
        ]
    )
    workspace = SandboxWorkspace(node, node.state, box, EPISODE)
    async with GroupCommit(threads=1) as group:
        if directory.exists():
            log, content = await group.open(LogPlace(directory=directory))
            rounds = content.rounds
        else:
            identity = EpisodeIdentity(episode_id=EPISODE, task="t", workspace=await workspace.save(0))
            log, rounds = await group.create(LogPlace(directory=directory), identity), ()
        hands = DyingHands(node, box, cwd="/tmp")
        hands.dies = dies
        loop = EpisodeLoop(log, policy=script, hands=hands, workspace=workspace, declare=tools.declare, rounds=rounds)
        assert ended_as(await loop.run()) == "submitted"


async def test_what_still_runs_of_a_dead_worker_changes_nothing_once_its_episode_goes_on(
    state_dir: Path, tmp_path: Path
) -> None:
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        box = (await node.create(SandboxSpec(image="guest"))).sandbox_id
        with pytest.raises(PlatformError, match="the worker died"):
            await _live(node, box, tmp_path / EPISODE, dies=True)
        await node.run(box, CommandRequest(argv=("sh", "-c", "until grep -q late /tmp/log; do sleep 0.01; done")))
        await _live(node, box, tmp_path / EPISODE, dies=False)
        kept = await node.run(box, CommandRequest(argv=("cat", "/tmp/log")))
        assert kept.stdout == b"one\ntwo\n"
        assert len(await node.state.list_checkpoints(box)) == 1
        await node.shutdown(destroy=True)
    assert not Leaks.read(state_dir).described()
    content = read_episode_log(tmp_path / EPISODE)
    assert content.completeness is Completeness.COMPLETE
    read, huge, found = content.rounds[1].results[1], *content.rounds[2].results
    assert isinstance(read, FileContent)
    assert read.content.text == "1\tone\n2\ttwo\n"
    assert isinstance(huge, CommandOutput)
    assert len(huge.stdout.data) + huge.stdout_dropped_bytes == 50_000_000
    assert len(huge.stdout.data) < 40_000
    assert isinstance(found, CommandOutput)
    assert found.stdout.text.strip().endswith("2:two")
