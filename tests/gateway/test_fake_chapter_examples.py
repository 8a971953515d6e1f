"""The chapter's examples 11-5, 11-6 and 11-7, out of calls that were made to simulated backends and recorded.

The simulated backends count four bytes as a token, so that prompts have exactly the lengths of the examples; prices are
those of the table that comes with dsec. What the examples suppose, the probabilities that an answer passes and the
times of whole requests, is supposed here, too; tokens and money are read from the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dsec.costs.prefix_cache import hit_shares
from dsec.costs.routing import Route, hit_rate_for_cost, hit_rate_for_deadline, route_at
from dsec.gateway.config_reading import parse_config
from dsec.gateway.fake.server import serve_fake
from dsec.gateway.fake.settings import FakeSettings
from dsec.gateway.ledger import pair_attempts, read_records
from dsec.gateway.ledger_record import Attempt
from dsec.gateway.server import serve
from dsec.gateway.spending import total_spending

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CONFIG = """\
[gateway]
port = 0
state_dir = "state"
open = true
grace = "0.1s"
[models.sonnet]
[models.haiku]
[[backends]]
name = "sonnet"
group = "sonnet"
url = "{sonnet}"
thinking_control = "tokens"
apis = ["chat", "messages"]
price_list = "claude-sonnet-5"
[[backends]]
name = "haiku"
group = "haiku"
url = "{haiku}"
price_list = "claude-haiku-4.5"
"""
AT_ONCE = 8


def text(tokens: int, number: int = 0) -> str:
    """Return so many tokens, which begin differently for every number."""
    return f"{number:08d}" + "word" * (tokens - 2)


class Caller:
    """Makes calls, and reads what the gateway recorded of them."""

    def __init__(self, http: httpx2.AsyncClient, directory: Path) -> None:
        self._http = http
        self._directory = directory

    async def post(self, path: str, body: dict[str, Any], episode: str, **headers: str) -> None:
        """Make a call that must be answered."""
        answer = await self._http.post(path, json=body, headers={"X-DSec-Episode": episode, **headers})
        assert answer.status_code == 200, answer.text

    async def chat(
        self, episode: str, prompt: Sequence[str], *, model: str = "sonnet", thinking: int = 0, **headers: str
    ) -> None:
        """Make a chat call with 200 visible tokens."""
        messages = [{"role": "system" if at else "user", "content": part} for at, part in enumerate(prompt, -1)]
        wish = {"thinking_tokens": thinking, "visible_tokens": 200}
        body = {"model": model, "messages": messages, "dsec_fake": wish}
        await self.post("/v1/chat/completions", body, episode, **headers)

    async def message(self, episode: str, system: str, new: str, *, cached: bool) -> None:
        """Make a call of messages whose system prompt is kept, or is not."""
        mark = {"cache_control": {"type": "ephemeral"}} if cached else {}
        body = {
            "model": "sonnet",
            "max_tokens": 500,
            "system": [{"type": "text", "text": system, **mark}],
            "messages": [{"role": "user", "content": new}],
            "dsec_fake": {"visible_tokens": 200},
        }
        await self.post("/v1/messages", body, episode)

    def recorded(self, episode: str) -> list[Attempt]:
        """Return the attempts of an episode; none of them rests on an estimate."""
        found = [one for one in pair_attempts(read_records(self._directory)) if one.began.episode == episode]
        assert not any(one.ended.cost.estimated or one.ended.cost.missing for one in found)
        return found

    def usd(self, episode: str) -> float:
        """Return what an episode cost."""
        return total_spending(self.recorded(episode)).usd

    async def many(self, calls: Sequence[Any]) -> None:
        """Make calls, a few at a time."""
        for start in range(0, len(calls), AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for call in calls[start : start + AT_ONCE]:
                    group.create_task(call)


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with AsyncExitStack() as stack:
        settings = FakeSettings(speed=float("inf"), cache_block_tokens=8)
        sonnet = await stack.enter_async_context(serve_fake(settings))
        haiku = await stack.enter_async_context(serve_fake(settings))
        config = parse_config("gateway.toml", CONFIG.format(sonnet=sonnet.url, haiku=haiku.url))
        serving = await stack.enter_async_context(serve(config, tmp_path, environment={}))
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=serving.url, timeout=60))
        yield Caller(http, tmp_path / "state")


async def test_example_11_5_a_tenth_of_the_thinking_saves_28_percent(caller: Caller) -> None:
    prompt = [text(10_000, 1)]
    await caller.chat("long", prompt, thinking=1000)
    await caller.chat("short", [text(10_000, 2)], thinking=1000, **{"X-DSec-Thinking-Tokens": "100"})
    (long,), (short,) = caller.recorded("long"), caller.recorded("short")
    assert (long.ended.usage.thinking.tokens, short.ended.usage.thinking.tokens) == (1000, 100)
    assert long.ended.cost.total == pytest.approx(0.032)
    assert short.ended.cost.total == pytest.approx(0.023)
    for cost, thinking in ((long.ended.cost, 0.010), (short.ended.cost, 0.001)):
        assert (cost.input, cost.visible, cost.thinking) == pytest.approx((0.020, 0.002, thinking))
    assert 1 - caller.usd("short") / caller.usd("long") == pytest.approx(0.28, abs=0.005)


async def test_example_11_5_thirty_retries_cost_more_than_a_hundred_shorter_calls_save(caller: Caller) -> None:
    limit = {"X-DSec-Thinking-Tokens": "100"}
    await caller.many([caller.chat("all long", [text(10_000, n)], thinking=1000) for n in range(100)])
    await caller.many([caller.chat("cut", [text(10_000, 1000 + n)], thinking=1000, **limit) for n in range(100)])
    await caller.many([caller.chat("cut", [text(10_000, 2000 + n)], thinking=1000) for n in range(30)])
    assert caller.usd("all long") == pytest.approx(3.20)
    assert caller.usd("cut") - caller.usd("all long") == pytest.approx(0.06)


async def test_example_11_6_a_cached_prefix_over_ten_rounds(caller: Caller) -> None:
    for number in range(10):
        await caller.message("plain", text(8000), text(2000, number), cached=False)
    for number in range(10):
        await caller.message("cached", text(8000), text(2000, number), cached=True)

    def input_usd(episode: str) -> list[float]:
        costs = [attempt.ended.cost for attempt in caller.recorded(episode)]
        return [cost.input + cost.cache_write + cost.cache_read for cost in costs]

    plain, cached = input_usd("plain"), input_usd("cached")
    assert sum(plain) == pytest.approx(0.20)
    assert sum(cached) == pytest.approx(0.0744)
    assert cached == pytest.approx([0.024, *[0.0056] * 9])
    assert plain[0] - cached[0] == pytest.approx(-0.004)
    assert sum(cached[:2]) < sum(plain[:2])
    assert caller.usd("plain") - caller.usd("cached") == pytest.approx(0.20 - 0.0744)


async def test_section_11_4_2_a_hit_weighs_as_much_as_the_tokens_that_it_spares(caller: Caller) -> None:
    short, long = text(1000, 7), text(9000, 8)
    await caller.message("first", short, "a", cached=True)
    await caller.message("both", short, "b", cached=True)
    await caller.message("both", long, "b", cached=True)
    used = [attempt.ended.usage for attempt in caller.recorded("both")]
    read = [usage.cache_read.tokens for usage in used]
    lengths = [usage.cache_read.tokens + usage.cache_write.tokens for usage in used]
    assert (read, lengths) == ([1000, 0], [1000, 9000])
    shares = hit_shares(prefix_tokens=lengths, hit=[int(tokens > 0) for tokens in read])
    assert (shares.request_share, shares.token_share) == pytest.approx((0.5, 0.1))


async def test_example_11_7_when_hits_and_success_make_up_for_the_higher_price(caller: Caller) -> None:
    prefix = text(19_000, 9)
    await caller.chat("warm", [prefix, text(1000, 0)], model="haiku", thinking=1800)
    await caller.chat("warm", [prefix, text(1000, 0)], thinking=100)
    hits = [caller.chat("b", [prefix, text(1000, 1 + n)], thinking=100) for n in range(159)]
    misses = [caller.chat("b", [text(19_000, 100 + n), text(1000, 1)], thinking=100) for n in range(41)]
    await caller.many(hits + misses)
    await caller.many([caller.chat("a", [prefix, text(1000, 1 + n)], model="haiku", thinking=1800) for n in range(10)])
    a = [attempt.ended for attempt in caller.recorded("a")]
    b = [attempt.ended for attempt in caller.recorded("b")]
    assert all(one.usage.cache_read.tokens == 19_000 and one.usage.plain_input.tokens == 1000 for one in a)
    a_usd = caller.usd("a") / len(a)
    b_hit_usd = {round(one.cost.total, 9) for one in b if one.usage.cache_read.tokens == 19_000}
    b_miss_usd = {round(one.cost.total, 9) for one in b if one.usage.cache_read.tokens == 0}
    assert (a_usd, b_hit_usd, b_miss_usd) == (pytest.approx(0.0129), {0.0088}, {0.0430})
    route = Route(
        hit_cost_usd=b_hit_usd.pop(),
        miss_cost_usd=b_miss_usd.pop(),
        hit_success=0.98,
        miss_success=0.98,
        hit_time_s=4.0,
        miss_time_s=12.0,
    )
    assert hit_rate_for_cost(route=route, target_usd=a_usd / 0.80) == pytest.approx(0.795, abs=0.0005)
    assert hit_rate_for_deadline(route=route, deadline_s=6.0, target_share=0.90) == pytest.approx(0.918, abs=0.0005)
    assert route_at(route=route, hit_rate=0.5).success_cost_usd == pytest.approx(0.0264, abs=5e-5)
    # The recorded calls hit in 79.5% of all cases, so that both services cost the same.
    assert caller.usd("b") / len(b) / 0.98 == pytest.approx(a_usd / 0.80, rel=0.002)
