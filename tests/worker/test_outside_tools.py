"""Tools of systems outside: from an episode's spec to what a model is offered, and from its call to the system."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dsec.base.errors import (
    CapabilityMissingError,
    InvalidRequestError,
    InvalidStateError,
    OutsideUnavailableError,
    UnknownOutcomeError,
)
from dsec.episode.agent_calls import OutsideCall, UnusableCall
from dsec.episode.operations import Effect, Operation
from dsec.episode.spec import EpisodeSpec, OutsideSpec, ScriptPolicy
from dsec.episode.tools import OutsideAnswer, Run, ToolFailed, ToolResult
from dsec.testing.episodes import result
from dsec.testing.http_service_with_keys import HttpServiceWithKeys
from dsec.worker.episodes.policies.tool_calling import shown_result
from dsec.worker.outside import registry
from dsec.worker.outside.hands import OutsideHands
from dsec.worker.outside.memory import MemoryLedger, MemoryOutside
from dsec.worker.outside.parameters import Parameter, arguments_type
from dsec.worker.outside.port import OutsideTool
from dsec.worker.outside.registry import OutsideSystems, open_tool

pytestmark = pytest.mark.anyio
PARAMETERS: dict[str, Any] = {
    "account": {"description": "whose", "maximum_length": 10, "pattern": "^[a-z]+$"},
    "amount": {"type": "integer", "minimum": 1, "maximum": 100},
    "kind": {"values": ["gift", "debt"], "optional": True},
    "note": {"optional": True},
}


def spec(*outside: OutsideSpec) -> EpisodeSpec:
    return EpisodeSpec(task="t", policy=ScriptPolicy(rounds=()), outside=outside)


def bank(url: str = "http://bank", **more: Any) -> OutsideSpec:
    offered = {"url": f"{url}/transfers", "description": "Pay.", "parameters": PARAMETERS, "keys": True}
    options = {"backoff_s": [0.0], **offered, **more}
    return OutsideSpec(name="pay", adapter="http", options=options)


def test_a_spec_makes_a_tool_that_a_model_is_offered_beside_those_that_ship() -> None:
    tools = OutsideSystems({}).tools(spec(bank()))
    pay = {tool.name: tool for tool in tools.tools}["pay"]
    assert pay.description == "Pay."
    assert pay.schema["required"] == ["account", "amount"]
    assert pay.schema["additionalProperties"] is False
    assert pay.schema["properties"]["account"]["description"] == "whose"
    assert pay.schema["properties"]["amount"]["maximum"] == 100
    assert {"shell", "submit"} < {tool.name for tool in tools.tools}
    assert "pay" in {tool.name for tool in tools.only(["shell"]).tools}
    call = tools.call("pay", '{"account": "ada", "amount": 7, "note": null}')
    assert call == OutsideCall(name="pay", arguments={"account": "ada", "amount": 7})
    assert tools.declare(call).effect is Effect.DEDUPLICATED
    assert not tools.declare(call).parallel
    assert tools.declare(OutsideCall(name="nobody")).effect is Effect.ONCE


@pytest.mark.parametrize(
    "arguments",
    [
        '{"account": "ada"}',
        '{"account": "Ada", "amount": 7}',
        '{"account": "ada", "amount": 101}',
        '{"account": "ada", "amount": "7"}',
        '{"account": "ada", "amount": 7, "kind": "theft"}',
        '{"account": "ada", "amount": 7, "more": 1}',
        '{"account": "abcdefghijk", "amount": 7}',
        "[]",
        "not JSON",
    ],
)
def test_what_does_not_fit_is_told_to_the_model_and_sent_nowhere(arguments: str) -> None:
    assert isinstance(OutsideSystems({}).tools(spec(bank())).call("pay", arguments), UnusableCall)


@pytest.mark.parametrize(
    "wrong",
    [
        OutsideSpec(name="Pay", adapter="http", options={"url": "http://bank"}),
        OutsideSpec(name="shell", adapter="http", options={"url": "http://bank"}),
        OutsideSpec(name="pay", adapter="nobody"),
        OutsideSpec(name="pay", adapter="http"),
        OutsideSpec(name="pay", adapter="http", options={"url": "http://bank", "colour": "red"}),
        OutsideSpec(name="pay", adapter="http", options={"url": "http://bank", "headers": {"a": "${NOBODY_SET_IT}"}}),
        OutsideSpec(name="pay", adapter="postgresql", options={"statements": "SELECT 1"}),
    ],
)
def test_a_spec_that_cannot_be_is_refused(wrong: OutsideSpec) -> None:
    with pytest.raises(InvalidRequestError):
        OutsideSystems({}).tools(spec(wrong))


def test_two_systems_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="same name"):
        OutsideSystems({}).tools(spec(bank(), bank()))


def test_the_spec_of_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "outside.md").read_text()
    shown = msgspec.json.decode(text.partition("```json\n")[2].partition("```")[0], type=EpisodeSpec)
    tools = OutsideSystems({"BANK_TOKEN": "x", "TICKETS": "dbname=tickets"}).tools(shown)
    refund = tools.call("refund", '{"order": "17", "cents": 500}')
    ticket = tools.call("close_ticket", '{"ticket": 4}')
    assert [tools.declare(call).effect for call in (refund, ticket)] == [Effect.ASKED, Effect.ASKED]
    with pytest.raises(InvalidRequestError, match="BANK_TOKEN"):
        OutsideSystems({}).tools(shown)


# -- plug-ins ----------------------------------------------------------------------------------------------------------


def made_tool(name: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> OutsideTool:
    """A plug-in of this file."""
    if "breaks" in options:
        raise ZeroDivisionError("the plug-in is broken")
    effect = Effect(options.get("effect", "asked"))
    arguments = arguments_type(name, {"account": Parameter()})
    system = MemoryOutside(ledger=MemoryLedger(), effect=effect)
    return OutsideTool(name=name, description=environment["BANK"], arguments=arguments, system=system)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint(name="ours", value=f"{__name__}:made_tool", group=registry.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: made_tool)

    def found(*, group: str, name: str = "ours") -> EntryPoints:
        return EntryPoints([entry] if (group, name) == (registry.GROUP, "ours") else [])

    monkeypatch.setattr(registry, "entry_points", found)


@pytest.mark.usefixtures("installed")
def test_an_adapter_that_is_installed_makes_tools_as_those_that_ship() -> None:
    tool = open_tool(OutsideSpec(name="pay", adapter="ours"), {"BANK": "from the environment"})
    assert tool.description == "from the environment"
    assert tool.system.effect is Effect.ASKED


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("options", [{"breaks": True}, {"effect": "none"}, {"effect": "workspace"}])
def test_a_plug_in_that_is_broken_refuses_its_episode(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="pay"):
        open_tool(OutsideSpec(name="pay", adapter="ours", options=options), {"BANK": ""})


# -- hands -------------------------------------------------------------------------------------------------------------


@dataclass
class Inside:
    """Hands in a sandbox, which say what they were asked for."""

    asked: list[str] = field(default_factory=list)

    async def run(self, operation: Operation) -> ToolResult:
        self.asked.append("run")
        return result("inside")

    async def ask(self, operation: Operation) -> ToolResult | None:
        self.asked.append("ask")
        return None

    async def compensate(self, operation: Operation) -> None:
        self.asked.append("compensate")


def paying(*, effect: Effect = Effect.ASKED, **arguments: Any) -> Operation:
    call = OutsideCall(name="pay", arguments={"account": "ada", "amount": 7, **arguments})
    return Operation(operation_id="ep-out.r1.d1.c0", call=call, effect=effect)


@dataclass
class Till:
    """Hands with a system in memory."""

    effect: Effect
    losses: int = 0
    ledger: MemoryLedger = field(default_factory=MemoryLedger)

    def __post_init__(self) -> None:
        self.system = MemoryOutside(ledger=self.ledger, effect=self.effect, loses_answer=self._loses)
        parameters = msgspec.convert(PARAMETERS, dict[str, Parameter])
        arguments = arguments_type("pay", parameters)
        tool = OutsideTool(name="pay", description="", arguments=arguments, system=self.system)
        self.inside = Inside()
        self.hands = OutsideHands(self.inside, {"pay": tool}, epoch=3)

    def _loses(self, asked: object) -> bool:
        self.losses -= 1
        return self.losses >= 0


async def test_calls_of_systems_outside_go_there_and_all_others_into_the_sandbox() -> None:
    till = Till(Effect.ASKED)
    assert isinstance(await till.hands.run(paying()), OutsideAnswer)
    assert till.ledger.done == {"ep-out.r1.d1.c0": 1}
    assert till.ledger.epochs == {"ep-out": 3}
    shell = Operation(operation_id="ep-out.r1.d1.c1", call=Run(script="true"))
    await till.hands.run(shell)
    await till.hands.ask(shell)
    await till.hands.compensate(shell)
    assert till.inside.asked == ["run", "ask", "compensate"]


async def test_a_lost_answer_is_asked_for_at_once_where_the_system_can_be_asked() -> None:
    till = Till(Effect.ASKED, losses=1)
    assert isinstance(await till.hands.run(paying()), OutsideAnswer)
    assert till.ledger.done.total() == 1


@pytest.mark.parametrize("effect", [Effect.ONCE, Effect.COMPENSATED, Effect.DEDUPLICATED])
async def test_a_lost_answer_stops_the_loop_where_asking_is_no_help(effect: Effect) -> None:
    till = Till(effect, losses=1)
    with pytest.raises(UnknownOutcomeError):
        await till.hands.run(paying(effect=effect))
    assert till.ledger.done.total() == 1


async def test_a_system_that_does_not_say_what_became_of_it_leaves_it_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    till = Till(Effect.ASKED, losses=1)

    async def silent(self: MemoryOutside, asked: object) -> None:
        raise OutsideUnavailableError("it does not say")

    monkeypatch.setattr(MemoryOutside, "ask", silent)
    with pytest.raises(UnknownOutcomeError):
        await till.hands.run(paying())


async def test_a_script_that_asks_for_what_does_not_fit_is_told_so() -> None:
    till = Till(Effect.ASKED)
    assert isinstance(await till.hands.run(paying(amount="much")), ToolFailed)
    other = Operation(operation_id="ep-out.r1.d1.c0", call=OutsideCall(name="nobody"))
    assert isinstance(await till.hands.run(other), ToolFailed)
    with pytest.raises(InvalidStateError, match="nobody"):
        await till.hands.ask(other)
    with pytest.raises(InvalidStateError, match="nobody"):
        await till.hands.compensate(other)
    assert not till.ledger.done


@pytest.mark.parametrize("effect", [Effect.ASKED, Effect.DEDUPLICATED, Effect.COMPENSATED])
async def test_an_adapter_that_keeps_less_than_was_declared_does_nothing(effect: Effect) -> None:
    till = Till(Effect.ONCE)
    for act in (till.hands.run, till.hands.ask, till.hands.compensate):
        with pytest.raises(InvalidStateError, match=effect.value):
            await act(paying(effect=effect))
    assert not till.ledger.done
    await till.hands.run(paying(effect=Effect.ONCE))
    assert till.ledger.done.total() == 1


@pytest.fixture
async def service() -> AsyncIterator[HttpServiceWithKeys]:
    async with HttpServiceWithKeys().running() as running:
        yield running


async def test_a_call_that_a_model_wrote_reaches_the_service_with_its_id(service: HttpServiceWithKeys) -> None:
    systems = OutsideSystems({"TOKEN": "geheim"})
    asked = spec(bank(service.url, headers={"Authorization": "Bearer ${TOKEN}"}))
    tools = systems.tools(asked)
    call = tools.call("pay", '{"account": "ada", "amount": 7}')
    hands = OutsideHands(Inside(), systems.open(asked.outside), epoch=1)
    answer = await hands.run(Operation(operation_id="ep-out.r1.d1.c0", call=call, effect=tools.declare(call).effect))
    assert shown_result(answer).startswith('[201]\n{"transfer":"ep-out.r1.d1.c0"')
    assert service.asked[0].headers["idempotency-key"] == "ep-out.r1.d1.c0"
    assert "geheim" not in msgspec.json.encode([call, answer]).decode()


def test_what_an_adapter_needs_and_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, options: object, environment: object) -> OutsideTool:
        raise CapabilityMissingError("the adapter postgresql needs psycopg")

    monkeypatch.setattr(registry, "SHIPPED", {"postgresql": missing})
    with pytest.raises(CapabilityMissingError, match="psycopg"):
        open_tool(OutsideSpec(name="pay", adapter="postgresql"), {})
