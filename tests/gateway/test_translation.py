"""Anthropic's client over backends that speak chat completions alone."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from dsec.base.errors import InvalidRequestError
from dsec.gateway.json_object import read_object
from dsec.gateway.translate.request import chat_members

TOOL = {
    "name": "look",
    "description": "Look.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}


def chat(**call: Any) -> Any:
    told = chat_members(read_object(json.dumps({"model": "m", "max_tokens": 9, **call}).encode()))
    return {name: json.loads(value) for name, value in told.items()}


def test_everything_that_has_a_counterpart_is_told() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "x"}}
    told = chat(
        system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "see"}, picture]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "blue"}]},
        ],
        tools=[TOOL],
        tool_choice={"type": "any"},
        stop_sequences=["END"],
        metadata={"user_id": "u"},
    )
    assert [message["role"] for message in told["messages"]] == ["system", "user", "assistant", "tool"]
    assert told["messages"][1]["content"][1]["image_url"]["url"] == "data:image/png;base64,AA=="
    assert told["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"x"}'}
    assert told["messages"][3] == {"role": "tool", "tool_call_id": "t1", "content": "blue"}
    assert told["tools"][0]["function"]["parameters"] == TOOL["input_schema"]
    assert (told["tool_choice"], told["stop"], told["user"], told["max_tokens"]) == ("required", ["END"], "u", 9)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ({"messages": [{"role": "user", "content": "x"}], "container": "c"}, "`container`"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search_1", "name": "w"}]}, "'w'"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "protocol"),
        ({"messages": [{"role": "user", "content": [7]}]}, "protocol"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(call: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        chat(**call)


@pytest.mark.anyio
async def test_answers_streams_tools_and_errors_reach_the_client_as_its_own(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    function = {"name": "look", "arguments": '{"at": "x"}'}
    message = {
        "role": "assistant",
        "content": "seen",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "t1", "type": "function", "function": function}],
    }
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    usage = {"prompt_tokens": 12, "completion_tokens": 9}
    backends[0].act = shapes.answering(shapes.chat_answer(choices=choices, usage=usage))
    gateway = await open_gateway(only_first=True)
    asked: Any = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="x", max_retries=0) as client:
        answer = await client.messages.create(**asked)
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
        assert answer.content[2].input == {"at": "x"}
        assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("tool_use", 12, 9)

        first = {"index": 0, "id": "t1", "type": "function", "function": {"name": "look", "arguments": ""}}
        more = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"at": ', '"x"}')]
        events = shapes.chat_events(thoughts=["hm"])
        calls = [shapes.chunk({"tool_calls": [call]}) for call in (first, *more)]
        backends[0].act = shapes.streaming([*events[:4], *calls, shapes.chunk({}, finish="tool_calls"), *events[-2:]])
        async with client.messages.stream(**asked) as stream:
            whole = await stream.get_final_message()
        assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
        assert (whole.content[1].text, whole.content[2].input) == ("one two three", {"at": "x"})
        assert (whole.stop_reason, whole.usage.input_tokens) == ("tool_use", 12)

        backends[0].act = shapes.streaming([*events[:3], shapes.chunk({}, finish="stop")])
        async with client.messages.stream(**asked) as stream:
            unfinished = await stream.get_final_message()
        assert (unfinished.stop_reason, unfinished.content[1].text) == ("end_turn", "one two ")

        backends[0].act = shapes.streaming(events[:3], then="abort")
        with pytest.raises(anthropic.APIStatusError, match="the model service failed"):
            async with client.messages.stream(**asked) as stream:
                await stream.get_final_message()

        backends[0].act = shapes.answering(
            {"error": {"message": "too hot", "type": "invalid_request_error"}}, status=400
        )
        with pytest.raises(anthropic.BadRequestError, match="too hot"):
            await client.messages.create(**asked)
        with pytest.raises(anthropic.BadRequestError, match="`container`"):
            await client.messages.create(**asked, extra_body={"container": "c"})


@pytest.mark.anyio
async def test_thinking_that_is_cut_ends_a_translated_stream_in_its_own_way(
    open_gateway: Any, backends: Any, shapes: Any
) -> None:
    backends[0].act = shapes.streaming(shapes.chat_events(thoughts=["hmmm" * 25] * 10))
    gateway = await open_gateway(only_first=True, model="thinking = { tokens_per_call = 100 }")
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="x", max_retries=0) as client:
        asked: Any = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
        async with client.messages.stream(**asked) as stream:
            whole = await stream.get_final_message()
    assert (whole.stop_reason, [block.type for block in whole.content]) == ("max_tokens", ["thinking"])
