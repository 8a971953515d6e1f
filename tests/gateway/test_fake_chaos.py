"""Simulated backends that fail in all their ways, in three protocols: what they did is what the ledger says."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dsec.gateway.config_reading import parse_config
from dsec.gateway.fake.server import serve_fake
from dsec.gateway.fake.settings import FakeSettings, Trouble
from dsec.gateway.ledger import pair_attempts, read_records
from dsec.gateway.ledger_record import Attempt, Began, Ended, Outcome
from dsec.gateway.server import serve
from dsec.gateway.spending import By, spending, total_spending
from dsec.routing.backend import Pace
from dsec.routing.usage import Source

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CALLS = 300
GIVEN_UP = ("wrong_model", "silent", "stalled", "cancelled")
AT_ONCE = 60
TROUBLES = [trouble for trouble in Trouble if trouble is not Trouble.REFUSED]
CONFIG = """\
[gateway]
port = 0
state_dir = "state"
open = true
grace = "0.1s"
maximum_event = "256 KiB"
maximum_answer = "256 KiB"
[routing]
suspend = "20ms"
pause = "5ms"
[models.m]
attempts = 4
stall_timeout = "80ms"
first_byte_timeout = "250ms"
deadline = "5s"
[projects.open]
"""
BACKEND = """\
[[backends]]
name = "{name}"
group = "m"
url = "{url}"
apis = ["chat", "responses", "messages"]
slots = 16
prices = {{ input = "2 USD/Mtoken", output = "10 USD/Mtoken", cache_read = "0.2 USD/Mtoken" }}
"""


class Setting:
    """A gateway before three simulated backends."""

    def __init__(self, http: httpx2.AsyncClient, fakes: dict[str, Any], serving: Any, directory: Path) -> None:
        self.http = http
        self.fakes = fakes
        self.serving = serving
        self.directory = directory

    def attempts(self) -> list[Attempt]:
        return list(pair_attempts(read_records(self.directory)))


@pytest.fixture(params=[1, 2], ids=["seed 1", "seed 2"])
async def setting(request: Any, tmp_path: Path) -> AsyncIterator[Setting]:
    async with AsyncExitStack() as stack:
        fakes = {}
        text = CONFIG
        for number, name in enumerate(("one", "two", "three")):
            settings = FakeSettings(
                slots=12,
                pace=(Pace(calls=1, s_per_token=0.0002), Pace(calls=12, s_per_token=0.0005)),
                visible_tokens=24,
                thinking_tokens=8,
                troubles=dict.fromkeys(TROUBLES, 0.35 / len(TROUBLES)),
                seed=10 * request.param + number,
            )
            fakes[name] = await stack.enter_async_context(serve_fake(settings))
            text += BACKEND.format(name=name, url=fakes[name].url)
        serving = await stack.enter_async_context(serve(parse_config("gateway.toml", text), tmp_path, environment={}))
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=serving.url, timeout=60))
        yield Setting(http, fakes, serving, tmp_path / "state")


async def call(setting: Setting, number: int, draws: random.Random, seen: Counter[str]) -> None:
    """Make one call of any kind; every sixth caller goes away at some time."""
    say = [{"role": "user", "content": f"call {number} " + "word" * 40}]
    path, body = draws.choice(
        [
            ("/v1/chat/completions", {"messages": say}),
            ("/v1/responses", {"input": say}),
            ("/v1/messages", {"messages": say, "max_tokens": 500}),
        ]
    )
    patience_s = draws.random() * 0.05 if draws.random() < 1 / 6 else None
    try:
        async with asyncio.timeout(patience_s):
            answer = await setting.http.post(
                path,
                json={"model": "m", "stream": draws.random() < 0.6, **body},
                headers={"X-DSec-Episode": f"e{number % 11}"},
            )
    except TimeoutError:
        seen["gone"] += 1
    else:
        whole = answer.status_code == 200 and b'"error":{' not in answer.content.replace(b" ", b"")
        seen["whole" if whole else "told"] += 1


async def test_what_the_backends_did_is_in_the_ledger_exactly_once(setting: Setting, until: Any) -> None:
    draws = random.Random(7)
    seen: Counter[str] = Counter()
    for start in range(0, CALLS, AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for number in range(start, start + AT_ONCE):
                group.create_task(call(setting, number, draws, seen))
    await until(lambda: not setting.serving.proxy.under_way)
    await until(lambda: not any(fake.service.statistics()["running"] for fake in setting.fakes.values()))
    attempts = setting.attempts()
    assert sum(seen.values()) == CALLS
    assert seen["whole"] > CALLS / 2
    _each_began_and_ended_once(setting)
    for name, fake in setting.fakes.items():
        _backend_agrees(fake.service.counts, [one for one in attempts if one.began.backend == name])
    # Every caller that has a whole answer has it from one attempt, and no call has two.
    answered = Counter(one.began.call for one in attempts if one.ended.outcome is Outcome.ANSWERED)
    assert set(answered.values()) == {1}
    assert seen["whole"] <= len(answered) <= seen["whole"] + seen["gone"]
    _sums_agree(setting, attempts)


def _each_began_and_ended_once(setting: Setting) -> None:
    records = list(read_records(setting.directory))
    began = [record.attempt for record in records if isinstance(record, Began)]
    ended = [record.attempt for record in records if isinstance(record, Ended)]
    assert len(set(began)) == len(began)
    assert sorted(began) == sorted(ended)


def _backend_agrees(counts: Counter[str], attempts: list[Attempt]) -> None:
    """Hold what a backend counted against the attempts at it."""
    assert counts["begun"] <= len(attempts)
    # An attempt that never reached it was ended by its caller, or could not connect.
    unseen = [
        one for one in attempts if one.ended.outcome in (Outcome.CANCELLED, Outcome.CUT) or one.ended.status is None
    ]
    assert len(attempts) - counts["begun"] <= len(unseen)
    answered = [one for one in attempts if one.ended.outcome is Outcome.ANSWERED]
    # A backend counts an answer when it has sent it. The gateway may have refused it (another model), or may have given
    # up just before: its caller was gone, or its patience was over.
    given_up = [one for one in attempts if one.ended.failure in GIVEN_UP or one.ended.outcome is Outcome.CUT]
    assert len(answered) <= counts["answered"] <= len(answered) + len(given_up)
    for one in answered:
        usage = one.ended.usage
        if usage.visible.source is Source.REPORTED:
            assert usage.thinking.tokens + usage.visible.tokens in (24, 32)  # Messages do not think unasked.


def _sums_agree(setting: Setting, attempts: list[Attempt]) -> None:
    total = total_spending(attempts)
    account = setting.serving.proxy.accounts.all()["project", "open"]
    assert (account.held_tokens, account.held_usd) == (0, 0.0)
    assert account.usd == pytest.approx(total.usd)
    assert account.calls == total.calls == len({one.began.call for one in attempts})
    for by in (By.CALL, By.EPISODE, By.BACKEND, By.MODEL):
        assert sum(one.usd for one in spending(attempts, by)) == pytest.approx(total.usd)
    for known in setting.serving.proxy.router.statistics(setting.serving.proxy.now_s()):
        assert (known.running, known.waiting) == (0, 0)
