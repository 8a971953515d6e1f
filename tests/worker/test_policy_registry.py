"""From a spec's policy to who decides: what ships, scaffolds, and code of a trainer's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import CallerError, DeadlineExceededError, InvalidRequestError, UnknownOutcomeError
from dsec.episode.agent_calls import Submit
from dsec.episode.episode_progress import EpisodeProgress
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.operations import Effect, ModelDecision, Operation, RoundRecord
from dsec.episode.spec import (
    AgentPolicy,
    EpisodeSpec,
    ModelEndpoint,
    OutsideSpec,
    PluginPolicy,
    PolicySpec,
    ReplayPolicy,
    ScaffoldPolicy,
    ScriptPolicy,
    ScriptRound,
)
from dsec.episode.tools import CommandOutput, Run, ToolFailed, ToolResult
from dsec.model.process import CommandRequest, CommandResult, ExitStatus, ProcessInfo, ProcessState
from dsec.service.port import SandboxService
from dsec.service.state import StateService
from dsec.testing.episodes import round_record
from dsec.worker.episodes.hands import SandboxHands
from dsec.worker.episodes.policies.registry import PluginContext, Policies
from dsec.worker.episodes.policies.tool_calling import ToolCallingPolicy
from dsec.worker.episodes.ports import Finished, LifeContext, LoopPolicy, Proposal, Turn

pytestmark = pytest.mark.anyio
EPISODE = "ep-one"
URL = "http://127.0.0.1:9/v1"


async def _no_note(event: object) -> None:
    del event


def life(policy: PolicySpec, recorded: Mapping[str, Sequence[RoundRecord]] = {}, **more: Any) -> LifeContext:
    async def read(episode_id: str) -> Sequence[RoundRecord]:
        return recorded[episode_id]

    return LifeContext(
        episode_id=EPISODE,
        spec=EpisodeSpec(task="t", instruction="mend it", policy=policy, **more),
        service=cast(SandboxService, None),
        state=cast(StateService, None),
        progress=EpisodeProgress(),
        epoch=1,
        note=_no_note,
        clock=ManualClock(),
        recorded=read,
    )


def turn(number: int, rounds: Sequence[RoundRecord] = ()) -> Turn:
    identity = EpisodeIdentity(episode_id=EPISODE, task="t")
    return Turn(identity=identity, number=number, decision=1, seed=1, rounds=rounds)


class Twice:
    """A policy of a trainer's own: the same command in two rounds."""

    def __init__(self, context: PluginContext) -> None:
        self.command = str(context.options.get("command", "true"))

    async def decide(self, turn: Turn) -> Proposal | Finished:
        return Finished(reason="twice") if turn.number > 2 else Proposal(calls=(Run(script=self.command),))


def broken(context: PluginContext) -> object:
    raise RuntimeError(f"no {context.life.spec.task}")


def nobody(context: PluginContext) -> object:
    del context
    return "nobody"


NOT_CALLABLE = 7
HERE = __name__


async def test_an_agent_gets_the_tools_and_the_model_that_its_spec_names() -> None:
    endpoint = ModelEndpoint(url=URL, name="m", key_variable="KEY")
    made = await Policies({"KEY": "secret"})(life(AgentPolicy(model=endpoint, tools=("shell", "submit"))))
    assert isinstance(made.policy, ToolCallingPolicy)
    assert made.model.name == "m"
    stronger = ModelEndpoint(url=URL, name="stronger")
    assert (await Policies({})(life(AgentPolicy(model=endpoint)), stronger)).model.name == "stronger"


async def test_a_script_is_played_and_a_replay_does_what_was_recorded() -> None:
    script = ScriptPolicy(rounds=(ScriptRound(calls=(Run(script="ls"),)), ScriptRound(message="done")))
    made = await Policies({})(life(script))
    assert await made.policy.decide(turn(1)) == Proposal(calls=(Run(script="ls"),))
    assert made.declare(Run(script="ls")).effect is Effect.WORKSPACE
    assert isinstance(await made.policy.decide(turn(3)), Finished)
    record = round_record(1)
    again = await Policies({})(life(ReplayPolicy(episode_id="ep-other"), {"ep-other": [record]}))
    decided = await again.policy.decide(turn(1))
    assert isinstance(decided, Proposal)
    assert decided.calls == tuple(operation.call for operation in record.decision.operations)


async def test_a_policy_of_the_trainers_own_is_loaded_with_its_options() -> None:
    made = await Policies({})(life(PluginPolicy(name=f"{HERE}:Twice", options={"command": "make"})))
    assert await made.policy.decide(turn(1)) == Proposal(calls=(Run(script="make"),))
    assert made.declare(Submit()).effect is Effect.NONE
    assert isinstance(made, LoopPolicy)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no-such-policy", InvalidRequestError, "there is no policy"),
        ("no.such.module:Policy", InvalidRequestError, "cannot be loaded"),
        (f"{HERE}:Nothing", InvalidRequestError, "cannot be loaded"),
        (f"{HERE}:NOT_CALLABLE", InvalidRequestError, "not callable"),
        (f"{HERE}:nobody", InvalidRequestError, "decides nothing"),
        (f"{HERE}:broken", CallerError, "cannot be made"),
    ],
)
async def test_a_policy_that_cannot_be_made_is_a_typed_error(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await Policies({})(life(PluginPolicy(name=name)))


@pytest.mark.parametrize(
    ("policy", "more", "message"),
    [
        (AgentPolicy(model=ModelEndpoint(url="nowhere")), {}, "no URL"),
        (AgentPolicy(model=ModelEndpoint(url=URL), stronger=(ModelEndpoint(url="ftp://x"),)), {}, "no URL"),
        (AgentPolicy(model=ModelEndpoint(url=URL, key_variable="NOT_THERE")), {}, "NOT_THERE"),
        (AgentPolicy(model=ModelEndpoint(url=URL), tools=("telepathy",)), {}, "no tool 'telepathy'"),
        (AgentPolicy(model=ModelEndpoint(url=URL)), {"shell_effect": "magic"}, "no kind of effect"),
        (PluginPolicy(name="no-such-policy"), {}, "there is no policy"),
        (ScaffoldPolicy(command=" "), {}, "command is empty"),
        (ScaffoldPolicy(command="run", timeout_s=float("nan")), {}, "a scaffold cannot have"),
    ],
)
def test_a_spec_that_could_never_decide_is_refused_before_anything_begins(
    policy: PolicySpec, more: dict[str, Any], message: str
) -> None:
    spec = EpisodeSpec(task="t", policy=policy, outside=(OutsideSpec(name="x", adapter="y"),), **more)
    with pytest.raises(InvalidRequestError, match=message):
        Policies({}).check(spec)


# -- scaffolds ---------------------------------------------------------------------------------------------------------


class ProcessHost:
    """The part of a node that keeps background processes; each ends when it has been waited for twice."""

    def __init__(self) -> None:
        self.started: list[CommandRequest] = []
        self.waits = 0
        self.is_gone = False

    async def start_process(self, sandbox_id: str, request: CommandRequest) -> ProcessInfo:
        self.started.append(request)
        return self._info(len(self.started) - 1)

    async def list_processes(self, sandbox_id: str) -> Sequence[ProcessInfo]:
        other = ProcessInfo(process_id="prc-x", argv=("sleep", "9"), state=ProcessState.RUNNING)
        return [other, *(self._info(place) for place in range(len(self.started)))]

    async def wait_process(self, sandbox_id: str, process_id: str, *, timeout_s: float | None = None) -> CommandResult:
        assert timeout_s is not None
        self.waits += 1
        if self.is_gone:
            raise UnknownOutcomeError("nobody saw how it ended")
        if self.waits % 2:
            raise DeadlineExceededError("it still runs")
        return CommandResult(status=ExitStatus(exit_code=0, duration_s=3.0), stdout=b"patched")

    def _info(self, place: int) -> ProcessInfo:
        return ProcessInfo(process_id=f"prc-{place}", argv=self.started[place].argv, state=ProcessState.RUNNING)


def scaffold_round(made: LoopPolicy, proposal: Proposal) -> Operation:
    declared = made.declare(proposal.calls[0])
    return Operation(operation_id=f"{EPISODE}.r1.d1.c0", call=proposal.calls[0], effect=declared.effect)


async def test_a_scaffold_is_one_process_that_whoever_comes_after_asks_for() -> None:
    made = await Policies({})(life(ScaffoldPolicy(command="./agent --all", timeout_s=90, env={"URL": URL})))
    proposal = await made.policy.decide(turn(1))
    assert isinstance(proposal, Proposal)
    operation = scaffold_round(made, proposal)
    assert operation.effect is Effect.ASKED
    host = ProcessHost()
    hands = SandboxHands(cast(SandboxService, host), "sbx-a", cwd="/work")
    assert await hands.ask(operation) is None, "it never began"
    ran = await hands.run(operation)
    assert isinstance(ran, CommandOutput)
    assert (ran.exit_code, ran.stdout.text) == (0, "patched")
    (request,) = host.started
    assert request.argv[-1] == "./agent --all"
    assert operation.operation_id in request.argv
    assert (request.stdin, request.cwd, request.timeout_s) == (b"mend it", "/work", 90)
    assert request.env == {"DSEC_INSTRUCTION": "/tmp/dsec-instruction.md", "URL": URL}
    assert await SandboxHands(cast(SandboxService, host), "sbx-a").ask(operation) == ran
    assert len(host.started) == 1
    host.is_gone = True
    gone = await hands.ask(operation)
    assert isinstance(gone, ToolFailed), "what nobody saw the end of is said to be so, and not run again"


@pytest.mark.parametrize(
    ("result", "reason", "code"),
    [
        (CommandOutput(exit_code=0), "the scaffold ended", ""),
        (CommandOutput(exit_code=3), "exited with 3", "scaffold_failed"),
        (CommandOutput(exit_code=137, timed_out=True), "did not end in 90 s", "scaffold_failed"),
        (ToolFailed(code="x", brief="no such user"), "no such user", "scaffold_failed"),
    ],
)
async def test_a_scaffold_ends_its_episode_and_says_how(result: ToolResult, reason: str, code: str) -> None:
    made = await Policies({})(life(ScaffoldPolicy(command="run", timeout_s=90)))
    proposal = await made.policy.decide(turn(1))
    assert isinstance(proposal, Proposal)
    decision = ModelDecision(operations=(scaffold_round(made, proposal),))
    record = RoundRecord(number=1, decision=decision, results=(result,), attempts=(1,))
    ended = await made.policy.decide(turn(2, [record]))
    assert isinstance(ended, Finished)
    assert reason in ended.reason
    assert ended.error_code == code
