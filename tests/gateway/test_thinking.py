"""Budgets of thinking: what backends are told, what is cut, what it saved and caused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsec.gateway.fronts.anthropic_messages import AnthropicMessages
from dsec.gateway.fronts.asked import Target
from dsec.gateway.fronts.effort import allowed_effort
from dsec.gateway.fronts.openai_chat import OpenaiChat
from dsec.gateway.fronts.openai_responses import OpenaiResponses
from dsec.gateway.json_object import read_object
from dsec.gateway.ledger_record import Cut
from dsec.gateway.thinking_report import thinking_effects

PRICES = 'prices = { input = "2 USD/Mtoken", output = "10 USD/Mtoken" }'


def sent(front: Any, body: dict[str, Any], target: Target) -> Any:
    return json.loads(front.body(front.ask(read_object(json.dumps(body).encode())), target))


def test_a_number_is_lowered_and_never_raised() -> None:
    body = {"model": "m", "messages": [1], "max_tokens": 9000, "thinking": {"type": "enabled", "budget_tokens": 8000}}
    front = AnthropicMessages()
    lowered = sent(front, body, Target(model="m", thinking_tokens=2000, by_tokens=True))
    assert lowered["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    kept = sent(front, body, Target(model="m", thinking_tokens=20_000, by_tokens=True))
    assert kept["thinking"] == body["thinking"]
    none = sent(front, body, Target(model="m", thinking_tokens=500, by_tokens=True))
    assert none["thinking"] == {"type": "disabled"}
    short = sent(front, body, Target(model="m", maximum_output_tokens=3000))
    assert (short["max_tokens"], short["thinking"]["budget_tokens"]) == (3000, 2999)


def test_chat_and_responses_are_told_in_their_own_ways() -> None:
    chat = {"model": "m", "messages": [1], "reasoning_effort": "high"}
    told = sent(OpenaiChat(), chat, Target(model="m", thinking_tokens=2000, by_tokens=True, by_effort=True))
    assert (told["thinking_token_budget"], told["reasoning_effort"]) == (2000, "low")
    response = {"model": "m", "input": "x", "reasoning": {"summary": "auto"}}
    told = sent(OpenaiResponses(), response, Target(model="m", thinking_tokens=0, by_effort=True))
    assert told["reasoning"] == {"summary": "auto", "effort": "none"}


@pytest.mark.parametrize(
    ("asked", "tokens", "word"),
    [
        (None, 100_000, "medium"),
        ("low", 100_000, "low"),
        ("max", 9000, "high"),
        ("high", 0, "none"),
        ("odd", 5000, "medium"),
    ],
)
def test_words_follow_budgets(asked: str | None, tokens: int, word: str) -> None:
    assert allowed_effort(asked, tokens) == word


@pytest.mark.anyio
async def test_thinking_beyond_its_budget_is_cut_and_the_repetition_is_charged_to_it(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = shapes.streaming(shapes.chat_events(thoughts=["hmmm" * 25] * 10))
    gateway = await open_gateway(only_first=True, backend=PRICES)
    episode = {"X-DSec-Episode": "e1"}
    free = await gateway.chat(stream=True, headers=episode)
    assert free.content.count(b"hmmm") == 250
    limited = {**episode, "X-DSec-Thinking-Tokens": "100"}
    cut = await gateway.chat(stream=True, headers=limited)
    events = [json.loads(part) for part in cut.content.split(b"data: ")[1:-1]]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert cut.content.endswith(b"data: [DONE]\n\n")
    backends[0].act = shapes.streaming(shapes.chat_events())
    again = await gateway.chat(stream=True, headers=limited)
    assert again.content.endswith(b"data: [DONE]\n\n")
    attempts = gateway.attempts()
    assert [attempt.ended.cut for attempt in attempts] == [None, Cut.THINKING, None]
    assert attempts[2].began.repeats == attempts[1].began.call
    (effect,) = thinking_effects(attempts)
    assert (effect.limited_calls, effect.free_calls, effect.cut_calls, effect.repeated_calls) == (2, 1, 1, 1)
    assert effect.balance is not None
    assert effect.balance.retried_usd == pytest.approx(attempts[2].ended.cost.total)


@pytest.mark.anyio
async def test_an_episodes_budget_is_shared_by_its_calls(open_gateway: Any, backends: Any, shapes: Any) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 80, "completion_tokens_details": {"reasoning_tokens": 70}}
    backends[0].act = shapes.answering(shapes.chat_answer(usage=usage))
    gateway = await open_gateway(
        only_first=True, first='thinking_control = "tokens"', model="thinking = { tokens_per_episode = 100 }"
    )
    for _ in range(3):
        assert (await gateway.chat(headers={"X-DSec-Episode": "e1"})).status_code == 200
    assert (await gateway.chat(headers={"X-DSec-Episode": "e2"})).status_code == 200
    assert [body["thinking_token_budget"] for body in backends[0].bodies] == [100, 30, 0, 100]
