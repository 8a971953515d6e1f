"""Rollouts whose attempts are episodes: they end, die, and are gone on with where they were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from dsec.base.clock import SystemClock
from dsec.base.errors import AlreadyExistsError, InvalidRequestError, PlatformError
from dsec.episode.content import Content
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.log_events import Verdict
from dsec.episode.operations import Effect
from dsec.episode.spec import EpisodeSpec
from dsec.episode.tools import CommandOutput, WriteFile
from dsec.model.process import CommandRequest, CommandResult
from dsec.model.sandbox import SandboxFilter
from dsec.node.node import Node
from dsec.service.episodes import EpisodeService
from dsec.testing.chat_service import ChatService, serve_chat
from dsec.testing.memory_node import MemoryHost
from dsec.testing.memory_worker import QUICK
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.worker.episode_attempt import episode_id_of
from dsec.worker.episodes.deciding import NoStrategy
from dsec.worker.episodes.policies.registry import PluginContext
from dsec.worker.episodes.ports import Finished, Proposal, RecoveryStrategy, Turn
from dsec.worker.episodes.recovery.escalation import TreeRecovery
from dsec.worker.episodes.worker import EpisodeWorker
from dsec.worker.grades import read_grades
from dsec.worker.job import JobEnd, RolloutRequest, run_rollout
from dsec.worker.ledger_pricing import price_run
from dsec.worker.ledger_reading import read_runs
from dsec.worker.output import read_results, read_rounds
from dsec.worker.policies.episodes import EpisodeOptions, is_episode_policy
from dsec.worker.policies.registry import load_policy
from dsec.worker.settings import RolloutSettings, VerifyIn

pytestmark = pytest.mark.anyio
MakeTask = Callable[..., Path]
TOML = """\
[agent]
timeout_sec = 30.0
[verifier]
timeout_sec = 20.0
[environment]
docker_image = "python"
"""
TESTS = "#!/bin/sh\ncat /home/user/answer > /logs/verifier/reward.txt\n"
ANSWERS: list[list[tuple[str, dict[str, Any]]]] = [
    [("edit", {"path": "/home/user/answer", "old": "", "new": "0"})],
    [("edit", {"path": "/home/user/answer", "old": "0", "new": "1"}), ("shell", {"command": "echo looked"})],
    [("submit", {"summary": "done"})],
]


STRATEGY: dict[str, Callable[[EpisodeSpec], RecoveryStrategy]] = {"made": lambda spec: NoStrategy()}


@asynccontextmanager
async def open_quick_worker(directory: Path, service: Any) -> AsyncIterator[EpisodeService]:
    directory.mkdir(parents=True, exist_ok=True)
    async with EpisodeWorker(directory, service, service.state, None, QUICK, strategy=STRATEGY["made"]) as worker:
        yield worker


class Run:
    """A rollout of one task that can be run again and again."""

    def __init__(self, root: Path, node: Node, service: ChatService) -> None:
        model = ModelEndpoint(url=service.url, name="m", input_usd=1.0, output_usd=10.0)
        self.out = root / "out"
        self.node = node
        self.service = service
        self.request = RolloutRequest(
            tasks=root / "tasks",
            policy="agent",
            out=self.out,
            rollout_id="rol-test",
            settings=RolloutSettings(concurrency=2, backoff_s=(0.0,), cleanup_timeout_s=5.0),
            episodes=EpisodeOptions(model=model),
        )

    async def __call__(self, **more: Any) -> AttemptResult:
        await self.job(**more)
        results = read_results(self.out)[1]
        assert len(results) == 1
        return results[0]

    async def job(self, **more: Any) -> JobEnd:
        warned: list[str] = []
        return await run_rollout(
            self.request,
            service=more.pop("node", self.node),
            clock=SystemClock(),
            warn=warned.append,
            **{"open_episodes": open_quick_worker, **more},
        )

    async def killed_when(self, place: int) -> None:
        """Run until a question at that place is asked, and die there."""
        with anyio.CancelScope() as scope:
            self.service.on_asked = lambda asked: scope.cancel() if asked == place else None
            await self.job()
        assert scope.cancelled_caught
        self.service.on_asked = None

    async def sandboxes(self) -> int:
        return len(await self.node.list(SandboxFilter(metadata={"rollout": "rol-test"})))


@pytest.fixture
async def run(make_task: MakeTask, tmp_path: Path) -> AsyncIterator[Run]:
    make_task("one", files={"tests/test.sh": TESTS})
    async with MemoryHost().node() as node, serve_chat(ChatService(ANSWERS)) as service:
        yield Run(tmp_path, node, service)


async def test_an_agent_solves_a_task_and_its_result_says_what_it_used(run: Run) -> None:
    result = await run()
    assert (result.outcome, result.rounds, result.policy_end) == (Outcome.PASSED, 3, "submitted")
    episode = result.episode
    assert episode is not None
    assert episode.models == ("m",)
    assert (episode.lives, episode.calls) == (1, 3)
    assert (episode.input_tokens, episode.cached_tokens, episode.output_tokens) == (300, 150, 30)
    assert episode.cost_usd == pytest.approx(600e-6)
    assert result.last_output == "looked\n"
    assert result.totals_s["decide"] > 0
    assert result.totals_s["create"] > 0
    grades = read_grades(run.out / "worker" / "grades.jsonl")
    assert grades[episode.episode_id].passed
    assert grades[episode.episode_id].by == "verification"
    assert await run.sandboxes() == 0
    (priced,) = price_run(read_runs([str(run.out)], worker=run.out), None)
    assert (priced.use.episode_id, priced.graded.timely) == (episode.episode_id, True)
    assert priced.cost.known_usd == pytest.approx(episode.cost_usd), "the result and the ledger tell the same"
    again = await run()
    assert again == result
    assert run.service.asked == [0, 1, 2], "a finished attempt is not run again"


@pytest.mark.parametrize("place", range(3))
async def test_a_runner_that_dies_while_the_model_thinks_goes_on_in_the_same_round(run: Run, place: int) -> None:
    await run.killed_when(place)
    assert await run.sandboxes() == 1
    result = await run()
    assert (result.outcome, result.rounds) == (Outcome.PASSED, 3)
    assert result.episode is not None
    assert result.episode.lives == 2
    assert run.service.asked == sorted([0, 1, 2, place]), "no committed round was decided again"
    assert await run.sandboxes() == 0


async def test_episodes_of_a_worker_elsewhere_go_on_while_no_runner_is_there(run: Run, tmp_path: Path) -> None:
    async with open_quick_worker(tmp_path / "elsewhere", run.node) as worker:

        @asynccontextmanager
        async def there(directory: Path, service: object) -> AsyncIterator[EpisodeService]:
            yield worker

        asked = anyio.Event()
        with anyio.CancelScope() as scope:
            run.service.on_asked = lambda place: scope.cancel() if place == 1 else asked.set() if place == 2 else None
            await run.job(open_episodes=there)
        await asked.wait()
        result = await run(open_episodes=there)
    assert (result.outcome, result.rounds) == (Outcome.PASSED, 3)
    assert run.service.asked == [0, 1, 2]
    assert result.episode is not None
    assert result.episode.lives == 1
    assert "echo looked" in (run.out / "report.html").read_text()
    assert not (run.out / "worker").exists()


async def test_a_class_of_ones_own_is_played_as_an_episode(run: Run) -> None:
    run.request = replace(run.request, policy=f"episode:{__name__}:Writes", episodes=EpisodeOptions())
    result = await run()
    assert (result.outcome, result.rounds, result.policy_end) == (Outcome.PASSED, 1, "written")
    assert result.episode is not None
    assert (result.episode.calls, result.episode.cost_usd) == (0, None)


class Writes:
    """A policy: it writes the answer."""

    def __init__(self, context: PluginContext) -> None:
        self._path = "/home/user/answer"

    async def decide(self, turn: Turn) -> Proposal | Finished:
        if turn.number > 1:
            return Finished(reason="written")
        return Proposal(calls=(WriteFile(path=self._path, content=Content(text="1")),))


class Killed(BaseException):
    """Stands for a kill."""


class Cut:
    """A node whose answer to a command is lost, with whoever waits for it."""

    def __init__(self, node: Node, scope: anyio.CancelScope) -> None:
        self._node = node
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    async def run(self, sandbox_id: str, request: CommandRequest) -> CommandResult:
        result = await self._node.run(sandbox_id, request)
        if request.argv[-1] == "echo looked":
            self._scope.cancel()
            await anyio.sleep_forever()
        return result


class Dying:
    """A node that dies, for who drives it, when the tests run."""

    def __init__(self, node: Node, error: type[BaseException]) -> None:
        self._node = node
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    async def run(self, sandbox_id: str, request: CommandRequest) -> CommandResult:
        if request.argv[-1] == "/tests/test.sh":
            # What the tests left behind when they were cut off must not be there when they run again.
            await self._node.write_file(sandbox_id, "/home/user/answer", b"7", user="0")
            raise self._error("the runner died")
        return await self._node.run(sandbox_id, request)


async def test_a_death_in_verification_verifies_what_the_policy_left_and_asks_no_model(run: Run) -> None:
    with pytest.raises(BaseExceptionGroup):
        await run.job(node=Dying(run.node, Killed))
    assert await run.sandboxes() == 1
    result = await run()
    assert (result.outcome, result.verdict.reward) == (Outcome.PASSED, 1.0)
    assert run.service.asked == [0, 1, 2]


async def test_a_platform_that_fails_in_verification_costs_no_round(run: Run) -> None:
    result = await run(node=Dying(run.node, PlatformError))
    assert result.outcome is Outcome.INFRASTRUCTURE_ERROR
    assert run.service.asked == [0, 1, 2]
    assert (await run()).outcome is Outcome.PASSED
    assert run.service.asked == [0, 1, 2]


@pytest.mark.slow
async def test_a_model_that_is_gone_leaves_the_attempt_open_and_another_endpoint_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.worker.chat.http.next_delay_s", lambda tries, backoff_s: None)
    run.service.broken_from = 1
    result = await run()
    assert result.outcome is Outcome.INFRASTRUCTURE_ERROR
    assert "its 1 rounds are kept" in result.verdict.reason
    assert await run.sandboxes() == 1
    async with serve_chat(ChatService(ANSWERS)) as other:
        model = ModelEndpoint(url=other.url, name="m")
        run.request = replace(run.request, episodes=replace(run.request.episodes, model=model))
        result = await run()
        assert (result.outcome, result.rounds) == (Outcome.PASSED, 3)
        assert other.asked == [1, 2]


async def test_a_command_of_which_nobody_knows_is_left_to_people_and_the_attempt_goes_on_once_they_said(
    run: Run,
) -> None:
    run.request = replace(run.request, episodes=replace(run.request.episodes, commands=Effect.ONCE))
    with anyio.CancelScope() as scope:
        await run.job(node=Cut(run.node, scope))
    assert scope.cancelled_caught
    for _ in range(2):
        result = await run()
        assert result.outcome is Outcome.UNKNOWN
        assert await run.sandboxes() == 1
    assert run.service.asked == [0, 1]
    assert result.episode is not None
    episode_id = result.episode.episode_id
    async with open_quick_worker(run.out / "worker", run.node) as worker:
        (unknown,) = (await worker.get(episode_id)).unknown
        happened = CommandOutput(exit_code=0, stdout=Content(text="looked\n"))
        await worker.settle(episode_id, unknown.operation_id, Verdict.HAPPENED, result=happened, by="somebody")
    result = await run()
    assert (result.outcome, result.rounds) == (Outcome.PASSED, 3)
    assert run.service.asked == [0, 1, 2]
    assert await run.sandboxes() == 0


@pytest.mark.slow
async def test_an_outage_that_uses_up_the_time_says_nothing_about_the_policy(
    run: Run, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.worker.chat.http.next_delay_s", lambda tries, backoff_s: None)
    make_task("one", toml=TOML.replace("30.0", "0.5"), files={"tests/test.sh": TESTS})
    monkeypatch.setitem(STRATEGY, "made", TreeRecovery)
    run.service.broken_from = 1
    result = await run()
    assert result.outcome is Outcome.INFRASTRUCTURE_ERROR
    assert "until the time" in result.verdict.reason
    run.service.broken_from = 99
    again = await run()
    assert again.outcome is Outcome.PASSED
    assert again.episode is not None
    assert again.episode.episode_id.endswith("-t3"), "what an outage ended is not gone on with"


async def test_a_sandbox_that_is_gone_costs_no_round_where_its_files_can_be_made_again(run: Run) -> None:
    await run.killed_when(1)
    for info in await run.node.list(SandboxFilter(metadata={"rollout": "rol-test"})):
        await run.node.remove(info.sandbox_id)
    result = await run()
    assert (result.outcome, result.rounds) == (Outcome.PASSED, 3)
    assert run.service.asked == [0, 1, 1, 2]
    assert await run.sandboxes() == 0


async def test_tests_may_run_in_a_clean_sandbox(run: Run, make_task: MakeTask, tmp_path: Path) -> None:
    run.request = replace(run.request, settings=replace(run.request.settings, verify_in=VerifyIn.CLEAN))
    assert (await run()).outcome is Outcome.PASSED
    assert await run.sandboxes() == 0


async def test_a_rollout_of_episodes_is_replayed_call_by_call_without_a_model(run: Run) -> None:
    await run()
    replayed = replace(run.request, policy=f"replay:{run.out}", out=run.out.with_name("again"), rollout_id="rol-again")
    run.request, recorded = replayed, run.out
    run.out = replayed.out
    result = await run()
    assert (result.outcome, result.rounds) == (Outcome.PASSED, 3)
    assert result.episode is not None
    assert result.episode.calls == 0
    assert len(run.service.asked) == 3
    calls = [
        [[operation.call for operation in record.decision.operations] for record in read_rounds(out, one)]
        for out in (recorded, run.out)
        for one in read_results(out)[1]
    ]
    assert calls[0] == calls[1]


async def test_other_models_are_another_rollout_and_other_addresses_are_not(run: Run) -> None:
    await run()
    moved = replace(run.request.episodes, model=ModelEndpoint(url="http://127.0.0.1:9/v1", name="m"))
    run.request = replace(run.request, episodes=moved)
    await run()
    other = replace(run.request.episodes, model=ModelEndpoint(url=run.service.url, name="n"))
    run.request = replace(run.request, episodes=other)
    with pytest.raises(AlreadyExistsError, match="other settings"):
        await run()


def test_an_agent_without_a_model_and_a_scaffold_without_a_command_are_refused() -> None:
    assert is_episode_policy("scaffold:./run")
    for name, message in (("agent", "needs a model"), ("scaffold:", "says not which"), ("episode:", "says not which")):
        with pytest.raises(InvalidRequestError, match=message):
            load_policy(name)


def test_names_of_episodes_are_valid_however_long_that_of_the_task_is() -> None:
    name = episode_id_of("rol-7k2m9x0qaz", "x/" * 500, 10_000, 99)
    assert len(name) <= 63
    assert name.endswith("-a10000-t99")
