"""The official clients, unmodified, against a gateway."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def openai_client() -> Any:
    def make(gateway: Any, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="anything", **more)

    return make


@pytest.fixture
def anthropic_client() -> Any:
    def make(gateway: Any, **more: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=gateway.url, api_key="anything", **more)

    return make


def say(text: str = "hi") -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_chat_with_tools_and_streams(open_gateway: Any, backends: Any, shapes: Any, openai_client: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    backends[0].act = shapes.answering(shapes.chat_answer(choices=choices))
    gateway = await open_gateway(only_first=True)
    async with openai_client(gateway) as client:
        answer = await client.chat.completions.create(model="m", messages=say(), tools=TOOLS)
        assert answer.choices[0].message.tool_calls[0].function.name == "look"
        assert backends[0].bodies[0]["tools"] == TOOLS
        assert answer._request_id.startswith("call-")
        backends[0].act = shapes.streaming(shapes.chat_events())
        stream = await client.chat.completions.create(model="m", messages=say(), stream=True)
        said = [part.choices[0].delta.content async for part in stream]
        assert "".join(text or "" for text in said) == "one two three"


async def test_responses_and_their_streams_stay_where_the_earlier_answer_is(
    open_gateway: Any, backends: Any, shapes: Any, openai_client: Any
) -> None:
    item = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hello", "annotations": []}],
    }
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    }
    plain = {"object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto"}
    body = {**plain, "id": "resp_1", "tools": [], "output": [item], "status": "completed", "usage": usage}
    for backend in backends:
        backend.act = shapes.answering(body)
    gateway = await open_gateway(backend='apis = ["responses"]')
    async with openai_client(gateway) as client:
        answer = await client.responses.create(model="m", input="hi")
        assert answer.output_text == "hello"
        backends[0].act = backends[1].act = shapes.streaming(
            [
                shapes.event(
                    "response.created",
                    response={**body, "status": "in_progress", "output": [], "usage": None},
                    sequence_number=0,
                ),
                shapes.event(
                    "response.output_text.delta",
                    delta="hel",
                    item_id="msg_1",
                    output_index=0,
                    content_index=0,
                    sequence_number=1,
                ),
                shapes.event("response.completed", response=body, sequence_number=2),
            ]
        )
        stream = await client.responses.create(model="m", input="on", previous_response_id="resp_1", stream=True)
        kinds = [event.type async for event in stream]
        assert kinds == ["response.created", "response.output_text.delta", "response.completed"]
    assert [len(backend.bodies) for backend in backends] in ([2, 0], [0, 2])
    first, second = (attempt.ended.usage for attempt in gateway.attempts())
    assert first == second
    assert (first.plain_input.tokens, first.cache_read.tokens, first.thinking.tokens, first.visible.tokens) == (
        5,
        4,
        2,
        3,
    )


async def test_messages_and_their_streams(open_gateway: Any, backends: Any, shapes: Any, anthropic_client: Any) -> None:
    content = [{"type": "text", "text": "hello"}]
    usage = {"input_tokens": 12, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 7}
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content, "usage": usage}
    backends[0].act = shapes.answering({**whole, "stop_reason": "end_turn", "stop_sequence": None})
    gateway = await open_gateway(only_first=True, first='kind = "anthropic"\nkey_env = "K"', environment={"K": "own"})
    async with anthropic_client(gateway) as client:
        answer = await client.messages.create(model="m", max_tokens=50, messages=say())
        assert answer.content[0].text == "hello"
        assert backends[0].headers[0]["x-api-key"] == "own"
        assert "authorization" not in backends[0].headers[0]
        assert backends[0].headers[0]["anthropic-version"]
        backends[0].act = shapes.streaming(shapes.message_events(thinking="hm"))
        async with client.messages.stream(model="m", max_tokens=50, messages=say()) as stream:
            text = "".join([piece async for piece in stream.text_stream])
        assert text == "hello"
        page = await client.models.list()
        assert [model.id for model in page.data] == ["m"]
    for attempt in gateway.attempts():
        used = attempt.ended.usage
        assert (used.plain_input.tokens, used.cache_read.tokens, used.cache_write.tokens, used.output_tokens) == (
            12,
            4,
            2,
            7,
        )


async def test_clients_raise_their_own_errors(
    open_gateway: Any, backends: Any, shapes: Any, openai_client: Any, anthropic_client: Any
) -> None:
    gateway = await open_gateway(open_to_all=False)
    async with openai_client(gateway) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=say())
    async with anthropic_client(gateway) as client:
        with pytest.raises(anthropic.AuthenticationError) as raised:
            await client.messages.create(model="m", max_tokens=5, messages=say())
        assert raised.value.body["error"]["type"] == "authentication_error"


async def test_clients_raise_errors_that_come_in_the_middle_of_a_stream(
    open_gateway: Any, backends: Any, shapes: Any, openai_client: Any, anthropic_client: Any
) -> None:
    backends[0].act = shapes.streaming([shapes.chunk({"content": "half"})], then="abort")
    backends[1].act = shapes.streaming(shapes.message_events()[:3], then="abort")
    gateway = await open_gateway(second='kind = "anthropic"')
    async with openai_client(gateway) as client:
        stream = await client.chat.completions.create(model="m", messages=say(), stream=True)
        with pytest.raises(openai.APIError, match="the model service failed"):
            [part async for part in stream]
    async with anthropic_client(gateway) as client:
        with pytest.raises(anthropic.APIStatusError, match="the model service failed"):
            async with client.messages.stream(model="m", max_tokens=50, messages=say()) as stream:
                [event async for event in stream]


async def test_unknown_models_and_lists_of_models(open_gateway: Any, openai_client: Any) -> None:
    gateway = await open_gateway()
    async with openai_client(gateway) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).owned_by == "dsec"
        with pytest.raises(openai.NotFoundError, match="ask for one of: m"):
            await client.chat.completions.create(model="nope", messages=say())
