"""Budgets of keys and projects: before a call, in the middle of a stream, beside each other, after a restart."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import BudgetExhaustedError, HostDiskFullError
from dsec.gateway.budgets import Account, Meter, check_call
from dsec.gateway.config import Budget
from dsec.gateway.ledger_record import Cut, Outcome

PRICES = 'prices = { input = "2 USD/Mtoken", output = "10 USD/Mtoken" }'


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2000)), max_size=30),
    st.lists(st.integers(0, 29), max_size=40),
)
def test_what_is_held_is_always_given_back_and_what_was_used_is_counted_once(
    attempts: list[tuple[int, int]], ends: list[int]
) -> None:
    account = Account("key k", Budget(tokens=10_000, usd=1.0))
    meters = []
    for held, _ in attempts:
        meters.append(Meter((account,)))
        meters[-1].hold(held, held * 1e-3)
    for end in [*ends, *range(len(meters))]:
        if end < len(meters):
            used = attempts[end][1]
            meters[end].settle(used, used * 1e-3)
    assert (account.held_tokens, account.held_usd) == (0, 0.0)
    assert account.tokens == sum(used for _, used in attempts)
    assert account.usd == pytest.approx(account.tokens * 1e-3)


def test_calls_are_counted_up_to_their_budget_and_no_further() -> None:
    account = Account("key k", Budget(calls=2))
    check_call((account,))
    account.calls = 2
    with pytest.raises(BudgetExhaustedError, match="2 calls"):
        check_call((account,))


@pytest.mark.anyio
async def test_a_call_that_the_project_cannot_pay_is_not_counted_for_the_key(
    open_gateway: Any, make_project_key: Any
) -> None:
    key = make_project_key("alpha", budget=Budget(calls=5))
    gateway = await open_gateway(open_to_all=False, extra="[projects.alpha]\nbudget = { calls = 1 }")
    assert [(await gateway.chat(key=key)).status_code for _ in range(3)] == [200, 429, 429]
    accounts = gateway.serving.proxy.accounts.all()
    assert sorted((kind, account.calls) for (kind, _), account in accounts.items()) == [("key", 1), ("project", 1)]


@pytest.mark.anyio
async def test_a_call_that_the_ledger_does_not_take_is_counted_for_nobody(
    open_gateway: Any, make_project_key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_project_key("alpha", budget=Budget(calls=1))
    gateway = await open_gateway(open_to_all=False)
    ledger = gateway.serving.proxy.ledger
    healthy = ledger.write

    def full(record: object) -> None:
        raise HostDiskFullError("the ledger cannot grow")

    monkeypatch.setattr(ledger, "write", full)
    assert (await gateway.chat(key=key)).status_code == 507
    monkeypatch.setattr(ledger, "write", healthy)
    assert [(await gateway.chat(key=key)).status_code for _ in range(2)] == [200, 429]


@pytest.mark.anyio
async def test_a_stream_is_cut_where_its_keys_budget_ends(
    open_gateway: Any, backends: Any, shapes: Any, make_project_key: Any
) -> None:
    key = make_project_key(budget=Budget(tokens=60))
    backends[0].act = shapes.streaming([shapes.chunk({"content": "word" * 4}) for _ in range(100)], then="hang")
    gateway = await open_gateway(only_first=True, open_to_all=False)
    answer = await gateway.chat(key=key, stream=True)
    told = json.loads(answer.content.split(b"data: ")[-1])["error"]
    assert (told["type"], told["code"]) == ("insufficient_quota", "insufficient_quota")
    (attempt,) = gateway.attempts()
    assert (attempt.ended.outcome, attempt.ended.cut) == (Outcome.CUT, Cut.BUDGET)
    used = attempt.ended.usage.input_tokens + attempt.ended.usage.output_tokens
    assert used >= 60
    await backends[0].gone.wait()
    refused = await gateway.chat(key=key)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
    assert len(gateway.attempts()) == 1


@pytest.mark.anyio
async def test_money_is_counted_by_the_backends_prices_for_key_and_project(
    open_gateway: Any, make_project_key: Any
) -> None:
    keys = [make_project_key(), make_project_key()]
    gateway = await open_gateway(
        only_first=True,
        open_to_all=False,
        backend=PRICES,
        extra='[projects.alpha.budget]\nusd = "0.00109 USD"',
        model="maximum_output_tokens = 100",
    )
    for key in keys:
        assert (await gateway.chat(key=key)).status_code == 200
    account = gateway.serving.proxy.accounts.all()["project", "alpha"]
    assert account.usd == pytest.approx(2 * (12 * 2e-6 + 3 * 10e-6))
    assert (account.tokens, account.calls, account.held_tokens) == (30, 2, 0)


@pytest.mark.anyio
async def test_an_answer_that_cannot_be_stopped_is_limited_to_what_can_still_be_paid(
    open_gateway: Any, backends: Any, make_project_key: Any
) -> None:
    key = make_project_key(budget=Budget(tokens=200))
    gateway = await open_gateway(only_first=True, open_to_all=False)
    assert (await gateway.chat(key=key, max_tokens=5000)).status_code == 200
    assert 0 < backends[0].bodies[0]["max_tokens"] < 200


@pytest.mark.anyio
async def test_calls_side_by_side_never_spend_more_than_the_budget(
    open_gateway: Any, backends: Any, shapes: Any, make_project_key: Any
) -> None:
    key = make_project_key(budget=Budget(tokens=100))

    async def obey(backend: Any, request: Any, asked: dict[str, Any]) -> Any:
        usage = {"prompt_tokens": 8, "completion_tokens": asked["max_tokens"]}
        return await shapes.answering(shapes.chat_answer(usage=usage))(backend, request, asked)

    backends[0].act = obey
    gateway = await open_gateway(only_first=True, open_to_all=False)
    answers = await asyncio.gather(*(gateway.chat(key=key, max_tokens=20) for _ in range(10)))
    assert sorted({answer.status_code for answer in answers}) == [200, 429]
    account = gateway.serving.proxy.accounts.all()["key", key[:14]]
    assert 90 < account.tokens <= 100


@pytest.mark.anyio
async def test_what_was_spent_is_known_after_a_restart(
    open_gateway: Any, backends: Any, make_project_key: Any, tmp_path: Any
) -> None:
    from contextlib import AsyncExitStack

    from dsec.gateway.building import open_proxy

    key = make_project_key(budget=Budget(calls=1))
    async with AsyncExitStack():
        gateway = await open_gateway(only_first=True, open_to_all=False)
        assert (await gateway.chat(key=key)).status_code == 200
        config = gateway.serving.proxy.config
        gateway.serving.proxy.ledger.close()
    async with open_proxy(config, tmp_path) as proxy:
        account = proxy.accounts.all()["key", key[:14]]
        assert (account.calls, account.tokens) == (1, 15)
