"""Systems outside: what every adapter keeps of its promises, in memory and over HTTP."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    CapabilityMissingError,
    InvalidRequestError,
    OutsideUnavailableError,
    UnknownOutcomeError,
    WriterFencedError,
)
from dsec.episode.operations import Effect
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.testing.http_service_with_keys import HttpServiceWithKeys
from dsec.testing.outside_suite import OutsideSystemSuite, UnreachableSuite, request
from dsec.worker.outside.http import HttpOptions, HttpOutside
from dsec.worker.outside.memory import MemoryLedger, MemoryOutside
from dsec.worker.outside.port import OutsideRequest, OutsideSystem

pytestmark = pytest.mark.anyio
PARAMETERS = {
    "account": {"maximum_length": 20},
    "amount": {"type": "integer", "minimum": 1},
    "long": {"type": "integer", "optional": True},
}


# -- in memory ---------------------------------------------------------------------------------------------------------


@dataclass
class MemoryWorld:
    effect: Effect
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    lost: int = 0
    fences: bool = True

    def __post_init__(self) -> None:
        self.ledger.says = lambda asked: b"ada" + b"x" * asked.arguments.get("long", 0)
        self.ledger.refuses = lambda asked: asked.arguments["amount"] > 1000
        self.system = self.again()

    def again(self) -> MemoryOutside:
        return MemoryOutside(ledger=self.ledger, effect=self.effect, loses_answer=self._loses)

    def _loses(self, asked: OutsideRequest) -> bool:
        self.lost, lost = max(0, self.lost - 1), self.lost
        return lost > 0

    async def times(self, operation_id: str) -> int:
        return self.ledger.done[operation_id]

    def lose_next_answer(self) -> None:
        self.lost = 1

    def drop_next_request(self) -> None:
        """A dictionary loses no requests."""


class TestInMemory(OutsideSystemSuite):
    @pytest.fixture(params=[Effect.ASKED, Effect.DEDUPLICATED, Effect.COMPENSATED, Effect.ONCE])
    def world(self, request: pytest.FixtureRequest) -> MemoryWorld:
        return MemoryWorld(request.param)


# -- over HTTP ---------------------------------------------------------------------------------------------------------

SERVICES: dict[str, dict[str, Any]] = {
    "asked": {"keys": True, "ask": True},
    "asked, without keys": {"keys": False, "ask": True},
    "keys": {"keys": True},
    "undone": {"keys": False, "undo": True},
    "once": {"keys": False},
}
EFFECTS = [Effect.ASKED, Effect.ASKED, Effect.DEDUPLICATED, Effect.COMPENSATED, Effect.ONCE]


def options(url: str, *, keys: bool = True, ask: bool = False, undo: bool = False, **more: Any) -> HttpOptions:
    document: dict[str, Any] = {
        "url": f"{url}/transfers",
        "parameters": PARAMETERS,
        "keys": keys,
        "settle_s": 0.02,
        "timeout_s": 2.0,
        "backoff_s": [0.01, 0.01, 0.01],
        **more,
    }
    if not keys:
        document["url"] += "?operation={operation}"
    if ask:
        document["ask"] = {"url": f"{url}/transfers/{{operation}}"}
    if undo:
        document["undo"] = {"url": f"{url}/transfers/{{operation}}", "method": "DELETE"}
    return msgspec.convert(document, HttpOptions)


@dataclass
class HttpWorld:
    service: HttpServiceWithKeys
    offered: Mapping[str, Any]
    fences: bool = False

    def __post_init__(self) -> None:
        self.fences = bool(self.offered.get("epoch_header"))
        self.system = self.again()

    def again(self) -> HttpOutside:
        return HttpOutside("transfer", options(self.service.url, **self.offered))

    async def times(self, operation_id: str) -> int:
        return self.service.done[operation_id]

    def lose_next_answer(self) -> None:
        self.service.faults.append("lose")

    def drop_next_request(self) -> None:
        self.service.faults.append("drop")


@pytest.fixture
async def service() -> AsyncIterator[HttpServiceWithKeys]:
    async with HttpServiceWithKeys().running() as running:
        yield running


class TestOverHttp(OutsideSystemSuite, UnreachableSuite):
    @pytest.fixture(params=SERVICES)
    def world(self, request: pytest.FixtureRequest, service: HttpServiceWithKeys) -> HttpWorld:
        offered = SERVICES[request.param]
        service.honours_keys = offered["keys"]
        return HttpWorld(service, offered)

    @pytest.fixture(params=SERVICES)
    def nowhere(self, request: pytest.FixtureRequest) -> OutsideSystem:
        return HttpOutside("transfer", options("http://127.0.0.1:1", **SERVICES[request.param]))


class TestOverHttpWithEpochs(OutsideSystemSuite):
    @pytest.fixture
    def world(self, service: HttpServiceWithKeys) -> HttpWorld:
        return HttpWorld(service, {"epoch_header": "X-Epoch"})


@pytest.mark.parametrize(("name", "effect"), list(zip(SERVICES, EFFECTS, strict=True)))
def test_what_a_service_offers_decides_the_kind_of_effect(name: str, effect: Effect) -> None:
    assert HttpOutside("transfer", options("http://bank", **SERVICES[name])).effect is effect


def test_a_service_of_which_nothing_is_said_is_sent_nothing_twice() -> None:
    assert HttpOutside("transfer", HttpOptions(url="http://bank")).effect is Effect.ONCE


async def test_what_is_not_offered_is_not_pretended() -> None:
    plain = HttpOutside("transfer", options("http://bank", keys=False))
    with pytest.raises(CapabilityMissingError):
        await plain.ask(request())
    with pytest.raises(CapabilityMissingError):
        await plain.compensate(request())


def sent(service: HttpServiceWithKeys, offered: Mapping[str, Any], *faults: str) -> HttpOutside:
    service.honours_keys = offered.get("keys", True)
    service.faults = deque(faults)
    return HttpOutside("transfer", options(service.url, **offered))


@pytest.mark.parametrize("fault", ["lose", "drop", "garbage", "503", "503+", "500", "429", "425", "408", "409", "302"])
async def test_a_service_with_keys_is_sent_the_same_until_it_answers(service: HttpServiceWithKeys, fault: str) -> None:
    system = sent(service, {}, fault, fault)
    answer = await system.send(request())
    assert isinstance(answer, OutsideAnswer)
    assert service.done == {request().operation_id: 1}
    assert len(service.asked) == 3
    assert {asked.headers["idempotency-key"] for asked in service.asked} == {request().operation_id}


@pytest.mark.parametrize("fault", ["lose", "drop", "garbage", "503", "503+", "500", "408", "302"])
async def test_a_service_without_keys_is_never_sent_twice_what_may_have_happened(
    service: HttpServiceWithKeys, fault: str
) -> None:
    system = sent(service, {"keys": False}, fault)
    with pytest.raises(UnknownOutcomeError):
        await system.send(request())
    assert len(service.asked) == 1


@pytest.mark.parametrize("fault", ["429@0", "425"])
async def test_what_a_service_did_not_take_is_sent_again_even_without_keys(
    service: HttpServiceWithKeys, fault: str
) -> None:
    answer = await sent(service, {"keys": False}, fault, fault).send(request())
    assert isinstance(answer, OutsideAnswer)
    assert len(service.asked) == 3


async def test_a_service_that_is_busy_to_the_end_did_nothing(service: HttpServiceWithKeys) -> None:
    with pytest.raises(OutsideUnavailableError):
        await sent(service, {}, *["429"] * 4).send(request())
    assert not service.done


async def test_being_busy_after_a_lost_answer_says_nothing_of_the_first_attempt(service: HttpServiceWithKeys) -> None:
    with pytest.raises(UnknownOutcomeError):
        await sent(service, {}, "lose", "429", "429", "429").send(request())
    assert service.done == {request().operation_id: 1}


@pytest.mark.slow
async def test_a_wait_that_the_service_asks_for_is_heeded(service: HttpServiceWithKeys) -> None:
    began = anyio.current_time()
    await sent(service, {"backoff_s": [0.0]}, "429@1").send(request())
    assert anyio.current_time() - began >= 1.0


async def test_a_hint_is_no_answer(service: HttpServiceWithKeys) -> None:
    answer = await sent(service, {"keys": False}, "hint").send(request())
    assert isinstance(answer, OutsideAnswer)
    assert (answer.status, service.done.total()) == ("201", 1)
    assert b"ada" in answer.content.data


@pytest.mark.parametrize("fault", ["silent", "headers"])
async def test_a_service_that_never_answers_leaves_it_unknown(service: HttpServiceWithKeys, fault: str) -> None:
    with pytest.raises(UnknownOutcomeError):
        await sent(service, {"keys": False, "timeout_s": 0.1}, fault).send(request())


@pytest.mark.parametrize("fault", ["half", "endless"])
async def test_an_answer_that_breaks_off_or_does_not_end_has_happened(service: HttpServiceWithKeys, fault: str) -> None:
    answer = await sent(service, {"keys": False}, fault).send(request())
    assert isinstance(answer, OutsideAnswer)
    assert answer.truncated
    assert service.done.total() == 1


async def test_a_no_of_a_service_without_keys_is_believed_only_after_a_while(service: HttpServiceWithKeys) -> None:
    system = sent(service, {"keys": False, "ask": True, "settle_s": 0.1, "timeout_s": 0.05}, "late")
    with pytest.raises(UnknownOutcomeError):
        await system.send(request())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_let_it_happen, service)
        assert isinstance(await system.ask(request()), OutsideAnswer)
    assert service.done.total() == 1


async def _let_it_happen(service: HttpServiceWithKeys) -> None:
    service.late.set()


async def test_a_key_that_belongs_to_another_request_is_refused(service: HttpServiceWithKeys) -> None:
    system = sent(service, {})
    await system.send(request())
    refused = await system.send(request(amount=8))
    assert isinstance(refused, ToolFailed)
    assert "422" in refused.brief


async def test_a_later_epoch_is_told_by_the_service(service: HttpServiceWithKeys) -> None:
    system = sent(service, {"epoch_header": "X-Epoch"})
    await system.send(request(1, epoch=3))
    with pytest.raises(WriterFencedError):
        await system.send(request(2, epoch=2))
    assert service.asked[0].headers["x-epoch"] == "3"


async def test_secrets_come_from_the_environment_and_are_shown_nowhere(service: HttpServiceWithKeys) -> None:
    told = options(service.url, headers={"Authorization": "Bearer ${BANK_TOKEN}"})
    with pytest.raises(InvalidRequestError, match="BANK_TOKEN"):
        HttpOutside("transfer", told, environment={})
    await HttpOutside("transfer", told, environment={"BANK_TOKEN": "geheim"}).send(request())
    assert service.asked[0].headers["authorization"] == "Bearer geheim"
    with pytest.raises(InvalidRequestError) as refused:
        HttpOutside("transfer", told, environment={"BANK_TOKEN": "geheim\r\nx: y"})
    assert "geheim" not in str(refused.value)


async def test_arguments_fill_the_url_and_cannot_leave_their_place(service: HttpServiceWithKeys) -> None:
    told = options(service.url, ask=True)
    told = msgspec.structs.replace(told, url=f"{service.url}/accounts/{{account}}/transfers")
    await HttpOutside("transfer", told).send(request(account="../a?b=c#d\r\n e/ü"))
    assert service.asked[0].path == "/accounts/..%2Fa%3Fb%3Dc%23d%0D%0A%20e%2F%C3%BC/transfers"
    assert msgspec.json.decode(service.asked[0].body) == {"amount": 7}


@pytest.mark.parametrize("account", ["", ".", ".."])
async def test_an_argument_that_a_path_does_not_keep_is_refused(service: HttpServiceWithKeys, account: str) -> None:
    told = options(service.url)
    told = msgspec.structs.replace(told, url=f"{service.url}/accounts/{{account}}/transfers")
    assert isinstance(await HttpOutside("transfer", told).send(request(account=account)), ToolFailed)
    assert not service.asked


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://bank"},
        {"url": "http://bank/{nobody}"},
        {"url": "http://ba nk"},
        {"url": "http://ada:geheim@bank"},
        {"url": "http://bank:99999"},
        {"url": "http://{operation}.bank"},
        {"url": "http://bank", "ask": {"url": "http://bank:{operation}/"}},
        {"method": "CONNECT"},
        {"timeout_s": 0.0},
        {"ask": {"url": "bank"}},
        {"headers": {"a b": "c"}},
        {"parameters": {"Account": {}}},
        {"parameters": {"account": {"type": "array"}}},
        {"parameters": {"account": {"pattern": "("}}},
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    document = {"url": "http://bank/transfers", **wrong}
    with pytest.raises(InvalidRequestError):
        HttpOutside("transfer", msgspec.convert(document, HttpOptions))
