"""Real sandboxes that are paused or rebuilt between rounds: their memory goes, their files stay, tools find both."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from dsec.base.errors import DsecError
from dsec.base.units import MIB
from dsec.episode.agent_calls import Submit
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.log_events import EnvironmentUsed, RoundCommitted
from dsec.episode.spec import EnvironmentMode, EpisodeEnvironment, EpisodeSpec, EpisodeState, ScriptPolicy
from dsec.episode.tools import CommandOutput, Run
from dsec.episode.totals import EnvironmentKind
from dsec.model.sandbox import SandboxFilter, SandboxSpec
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.episodes_suite import until
from dsec.testing.leaks import Leaks
from dsec.worker.episodes.policies.tools import standard_tools
from dsec.worker.episodes.ports import Finished, LifeContext, LoopPolicy, Proposal, Turn
from dsec.worker.episodes.worker import EpisodeWorker

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]
EPISODE = "ep-real"
ROUNDS = 3
HELD = 24 * MIB
PREPARE = f"head -c {HELD} /dev/zero > /dev/shm/held && echo made >> /dev/shm/made"
TOOL = "wc -c < /dev/shm/held; wc -l < /dev/shm/made; echo done >> /tmp/log; wc -l < /tmp/log"


class Patient:
    """Thinks until the memory of its environment is gone, then calls the tool; a policy and its factory.

    Attributes:
        stood: sandboxes that stood while it thought, for each gap between two rounds.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.stood: list[int] = []

    async def decide(self, turn: Turn) -> Proposal | Finished:
        if 1 < turn.number <= ROUNDS:
            with anyio.fail_after(60):
                while await self._memory_bytes() > HELD / 3:  # noqa: ASYNC110 - nobody tells when memory is gone.
                    await anyio.sleep(0.01)
            self.stood.append(len(await self._sandboxes()))
        if turn.number <= ROUNDS:
            turn.hear("shell")
            await anyio.sleep(0.05)
        return Proposal(calls=(Run(script=TOOL) if turn.number <= ROUNDS else Submit(),))

    async def __call__(self, context: LifeContext, endpoint: ModelEndpoint | None) -> LoopPolicy:
        del context, endpoint
        return LoopPolicy(policy=self, declare=standard_tools().declare)

    async def _sandboxes(self) -> list[str]:
        return [info.sandbox_id for info in await self._node.list(SandboxFilter(metadata={"episode": EPISODE}))]

    async def _memory_bytes(self) -> int:
        try:
            return sum([(await self._node.statistics(each)).memory_bytes or 0 for each in await self._sandboxes()])
        except DsecError:  # It is on its way.
            return HELD


@pytest.mark.parametrize(
    ("mode", "snapshot_rounds", "made"),
    [
        (EnvironmentMode.PAUSED, 0, [1, 1, 1]),
        (EnvironmentMode.REBUILT, 0, [1, 1, 1]),
        (EnvironmentMode.REBUILT, 1, [1, 1, 1]),
    ],
    ids=["paused", "emptied", "stored"],
)
async def test_memory_goes_while_the_model_thinks_and_tools_find_what_they_need(
    state_dir: Path, tmp_path: Path, mode: EnvironmentMode, snapshot_rounds: int, made: list[int]
) -> None:
    settings = NodeSettings(state_dir=str(state_dir), swap_bytes=256 * MIB)
    environment = EpisodeEnvironment(
        sandbox=SandboxSpec(image="guest"),
        cwd="/tmp",
        mode=mode,
        snapshot_rounds=snapshot_rounds,
        preparations={"shell": PREPARE},
    )
    spec = EpisodeSpec(task="t", policy=ScriptPolicy(rounds=()), environment=environment)
    async with open_node(settings) as node:
        policy = Patient(node)
        async with EpisodeWorker(tmp_path / "worker", node, node.state, policies=policy) as worker:
            await worker.start(spec, episode_id=EPISODE)
            info = await until(
                worker, EPISODE, lambda now: now.state in (EpisodeState.ENDED, EpisodeState.STOPPED), within_s=200
            )
            assert info.state is EpisodeState.ENDED, info.reason
            async with worker.events(EPISODE, follow=False) as events:
                heard = [each.event async for each in events]
        rounds = [event.record for event in heard if isinstance(event, RoundCommitted)]
        outputs = [each.results[0] for each in rounds[:ROUNDS]]
        said = [each.stdout.text.split() for each in outputs if isinstance(each, CommandOutput)]
        # The memory was there, made once in each sandbox; the files are those of all rounds before.
        assert said == [[str(HELD), str(made[number]), str(number + 1)] for number in range(ROUNDS)]
        kinds = {event.kind for event in heard if isinstance(event, EnvironmentUsed)}
        assert (EnvironmentKind.PAUSED in kinds) == (mode is EnvironmentMode.PAUSED)
        assert (EnvironmentKind.RESTORED in kinds) == bool(snapshot_rounds)
        assert EnvironmentKind.PREPARED in kinds
        await node.shutdown(destroy=True)
    assert not Leaks.read(state_dir).described()
