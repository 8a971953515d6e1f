"""The environment of an episode in its modes: what stands between rounds, what comes back, and what a death leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from dsec.base.clock import Clock, ManualClock, SystemClock
from dsec.base.errors import BackendFailedError, InvalidStateError
from dsec.episode.agent_calls import AgentCall, ReadLines, Submit
from dsec.episode.content import Content
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.log_events import EnvironmentUsed
from dsec.episode.spec import (
    EnvironmentMode,
    EpisodeEnvironment,
    EpisodeInfo,
    EpisodeSpec,
    EpisodeState,
    LostFiles,
    ScriptPolicy,
)
from dsec.episode.tools import WriteFile
from dsec.episode.totals import EnvironmentKind
from dsec.model.sandbox import SandboxFilter, SandboxSpec
from dsec.node.node import Node
from dsec.service.content import ByteStream
from dsec.testing.memory_node import MemoryHost
from dsec.testing.memory_worker import MemoryWorker
from dsec.worker.episodes.environments.environment import StandardEnvironments
from dsec.worker.episodes.policies.tools import standard_tools
from dsec.worker.episodes.ports import Finished, LifeContext, LoopPolicy, Proposal, Turn
from dsec.worker.episodes.worker import EpisodeWorker

pytestmark = pytest.mark.anyio
EPISODE = "ep-modes"
Think = Callable[[Turn], Awaitable[None]]
MODES = [EnvironmentMode.RESIDENT, EnvironmentMode.REBUILT, EnvironmentMode.PAUSED, EnvironmentMode.AUTOMATIC]


def write(number: int) -> WriteFile:
    return WriteFile(path="/home/user/log", content=Content(text=f"{number}\n"), append=True)


async def at_once(turn: Turn) -> None:
    del turn


@dataclass
class Script:
    """Decides given calls, after thinking; implements a policy and its factory."""

    rounds: Sequence[Sequence[AgentCall]]
    think: Think = at_once

    async def decide(self, turn: Turn) -> Proposal | Finished:
        await self.think(turn)
        if turn.number > len(self.rounds):
            return Finished(reason="done")
        return Proposal(calls=tuple(self.rounds[turn.number - 1]))

    async def __call__(self, context: LifeContext, endpoint: ModelEndpoint | None) -> LoopPolicy:
        del context, endpoint
        return LoopPolicy(policy=self, declare=standard_tools().declare)


@dataclass
class Place:
    """A worker over a node of fakes."""

    directory: Path
    script: Script
    host: MemoryHost = field(default_factory=MemoryHost)
    clock: Clock = field(default_factory=SystemClock)

    def worker(self, node: Node) -> EpisodeWorker:
        made = MemoryWorker(directory=self.directory, host=self.host)
        return made.worker(node, environments=StandardEnvironments(), policies=self.script, clock=self.clock)

    async def play(self, environment: EpisodeEnvironment) -> tuple[EpisodeInfo, str, list[EnvironmentUsed]]:
        """Run an episode to its end, and return how it ended, what its file holds, and what its environment used."""
        async with self.host.node() as node, self.worker(node) as worker:
            await worker.start(spec(environment), episode_id=EPISODE)
            info = await ended(worker)
            return info, await content(node), await used(worker)


def spec(environment: EpisodeEnvironment) -> EpisodeSpec:
    return EpisodeSpec(task="modes", policy=ScriptPolicy(rounds=()), environment=environment)


def kept(mode: EnvironmentMode, **options: object) -> EpisodeEnvironment:
    return EpisodeEnvironment(sandbox=SandboxSpec(image="python"), mode=mode, keep=True, **options)  # type: ignore[arg-type]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that nobody tells."""
    with anyio.fail_after(60):
        while not await condition():  # noqa: ASYNC110 - nobody tells.
            await anyio.sleep(0.003)


async def reached(worker: EpisodeWorker, *states: EpisodeState) -> EpisodeInfo:
    async def is_there() -> bool:
        return (await worker.get(EPISODE)).state in {*states, EpisodeState.STOPPED}

    await until(is_there)
    info = await worker.get(EPISODE)
    assert info.state in states, info.reason
    return info


async def ended(worker: EpisodeWorker) -> EpisodeInfo:
    return await reached(worker, EpisodeState.ENDED)


async def used(worker: EpisodeWorker) -> list[EnvironmentUsed]:
    async with worker.events(EPISODE, follow=False) as events:
        return [each.event async for each in events if isinstance(each.event, EnvironmentUsed)]


async def sandboxes(node: Node) -> list[str]:
    return [info.sandbox_id for info in await node.list(SandboxFilter(metadata={"episode": EPISODE}))]


async def has_snapshots(node: Node) -> bool:
    return bool(await node.state.list_snapshots())


async def is_other(node: Node, seen: set[str]) -> bool:
    standing = set(await sandboxes(node))
    return bool(standing) and standing.isdisjoint(seen)


async def content(node: Node, path: str = "/home/user/log") -> str:
    await until(lambda: is_other(node, set()))
    (found,) = await sandboxes(node)
    source = node.read_file(found, path)
    data = b"".join([piece async for piece in source])
    if isinstance(source, ByteStream):
        await source.aclose()
    return data.decode()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
async def test_rounds_find_the_files_of_the_rounds_before_in_every_mode(tmp_path: Path, mode: EnvironmentMode) -> None:
    rounds: list[list[AgentCall]] = [[write(1)], [ReadLines(path="/home/user/log")], [write(2), write(3)], []]
    rounds += [[write(4)], [Submit()]]
    info, text, _ = await Place(tmp_path, Script(rounds)).play(kept(mode))
    assert (info.reason, info.rounds) == ("submitted", 6)
    assert text == "1\n2\n3\n4\n"


async def test_a_rebuilt_environment_that_is_saved_each_round_comes_from_the_store_for_each(tmp_path: Path) -> None:
    seen: set[str] = set()
    place = Place(tmp_path, Script([[write(1)], [write(2)], [write(3)], [Submit()]]))
    async with place.host.node() as node:

        async def think(turn: Turn) -> None:
            seen.update(await sandboxes(node))
            if turn.number > 1:
                await until(lambda: is_other(node, seen))  # The one before is gone, and another was made ahead.

        place.script.think = think
        async with place.worker(node) as worker:
            await worker.start(spec(kept(EnvironmentMode.REBUILT, snapshot_rounds=1)), episode_id=EPISODE)
            await ended(worker)
            restored = [each.detail for each in await used(worker) if each.kind is EnvironmentKind.RESTORED]
            assert await content(node) == "1\n2\n3\n"
    assert {detail.split(".")[1] for detail in restored} >= {"r1", "r2"}


@pytest.mark.parametrize("mode", MODES[:3], ids=lambda mode: mode.value)
async def test_an_episode_outlives_its_sandbox_by_its_log(tmp_path: Path, mode: EnvironmentMode) -> None:
    place = Place(tmp_path, Script([[write(number)] for number in range(1, 5)] + [[Submit()]]))
    async with place.host.node() as node:

        async def think(turn: Turn) -> None:
            if turn.number == 4 and not lost:
                lost.append(turn.number)
                for sandbox_id in await sandboxes(node):
                    await node.remove(sandbox_id)

        lost: list[int] = []
        place.script.think = think
        async with place.worker(node) as worker:
            await worker.start(spec(kept(mode)), episode_id=EPISODE)
            await ended(worker)
            restored = [each.detail for each in await used(worker) if each.kind is EnvironmentKind.RESTORED]
            assert await content(node) == "1\n2\n3\n4\n"
    assert any("3 operations of 3 rounds done again, with the recorded results" in detail for detail in restored)


async def test_files_come_from_the_newest_snapshot_and_only_the_rest_is_done_again(tmp_path: Path) -> None:
    place = Place(tmp_path, Script([[write(number)] for number in range(1, 6)] + [[Submit()]]))
    async with place.host.node() as node:
        lost: list[int] = []

        async def think(turn: Turn) -> None:
            if turn.number == 4 and not lost:
                lost.append(turn.number)
                await until(lambda: has_snapshots(node))
                for sandbox_id in await sandboxes(node):
                    await node.remove(sandbox_id)

        place.script.think = think
        async with place.worker(node) as worker:
            await worker.start(spec(kept(EnvironmentMode.RESIDENT, snapshot_rounds=2)), episode_id=EPISODE)
            await ended(worker)
            restored = [each.detail for each in await used(worker) if each.kind is EnvironmentKind.RESTORED]
            assert await content(node) == "1\n2\n3\n4\n5\n"
    assert any("1 operations of 1 rounds done again" in detail for detail in restored)


async def test_an_episode_that_refuses_to_replay_stops_and_says_what_is_missing(tmp_path: Path) -> None:
    place = Place(tmp_path, Script([[write(1)], [write(2)]]))
    async with place.host.node() as node:

        async def think(turn: Turn) -> None:
            if turn.number == 2:
                for sandbox_id in await sandboxes(node):
                    await node.remove(sandbox_id)
                raise BackendFailedError("the model is away")

        place.script.think = think
        async with place.worker(node) as worker:
            environment = kept(EnvironmentMode.RESIDENT, lost_files=LostFiles.REFUSED)
            await worker.start(spec(environment), episode_id=EPISODE)
            info = await reached(worker, EpisodeState.STOPPED)
    assert info.error_code == InvalidStateError.code
    assert "cannot be restored" in info.reason


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
async def test_nothing_is_left_when_an_episode_has_ended(tmp_path: Path, mode: EnvironmentMode) -> None:
    place = Place(tmp_path, Script([[write(1)], [write(2)], [Submit()]]))
    environment = EpisodeEnvironment(sandbox=SandboxSpec(image="python"), mode=mode, snapshot_rounds=1)
    async with place.host.node() as node, place.worker(node) as worker:
        await worker.start(spec(environment), episode_id=EPISODE)
        await ended(worker)

        async def is_bare() -> bool:
            return not await sandboxes(node) and not await has_snapshots(node)

        await until(is_bare)


async def test_automatic_rebuilds_once_the_gaps_are_long_enough_and_says_why(tmp_path: Path) -> None:
    clock = ManualClock()
    place = Place(tmp_path, Script([[write(number)] for number in range(1, 6)] + [[Submit()]]), clock=clock)
    async with place.host.node() as node:

        async def think(turn: Turn) -> None:
            del turn
            for info in await node.list():
                place.host.runtime.instance(f"{info.sandbox_id}-g{info.generation}").memory_bytes = 2 << 30
            clock.advance(9.0)

        place.script.think = think
        async with place.worker(node) as worker:
            await worker.start(spec(kept(EnvironmentMode.AUTOMATIC)), episode_id=EPISODE)
            await ended(worker)
            said = [each.detail for each in await used(worker)]
            assert await content(node) == "1\n2\n3\n4\n5\n"
    chosen = [detail for detail in said if "costs least" in detail]
    assert chosen == ["rebuilt costs least: 410 MiB·s of memory in a gap, against resident 18 GiB·s, paused 6.6 GiB·s"]
    assert any(detail.startswith("bare, with the files of ep-modes.r2.") for detail in said)


async def test_a_sandbox_that_cannot_be_paused_stays_with_a_word(tmp_path: Path) -> None:
    place = Place(tmp_path, Script([[write(1)], [write(2)], [Submit()]]))
    place.host.swap = None
    info, text, events = await place.play(kept(EnvironmentMode.PAUSED))
    assert (info.reason, text) == ("submitted", "1\n2\n")
    kept_for = [each.detail for each in events if each.detail.startswith("it stays")]
    assert len(kept_for) == 1, "what a host can never do is tried once"
    assert "capability_missing" in kept_for[0]
