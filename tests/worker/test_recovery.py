"""Episodes that fail in each way, in a worker over a node of fakes, with a model endpoint that does as it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from dsec.base.errors import BackendFailedError, InvalidRequestError, PathNotFoundError
from dsec.episode.failure_kinds import FailureKind
from dsec.episode.identity import ModelIdentity
from dsec.episode.log_events import EnvironmentUsed, EpisodeSteered, ModelChanged, ModelFailed, RoundCommitted
from dsec.episode.operations import TokenUsage
from dsec.episode.recovery_experience import Experience, Step, StepTaken
from dsec.episode.spec import (
    AgentPolicy,
    DeadlineMode,
    EnvironmentMode,
    EpisodeCheck,
    EpisodeEnvironment,
    EpisodeEvent,
    EpisodeGrade,
    EpisodeInfo,
    EpisodeLimits,
    EpisodeRecovery,
    EpisodeSpec,
    EpisodeState,
    ModelEndpoint,
    ScaffoldPolicy,
    ScriptPolicy,
)
from dsec.episode.tools import CommandOutput
from dsec.episode.totals import EpisodeTotals, ModelTotal
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node
from dsec.testing.episodes_suite import until
from dsec.testing.memory_worker import MemoryWorker
from dsec.testing.scripted_chat import Answer, Breaks, Refuses, Says, ScriptedChat, Silent, Wastes, shell, submit
from dsec.worker.chat.http import ChatSettings, HttpChatModel
from dsec.worker.chat.port import ChatRequest
from dsec.worker.episodes.policies import registry
from dsec.worker.episodes.recovery.escalation import TreeRecovery, check_recovery, spent_usd
from dsec.worker.episodes.worker import EpisodeWorker
from dsec.worker.experience import EXPERIENCE_NAME, read_experience

pytestmark = pytest.mark.anyio
WITHIN_S = 60.0
GOOD = "cat /tmp/good"
MEND = shell("echo ok > /tmp/good")
GARBAGE = Says(text="I would rather talk.")
LOOK = shell("echo same")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks a service that failed once only: how often it does is tested elsewhere."""
    made = registry.chat_settings

    def chat_settings(*arguments: Any) -> Any:
        return dataclasses.replace(made(*arguments), backoff_s=())

    monkeypatch.setattr(registry, "chat_settings", chat_settings)


class Played:
    """One episode that has ended or stopped: what is known of it, and its events."""

    def __init__(self, info: EpisodeInfo, events: Sequence[EpisodeEvent]) -> None:
        self.info = info
        self.events = [each.event for each in events]

    @property
    def told(self) -> list[str]:
        return [event.by for event in self.events if isinstance(event, EpisodeSteered)]

    @property
    def changed(self) -> list[str]:
        return [event.model.name for event in self.events if isinstance(event, ModelChanged)]

    @property
    def deciders(self) -> list[str]:
        return [event.record.decision.model.name for event in self.events if isinstance(event, RoundCommitted)]


def learned_here() -> Experience:
    """Stands for what the worker learns itself."""
    raise AssertionError("the worker has its own")


@asynccontextmanager
async def worker(directory: Path, experience: Callable[[], Experience] = Experience) -> AsyncIterator[EpisodeWorker]:
    def strategy(spec: EpisodeSpec) -> TreeRecovery:
        return TreeRecovery(spec, experience, waits_s=(0.01,))

    options = {} if experience is learned_here else {"strategy": strategy}
    async with MemoryWorker(directory, options=options).opened() as opened:
        yield opened


def endpoint(chat: ScriptedChat, name: str, **fields: Any) -> ModelEndpoint:
    return ModelEndpoint(url=chat.url, name=name, **fields)


def spec(chat: ScriptedChat, *, stronger: bool = True, price: float | None = None, **fields: Any) -> EpisodeSpec:
    prices = {"input_usd": price, "output_usd": price}
    policy = AgentPolicy(
        model=endpoint(chat, "small", **prices), stronger=(endpoint(chat, "big", **prices),) if stronger else ()
    )
    fields.setdefault("environment", EpisodeEnvironment(sandbox=SandboxSpec(image="python"), cwd="/tmp"))
    return EpisodeSpec(task="t", policy=policy, **fields)


async def play(
    directory: Path,
    small: Sequence[Answer],
    big: Sequence[Answer] = (Breaks(),),
    *,
    experience: Callable[[], Experience] = Experience,
    **fields: Any,
) -> Played:
    """Play an episode until it has ended or stopped."""
    async with ScriptedChat({"small": small, "big": big}).served() as chat, worker(directory, experience) as episodes:
        started = await episodes.start(spec(chat, **fields))
        return await over(episodes, started.episode_id)


async def over(episodes: EpisodeWorker, episode_id: str) -> Played:
    with anyio.fail_after(WITHIN_S):
        while True:
            info = await episodes.get(episode_id)
            if info.state in (EpisodeState.ENDED, EpisodeState.STOPPED):
                break
            await anyio.sleep(0.005)
    async with episodes.events(episode_id, follow=False) as events:
        return Played(info, [event async for event in events])


async def test_a_submission_that_its_check_refuses_is_mended_by_the_same_model(tmp_path: Path) -> None:
    played = await play(tmp_path, [submit(), MEND, submit()], check=EpisodeCheck(command=GOOD))
    assert (played.info.state, played.info.reason, played.info.error_code) == (EpisodeState.ENDED, "submitted", "")
    assert played.told == ["recovery:check_failed"]
    assert played.deciders == ["small"] * 3


@pytest.mark.parametrize("mode", [EnvironmentMode.PAUSED, EnvironmentMode.REBUILT, EnvironmentMode.AUTOMATIC])
async def test_a_check_finds_its_sandbox_wherever_that_was_while_the_model_thought(
    tmp_path: Path, mode: EnvironmentMode
) -> None:
    environment = EpisodeEnvironment(sandbox=SandboxSpec(image="python"), cwd="/tmp", mode=mode)
    answers = [submit(), MEND, submit()]
    played = await play(tmp_path, answers, check=EpisodeCheck(command=GOOD), environment=environment)
    assert (played.info.reason, played.told) == ("submitted", ["recovery:check_failed"])


async def test_the_model_reads_what_the_check_said(tmp_path: Path) -> None:
    check = EpisodeCheck(command=f"echo looking; {GOOD}")
    async with ScriptedChat({"small": [submit(), MEND, submit()]}).served() as chat, worker(tmp_path) as episodes:
        started = await episodes.start(spec(chat, stronger=False, check=check))
        assert (await over(episodes, started.episode_id)).info.reason == "submitted"
        second = str(chat.seen["small"][1])
    assert "the check failed with exit code 1" in second
    assert "looking" in second
    assert "is not accepted" in second


async def test_what_the_same_model_could_not_mend_a_better_one_goes_on_with(tmp_path: Path) -> None:
    big = [shell("cat /tmp/begun && echo ok > /tmp/good"), submit()]
    played = await play(
        tmp_path, [shell("echo x > /tmp/begun"), submit(), submit()], big, check=EpisodeCheck(command=GOOD)
    )
    assert played.info.reason == "submitted"
    assert (played.told, played.changed) == (["recovery:check_failed"], ["big"])
    # From the last committed round: what the first model did is still there, and no round is played again.
    assert played.deciders == ["small"] * 3 + ["big"] * 2


async def test_what_nobody_can_mend_ends_as_failed(tmp_path: Path) -> None:
    played = await play(tmp_path, [submit()], [submit()], check=EpisodeCheck(command="false"))
    assert (played.info.state, played.info.error_code) == (EpisodeState.ENDED, "check_failed")
    assert played.deciders == ["small"] * 2 + ["big"] * 3
    assert "every model has repaired as often as it may" in played.info.reason


@pytest.mark.slow
async def test_answers_of_no_use_are_told_so_and_then_another_model_goes_on(tmp_path: Path) -> None:
    played = await play(tmp_path, [GARBAGE], [MEND, submit()])
    assert played.info.reason == "submitted"
    assert played.told == ["recovery:useless"]
    assert played.deciders == ["small"] * 4 + ["big"] * 2
    helped = await play(tmp_path / "b", [GARBAGE, GARBAGE, submit()], stronger=False)
    assert (helped.info.reason, helped.told) == ("submitted", ["recovery:useless"])


@pytest.mark.slow
async def test_answers_of_no_use_end_where_the_limit_says(tmp_path: Path) -> None:
    played = await play(tmp_path, [GARBAGE], stronger=False)
    assert (played.info.error_code, played.info.rounds) == ("unusable_answers", 5)
    # A model that took over has the whole of the limit for itself.
    both = await play(tmp_path / "b", [GARBAGE], [GARBAGE])
    assert (both.info.error_code, both.deciders) == ("unusable_answers", ["small"] * 4 + ["big"] * 5)


@pytest.mark.slow
async def test_a_model_that_goes_in_circles_is_told_so_and_then_taken_over_from(tmp_path: Path) -> None:
    played = await play(tmp_path, [LOOK], [submit()])
    assert played.info.reason == "submitted"
    assert played.told == ["recovery:stuck"]
    assert played.deciders == ["small"] * 8 + ["big"]
    alone = await play(tmp_path / "b", [LOOK], stronger=False, recovery=EpisodeRecovery(repairs=1))
    assert (alone.info.error_code, alone.info.rounds) == ("stuck", 8)


@pytest.mark.slow
async def test_a_service_that_fails_is_asked_again_and_then_another_model(tmp_path: Path) -> None:
    again = await play(tmp_path, [Refuses(503), submit()])
    assert (again.info.reason, again.changed) == ("submitted", [])
    assert sum(isinstance(event, ModelFailed) for event in again.events) == 1
    other = await play(tmp_path / "b", [LOOK, Breaks()], [submit()])
    assert (other.info.reason, other.changed, other.deciders) == ("submitted", ["big"], ["small", "big"])
    reasons = [event.reason for event in other.events if isinstance(event, ModelChanged)]
    assert reasons[0].startswith("model_failed: ")


async def test_what_a_service_refuses_is_not_waited_for_but_given_to_another_model_or_stopped_at_once(
    tmp_path: Path,
) -> None:
    other = await play(tmp_path, [Refuses(400)], [submit()])
    assert (other.info.reason, other.changed) == ("submitted", ["big"])
    alone = await play(tmp_path / "b", [Refuses(401)], stronger=False)
    assert (alone.info.state, alone.info.error_code) == (EpisodeState.STOPPED, "backend_refused")
    assert sum(isinstance(event, ModelFailed) for event in alone.events) == 1


async def test_a_service_that_is_gone_stops_the_loop_and_ends_nothing(tmp_path: Path) -> None:
    played = await play(tmp_path, [Breaks()], stronger=False)
    assert (played.info.state, played.info.error_code) == (EpisodeState.STOPPED, "backend_failed")
    # The recovery has waited for it; the worker does not do all of that again.
    assert sum(isinstance(event, ModelFailed) for event in played.events) == 3
    assert played.info.lives == 1


@pytest.mark.slow
async def test_an_enforced_deadline_ends_and_an_evaluated_one_does_not(tmp_path: Path) -> None:
    limits = EpisodeLimits(deadline_s=0.2)
    cut = await play(tmp_path, [LOOK, Silent()], limits=limits)
    assert (cut.info.state, cut.info.error_code) == (EpisodeState.ENDED, "deadline_exceeded")
    late = EpisodeLimits(deadline_s=0.001, deadline_mode=DeadlineMode.EVALUATE)
    assert (await play(tmp_path / "b", [LOOK, submit()], limits=late)).info.reason == "submitted"


async def test_a_repair_that_could_not_be_over_in_time_is_not_begun(tmp_path: Path) -> None:
    slow = [
        StepTaken(step=step, model=model, after=FailureKind.CHECK_FAILED, time_s=60.0)
        for step, model in ((Step.REPAIR, "small"), (Step.ESCALATE, "big"))
        for _ in range(30)
    ]
    played = await play(
        tmp_path,
        [submit()],
        experience=lambda: Experience(slow),
        check=EpisodeCheck(command="false"),
        limits=EpisodeLimits(deadline_s=30.0),
    )
    assert (played.info.error_code, played.info.rounds) == ("check_failed", 1)
    assert "is not enough for another step" in played.info.reason


async def test_what_was_learned_decides_whether_to_repair_or_to_escalate_at_once(tmp_path: Path) -> None:
    check = FailureKind.CHECK_FAILED
    learned = [
        *(StepTaken(step=Step.REPAIR, model="small", after=check, failed=check, time_s=0.1) for _ in range(60)),
        *(StepTaken(step=Step.ESCALATE, model="big", after=check, time_s=0.1) for _ in range(60)),
    ]
    played = await play(
        tmp_path,
        [submit()],
        [MEND, submit()],
        experience=lambda: Experience(learned),
        check=EpisodeCheck(command=GOOD),
    )
    assert (played.info.reason, played.told, played.deciders) == ("submitted", [], ["small", "big", "big"])


async def test_a_cost_limit_ends_before_it_is_passed_and_needs_prices(tmp_path: Path) -> None:
    # Each answer costs 1,100 tokens at 1,000 USD a million.
    limits = EpisodeLimits(cost_usd=3.5)
    played = await play(tmp_path, lambda_of(LOOK, shell("true")), price=1000.0, limits=limits)
    assert (played.info.error_code, played.info.rounds) == ("budget_exhausted", 3)
    assert played.info.usage.cost_usd == pytest.approx(3.3)
    with pytest.raises(InvalidRequestError, match="nobody knows what small costs"):
        check_recovery(spec(ScriptedChat({}, url="http://127.0.0.1:1/v1"), limits=limits))


def test_only_what_the_endpoint_without_a_name_answered_costs_what_it_says() -> None:
    first = ModelEndpoint(url="http://first/v1", input_usd=1.0, output_usd=1.0)
    usage = TokenUsage(input_tokens=500_000, output_tokens=500_000)

    def spent(answered: str, *stronger: ModelEndpoint, now: ModelEndpoint | None = None) -> float | None:
        asked = EpisodeSpec(task="t", policy=AgentPolicy(model=first, stronger=stronger))
        model = ModelTotal(model=ModelIdentity(name=answered), usage=usage)
        return spent_usd(EpisodeTotals(models=(model,)), asked, now)

    assert spent("listed") == 1.0
    big = ModelEndpoint(url="http://big/v1", name="big")
    assert spent("listed", big) == 1.0
    assert spent("big", big) is None
    assert spent("big", now=big) is None
    assert spent("big", replace(big, input_usd=2.0, output_usd=2.0)) == 2.0
    # Two have no name: whose an answer was cannot be told.
    assert spent("listed", replace(big, name="")) is None


def lambda_of(*answers: Answer) -> Sequence[Answer]:
    """Return the answers over and over, so that no two neighbours are the same."""
    return [answers[place % len(answers)] for place in range(50)]


@pytest.mark.slow
async def test_a_worker_that_dies_between_a_step_and_its_round_takes_no_step_twice(tmp_path: Path) -> None:
    answers: dict[str, Any] = {"small": [submit(), Silent()], "big": [Silent()]}
    async with ScriptedChat(answers).served() as chat:
        place = MemoryWorker(tmp_path, options={"strategy": lambda spec: TreeRecovery(spec, waits_s=(0.01,))})
        async with place.node() as node:
            async with place.worker(node) as episodes:
                started = await episodes.start(spec(chat, check=EpisodeCheck(command="false")))
                with anyio.fail_after(WITHIN_S):
                    await chat.wait_asked("small", 2)
            # It was told what is wrong, and the worker is gone before the answer.
            chat.answers["small"] = [submit()]
            chat.answers["big"] = [submit()]
            async with place.worker(node) as episodes:
                played = await over(episodes, started.episode_id)
    assert played.told.count("recovery:check_failed") == 3
    assert (played.changed, played.deciders) == (["big"], ["small"] * 2 + ["big"] * 3)
    assert played.info.lives == 2


async def test_a_worker_learns_from_its_episodes_and_from_their_grades(tmp_path: Path) -> None:
    check, small, book = EpisodeCheck(command=GOOD), [submit(), MEND, submit()], tmp_path / EXPERIENCE_NAME
    async with ScriptedChat({"small": small}).served() as chat, worker(tmp_path, learned_here) as episodes:
        started = await episodes.start(spec(chat, stronger=False, check=check))
        await over(episodes, started.episode_id)
        await episodes.grade(started.episode_id, EpisodeGrade(passed=True))
        mended = read_experience(book, prior_weight=0.0).estimate
        assert mended(Step.REPAIR, FailureKind.CHECK_FAILED, "small").passes == 1.0
        assert mended(Step.FIRST, None, "small").passes == 0.0
        # The check was too easy, somebody says later: what was learned is learned anew.
        await episodes.grade(started.episode_id, EpisodeGrade(passed=False))
        mended = read_experience(book, prior_weight=0.0).estimate
        assert mended(Step.REPAIR, FailureKind.CHECK_FAILED, "small").passes == 0.0
    async with worker(tmp_path, learned_here):
        assert read_experience(book).tries(Step.REPAIR, FailureKind.CHECK_FAILED) == 1


def test_what_could_not_be_kept_is_refused() -> None:
    scaffold = ScaffoldPolicy(command="true")
    check, limits = EpisodeCheck(command="true"), EpisodeLimits(cost_usd=1.0)
    silent = AgentPolicy(model=ModelEndpoint(url="http://127.0.0.1:1/v1"), tools=("shell",))
    for fields, problem in (
        ({"policy": scaffold, "check": check}, "makes none"),
        ({"policy": silent, "check": check}, "makes none"),
        ({"policy": scaffold, "limits": limits}, "by itself"),
        ({"policy": scaffold, "recovery": EpisodeRecovery(repairs=-1)}, "below 0"),
        ({"policy": ScriptPolicy(rounds=()), "check": EpisodeCheck(command=" ")}, "no command"),
    ):
        with pytest.raises(InvalidRequestError, match=problem):
            check_recovery(EpisodeSpec(task="t", **fields))  # type: ignore[arg-type]
    check_recovery(EpisodeSpec(task="t", policy=ScriptPolicy(rounds=()), check=check, limits=limits))


@pytest.mark.slow
async def test_a_worker_that_dies_after_every_step_takes_each_once(tmp_path: Path) -> None:
    steps = (EpisodeSteered, ModelChanged, RoundCommitted)
    async with ScriptedChat({"small": [submit()], "big": [submit()]}).served() as chat:
        place = MemoryWorker(tmp_path, options={"strategy": lambda spec: TreeRecovery(spec, waits_s=(0.01,))})
        async with place.node() as node:
            lives = 0
            while True:
                async with place.worker(node) as episodes:
                    check = EpisodeCheck(command="false")
                    started = await episodes.start(spec(chat, check=check), episode_id="ep-mortal")
                    lives += 1
                    with anyio.fail_after(WITHIN_S):
                        async with episodes.events("ep-mortal") as events:
                            seen = 0
                            async for each in events:
                                seen += isinstance(each.event, steps)
                                if seen >= lives:
                                    break
                    if seen < lives or (await episodes.get("ep-mortal")).state is EpisodeState.ENDED:
                        played = await over(episodes, started.episode_id)
                        break
    assert played.told == ["recovery:check_failed"] * 3
    assert (played.changed, played.deciders) == (["big"], ["small"] * 2 + ["big"] * 3)
    assert played.info.lives >= 5
    assert played.info.error_code == "check_failed"


async def test_what_calls_used_that_came_to_nothing_is_paid_for_with_the_answer_or_as_failed() -> None:
    request = ChatRequest(messages=[{"role": "user", "content": "hello"}])
    async with ScriptedChat({"m": [Wastes(), Breaks(), submit(), Wastes()]}).served() as chat:
        model = HttpChatModel(ChatSettings(url=chat.url, model="m", backoff_s=(0.0, 0.0)))
        answer = await model.answer(request)
        assert (answer.usage.calls, answer.usage.input_tokens, answer.usage.output_tokens) == (3, 2000, 200)
        with pytest.raises(BackendFailedError) as caught:
            await model.answer(request)
    assert (caught.value.calls, caught.value.input_tokens, caught.value.output_tokens) == (3, 3000, 300)


async def test_a_failed_call_is_in_the_ledger_with_what_it_used(tmp_path: Path) -> None:
    played = await play(tmp_path, [Wastes(), submit()])
    (failed,) = (event for event in played.events if isinstance(event, ModelFailed))
    assert (failed.model.name, failed.usage.input_tokens, failed.usage.calls) == ("small", 1000, 1)
    assert played.info.usage.input_tokens == 2000


async def test_while_a_model_is_asked_again_the_episode_says_why(tmp_path: Path) -> None:
    place = MemoryWorker(tmp_path, options={"strategy": lambda spec: TreeRecovery(spec, waits_s=(60.0,))})
    async with ScriptedChat({"small": [Breaks()]}).served() as chat, place.opened() as episodes:
        started = await episodes.start(spec(chat, stronger=False))
        info = await until(episodes, started.episode_id, lambda info: bool(info.error_code))
        assert (info.state, info.error_code) == (EpisodeState.RUNNING, "backend_failed")
        assert chat.url in info.reason
        assert "tried again" in info.reason
        info = await episodes.cancel(started.episode_id, reason="enough")
        assert (info.reason, info.error_code) == ("enough", "cancelled")


async def test_a_check_is_done_again_when_lost_files_are_made_again(tmp_path: Path) -> None:
    check = EpisodeCheck(command=f"echo checked >> /tmp/checks; {GOOD}")
    seen = shell("cat /tmp/checks")
    async with ScriptedChat({"small": [submit(), Silent(), seen, MEND, submit()]}).served() as chat:
        place = MemoryWorker(tmp_path)
        async with place.node() as node:
            async with place.worker(node) as episodes:
                started = await episodes.start(spec(chat, stronger=False, check=check))
                with anyio.fail_after(WITHIN_S):
                    await chat.wait_asked("small", 2)
                await node.remove((await episodes.get(started.episode_id)).sandbox_id)
            async with place.worker(node) as episodes:
                played = await over(episodes, started.episode_id)
    assert played.info.reason == "submitted"
    restored = [event for event in played.events if isinstance(event, EnvironmentUsed) and "again" in event.detail]
    assert "with the recorded results" in restored[0].detail
    rounds = [event.record for event in played.events if isinstance(event, RoundCommitted)]
    assert isinstance(rounds[1].results[0], CommandOutput)
    assert rounds[1].results[0].stdout.text == "checked\n"


async def test_an_episode_is_paused_though_its_check_runs(tmp_path: Path) -> None:
    place, check = MemoryWorker(tmp_path), EpisodeCheck(command="echo begun > /tmp/begun; sleep 30")
    async with (
        ScriptedChat({"small": [submit()]}).served() as chat,
        place.node() as node,
        place.worker(node) as episodes,
    ):
        started = await episodes.start(spec(chat, stronger=False, check=check))
        with anyio.fail_after(WITHIN_S):
            await chat.wait_asked("small", 1)
            box = (await episodes.get(started.episode_id)).sandbox_id
            await _wait_file(node, box, "/tmp/begun")
            assert (await episodes.pause(started.episode_id)).state is EpisodeState.PAUSED
        await episodes.cancel(started.episode_id)


async def _wait_file(node: Node, box: str, path: str) -> None:
    while True:
        try:
            await node.stat_file(box, path)
        except PathNotFoundError:
            await anyio.sleep(0.005)
        else:
            return
