"""The loop of an episode, live over a durable log, killed between any two of its steps and judged by its world."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import anyio
import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import CallerError, DsecError, InvalidStateError, NotFoundError, PlatformError
from dsec.episode.agent_calls import AgentCall, Submit, UnusableCall
from dsec.episode.content import Content
from dsec.episode.durability import EVERY_ROUND, Durability, asynchronous, every_n_rounds
from dsec.episode.log_content import Completeness, LogContent
from dsec.episode.log_events import EpisodeEnded, OperationFinished, Verdict
from dsec.episode.operations import Effect, Operation, RoundRecord
from dsec.episode.tools import CommandOutput, Run, ToolFailed, ToolResult
from dsec.stores.episode_log_group import DurableLog, GroupCommit
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.testing.episode_world import DIRECTORY, START, Fuse, World
from dsec.testing.episodes import ended_as, identity, result
from dsec.testing.faults import Killed
from dsec.testing.simulated_disk import SimulatedDisk
from dsec.worker.episodes.loop import TOO_MANY_ROUNDS, UNUSABLE_ANSWERS, EpisodeLoop, LoopLimits, Waiting, settle
from dsec.worker.episodes.ports import Declared, Finished, Proposal, Turn
from dsec.worker.episodes.results import bounded_result

pytestmark = pytest.mark.anyio
ROUNDS = 4
_EFFECTS = {effect.value: effect for effect in Effect}


def declare(call: AgentCall) -> Declared:
    """The script of a call names its effect."""
    if isinstance(call, Run):
        return Declared(effect=_EFFECTS[call.script.split()[0]])
    return Declared(effect=Effect.NONE)


@dataclass
class WorldHands:
    world: World

    async def run(self, operation: Operation) -> ToolResult:
        if self.world.workspace is None:
            raise Killed  # The power went while a save ran beside this loop, which is gone and does not know it yet.
        return self.world.execute(operation)

    async def ask(self, operation: Operation) -> ToolResult | None:
        self.world.fuse.step()
        return result(operation.operation_id) if self.world.outside[operation.operation_id] else None

    async def compensate(self, operation: Operation) -> None:
        self.world.compensate(operation)


@dataclass
class WorldWorkspace:
    world: World

    async def version(self) -> str | None:
        return self.world.version()

    async def versions(self) -> Collection[str]:
        return list(self.world.checkpoints)

    async def save(self, number: int) -> str:
        version = self.world.checkpoint()
        self.world.fuse.step()
        return version

    async def restore(self, version: str) -> None:
        self.world.restore(version)

    async def keep_only(self, versions: Collection[str]) -> None:
        self.world.fuse.step()
        for version in set(self.world.checkpoints) - set(versions):
            del self.world.checkpoints[version]


@dataclass
class DrawnPolicy:
    """Decides something else each time it is asked, as a model does."""

    world: World
    draw: random.Random

    async def decide(self, turn: Turn) -> Proposal | Finished:
        assert [record.number for record in turn.rounds] == list(range(1, turn.number))
        if turn.number > ROUNDS:
            return Finished(reason="done")
        self.world.asked += 1
        self.world.fuse.step()
        effects = self.draw.choices(list(Effect), k=self.draw.randint(0, 3))
        return Proposal(calls=tuple(Run(script=f"{effect.value} {self.world.asked}") for effect in effects))


@dataclass
class Host:
    """A machine on which one loop after another drives the same episode."""

    seed: int
    durability: Durability = EVERY_ROUND
    world: World = field(default_factory=World)
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    clock: ManualClock = field(default_factory=ManualClock)
    power: bool = False
    waited: list[str] = field(default_factory=list)
    left: SimulatedDisk | None = None

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.policy = DrawnPolicy(self.world, random.Random(self.seed + 1))

    def _die(self) -> None:
        """Keep what the disk has at this instant; what the dying loop still does reaches nothing."""
        if self.left is None:
            if self.power and self.draw.random() < 0.5:
                self.left = self.disk.after_power_loss(lambda most: self.draw.randint(0, most))
                if self.draw.random() < 0.5:
                    self.world.workspace = None
            else:
                self.left = self.disk.after_kill()

    def _on_disk(self, operation: str, name: str) -> None:
        if self.left is not None:
            raise OSError(5, "the machine is gone")
        if operation == "exists":
            return
        try:
            self.world.fuse.step()
        except Killed:
            self._die()
            # In a thread of the group: to the loop, the disk fails; the machine is gone before it can tell anybody.
            raise OSError(5, "the machine is gone") from None

    async def live(self, kill_at: int) -> EpisodeEnded | None:
        """One life; None: it was killed."""
        self.world.fuse, self.left = Fuse(kill_at=kill_at), None
        self.disk.on_operation = self._on_disk
        ended: EpisodeEnded | None = None
        try:
            async with GroupCommit(threads=1) as group:
                try:
                    ended = await self._drive(group)
                except Killed:
                    self._die()
        except DsecError:
            assert self.left is not None, "nothing failed, and the loop did"
        if self.left is None:
            self.disk.on_operation = lambda operation, name: None
            return ended
        self.disk = self.left
        return None

    async def _drive(self, group: GroupCommit) -> EpisodeEnded:
        place = LogPlace(directory=DIRECTORY, disk=self.disk, clock=self.clock, segment_bytes=2000)
        try:
            log, content = await group.open(place, self.durability)
            rounds: Sequence[RoundRecord] = content.rounds
        except NotFoundError:
            log, rounds = await group.create(place, identity(workspace=START), self.durability), ()
        loop = EpisodeLoop(
            log,
            rounds=rounds,
            policy=self.policy,
            hands=WorldHands(self.world),
            workspace=WorldWorkspace(self.world),
            declare=declare,
            clock=self.clock,
        )
        while isinstance(outcome := await loop.run(), Waiting):
            for waiting in outcome.operations:
                self.waited.append(waiting.operation_id)
                happened = self.world.outside[waiting.operation_id] > 0
                await settle(
                    log,
                    waiting.operation_id,
                    Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN,
                    result=result(waiting.operation_id) if happened else None,
                    by="a person",
                )
        return outcome

    def judge(self) -> LogContent:
        """Compare what the log says with what is true."""
        content = read_episode_log(DIRECTORY, disk=self.disk)
        assert content.completeness is Completeness.COMPLETE, content.problem
        assert content.progress.last_round == ROUNDS
        assert all(count <= 1 for count in self.world.outside.values()), self.world.outside
        changes: list[str] = []
        named: set[str] = set()
        for record in content.rounds:
            for operation, outcome in zip(record.decision.operations, record.results, strict=True):
                named.add(operation.operation_id)
                assert outcome == result(operation.operation_id)
                if operation.effect.is_announced:
                    assert self.world.outside[operation.operation_id] == 1, operation
                elif operation.effect is Effect.WORKSPACE:
                    changes.append(operation.operation_id)
        # It can only be gone if the machine went after the end was written: nobody needs it then.
        assert self.world.workspace in (None, changes)
        assert {name for name, count in self.world.outside.items() if count} <= named
        return content


async def test_a_loop_that_does_not_die_plays_its_rounds_and_keeps_one_version() -> None:
    host = Host(3)
    assert ended_as(await host.live(0)) == "done"
    host.judge()
    assert not host.waited
    assert host.world.asked == ROUNDS
    assert list(host.world.checkpoints) == [host.world.version()]
    asked = host.world.asked
    assert ended_as(await host.live(0)) == "done", "an ended episode stays as it is"
    assert host.world.asked == asked


DURABILITIES = {"every round": EVERY_ROUND, "every 3 rounds": every_n_rounds(3), "beside": asynchronous(2)}


@pytest.mark.slow
@pytest.mark.parametrize("name", DURABILITIES)
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
async def test_a_live_loop_that_is_killed_at_any_step_ends_as_if_it_had_not(name: str, power: bool) -> None:
    for seed in (3, 4, 5):
        unharmed = Host(seed, DURABILITIES[name])
        await unharmed.live(0)
        steps = unharmed.world.fuse.steps
        assert steps > 20
        for kill_at in range(1, steps + 1):
            host = Host(seed, DURABILITIES[name], power=power)
            if await host.live(kill_at) is not None:
                # Saving beside the loop is as often as the threads' turns make it: there may be fewer steps this time.
                assert "beside" in name, kill_at
                assert kill_at > steps // 2
            assert await host.live(0) is not None
            host.judge()


@pytest.mark.slow
@pytest.mark.parametrize("name", DURABILITIES)
async def test_live_loops_that_are_killed_again_and_again_end_as_if_they_had_not(name: str) -> None:
    deaths, waited = 0, 0
    for seed in range(300):
        host = Host(seed, DURABILITIES[name], power=seed % 2 == 0)
        for _ in range(host.draw.randint(1, 8)):
            if await host.live(host.draw.randint(1, 60)) is None:
                deaths += 1
        assert await host.live(0) is not None
        host.judge()
        waited += len(host.waited)
    assert deaths > 500
    assert waited > 20


# -- how it ends -------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """A policy that does what a function says."""

    say: Callable[[Turn], Proposal | Finished]

    async def decide(self, turn: Turn) -> Proposal | Finished:
        return self.say(turn)


async def drive(
    say: Callable[[Turn], Proposal | Finished],
    *,
    world: World | None = None,
    answer: Callable[[Operation], ToolResult] | None = None,
    limits: LoopLimits = LoopLimits(),
) -> tuple[EpisodeEnded | Waiting, LogContent]:
    """Drive an episode over a log in memory."""
    world, disk = world or World(), SimulatedDisk()
    hands = WorldHands(world)
    if answer is not None:

        async def run(operation: Operation) -> ToolResult:
            return answer(operation)

        hands.run = run  # type: ignore[method-assign]
    place = LogPlace(directory=DIRECTORY, disk=disk, clock=ManualClock())
    async with GroupCommit(threads=1) as group:
        log: DurableLog = await group.create(place, identity(workspace=START))
        loop = EpisodeLoop(
            log, policy=Told(say), hands=hands, workspace=WorldWorkspace(world), declare=declare, limits=limits
        )
        outcome = await loop.run()
    return outcome, read_episode_log(DIRECTORY, disk=disk)


async def test_a_submission_ends_the_episode_with_its_round() -> None:
    outcome, content = await drive(lambda turn: Proposal(calls=(Submit(),)), answer=lambda _: result("submitted"))
    assert ended_as(outcome) == "submitted"
    assert content.progress.last_round == 1


async def test_rounds_in_which_nothing_can_be_carried_out_end_the_episode_after_some() -> None:
    for useless in (Proposal(message="Hm."), Proposal(calls=(UnusableCall(problem="no JSON"),))):
        outcome, content = await drive(lambda turn, useless=useless: useless, limits=LoopLimits(useless_rounds=3))  # type: ignore[misc]
        assert isinstance(outcome, EpisodeEnded)
        assert outcome.error_code == UNUSABLE_ANSWERS
        assert content.progress.last_round == 3


async def test_an_episode_has_no_more_rounds_than_it_may() -> None:
    outcome, content = await drive(lambda turn: Proposal(calls=(Run(script="none"),)), limits=LoopLimits(rounds=7))
    assert isinstance(outcome, EpisodeEnded)
    assert outcome.error_code == TOO_MANY_ROUNDS
    assert content.progress.last_round == 7


async def test_calls_beyond_the_limit_are_answered_and_not_carried_out() -> None:
    def say(turn: Turn) -> Proposal | Finished:
        return Finished() if turn.number > 1 else Proposal(calls=(Run(script="once"),) * 5)

    world = World()
    _, content = await drive(say, world=world, limits=LoopLimits(calls=2))
    assert sum(world.outside.values()) == 2
    calls = [operation.call for operation in content.rounds[0].decision.operations]
    assert [isinstance(call, UnusableCall) for call in calls] == [False, False, True, True, True]


async def test_a_result_of_50_mb_is_cut_with_a_word() -> None:
    huge = CommandOutput(exit_code=0, stdout=Content(text="a" * 25_000_000 + "z" * 25_000_000))

    def say(turn: Turn) -> Proposal | Finished:
        return Finished() if turn.number > 1 else Proposal(calls=(Run(script="once"),))

    _, content = await drive(say, answer=lambda _: huge)
    kept = content.rounds[0].results[0]
    assert isinstance(kept, CommandOutput)
    assert len(kept.stdout.text) < 70_000
    assert "49934464 bytes left out" in kept.stdout.text
    assert kept.stdout.text[0] == "a"
    assert kept.stdout.text[-1] == "z"


async def test_a_policy_that_breaks_stops_the_loop_and_not_the_episode() -> None:
    def say(turn: Turn) -> Proposal | Finished:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(
        CallerError, match=r"the policy .script. failed in round 1 of .*: ZeroDivisionError: division by zero"
    ):
        await drive(say)


async def test_hands_that_fail_stop_the_loop_and_the_round_is_not_committed() -> None:
    def fail(operation: Operation) -> ToolResult:
        raise PlatformError("the node is gone")

    with pytest.raises(PlatformError, match="the node is gone"):
        await drive(lambda turn: Proposal(calls=(Run(script="none"),)), answer=fail)


async def test_a_workspace_that_is_gone_and_cannot_be_put_back_is_said_and_nothing_is_played() -> None:
    world = World(workspace=None, checkpoints={})
    with pytest.raises(InvalidStateError, match="cannot go on: the workspace has to be start, is gone"):
        await drive(lambda turn: Proposal(), world=world)
    assert not world.outside


async def test_each_decision_has_a_seed_of_its_own_which_is_the_same_again() -> None:
    seeds: list[list[int]] = []
    for _ in range(2):
        drawn: list[int] = []

        def say(turn: Turn, drawn: list[int] = drawn) -> Proposal | Finished:
            drawn.append(turn.seed)
            return Proposal(calls=(Run(script="none"),))

        await drive(say, limits=LoopLimits(rounds=20))
        seeds.append(drawn)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 20


async def test_nothing_is_settled_that_is_not_unknown() -> None:
    place = LogPlace(directory=DIRECTORY, disk=SimulatedDisk(), clock=ManualClock())
    async with GroupCommit(threads=1) as group:
        log = await group.create(place, identity(workspace=START))
        with pytest.raises(NotFoundError, match="nothing of ep-test waits"):
            await settle(log, "ep-test.r1.d1.c0", Verdict.DID_NOT_HAPPEN)


async def test_a_failed_result_of_a_submission_does_not_end_the_episode() -> None:
    refused = ToolFailed(code="invalid_request", brief="no")
    outcome, _ = await drive(
        lambda turn: Proposal(calls=(Submit(),)), answer=lambda _: refused, limits=LoopLimits(rounds=2)
    )
    assert isinstance(outcome, EpisodeEnded)
    assert outcome.error_code == TOO_MANY_ROUNDS


# -- what a second life finds ------------------------------------------------------------------------------------------


class Lives:
    """Loops that follow each other over one log in memory."""

    def __init__(self, world: World) -> None:
        self.world, self.disk, self.clock = world, SimulatedDisk(), ManualClock()

    async def live(
        self, say: Callable[[Turn], Proposal | Finished], run: Callable[[Operation], ToolResult]
    ) -> EpisodeEnded | Waiting:
        """One life; its hands do what `run` does."""
        hands = WorldHands(self.world)

        async def do(operation: Operation) -> ToolResult:
            return run(operation)

        hands.run = do  # type: ignore[method-assign]
        place = LogPlace(directory=DIRECTORY, disk=self.disk, clock=self.clock)
        async with GroupCommit(threads=1) as group:
            rounds: Sequence[RoundRecord] = ()
            try:
                log, content = await group.open(place)
                rounds = content.rounds
            except NotFoundError:
                log = await group.create(place, identity(workspace=START))
            loop = EpisodeLoop(
                log,
                policy=Told(say),
                hands=hands,
                workspace=WorldWorkspace(self.world),
                declare=declare,
                rounds=rounds,
            )
            return await loop.run()


def asks_for(*effects: str) -> Callable[[Turn], Proposal | Finished]:
    """Return a policy of one round, with a call of each effect."""

    def say(turn: Turn) -> Proposal | Finished:
        return Finished() if turn.number > 1 else Proposal(calls=tuple(Run(script=effect) for effect in effects))

    return say


async def test_a_recorded_result_is_returned_and_what_had_none_is_sent_again_with_the_next_attempt() -> None:
    lives, ran = Lives(World()), list[str]()

    def run(operation: Operation) -> ToolResult:
        ran.append(operation.operation_id[-2:])
        if len(ran) == 2:
            raise PlatformError("the line is cut")
        return result(operation.operation_id)

    with pytest.raises(PlatformError, match="the line is cut"):
        await lives.live(asks_for("once", "deduplicated"), run)
    assert isinstance(await lives.live(asks_for("once", "deduplicated"), run), EpisodeEnded)
    assert ran == ["c0", "c1", "c1"], "the first has a result, and nobody has to be asked about it"
    content = read_episode_log(DIRECTORY, disk=lives.disk)
    assert content.rounds[0].attempts == (1, 2)
    noted = [event.attempt for event in content.events if isinstance(event, OperationFinished)]
    assert noted == [1, 2]


async def test_an_operation_that_must_not_run_twice_waits_and_nothing_is_run_until_somebody_settles_it() -> None:
    lives, ran = Lives(World()), list[str]()

    def run(operation: Operation) -> ToolResult:
        ran.append(operation.operation_id)
        raise PlatformError("the line is cut")

    with pytest.raises(PlatformError):
        await lives.live(asks_for("once"), run)
    for _ in range(2):
        waiting = await lives.live(asks_for("once"), run)
        assert isinstance(waiting, Waiting)
        assert [one.operation_id for one in waiting.operations] == ran
    place = LogPlace(directory=DIRECTORY, disk=lives.disk, clock=lives.clock)
    async with GroupCommit(threads=1) as group:
        log, _ = await group.open(place)
        with pytest.raises(InvalidStateError, match="a result goes with having happened"):
            await settle(log, ran[0], Verdict.HAPPENED)
        await settle(log, ran[0], Verdict.HAPPENED, result=result("paid"), by="a person")
    assert isinstance(await lives.live(asks_for("once"), run), EpisodeEnded)
    assert len(ran) == 1
    assert read_episode_log(DIRECTORY, disk=lives.disk).rounds[0].results == (result("paid"),)


async def test_versions_that_a_death_left_are_forgotten_when_the_next_life_begins() -> None:
    world = World()
    world.checkpoints["a version that no record names"] = ()
    await Lives(world).live(asks_for(), lambda operation: result("x"))
    assert list(world.checkpoints) == [START]


async def test_a_version_is_kept_until_a_later_one_is_saved() -> None:
    world, kept = World(), list[int]()

    def say(turn: Turn) -> Proposal | Finished:
        kept.append(len(world.checkpoints))
        return Finished() if turn.number > 6 else Proposal(calls=(Run(script="workspace"),))

    place = LogPlace(directory=DIRECTORY, disk=SimulatedDisk(), clock=ManualClock())
    async with GroupCommit(threads=1) as group:
        log = await group.create(place, identity(workspace=START), every_n_rounds(3))
        loop = EpisodeLoop(
            log, policy=Told(say), hands=WorldHands(world), workspace=WorldWorkspace(world), declare=declare
        )
        await loop.run()
    assert kept == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize(("effect", "together"), [(Effect.NONE, 3), (Effect.DEDUPLICATED, 1)])
async def test_calls_that_are_declared_so_run_side_by_side_unless_they_are_announced(
    effect: Effect, together: int
) -> None:
    world, running, most = World(), 0, 0

    async def run(operation: Operation) -> ToolResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.wait_all_tasks_blocked()
        running -= 1
        return result(operation.operation_id)

    hands = WorldHands(world)
    hands.run = run  # type: ignore[method-assign]
    place = LogPlace(directory=DIRECTORY, disk=SimulatedDisk(), clock=ManualClock())
    async with GroupCommit(threads=1) as group:
        log = await group.create(place, identity(workspace=START))
        loop = EpisodeLoop(
            log,
            policy=Told(asks_for("none", "none", "none")),
            hands=hands,
            workspace=WorldWorkspace(world),
            declare=lambda call: Declared(effect=effect, parallel=True),
        )
        await loop.run()
    assert most == together
    names = [operation.operation_id for operation in loop.rounds[0].decision.operations]
    assert list(loop.rounds[0].results) == [result(name) for name in names]


def test_a_cut_through_a_character_leaves_a_text() -> None:
    cut = bounded_result(CommandOutput(exit_code=0, stdout=Content(text="é" * 1000)), 102)
    assert isinstance(cut, CommandOutput)
    assert cut.stdout.text.startswith("é" * 25)
    assert "1898 bytes left out" in cut.stdout.text
    assert not cut.stdout.raw
