"""The conformance suite of `EpisodeService`: what holds of episodes in every worker, and for every way to one.

Use it by inheriting in a test module and overriding the `episodes` fixture, which returns an open worker over a node
with the image `image`. Scripts decide, so that no model is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    InvalidStateError,
    LimitExceededError,
    NotFoundError,
)
from dsec.episode.agent_calls import Submit, UnusableCall
from dsec.episode.log_events import (
    EpisodeBegan,
    EpisodeEnded,
    EpisodeHeld,
    EpisodeReleased,
    EpisodeSteered,
    OperationsRunning,
    RoundCommitted,
    Verdict,
)
from dsec.episode.spec import (
    DeadlineMode,
    EpisodeEnvironment,
    EpisodeEvent,
    EpisodeFilter,
    EpisodeGrade,
    EpisodeInfo,
    EpisodeLimits,
    EpisodeSpec,
    EpisodeState,
    ScriptPolicy,
    ScriptRound,
)
from dsec.episode.tools import CommandOutput, Run
from dsec.model.sandbox import SandboxSpec
from dsec.service.episodes import EpisodeService

ENDS_S = 60.0
LONG = "sleep 300"
WITHIN_S = 60.0
"""Far more than anything here takes on a loaded host, and far less than `LONG`."""


def script(*commands: str, submits: bool = True) -> ScriptPolicy:
    """Return a policy of one command a round, and a submission."""
    rounds = [ScriptRound(calls=(Run(script=command),)) for command in commands]
    return ScriptPolicy(rounds=(*rounds, ScriptRound(calls=(Submit(summary="done"),))) if submits else tuple(rounds))


async def collected(episodes: EpisodeService, episode_id: str, start: int = 1) -> list[EpisodeEvent]:
    """Return all events of an episode, once it has ended."""
    with anyio.fail_after(ENDS_S):
        async with episodes.events(episode_id, start) as events:
            return [event async for event in events]


async def ended(episodes: EpisodeService, episode_id: str) -> EpisodeInfo:
    """Wait until an episode has ended, and return what is known of it."""
    await collected(episodes, episode_id)
    return await episodes.get(episode_id)


async def begun(episodes: EpisodeService, episode_id: str, number: int) -> EpisodeInfo:
    """Wait until calls of a round that may not happen twice are announced: from then on they may have happened."""
    with anyio.fail_after(ENDS_S):
        async with episodes.events(episode_id) as events:
            async for each in events:
                if isinstance(each.event, OperationsRunning) and each.event.number == number:
                    return await episodes.get(episode_id)
    raise AssertionError("the episode has ended")


async def until(
    episodes: EpisodeService, episode_id: str, holds: Callable[[EpisodeInfo], bool], within_s: float = WITHIN_S
) -> EpisodeInfo:
    """Wait until something holds of an episode."""
    info = await episodes.get(episode_id)
    with anyio.move_on_after(within_s):
        while not holds(info):
            await anyio.sleep(0.005)
            info = await episodes.get(episode_id)
    assert holds(info), info
    return info


def is_in(*states: EpisodeState) -> Callable[[EpisodeInfo], bool]:
    """Return whether an episode is in one of these states."""
    return lambda info: info.state in states


def outputs(events: Sequence[EpisodeEvent]) -> list[str]:
    """Return what the commands of committed rounds printed."""
    rounds = [each.event.record for each in events if isinstance(each.event, RoundCommitted)]
    results = [result for record in rounds for result in record.results]
    return [result.stdout.text for result in results if isinstance(result, CommandOutput)]


class EpisodesSuite:
    """Tests that every `EpisodeService` passes.

    Attributes:
        image: what sandboxes are made from.
    """

    pytestmark = pytest.mark.anyio
    image = "python"

    @pytest.fixture
    async def episodes(self) -> EpisodeService:
        raise NotImplementedError

    def spec(self, *commands: str, **fields: Any) -> EpisodeSpec:
        """Return a spec of a script."""
        environment = EpisodeEnvironment(sandbox=SandboxSpec(image=self.image), cwd="/tmp")
        fields.setdefault("policy", script(*commands))
        return EpisodeSpec(**{"task": "t", "environment": environment, **fields})

    async def running(self, episodes: EpisodeService, *, command: str = LONG, **fields: Any) -> EpisodeInfo:
        """Start an episode whose first command takes long, and return once it runs."""
        info = await episodes.start(self.spec("echo one", command, **fields))
        return await until(episodes, info.episode_id, lambda now: now.rounds == 1)

    # -- beginning and end ---------------------------------------------------------------------------------------------

    async def test_an_episode_goes_from_its_beginning_to_its_submission(self, episodes: EpisodeService) -> None:
        info = await episodes.start(self.spec("echo one >> log", "cat log", attempt=2, job="j"), episode_id="ep-one")
        assert (info.episode_id, info.task, info.attempt, info.job, info.policy) == ("ep-one", "t", 2, "j", "script")
        events = await collected(episodes, "ep-one")
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert isinstance(events[0].event, EpisodeBegan)
        assert isinstance(events[-1].event, EpisodeEnded)
        assert outputs(events) == ["", "one\n", "submitted"]
        info = await episodes.get("ep-one")
        assert (info.state, info.reason, info.error_code) == (EpisodeState.ENDED, "submitted", "")
        assert (info.rounds, info.lives, info.next_sequence) == (3, 1, len(events) + 1)
        assert 0 < info.created_at_s <= info.ended_at_s

    async def test_the_same_beginning_twice_is_one_episode_and_another_one_is_refused(
        self, episodes: EpisodeService
    ) -> None:
        spec = self.spec("echo one")
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(lambda: episodes.start(spec, episode_id="ep-same"))
        events = await collected(episodes, "ep-same")
        assert sum(isinstance(each.event, EpisodeBegan) for each in events) == 1
        assert (await episodes.start(spec, episode_id="ep-same")).state is EpisodeState.ENDED
        with pytest.raises(AlreadyExistsError):
            await episodes.start(self.spec("echo two"), episode_id="ep-same")
        assert await episodes.spec("ep-same") == spec

    @pytest.mark.parametrize("episode_id", ["other", "ep-UPPER", "ep-../../etc", "ep-" + "x" * 80])
    async def test_an_id_that_is_none_is_refused(self, episodes: EpisodeService, episode_id: str) -> None:
        with pytest.raises(InvalidRequestError):
            await episodes.start(self.spec("echo one"), episode_id=episode_id)

    async def test_a_spec_that_no_episode_can_be_is_refused(self, episodes: EpisodeService) -> None:
        for broken in (EpisodeLimits(rounds=0), EpisodeLimits(calls=0), EpisodeLimits(deadline_s=-1.0)):
            with pytest.raises(InvalidRequestError):
                await episodes.start(self.spec("echo one", limits=broken))
        with pytest.raises(InvalidRequestError):
            await episodes.start(self.spec("echo one", shell_effect="perhaps"))
        assert not await episodes.list()

    async def test_an_episode_that_is_not_there_is_not_found(self, episodes: EpisodeService) -> None:
        with pytest.raises(NotFoundError):
            await episodes.get("ep-none")
        with pytest.raises(NotFoundError):
            await episodes.spec("ep-none")
        with pytest.raises(NotFoundError):
            await episodes.cancel("ep-none")
        with pytest.raises(NotFoundError):
            async with episodes.events("ep-none") as events:
                assert [event async for event in events] == []

    async def test_episodes_are_listed_by_what_they_are_the_newest_first(self, episodes: EpisodeService) -> None:
        await episodes.start(self.spec("true", job="a", metadata={"step": "1", "kind": "x"}), episode_id="ep-a1")
        await episodes.start(self.spec("true", job="a", task="u", metadata={"step": "2"}), episode_id="ep-a2")
        await episodes.start(self.spec(LONG, job="b"), episode_id="ep-b1")
        for name in ("ep-a1", "ep-a2"):
            await ended(episodes, name)

        async def names(**query: Any) -> list[str]:
            return [info.episode_id for info in await episodes.list(EpisodeFilter(**query))]

        assert await names() == ["ep-b1", "ep-a2", "ep-a1"]
        assert await names(job="a") == ["ep-a2", "ep-a1"]
        assert await names(job="a", task="u") == ["ep-a2"]
        assert await names(states=(EpisodeState.ENDED,)) == ["ep-a2", "ep-a1"]
        assert await names(metadata={"step": "1"}) == ["ep-a1"]
        assert await names(metadata={"step": "1", "kind": "y"}) == []

    # -- watching ------------------------------------------------------------------------------------------------------

    async def test_a_watcher_that_comes_back_with_an_offset_has_missed_nothing(self, episodes: EpisodeService) -> None:
        await episodes.start(self.spec("echo one", "echo two", "echo three"), episode_id="ep-w")
        seen: list[EpisodeEvent] = []
        while not (seen and isinstance(seen[-1].event, EpisodeEnded)):
            with anyio.fail_after(ENDS_S):
                async with episodes.events("ep-w", len(seen) + 1) as events:
                    seen.append(await anext(aiter(events)))
        assert seen == await collected(episodes, "ep-w")
        assert await collected(episodes, "ep-w", len(seen)) == seen[-1:]

    async def test_without_following_a_watcher_gets_what_there_is(self, episodes: EpisodeService) -> None:
        info = await self.running(episodes)
        async with episodes.events(info.episode_id, follow=False) as events:
            there = [event async for event in events]
        assert outputs(there) == ["one\n"]
        async with episodes.events(info.episode_id, 1000, follow=False) as events:
            assert [event async for event in events] == []
        with pytest.raises(InvalidRequestError):
            async with episodes.events(info.episode_id, 0) as events:
                assert [event async for event in events] == []
        await episodes.cancel(info.episode_id)

    # -- steering ------------------------------------------------------------------------------------------------------

    async def test_what_an_episode_is_told_is_saved_when_that_returns(self, episodes: EpisodeService) -> None:
        info = await self.running(episodes)
        info = await episodes.steer(info.episode_id, "mind the tests é", by="a person")
        async with episodes.events(info.episode_id, follow=False) as events:
            told = [each.event async for each in events if isinstance(each.event, EpisodeSteered)]
        assert told == [EpisodeSteered(message="mind the tests é", by="a person")]
        with pytest.raises(LimitExceededError):
            await episodes.steer(info.episode_id, "x" * (1 << 20))
        await episodes.cancel(info.episode_id)
        with pytest.raises(InvalidStateError):
            await episodes.steer(info.episode_id, "too late")

    # -- standing still ------------------------------------------------------------------------------------------------

    async def test_an_episode_that_is_paused_stands_still_with_its_command_and_goes_on(
        self, episodes: EpisodeService
    ) -> None:
        info = await self.running(episodes, command="sleep 1; echo two")
        info = await episodes.pause(info.episode_id, keep_memory=True)
        assert info.state is EpisodeState.PAUSED
        assert (await episodes.pause(info.episode_id, keep_memory=True)).state is EpisodeState.PAUSED
        await anyio.sleep(1.2)
        now = await episodes.get(info.episode_id)
        assert (now.rounds, now.state) == (info.rounds, EpisodeState.PAUSED)
        assert (await episodes.resume(info.episode_id)).state in (EpisodeState.RUNNING, EpisodeState.ENDED)
        await episodes.resume(info.episode_id)
        events = await collected(episodes, info.episode_id)
        assert outputs(events) == ["one\n", "two\n", "submitted"]
        assert sum(isinstance(each.event, EpisodeHeld) for each in events) == 1
        assert sum(isinstance(each.event, EpisodeReleased) for each in events) == 1
        assert (await episodes.get(info.episode_id)).lives == 1, "its loop was kept"

    async def test_a_job_stands_still_as_one_and_others_go_on(self, episodes: EpisodeService) -> None:
        one = await self.running(episodes, command="sleep 0.1", job="j")
        two = await self.running(episodes, job="j")
        other = await episodes.start(self.spec("echo other", job="k"))
        paused = await episodes.pause_job("j", keep_memory=True)
        held = {info.episode_id for info in paused if info.state is EpisodeState.PAUSED}
        assert {info.episode_id for info in paused} - {one.episode_id} == {two.episode_id}
        assert two.episode_id in held
        assert (await ended(episodes, other.episode_id)).reason == "submitted"
        resumed = await episodes.resume_job("j")
        assert EpisodeState.PAUSED not in [info.state for info in resumed]
        assert (await ended(episodes, one.episode_id)).reason == "submitted"
        await episodes.cancel(two.episode_id)
        assert list(await episodes.pause_job("nobody")) == []
        with pytest.raises(InvalidRequestError):  # Or all episodes that name no job would be one.
            await episodes.pause_job("")

    async def test_going_on_is_asked_for_only_where_there_is_something_to_go_on_with(
        self, episodes: EpisodeService
    ) -> None:
        info = await self.running(episodes)
        assert (await episodes.resume(info.episode_id)).state is EpisodeState.RUNNING
        await episodes.cancel(info.episode_id)
        with pytest.raises(InvalidStateError):
            await episodes.resume(info.episode_id)
        with pytest.raises(InvalidStateError):
            await episodes.pause(info.episode_id)

    # -- the end -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("state", [EpisodeState.RUNNING, EpisodeState.PAUSED])
    async def test_an_episode_is_cancelled_and_what_it_did_is_kept(
        self, episodes: EpisodeService, state: EpisodeState
    ) -> None:
        info = await self.running(episodes)
        if state is EpisodeState.PAUSED:
            await episodes.pause(info.episode_id, keep_memory=True)
        with anyio.fail_after(WITHIN_S):
            info = await episodes.cancel(info.episode_id, reason="enough")
        assert (info.state, info.reason, info.error_code) == (EpisodeState.ENDED, "enough", "cancelled")
        assert await episodes.cancel(info.episode_id, reason="again") == info
        events = await collected(episodes, info.episode_id)
        assert outputs(events) == ["one\n"]
        last = events[-1].event
        assert isinstance(last, EpisodeEnded)
        assert (last.reason, last.error_code) == ("enough", "cancelled")

    async def test_an_episode_ends_at_its_limits(self, episodes: EpisodeService) -> None:
        limits = EpisodeLimits(rounds=2)
        info = await episodes.start(self.spec("echo one", "echo two", "echo three", limits=limits))
        info = await ended(episodes, info.episode_id)
        assert (info.rounds, info.error_code) == (2, "too_many_rounds")
        useless = ScriptPolicy(rounds=(ScriptRound(calls=(UnusableCall(problem="no such tool"),)),) * 5)
        info = await episodes.start(self.spec(policy=useless, limits=EpisodeLimits(useless_rounds=3)))
        info = await ended(episodes, info.episode_id)
        assert (info.rounds, info.error_code) == (3, "unusable_answers")

    async def test_a_deadline_ends_an_episode_in_the_middle_of_a_command_where_it_is_enforced(
        self, episodes: EpisodeService
    ) -> None:
        enforced = EpisodeLimits(deadline_s=0.4, deadline_mode=DeadlineMode.ENFORCE)
        info = await episodes.start(self.spec(LONG, limits=enforced))
        info = await ended(episodes, info.episode_id)
        assert (info.state, info.error_code, info.rounds) == (EpisodeState.ENDED, "deadline_exceeded", 0)
        judged = EpisodeLimits(deadline_s=0.001, deadline_mode=DeadlineMode.EVALUATE)
        info = await episodes.start(self.spec("echo one", limits=judged))
        assert (await ended(episodes, info.episode_id)).reason == "submitted"

    async def test_only_an_end_is_graded_and_the_last_grade_counts(self, episodes: EpisodeService) -> None:
        info = await self.running(episodes)
        with pytest.raises(InvalidStateError):
            await episodes.grade(info.episode_id, EpisodeGrade(passed=True))
        await episodes.cancel(info.episode_id)
        assert (await episodes.get(info.episode_id)).grade is None
        await episodes.grade(info.episode_id, EpisodeGrade(passed=False, by="a test"))
        better = EpisodeGrade(passed=True, reward=0.5, by="a person")
        assert (await episodes.grade(info.episode_id, better)).grade == better
        assert (await episodes.get(info.episode_id)).grade == better

    async def test_a_verdict_on_what_waits_for_none_is_refused(self, episodes: EpisodeService) -> None:
        info = await self.running(episodes)
        with pytest.raises(InvalidStateError):
            await episodes.settle(info.episode_id, f"{info.episode_id}.r2.d1.c0", Verdict.DID_NOT_HAPPEN)
        await episodes.cancel(info.episode_id)
        with pytest.raises(InvalidStateError):
            await episodes.settle(info.episode_id, f"{info.episode_id}.r2.d1.c0", Verdict.DID_NOT_HAPPEN)
