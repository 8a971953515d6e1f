"""A simulated backend in its own time: slots, prefill, pace, limits, repetition."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import InvalidRequestError
from dsec.costs.model_service import call_time_s
from dsec.gateway.config import Api
from dsec.gateway.fake.asked import FakeCall, read_call
from dsec.gateway.fake.service import FakeRefusedError, FakeService
from dsec.gateway.fake.settings import FakeSettings, Trouble
from dsec.routing.backend import Pace

pytestmark = pytest.mark.anyio
PACE = (Pace(calls=1, s_per_token=0.01), Pace(calls=2, s_per_token=0.02))


def chat(text: str = "x" * 400, **more: Any) -> FakeCall:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    return read_call(Api.CHAT, json.dumps(body).encode())


class Time:
    """Time that passes only in `asyncio.sleep`: the sleeper that is due first goes on first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0
        self._real = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self._count += 1
        self._sleepers.append((self.clock.boot_s() + seconds, self._count, event))
        await event.wait()

    async def run(self, *work: Any) -> list[Any]:
        """Run until all is done; return what each gave."""
        tasks = [asyncio.ensure_future(one) for one in work]
        while not all(task.done() for task in tasks):
            for _ in range(20):
                await self._real(0)
            if self._sleepers:
                self._sleepers.sort()
                due_s, _, event = self._sleepers.pop(0)
                self.clock.advance(max(0.0, due_s - self.clock.boot_s()))
                event.set()
        return [task.result() for task in tasks]


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


async def serve(service: FakeService, clock: ManualClock, call: FakeCall, trouble: Trouble | None = None) -> float:
    """Serve a call; return when it was done."""
    async with service.slot(call):
        answer = await service.prefill(call, trouble, service.repeat_of(call))
        await service.until(service.position() + answer.thinking_tokens + answer.visible_tokens)
        service.finish(call, answer)
    return clock.boot_s()


async def test_one_call_takes_prefill_and_tokens(time: Time) -> None:
    settings = FakeSettings(pace=PACE, prefill_tokens_per_s=1000.0, cached_tokens_per_s=10_000.0, visible_tokens=50)
    service = FakeService(settings, time.clock)
    start_s = time.clock.boot_s()
    (done_s,) = await time.run(serve(service, time.clock, chat()))
    tokens_s = call_time_s(output_tokens=50, pace_s_per_token=0.01)
    assert done_s - start_s == pytest.approx(100 / 1000 + tokens_s)
    (again_s,) = await time.run(serve(service, time.clock, chat()))
    # 96 of 100 tokens are whole blocks, and are cached now.
    assert again_s - done_s == pytest.approx(96 / 10_000 + 4 / 1000 + tokens_s)


async def test_two_calls_slow_each_other_down_and_a_third_waits_for_a_slot(time: Time) -> None:
    service = FakeService(FakeSettings(pace=PACE, slots=2, visible_tokens=50), time.clock)
    start_s = time.clock.boot_s()
    done = await time.run(*(serve(service, time.clock, chat(f"{number}" * 400)) for number in range(3)))
    first, second, third = (done_s - start_s for done_s in done)
    assert first == pytest.approx(1.0, abs=0.05)
    assert second == pytest.approx(1.0, abs=0.05)
    assert third == pytest.approx(1.5, abs=0.05)


async def test_a_full_line_refuses_as_overload(time: Time) -> None:
    service = FakeService(FakeSettings(pace=PACE, slots=1, waiting=1, visible_tokens=5), time.clock)
    calls = [serve(service, time.clock, chat(f"{number}" * 400)) for number in range(3)]
    with pytest.raises(FakeRefusedError) as raised:
        await time.run(*calls)
    assert raised.value.status == 503
    assert service.statistics()["counts"]["answered"] == 2


@pytest.mark.parametrize("tells_when", [True, False])
def test_more_calls_than_a_minute_takes_are_refused_with_or_without_a_time(tells_when: bool) -> None:
    clock = ManualClock()
    service = FakeService(FakeSettings(requests_per_minute=2, tells_when=tells_when), clock)
    for _ in range(2):
        service.check(chat(), None)
    with pytest.raises(FakeRefusedError) as raised:
        service.check(chat(), None)
    assert raised.value.status == 429
    assert (raised.value.retry_after_s is not None) is tells_when
    clock.advance(raised.value.retry_after_s or 62.0)
    service.check(chat(), None)


def test_equal_seeds_give_equal_troubles_and_shares_hold() -> None:
    shares = {Trouble.FAILED: 0.2, Trouble.STALLED: 0.1}
    calls = [chat(f"call {number}") for number in range(1000)]

    def drawn(seed: int) -> list[Trouble | None]:
        service = FakeService(FakeSettings(troubles=shares, seed=seed), ManualClock())
        return [service.trouble_of(call, service.repeat_of(call)) for call in calls]

    first = drawn(1)
    assert first == drawn(1)
    assert first != drawn(2)
    assert first.count(Trouble.FAILED) == pytest.approx(200, abs=50)
    assert first.count(Trouble.STALLED) == pytest.approx(100, abs=40)


def test_a_call_that_comes_again_may_go_another_way() -> None:
    service = FakeService(FakeSettings(troubles={Trouble.FAILED: 0.5}), ManualClock())
    drawn = {service.trouble_of(chat(), service.repeat_of(chat())) for _ in range(40)}
    assert drawn == {None, Trouble.FAILED}


@pytest.mark.parametrize(
    "wrong", [{"speed": 0.0}, {"troubles": {Trouble.FAILED: 1.5}}, {"event_tokens": 0}, {"visible_tokens": -1}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        FakeSettings(**wrong)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"model": "m"}',
        b'{"messages": []}',
        b'{"model":"m","dsec_fake":{"x":1}}',
        b'{"model":"m","messages":[{"role":"user","content":5}]}',
        b'{"model":"m","messages":[{"content":"x"}],"tools":"t"}',
        b'{"model":"m","messages":[{"content":"x"}],"max_tokens":"many"}',
        b'{"model":"m","messages":7}',
    ],
)
def test_what_is_no_call_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_call(Api.CHAT, body)
