"""Episodes in a worker whose tools act outside: what becomes of them by themselves when an answer is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import OutsideUnavailableError
from dsec.episode.agent_calls import OutsideCall
from dsec.episode.log_events import OperationSettled, Verdict
from dsec.episode.operations import Effect
from dsec.episode.spec import EpisodeEnvironment, EpisodeInfo, EpisodeSpec, EpisodeState, ScriptPolicy, ScriptRound
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.model.sandbox import SandboxSpec
from dsec.testing.memory_worker import MemoryWorker
from dsec.worker.episodes.policies.registry import Policies
from dsec.worker.episodes.policies.tools import ToolSet
from dsec.worker.episodes.ports import Hands, LifeContext
from dsec.worker.episodes.worker import EpisodeWorker
from dsec.worker.outside.hands import OutsideHands
from dsec.worker.outside.memory import MemoryLedger, MemoryOutside
from dsec.worker.outside.parameters import arguments_type
from dsec.worker.outside.port import OutsideRequest, OutsideTool

pytestmark = pytest.mark.anyio
EPISODE = "ep-outside"
SPEC = EpisodeSpec(
    task="t",
    policy=ScriptPolicy(rounds=(ScriptRound(calls=(OutsideCall(name="pay"),)),)),
    environment=EpisodeEnvironment(sandbox=SandboxSpec(image="python"), cwd="/"),
)


@dataclass
class Bank(MemoryOutside):
    """A system that loses so many answers, after having been away so many times."""

    losses: int = 0
    absences: int = 0
    states: list[str] = field(default_factory=list)

    async def send(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed:
        self.absences -= 1
        if self.absences >= 0:
            raise OutsideUnavailableError("the bank is closed")
        return await super().send(request)

    def loses(self, request: OutsideRequest) -> bool:
        self.losses -= 1
        return self.losses >= 0


def bank(effect: Effect, *, losses: int = 0, absences: int = 0) -> Bank:
    made = Bank(ledger=MemoryLedger(), effect=effect, losses=losses, absences=absences)
    made.loses_answer = made.loses
    return made


def place(directory: Path, system: Bank) -> MemoryWorker:
    tool = OutsideTool(name="pay", description="", arguments=arguments_type("pay", {}), system=system)

    def hands(context: LifeContext, sandbox: Hands) -> Hands:
        return OutsideHands(sandbox, {"pay": tool}, epoch=context.epoch)

    policies = Policies(tools=lambda spec: ToolSet((), outside={"pay": system.effect}))
    return MemoryWorker(directory, options={"hands": hands, "policies": policies})


async def until(worker: EpisodeWorker, holds: Callable[[EpisodeInfo], bool]) -> EpisodeInfo:
    while not holds(info := await worker.get(EPISODE)):  # noqa: ASYNC110 - a worker tells of events, not of states.
        await anyio.sleep(0.01)
    return info


async def settled(worker: EpisodeWorker) -> list[OperationSettled]:
    async with worker.events(EPISODE, follow=False) as events:
        return [event.event async for event in events if isinstance(event.event, OperationSettled)]


@pytest.mark.parametrize("effect", [Effect.ASKED, Effect.DEDUPLICATED, Effect.COMPENSATED])
async def test_a_lost_answer_is_resolved_without_anybody(effect: Effect, tmp_path: Path) -> None:
    system = bank(effect, losses=1)
    async with place(tmp_path / "worker", system).opened() as worker:
        await worker.start(SPEC, episode_id=EPISODE)
        info = await until(worker, lambda info: info.state in (EpisodeState.ENDED, EpisodeState.STOPPED))
        assert info.state is EpisodeState.ENDED
    assert system.ledger.done.total() == 1


async def test_a_lost_answer_that_nobody_can_ask_for_waits_at_once_for_a_verdict(tmp_path: Path) -> None:
    system = bank(Effect.ONCE, losses=1)
    async with place(tmp_path / "worker", system).opened() as worker:
        await worker.start(SPEC, episode_id=EPISODE)
        info = await until(worker, lambda info: info.state in (EpisodeState.WAITING, EpisodeState.STOPPED))
        assert info.state is EpisodeState.WAITING
        assert [unknown.call for unknown in info.unknown] == [OutsideCall(name="pay")]
        name = info.unknown[0].operation_id
        await worker.settle(EPISODE, name, Verdict.HAPPENED, result=OutsideAnswer(status="paid"), by="ada")
        await until(worker, lambda info: info.state is EpisodeState.ENDED)
    assert system.ledger.done.total() == 1


@pytest.mark.parametrize("effect", [Effect.ONCE, Effect.ASKED, Effect.COMPENSATED])
async def test_a_system_that_is_away_for_a_while_makes_nothing_unknown(effect: Effect, tmp_path: Path) -> None:
    system = bank(effect, absences=2)
    async with place(tmp_path / "worker", system).opened() as worker:
        await worker.start(SPEC, episode_id=EPISODE)
        info = await until(worker, lambda info: info.state in (EpisodeState.ENDED, EpisodeState.WAITING))
        assert info.state is EpisodeState.ENDED
        assert [event.verdict for event in await settled(worker)] == [Verdict.DID_NOT_HAPPEN] * 2
    assert system.ledger.done.total() == 1
