"""The loop inside a round: what is saved there, and what a system outside says did not happen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import OutsideUnavailableError, PlatformError
from dsec.episode.durability import EVERY_ROUND, Durability, every_n_rounds
from dsec.episode.log_events import EpisodeEnded, OperationFinished, OperationSettled, Verdict
from dsec.episode.operations import Effect, Operation
from dsec.episode.tools import Run, ToolResult
from dsec.stores.episode_log_group import GroupCommit
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.testing.episode_world import DIRECTORY, START
from dsec.testing.episodes import identity, result
from dsec.testing.simulated_disk import SimulatedDisk
from dsec.worker.episodes.loop import BY_SYSTEM, EpisodeLoop, LoopLimits, Waiting
from dsec.worker.episodes.policies.scripted import ScriptedPolicy
from dsec.worker.episodes.ports import Declared, Proposal

pytestmark = pytest.mark.anyio
_EFFECTS = {effect.value: effect for effect in Effect}


@dataclass
class Files:
    """Hands and workspace: each command appends its script to the files."""

    files: list[str] = field(default_factory=list)
    saved: dict[str, list[str]] = field(default_factory=lambda: {START: []})
    ran: list[str] = field(default_factory=list)
    dies_at: str = ""
    dies: Callable[[], None] = lambda: None
    unavailable: list[str] = field(default_factory=list)

    async def run(self, operation: Operation) -> ToolResult:
        assert isinstance(operation.call, Run)
        script = operation.call.script
        if script == self.dies_at:
            self.dies()
            raise PlatformError("the worker died")
        if script in self.unavailable:
            self.unavailable.remove(script)
            raise OutsideUnavailableError("it is not there")
        self.ran.append(script)
        self.files.append(script)
        return result(script)

    async def ask(self, operation: Operation) -> ToolResult | None:
        return None

    async def compensate(self, operation: Operation) -> None:
        return None

    async def version(self) -> str | None:
        return None

    async def versions(self) -> Collection[str]:
        return list(self.saved)

    async def save(self, number: int) -> str:
        version = f"v{len(self.saved)}.{number}"
        self.saved[version] = list(self.files)
        return version

    async def restore(self, version: str) -> None:
        self.files = list(self.saved[version])

    async def keep_only(self, versions: Collection[str]) -> None:
        self.saved = {version: files for version, files in self.saved.items() if version in versions}


@dataclass
class Host:
    """One disk, and one life of a loop after another over the same rounds."""

    scripts: Sequence[Sequence[str]]
    world: Files = field(default_factory=Files)
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    durability: Durability = EVERY_ROUND
    dear_s: float = 60.0

    async def live(self) -> EpisodeEnded | Waiting:
        place = LogPlace(directory=DIRECTORY, disk=self.disk, clock=ManualClock())
        policy = ScriptedPolicy([Proposal(calls=tuple(Run(script=each) for each in row)) for row in self.scripts])
        async with GroupCommit(threads=1) as group:
            if self.disk.names(DIRECTORY):
                log, content = await group.open(place, self.durability)
                rounds = content.rounds
            else:
                log, rounds = await group.create(place, identity(workspace=START), self.durability), ()
            loop = EpisodeLoop(
                log,
                policy=policy,
                hands=self.world,
                workspace=self.world,
                declare=lambda call: Declared(effect=_EFFECTS[call.script.split()[0]]),  # type: ignore[union-attr]
                rounds=rounds,
                limits=LoopLimits(dear_s=self.dear_s),
            )
            return await loop.run()

    async def dies_at(self, script: str) -> None:
        """Live until a command, and lose what was not saved then; what is saved while it cleans up, too."""
        left: list[SimulatedDisk] = []
        self.world.dies_at = script
        self.world.dies = lambda: left.append(self.disk.after_power_loss(lambda most: 0))
        with pytest.raises(PlatformError, match="the worker died"):
            await self.live()
        self.world.dies_at = ""
        self.disk = left[0]


ROUND = ["workspace 1", "none 2", "workspace 3", "none 4", "workspace 5"]


@pytest.mark.parametrize("durability", [EVERY_ROUND, every_n_rounds(3)])
async def test_what_was_dear_inside_a_round_is_not_done_again(durability: Durability) -> None:
    host = Host([ROUND, ["workspace 6"]], dear_s=0.0, durability=durability)
    await host.dies_at("none 4")
    host.world.files.append("what the dead worker still wrote")
    await host.live()
    assert host.world.files == [*ROUND, "workspace 6"]
    assert host.world.ran == [*ROUND, "workspace 6"], "each of them once"
    assert read_episode_log(DIRECTORY, disk=host.disk).progress.workspace in host.world.saved


async def test_what_was_not_dear_is_done_again_from_the_beginning_of_its_round() -> None:
    host = Host([ROUND])
    await host.dies_at("none 4")
    await host.live()
    assert host.world.files == ROUND
    assert host.world.ran == ["workspace 1", "none 2", "workspace 3", *ROUND]


async def test_a_second_death_behind_a_saved_point_goes_on_from_there() -> None:
    host = Host([ROUND], dear_s=0.0)
    await host.dies_at("workspace 3")
    await host.dies_at("none 4")
    await host.dies_at("workspace 5")
    await host.live()
    assert host.world.files == ROUND
    assert [script for script in host.world.ran if script.startswith("workspace")] == ROUND[::2]


async def test_versions_inside_a_round_are_forgotten_once_it_is_saved() -> None:
    host = Host([ROUND, ROUND, ROUND], dear_s=0.0)
    await host.live()
    assert host.world.files == ROUND * 3
    assert list(host.world.saved) == [read_episode_log(DIRECTORY, disk=host.disk).progress.workspace]


async def test_versions_inside_a_round_are_kept_as_long_as_it_is_not_saved() -> None:
    host = Host([ROUND, ["none 6"]], dear_s=0.0, durability=every_n_rounds(5))
    await host.dies_at("none 6")
    assert len(host.world.saved) > 2
    await host.live()
    assert host.world.files == [*ROUND, "none 6"]
    assert [script for script in host.world.ran if script.startswith("workspace")] == [*ROUND[::2], "workspace 5"]


async def test_files_of_a_command_that_must_not_run_twice_are_kept_with_its_result() -> None:
    """Its result is recorded and never made again: the files that it left must not be put back to before it."""
    host = Host([["workspace 1", "once 2", "asked 3", "workspace 4"]])
    await host.dies_at("asked 3")
    assert await host.live() == EpisodeEnded(reason="the script is over", at_s=pytest.approx(0, abs=1e12))
    assert host.world.files == ["workspace 1", "once 2", "asked 3", "workspace 4"]
    assert host.world.ran.count("once 2") == 1
    events = read_episode_log(DIRECTORY, disk=host.disk).events
    assert [event.workspace != "" for event in events if isinstance(event, OperationFinished)][:2] == [False, True]


@pytest.mark.parametrize("effect", ["once", "asked", "compensated"])
async def test_what_a_system_says_did_not_happen_waits_for_nobody(effect: str) -> None:
    host = Host([[f"{effect} 1"]], world=Files(unavailable=[f"{effect} 1"]))
    with pytest.raises(OutsideUnavailableError):
        await host.live()
    host.disk = host.disk.after_power_loss(lambda most: 0)
    assert isinstance(await host.live(), EpisodeEnded)
    assert host.world.ran == [f"{effect} 1"]
    events = read_episode_log(DIRECTORY, disk=host.disk).events
    settled = [event for event in events if isinstance(event, OperationSettled)]
    assert [(event.verdict, event.by) for event in settled] == [(Verdict.DID_NOT_HAPPEN, BY_SYSTEM)]


async def test_of_what_is_sent_again_nothing_is_said_by_an_attempt_that_did_not_get_there() -> None:
    host = Host([["deduplicated 1"]])
    await host.dies_at("deduplicated 1")
    host.world.unavailable = ["deduplicated 1"]
    with pytest.raises(OutsideUnavailableError):
        await host.live()
    await host.live()
    events = read_episode_log(DIRECTORY, disk=host.disk).events
    assert not [event for event in events if isinstance(event, OperationSettled)]
