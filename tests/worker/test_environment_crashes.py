"""Episodes whose sandbox is paused or rebuilt between rounds, with worker, node and store dying at any step.

The histories and their judge are those of `tests/episode/test_worker_crashes.py`; here the environment's mode, its
snapshots, the time that is thought and the loss of the sandbox are drawn as well. In the end nothing of an episode may
be left but the one sandbox that was to stay.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog
from msgspec.structs import replace

from dsec.base.errors import DsecError, NodeUnavailableError
from dsec.episode.spec import EnvironmentMode
from dsec.model.sandbox import SandboxFilter, SandboxSpec
from dsec.node.node import Node
from dsec.testing.crash_plan import CrashPlan
from dsec.testing.episode_checker import check_history
from dsec.testing.memory_node import MemoryHost
from dsec.testing.mortal_node import MortalNode
from dsec.testing.worker_crashes import EPISODE, Crashes
from dsec.worker.episodes.ports import EpisodePolicy, Finished, LifeContext, LoopPolicy, Proposal, Turn

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HISTORIES = int(os.environ.get("DSEC_CRASH_HISTORIES", "25"))
FIRST = int(os.environ.get("DSEC_CRASH_FIRST", "0"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes warn of what they find after each of their deaths."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


class _Thinking:
    """Decides as another policy does, after a while, and lets hear what it is about to call."""

    def __init__(self, policy: EpisodePolicy, draw: random.Random) -> None:
        self._policy = policy
        self._draw = draw

    async def decide(self, turn: Turn) -> Proposal | Finished:
        await anyio.sleep(self._draw.choice([0.0, 0.0, 0.002, 0.01]))
        if self._draw.random() < 0.5:
            turn.hear(self._draw.choice(["shell", "submit", "nobody knows"]))
            await anyio.sleep(self._draw.choice([0.0, 0.005]))
        return await self._policy.decide(turn)


class EnvironmentCrashes(Crashes):
    """A history whose environment comes and goes, and whose sandbox is lost now and then."""

    def __init__(self, seed: int, directory: Path) -> None:
        draw = random.Random(f"environment {seed}")
        self._thinking = draw
        self.losses = draw.choice([0, 0, 1, 2])
        super().__init__(CrashPlan.drawn(seed), directory)
        environment = replace(
            self.spec.environment,
            mode=draw.choice([EnvironmentMode.REBUILT, EnvironmentMode.REBUILT, EnvironmentMode.PAUSED]),
            snapshot_rounds=draw.choice([0, 1, 1, 2]),
        )
        self.what = f"{environment.mode.value}, {environment.snapshot_rounds}, {self.losses}"
        self.spec = replace(self.spec, environment=environment)

    async def _policy(self, context: LifeContext, endpoint: object) -> LoopPolicy:
        made = await super()._policy(context, endpoint)
        return LoopPolicy(policy=_Thinking(made.policy, self._thinking), declare=made.declare)

    async def _live(self, keeper: MortalNode, *rest: Any) -> bool:
        if self.losses and self._thinking.random() < 0.5:
            self.losses -= 1
            with suppress(NodeUnavailableError):
                for info in await keeper.call(lambda node: node.list(SandboxFilter(metadata={"episode": EPISODE}))):
                    await keeper.call(partial(_remove, sandbox_id=info.sandbox_id))
        return await super()._live(keeper, *rest)


async def _remove(node: Node, *, sandbox_id: str) -> None:
    await node.remove(sandbox_id)


async def test_a_node_that_dies_while_a_file_is_read_is_gone_for_the_reader_and_comes_back() -> None:
    """Reading resumes what is paused, which is a step: that death is the node's, and no other's."""
    async with MortalNode(MemoryHost(), random.Random(0)).running() as keeper:
        sandbox = await keeper.call(lambda node: node.create(SandboxSpec(image="python")))
        await keeper.call(lambda node: node.pause(sandbox.sandbox_id))
        keeper._faults.kill_at = keeper._faults.steps + 1
        service = keeper.service(anyio.lowlevel.checkpoint)
        with pytest.raises(NodeUnavailableError):
            await anext(service.read_file(sandbox.sandbox_id, "/tmp/absent"))
        with pytest.raises(NodeUnavailableError):
            await keeper.call(lambda node: node.list())
        await anyio.wait_all_tasks_blocked()
        assert [info.sandbox_id for info in await keeper.call(lambda node: node.list())] == [sandbox.sandbox_id]
        assert keeper.deaths == 1


async def test_what_is_under_way_when_a_dead_node_is_cleared_away_hears_that_it_is_gone() -> None:
    async with MortalNode(MemoryHost(), random.Random(0)).running() as keeper:

        async def watch_late(node: Node) -> None:
            keeper._faults.dead = True
            keeper._down.set()
            await anyio.wait_all_tasks_blocked()
            node._core.supervisor.start("watched late", anyio.sleep_forever)

        with pytest.raises(NodeUnavailableError):
            await keeper.call(watch_late)
        assert keeper.deaths == 1


async def judged(crashes: EnvironmentCrashes) -> list[str]:
    try:
        return list(check_history(await crashes.run()))
    except (AssertionError, DsecError, TimeoutError, BaseExceptionGroup) as error:
        return [f"it did not end: {error!r}"]


@pytest.mark.timeout(3600)
async def test_whatever_dies_an_environment_that_comes_and_goes_keeps_every_promise(tmp_path: Path) -> None:
    problems: dict[int, list[str]] = {}
    deaths = 0
    for seed in range(FIRST, FIRST + HISTORIES):
        (tmp_path / str(seed)).mkdir()
        crashes = EnvironmentCrashes(seed, tmp_path / str(seed))
        if found := await judged(crashes):
            problems[seed] = [crashes.what, *found[:3]]
        deaths += crashes.deaths
    assert not problems
    assert deaths > HISTORIES or HISTORIES < 20
