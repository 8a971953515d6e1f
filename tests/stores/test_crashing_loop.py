"""A loop that dies at any step, between an effect and its record too: judged by the world that it acted on."""

from __future__ import annotations

import random

import pytest

from dsec.base.clock import ManualClock
from dsec.episode.log_content import Completeness, LogContent
from dsec.episode.operations import Effect
from dsec.stores.episode_log_reading import read_episode_log
from dsec.testing.episode_world import DIRECTORY, Loop, LoopHabits, World, live_again_and_again
from dsec.testing.episodes import result
from dsec.testing.simulated_disk import SimulatedDisk


class Machine:
    """A disk that is hit by what happens to the loop, and the world around it."""

    def __init__(self, seed: int, habits: LoopHabits, *, power: bool) -> None:
        self.draw = random.Random(seed)
        self.power = power
        self.world = World()
        self.loop = Loop(self.world, habits, random.Random(seed + 1))
        self.disk = SimulatedDisk()
        self.clock = ManualClock()

    def current_disk(self, life: int) -> SimulatedDisk:
        self.disk.on_operation = self._step
        return self.disk

    def _step(self, operation: str, name: str) -> None:
        if operation != "exists":
            self.world.fuse.step()

    def die(self) -> None:
        self.disk.on_operation = lambda operation, name: None
        if self.power and self.draw.random() < 0.5:
            self.disk = self.disk.after_power_loss(lambda most: self.draw.randint(0, most))
            if self.draw.random() < 0.5:
                self.world.workspace = None
        else:
            self.disk = self.disk.after_kill()

    def live(self, kill_at: int = 0, *, deaths: int = 1) -> int:
        """Live, dying at a step of the first so many lives: a fixed one, or (0) a random one."""

        def steps(life: int) -> int:
            if life >= deaths:
                return 0
            return kill_at or self.draw.randint(1, 60)

        died = live_again_and_again(self.loop, self.current_disk, self.die, self.clock, kill_at=steps)
        self.disk.on_operation = lambda operation, name: None
        return died

    def judge(self) -> LogContent:
        """Compare what the log says with what is true."""
        content = read_episode_log(DIRECTORY, disk=self.disk)
        assert content.completeness is Completeness.COMPLETE, content.problem
        assert content.progress.last_round == self.loop.habits.rounds
        for name, count in self.world.outside.items():
            assert count <= 1, f"{name} happened {count} times"
        changes: list[str] = []
        for record in content.rounds:
            for operation, outcome in zip(record.decision.operations, record.results, strict=True):
                assert outcome == result(operation.operation_id)
                if operation.effect.is_announced:
                    assert self.world.outside[operation.operation_id] == 1, operation
                elif operation.effect is Effect.WORKSPACE:
                    changes.append(operation.operation_id)
        if not self.loop.habits.state_every:
            assert self.world.workspace == changes, "the workspace is what the committed rounds made it"
            named = {operation.operation_id for record in content.rounds for operation in record.decision.operations}
            assert {name for name, count in self.world.outside.items() if count} <= named, "nothing happened unrecorded"
        return content


HABITS = {
    "every round": LoopHabits(),
    "every 3 rounds": LoopHabits(rounds=6, save_every=3),
    "with states": LoopHabits(rounds=6, state_every=2),
    "no points inside": LoopHabits(saved_points=0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HABITS)
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_loop_that_dies_once_at_any_step_ends_as_if_it_had_not(name: str, power: bool) -> None:
    unharmed = Machine(1, HABITS[name], power=power)
    assert unharmed.live(deaths=0) == 0
    unharmed.judge()
    for kill_at in range(1, unharmed.world.fuse.steps + 1):
        machine = Machine(1, HABITS[name], power=power)
        machine.live(kill_at)
        machine.judge()


@pytest.mark.slow
@pytest.mark.parametrize("name", HABITS)
def test_thousands_of_loops_that_die_again_and_again_end_as_if_they_had_not(name: str) -> None:
    deaths = unknown = 0
    for seed in range(1000):
        machine = Machine(seed, HABITS[name], power=seed % 2 == 0)
        deaths += machine.live(deaths=random.Random(seed).randint(1, 12))
        machine.judge()
        unknown += len(machine.loop.unknown)
    assert deaths > 2000
    assert unknown > 100


def test_a_loop_that_does_not_die_never_waits_for_anybody() -> None:
    for seed in range(50):
        machine = Machine(seed, HABITS["every round"], power=False)
        machine.live(deaths=0)
        machine.judge()
        assert not machine.loop.unknown
        assert machine.world.asked == machine.loop.habits.rounds
