"""What a worker's episodes used is the same from its directory and over its contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.errors import NotFoundError
from dsec.episode.agent_calls import Submit
from dsec.episode.prices import Prices, cost_of
from dsec.episode.spec import (
    EpisodeEnvironment,
    EpisodeGrade,
    EpisodeLimits,
    EpisodeSpec,
    EpisodeState,
    ModelEndpoint,
    ScriptPolicy,
    ScriptRound,
)
from dsec.episode.tools import Run
from dsec.episode.totals import EnvironmentKind
from dsec.model.sandbox import SandboxSpec
from dsec.routing.price_table import shipped_prices
from dsec.testing.episodes_suite import ended
from dsec.testing.memory_worker import MemoryWorker
from dsec.worker.ledger_pricing import priced_endpoint
from dsec.worker.ledger_reading import read_runs
from dsec.worker.ledger_remote import read_remote_runs


def spec(task: str) -> EpisodeSpec:
    rounds = (ScriptRound(calls=(Run(script="echo one"),)), ScriptRound(calls=(Submit(),)))
    return EpisodeSpec(
        task=task,
        job="night",
        policy=ScriptPolicy(rounds=rounds),
        environment=EpisodeEnvironment(sandbox=SandboxSpec(image="python"), cwd="/tmp"),
        limits=EpisodeLimits(deadline_s=60.0),
    )


@pytest.mark.anyio
async def test_a_job_is_read_the_same_from_its_directory_and_from_its_worker(tmp_path: Path) -> None:
    async with MemoryWorker(tmp_path).opened() as episodes:
        started = [(await episodes.start(spec(task))).episode_id for task in ("a", "b")]
        for name in started:
            assert (await ended(episodes, name)).state is EpisodeState.ENDED
        await episodes.grade(started[0], EpisodeGrade(passed=True))
        remote = await read_remote_runs(episodes, ["night"])
        one = await read_remote_runs(episodes, [started[1], started[1]])
        with pytest.raises(NotFoundError, match="no job and no episode"):
            await read_remote_runs(episodes, ["day"])
    local = read_runs(["night"], worker=tmp_path)
    assert {each.graded.use.task: each for each in local.attempts} == {
        each.graded.use.task: each for each in remote.attempts
    }
    assert len(one.attempts) == 1
    first = next(each.graded for each in local.attempts if each.graded.use.task == "a")
    assert (first.passed, first.timely) == (True, True)
    use = first.use
    assert (use.rounds, use.lives, use.tools.calls, use.models) == (2, 1, 2, ())
    assert {line.kind for line in use.environment} >= {EnvironmentKind.RESIDENT}
    assert 0 < use.thinking_s + use.tools.time_s <= use.wall_s + 1.0
    assert not any(line.usd for line in cost_of(use, Prices()).lines)


def test_a_price_table_gives_prices_to_models_that_say_none() -> None:
    table = shipped_prices()
    opus = priced_endpoint(ModelEndpoint(url="http://127.0.0.1:1/v1", name="claude-opus-5-20260901"), table)
    assert (opus.input_usd, opus.cached_usd, opus.output_usd) == (5.0, None, 25.0)
    own = ModelEndpoint(url="http://127.0.0.1:1/v1", name="claude-opus-5", input_usd=1.0)
    unknown = ModelEndpoint(url="http://127.0.0.1:1/v1", name="ours")
    assert [priced_endpoint(one, table) for one in (own, unknown)] == [own, unknown]
    assert priced_endpoint(opus, None) == opus
