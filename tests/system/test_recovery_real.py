"""A repair that fails and a better model that goes on, on a real node, over the end of a worker; and its ledger."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from dsec.episode.log_events import EpisodeSteered, ModelChanged, RoundCommitted
from dsec.episode.prices import CostKind
from dsec.episode.spec import (
    AgentPolicy,
    EpisodeCheck,
    EpisodeEnvironment,
    EpisodeGrade,
    EpisodeSpec,
    EpisodeState,
    ModelEndpoint,
)
from dsec.episode.spending import spending
from dsec.episode.tools import ToolFailed
from dsec.episode.totals import EnvironmentKind
from dsec.model.sandbox import SandboxSpec
from dsec.node.builder import open_node
from dsec.node.settings import NodeSettings
from dsec.routing.price_table import shipped_prices
from dsec.stores.episode_log_reading import read_episode_log
from dsec.testing.episodes_suite import ended
from dsec.testing.leaks import Leaks
from dsec.testing.scripted_chat import ScriptedChat, Silent, shell, submit
from dsec.worker.episodes.worker import EpisodeWorker
from dsec.worker.ledger_pricing import price_run
from dsec.worker.ledger_reading import read_runs

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]
EPISODE = "ep-recovered"
HUGE = "head -c 50000000 /dev/zero | tr '\\0' x; echo;"
CHECK = f"{HUGE} sh sum.sh 2 3 > answer; grep -qx 5 answer || {{ echo wanted 5, got $(cat answer); exit 1; }}"
WRONG = shell("echo 'echo $(($1 - $2))' > sum.sh")
RIGHT = shell("grep -q -- - sum.sh && sed -i 's/-/+/' sum.sh")


def spec(url: str) -> EpisodeSpec:
    small = ModelEndpoint(url=url, name="claude-sonnet-5")
    return EpisodeSpec(
        task="sum",
        instruction="sum.sh is to print the sum of its arguments.",
        policy=AgentPolicy(model=small, stronger=(replace(small, name="claude-opus-5"),)),
        environment=EpisodeEnvironment(sandbox=SandboxSpec(image="guest"), cwd="/tmp"),
        check=EpisodeCheck(command=CHECK, timeout_s=20.0),
    )


async def test_a_better_model_goes_on_with_the_files_of_the_first_though_the_worker_dies_between(
    state_dir: Path, tmp_path: Path
) -> None:
    answers = {"claude-sonnet-5": [WRONG, submit(), submit()], "claude-opus-5": [Silent(), RIGHT, submit()]}
    async with ScriptedChat(answers).served() as chat, open_node(NodeSettings(state_dir=str(state_dir))) as node:
        async with EpisodeWorker(tmp_path, node, node.state) as worker:
            await worker.start(spec(chat.url), episode_id=EPISODE)
            with anyio.fail_after(60):
                await chat.wait_asked("claude-opus-5", 1)
        # The better model was asked, and the worker is gone before it has answered.
        async with EpisodeWorker(tmp_path, node, node.state) as worker:
            info = await ended(worker, EPISODE)
            assert (info.state, info.reason, info.lives) == (EpisodeState.ENDED, "submitted", 2)
            await worker.grade(EPISODE, EpisodeGrade(passed=True))
        await node.shutdown(destroy=True)
    assert not Leaks.read(state_dir).described()
    _check_log(tmp_path)
    _check_ledger(tmp_path)


def _check_log(directory: Path) -> None:
    events = read_episode_log(directory / "episodes" / EPISODE).events
    rounds = [event.record for event in events if isinstance(event, RoundCommitted)]
    assert [record.decision.model.name for record in rounds] == ["claude-sonnet-5"] * 3 + ["claude-opus-5"] * 2
    said = rounds[1].results[0]
    assert isinstance(said, ToolFailed)
    assert said.detail.endswith("wanted 5, got -1\n")
    assert len(said.detail) < 9000, "the model is told the end of fifty megabytes"
    assert [event.by for event in events if isinstance(event, EpisodeSteered)] == ["recovery:check_failed"]
    assert [event.model.name for event in events if isinstance(event, ModelChanged)] == ["claude-opus-5"]
    assert len({record.workspace_after for record in rounds}) == 5, "a check is an operation on the workspace"


def _check_ledger(directory: Path) -> None:
    run = read_runs([EPISODE], worker=directory)
    found = spending(price_run(run, shipped_prices()))
    use = run.attempts[0].graded.use
    resident = next(line for line in use.environment if line.kind is EnvironmentKind.RESIDENT)
    assert resident.memory_byte_s > 0
    assert 0 < sum(line.cpu_s for line in use.environment) < use.wall_s * 64
    kinds = {line.kind for line in found.cost.lines}
    assert {CostKind.INPUT, CostKind.OUTPUT, CostKind.MEMORY, CostKind.CPU} <= kinds
    assert found.passed_usd == found.submitted_usd == found.cost.known_usd > 0
