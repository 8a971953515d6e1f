"""The official clients, unmodified, against a gateway before simulated backends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dsec.gateway.config_reading import parse_config
from dsec.gateway.fake.server import serve_fake
from dsec.gateway.fake.settings import FakeSettings
from dsec.gateway.ledger import pair_attempts, read_records
from dsec.gateway.server import serve

pytestmark = pytest.mark.anyio
CONFIG = """\
[gateway]
port = 0
state_dir = "state"
open = true
grace = "0.1s"
[models.m]
stall_timeout = "0.2s"
first_byte_timeout = "0.25s"
attempts = 1
[[backends]]
name = "one"
group = "m"
url = "{url}"
apis = ["chat", "responses"]
[[backends]]
name = "two"
group = "m"
url = "{url}"
kind = "anthropic"
"""
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}, "kind": {"enum": ["file", "folder"]}},
    "required": ["path", "depth", "kind"],
}


class Both:
    """Both clients on one gateway."""

    def __init__(self, url: str, fake: Any, directory: Path) -> None:
        self.fake = fake
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="anything", max_retries=0)
        self.anthropic = anthropic.AsyncAnthropic(base_url=url, api_key="anything", max_retries=0)
        self._directory = directory

    def usage(self) -> tuple[int, int, int, int, int]:
        """Return the last attempt's usage: plain, written, read, thinking, visible."""
        used = list(pair_attempts(read_records(self._directory / "state")))[-1].ended.usage
        return (
            used.plain_input.tokens,
            used.cache_write.tokens,
            used.cache_read.tokens,
            used.thinking.tokens,
            used.visible.tokens,
        )


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(serve_fake(FakeSettings(visible_tokens=12, speed=float("inf"))))
        config = parse_config("gateway.toml", CONFIG.format(url=fake.url))
        serving = await stack.enter_async_context(serve(config, tmp_path, environment={}))
        clients = Both(serving.url, fake, tmp_path)
        await stack.enter_async_context(clients.openai)
        await stack.enter_async_context(clients.anthropic)
        yield clients


def say(text: str = "hi") -> list[Any]:
    return [{"role": "user", "content": text}]


def wish(**wishes: Any) -> dict[str, Any]:
    return {"dsec_fake": wishes}


async def test_chat_whole_and_streamed_says_and_uses_the_same(both: Both) -> None:
    body = wish(thinking_tokens=5, visible_tokens=7)
    whole = await both.openai.chat.completions.create(model="m", messages=say("x" * 40), extra_body=body)
    assert whole.usage.prompt_tokens == 10
    assert whole.usage.completion_tokens_details.reasoning_tokens == 5
    assert both.usage() == (10, 0, 0, 5, 7)
    stream = await both.openai.chat.completions.create(
        model="m", messages=say("x" * 40), stream=True, stream_options={"include_usage": True}, extra_body=body
    )
    chunks = [chunk async for chunk in stream]
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) == 7
    assert chunks[-1].usage == whole.usage
    assert both.usage() == (10, 0, 0, 5, 7)
    assert len(whole.choices[0].message.content) == 7 * 4


async def test_the_chat_helper_that_gathers_a_stream_finds_a_whole_answer(both: Both) -> None:
    async with both.openai.chat.completions.stream(model="m", messages=say()) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert len(final.choices[0].message.content) == 12 * 4


async def test_chat_calls_a_tool_and_goes_on_from_its_result(both: Both) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    messages: list[Any] = say()
    answer = await both.openai.chat.completions.create(model="m", messages=messages, tools=tools)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert {**json.loads(call.function.arguments), "path": ""} == {"path": "", "depth": 1, "kind": "file"}
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "nothing"}]
    stream = await both.openai.chat.completions.create(model="m", messages=messages, tools=tools, stream=True)
    said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert len(said) == 12 * 4


async def test_chat_streams_a_tool_call(both: Both) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    async with both.openai.chat.completions.stream(model="m", messages=say(), tools=tools) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "look"


async def test_responses_whole_streamed_and_continued(both: Both) -> None:
    first = await both.openai.responses.create(model="m", input="x" * 40, extra_body=wish(thinking_tokens=4))
    assert len(first.output_text) == 12 * 4
    assert first.usage.output_tokens_details.reasoning_tokens == 4
    assert both.usage() == (10, 0, 0, 4, 12)
    async with both.openai.responses.stream(model="m", input="on", previous_response_id=first.id) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_text.delta") == 12
    assert final.usage.input_tokens == 10 + 12 + 1
    assert final.output_text


async def test_responses_call_tools_whole_and_streamed(both: Both) -> None:
    tools: list[Any] = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]
    answer = await both.openai.responses.create(model="m", input="hi", tools=tools)
    assert answer.output[0].type == "function_call"
    assert json.loads(answer.output[0].arguments)["depth"] == 1
    result = {"type": "function_call_output", "call_id": answer.output[0].call_id, "output": "nothing"}
    async with both.openai.responses.stream(model="m", input=[*say(), answer.output[0], result], tools=tools) as stream:
        final = await stream.get_final_response()
    assert final.output_text
    async with both.openai.responses.stream(model="m", input="hi", tools=tools) as stream:
        final = await stream.get_final_response()
    assert final.output[0].name == "look"


async def test_messages_whole_and_streamed_with_a_cached_system_prompt(both: Both) -> None:
    system: list[Any] = [{"type": "text", "text": "s" * 4000, "cache_control": {"type": "ephemeral"}}]
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    more = {"extra_body": wish(thinking_tokens=6)}
    whole = await both.anthropic.messages.create(
        model="m", max_tokens=2000, system=system, messages=say("x" * 40), thinking=thinking, **more
    )
    assert (whole.usage.input_tokens, whole.usage.cache_creation_input_tokens) == (10, 1000)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    async with both.anthropic.messages.stream(
        model="m", max_tokens=2000, system=system, messages=say("y" * 40), thinking=thinking, **more
    ) as stream:
        final = await stream.get_final_message()
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens) == (10, 1000)
    assert final.usage.output_tokens == 18
    assert final.content[1].text
    plain, written, read, thought, visible = both.usage()
    assert (plain, written, read, thought + visible) == (10, 0, 1000, 18)


async def test_messages_call_tools_whole_and_streamed(both: Both) -> None:
    tools: list[Any] = [{"name": "look", "input_schema": SCHEMA}]
    answer = await both.anthropic.messages.create(model="m", max_tokens=500, messages=say(), tools=tools)
    assert answer.stop_reason == "tool_use"
    assert answer.content[0].input["kind"] == "file"
    async with both.anthropic.messages.stream(model="m", max_tokens=500, messages=say(), tools=tools) as stream:
        final = await stream.get_final_message()
    assert final.content[0].input["depth"] == 1
    result = {"type": "tool_result", "tool_use_id": answer.content[0].id, "content": "nothing"}
    messages = [*say(), {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    last = await both.anthropic.messages.create(model="m", max_tokens=500, messages=messages, tools=tools)
    assert last.stop_reason == "end_turn"


async def test_a_limit_of_length_is_told_in_each_protocols_words(both: Both) -> None:
    chat = await both.openai.chat.completions.create(model="m", messages=say(), max_tokens=3)
    assert (chat.choices[0].finish_reason, chat.usage.completion_tokens) == ("length", 3)
    response = await both.openai.responses.create(model="m", input="hi", max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    message = await both.anthropic.messages.create(model="m", max_tokens=3, messages=say())
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


@pytest.mark.parametrize(
    ("trouble", "expected_openai", "expected_anthropic"),
    [
        ("failed", openai.InternalServerError, anthropic.InternalServerError),
        ("overloaded", openai.InternalServerError, anthropic.InternalServerError),
        ("limited", openai.RateLimitError, anthropic.RateLimitError),
        ("limited-silently", openai.RateLimitError, anthropic.RateLimitError),
        ("refused", openai.BadRequestError, anthropic.BadRequestError),
        ("gone", openai.InternalServerError, anthropic.InternalServerError),
        ("silent", openai.InternalServerError, anthropic.InternalServerError),
        ("web-page", openai.InternalServerError, anthropic.InternalServerError),
        ("other-model", openai.InternalServerError, anthropic.InternalServerError),
        ("not-utf8", openai.InternalServerError, anthropic.InternalServerError),
        ("broken-off", openai.InternalServerError, anthropic.InternalServerError),
    ],
)
async def test_troubles_reach_the_clients_as_their_own_errors(
    both: Both, trouble: str, expected_openai: type[Exception], expected_anthropic: type[Exception]
) -> None:
    body = wish(trouble=trouble)
    with pytest.raises(expected_openai):
        await both.openai.chat.completions.create(model="m", messages=say(), extra_body=body)
    with pytest.raises(expected_openai):
        await both.openai.responses.create(model="m", input="hi", extra_body=body)
    with pytest.raises(expected_anthropic):
        await both.anthropic.messages.create(model="m", max_tokens=9, messages=say(), extra_body=body)


@pytest.mark.parametrize(
    "trouble",
    ["error-event", "broken-off", "cut-short", "stalled", "not-utf8", "broken-event", "endless-event"],
)
async def test_streams_that_go_wrong_in_the_middle_raise_the_clients_own_errors(both: Both, trouble: str) -> None:
    body = wish(trouble=trouble)

    async def chat() -> None:
        async for _ in await both.openai.chat.completions.create(
            model="m", messages=say(), stream=True, extra_body=body
        ):
            pass

    async def responses() -> None:
        async for _ in await both.openai.responses.create(model="m", input="hi", stream=True, extra_body=body):
            pass

    async def messages() -> None:
        async with both.anthropic.messages.stream(model="m", max_tokens=99, messages=say(), extra_body=body) as stream:
            async for _ in stream:
                pass

    with pytest.raises(openai.APIError):
        await chat()
    with pytest.raises(openai.APIError):
        await responses()
    with pytest.raises(anthropic.APIError):
        await messages()
    assert both.fake.service.counts["answered"] == 0


@pytest.mark.parametrize("trouble", ["no-usage", "lying-usage"])
async def test_usage_that_is_missing_or_cannot_be_does_not_stop_an_answer(both: Both, trouble: str) -> None:
    body = wish(trouble=trouble, visible_tokens=20)
    stream = await both.openai.chat.completions.create(model="m", messages=say(), stream=True, extra_body=body)
    assert sum([bool(chunk.choices and chunk.choices[0].delta.content) async for chunk in stream]) == 20
    assert both.usage()[4] == 20
