"""Ten thousand rounds in one episode: no cliff in time, in memory, or in what it takes to go on."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from dsec.base.units import MIB
from dsec.episode.content import Content
from dsec.episode.durability import every_n_rounds
from dsec.episode.operations import ModelDecision, Operation, RoundRecord
from dsec.episode.spec import EpisodeLimits, EpisodeSpec, PluginPolicy
from dsec.episode.tools import CommandOutput, Run, ToolResult
from dsec.stores.episode_log_feed import read_page
from dsec.stores.objects import ObjectStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.episodes_suite import until
from dsec.worker.episodes.parts import WorkerSettings
from dsec.worker.episodes.policies.tools import standard_tools
from dsec.worker.episodes.ports import Finished, LifeContext, LoopPolicy, Proposal, Turn, hear_nothing
from dsec.worker.episodes.worker import EpisodeWorker

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RESULT = "tests/test_fix.py::test_that_it_holds PASSED\n" * 20


class Idle:
    """An environment that holds nothing, and hands that print at once."""

    sandbox_id = ""

    def __init__(self, context: LifeContext) -> None:
        self._version = context.progress.workspace
        self.times: list[float] = []

    @property
    def hands(self) -> Any:
        return self

    @property
    def workspace(self) -> Any:
        return self

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    def deciding(self, number: int) -> AbstractAsyncContextManager[Any]:
        return nullcontext(hear_nothing)

    async def before_tools(self, decision: ModelDecision) -> None:
        return None

    async def after_round(self, record: RoundRecord) -> None:
        self.times.append(time.perf_counter())

    async def remove(self) -> None:
        return None

    async def run(self, operation: Operation) -> ToolResult:
        return CommandOutput(exit_code=0, stdout=Content(text=RESULT))

    async def version(self) -> str:
        return self._version

    async def versions(self) -> Collection[str]:
        return (self._version,)

    async def save(self, number: int) -> str:
        self._version = f"v{number}"
        return self._version

    async def keep_only(self, versions: Collection[str]) -> None:
        return None


class Endless:
    """Decides the same for ever, and looks at what it is shown."""

    async def __call__(self, context: LifeContext, endpoint: object) -> LoopPolicy:
        return LoopPolicy(policy=self, declare=standard_tools().declare)

    async def decide(self, turn: Turn) -> Proposal | Finished:
        assert not turn.rounds or turn.rounds[-1].number == turn.number - 1
        return Proposal(calls=(Run(script="make test"),))


@pytest.mark.parametrize(("kind", "rounds"), [("alone", 10_000), ("store", 4_000)])
async def test_the_last_thousand_of_many_rounds_are_like_the_first(tmp_path: Path, kind: str, rounds: int) -> None:
    store: ObjectStore | None = FolderObjectStore(tmp_path / "store") if kind == "store" else None
    environments: list[Idle] = []

    def idle(context: LifeContext) -> Any:
        environments.append(Idle(context))
        return environments[-1]

    def worker() -> EpisodeWorker:
        service = cast(Any, None)
        return EpisodeWorker(
            tmp_path / "worker",
            service,
            service,
            store,
            WorkerSettings(state_bytes=2 * MIB),
            environments=idle,
            policies=Endless(),
        )

    spec = EpisodeSpec(
        task="long",
        policy=PluginPolicy(name="endless"),
        durability=every_n_rounds(20),
        limits=EpisodeLimits(rounds=rounds),
    )
    async with worker() as first:
        await first.start(spec, episode_id="ep-long")
        await until(first, "ep-long", lambda now: now.rounds >= rounds // 2, within_s=60)
    began = time.perf_counter()
    async with worker() as second:
        info = await second.get("ep-long")
        opened_s = time.perf_counter() - began
        assert info.rounds >= rounds // 2 - 20
        tracemalloc.start()
        info = await until(second, "ep-long", lambda now: bool(now.ended_at_s), within_s=120)
        gc.collect()
        held_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert (info.rounds, info.error_code) == (rounds, "too_many_rounds")
    assert opened_s < 5.0
    assert held_bytes < 8 * MIB
    first_s = environments[0].times[999] - environments[0].times[0]
    middle_s = environments[0].times[-1] - environments[0].times[-1000]
    assert middle_s < 3 * first_s + 1.0
    page = read_page(tmp_path / "worker" / "episodes" / "ep-long", 1)
    assert (page.first > 1) == (kind == "store"), "what is in front of a state goes once the store has it"
