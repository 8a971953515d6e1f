"""Backends that fail in every way and callers that go away at any moment: nothing is lost, nothing counts twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import httpx2
import pytest

from dsec.gateway.ledger import read_records
from dsec.gateway.ledger_record import Began, Ended, Outcome
from dsec.gateway.spending import By, spending, total_spending

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CALLS = 240
AT_ONCE = 40


def moods(shapes: Any, draws: random.Random) -> Any:
    """Return what a backend does that does something else each time."""

    async def act(backend: Any, request: Any, asked: dict[str, Any]) -> Any:
        streaming = asked.get("stream", False)
        good = shapes.streaming(shapes.chat_events()) if streaming else shapes.answering(shapes.chat_answer())
        cut = shapes.streaming([shapes.chunk({"content": "half"})], then=draws.choice(["abort", "end", "hang"]))
        bad = shapes.answering({"error": {"message": "boom"}}, status=draws.choice([500, 502, 503, 400, 408]))
        late = shapes.answering({"error": {"message": "slow"}}, status=429, headers={"retry-after-ms": "5"})
        odd = (
            shapes.answering(shapes.chat_answer(model="other")) if not streaming else shapes.streaming([b"data: {\n\n"])
        )
        await asyncio.sleep(draws.random() * 0.01)
        chosen = draws.choices([good, cut, bad, late, odd, gone], [12, 3, 3, 2, 1, 1])[0]
        return await chosen(backend, request, asked)

    async def gone(backend: Any, request: Any, asked: dict[str, Any]) -> Any:
        request.transport.abort()
        await asyncio.sleep(0.05)
        raise ConnectionResetError

    return act


async def caller(gateway: Any, key: str, number: int, draws: random.Random, seen: Counter[str]) -> None:
    """Make a call, or begin one and go away."""
    streaming = draws.random() < 0.5
    body = {"model": "m", "stream": streaming, "messages": [{"role": "user", "content": f"call {number}"}]}
    head = {"authorization": f"Bearer {key}", "X-DSec-Episode": f"e{number % 7}"}
    patience_s = draws.choice([None, None, None, draws.random() * 0.05])
    try:
        async with asyncio.timeout(patience_s):
            answer = await gateway.http.post("/v1/chat/completions", json=body, headers=head)
    except TimeoutError:
        seen["gone"] += 1
    except httpx2.TransportError as error:
        pytest.fail(f"the gateway broke off: {error!r}")
    else:
        seen["answered" if answer.status_code == 200 else str(answer.status_code)] += 1


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_and_nothing_counts_twice(
    open_gateway: Any, backends: Any, shapes: Any, make_project_key: Any, until: Any, seed: int
) -> None:
    draws = random.Random(seed)
    for backend in backends:
        backend.act = moods(shapes, draws)
    keys = [make_project_key("alpha"), make_project_key("beta")]
    gateway = await open_gateway(
        open_to_all=False,
        backend='slots = 8\nprices = { input = "2 USD/Mtoken", output = "10 USD/Mtoken" }',
        # A call that is given up because the host is loaded shows nothing: backends hang far longer than that.
        model='stall_timeout = "500ms"\nfirst_byte_timeout = "4s"\ndeadline = "40s"\nhedge_after = "40ms"',
        extra='[routing]\nsuspend = "20ms"\npause = "5ms"\n[projects.alpha]\nweight = 2\n[projects.beta]',
    )
    proxy = gateway.serving.proxy
    seen: Counter[str] = Counter()
    for start in range(0, CALLS, AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for number in range(start, start + AT_ONCE):
                group.create_task(caller(gateway, keys[number % 2], number, draws, seen))
    await until(lambda: not proxy.under_way)
    assert seen["answered"] > CALLS / 4
    _check_books(gateway, proxy, backends)


def _check_books(gateway: Any, proxy: Any, backends: Any) -> None:
    records = list(read_records(gateway.directory / "state"))
    began = [record.attempt for record in records if isinstance(record, Began)]
    ended = [record.attempt for record in records if isinstance(record, Ended)]
    assert len(set(began)) == len(began)
    assert sorted(began) == sorted(ended)
    attempts = gateway.attempts()
    assert all(attempt.ended.outcome is not Outcome.UNKNOWN for attempt in attempts)
    sent = sum(attempt.ended.failure != "unreachable" for attempt in attempts)
    assert sum(len(backend.bodies) for backend in backends) <= sent
    total = total_spending(attempts)
    for kind, by in (("key", By.KEY), ("project", By.PROJECT)):
        for spent in spending(attempts, by):
            account = proxy.accounts.all()[kind, spent.name]
            assert (account.held_tokens, account.held_usd) == (0, 0.0)
            assert account.usd == pytest.approx(spent.usd)
            assert account.calls == spent.calls
    assert sum(one.usd for one in spending(attempts, By.EPISODE)) == pytest.approx(total.usd)
    for known in proxy.router.statistics(proxy.now_s()):
        assert (known.running, known.waiting) == (0, 0)
    for line in proxy.lines.values():
        assert line.turnstile.running == 0
