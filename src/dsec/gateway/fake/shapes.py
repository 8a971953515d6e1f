"""Answers in the shapes of the three protocols: as a whole, and event by event. Pure.

Each event comes with the number of output tokens that have been made when it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsec.gateway.config import Api
from dsec.gateway.fake.answer import FakeAnswer
from dsec.gateway.fake.prefix_store import TOKEN_BYTES
from dsec.gateway.sse import write_event


class Timed(NamedTuple):
    """An event, and how many tokens are made by then."""

    tokens: int
    data: bytes


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _event(kind: str, **members: Any) -> bytes:
    return write_event(_json({"type": kind, **members}), kind.encode())


def whole(api: Api, answer: FakeAnswer) -> bytes:
    """Return an answer as a whole."""
    make = {Api.CHAT: _chat, Api.RESPONSES: _response, Api.MESSAGES: _message}[api]
    return _json(make(answer))


def events(api: Api, answer: FakeAnswer) -> Iterator[Timed]:
    """Yield an answer event by event."""
    make = {Api.CHAT: _chat_events, Api.RESPONSES: _response_events, Api.MESSAGES: _message_events}[api]
    return make(answer)


def error(api: Api, status: int, kind: str, message: str) -> bytes:
    """Return an error as a whole."""
    del status
    if api is Api.MESSAGES:
        return _json({"type": "error", "error": {"type": kind, "message": message}})
    return _json({"error": {"message": message, "type": kind, "param": None, "code": kind}})


def error_event(api: Api, kind: str, message: str) -> bytes:
    """Return an error in the middle of a stream."""
    name = b"" if api is Api.CHAT else b"error"
    if api is Api.RESPONSES:
        return write_event(_json({"type": "error", "code": kind, "message": message, "sequence_number": 1}), name)
    return write_event(error(api, 500, kind, message), name)


def _pieces(answer: FakeAnswer) -> Iterator[tuple[int, bool, str]]:
    """Yield how many tokens are made, whether a piece is thinking, and the piece."""
    tokens = 0
    for thinks, pieces in ((True, answer.thinking), (False, answer.visible)):
        for piece in pieces:
            tokens += len(piece) // TOKEN_BYTES
            yield tokens, thinks, piece


# -- chat completions ----------------------------------------------------------------------------------------------


def _chat_usage(answer: FakeAnswer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.found.read},
        "completion_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
    }


def _chat_reason(answer: FakeAnswer) -> str:
    return "tool_calls" if answer.tool is not None else "length" if answer.by_length else "stop"


def _chat_tool(answer: FakeAnswer) -> list[dict[str, Any]]:
    assert answer.tool is not None
    function = {"name": answer.tool[0], "arguments": answer.tool[1]}
    return [{"id": f"call_{answer.answer_id}", "type": "function", "function": function}]


def _chat(answer: FakeAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text if answer.tool is None else None}
    if answer.thinking:
        message["reasoning_content"] = "".join(answer.thinking)
    if answer.tool is not None:
        message["tool_calls"] = _chat_tool(answer)
    return {
        "id": f"chatcmpl-{answer.answer_id}",
        "object": "chat.completion",
        "created": answer.created_s,
        "model": answer.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _chat_reason(answer)}],
        **({"usage": _chat_usage(answer)} if answer.reports else {}),
    }


def _chat_events(answer: FakeAnswer) -> Iterator[Timed]:
    head = {
        "id": f"chatcmpl-{answer.answer_id}",
        "object": "chat.completion.chunk",
        "created": answer.created_s,
        "model": answer.model,
    }

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        return write_event(_json({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))

    for number, (tokens, thinks, piece) in enumerate(_pieces(answer)):
        role = {} if number else {"role": "assistant"}
        yield Timed(tokens, chunk({**role, "reasoning_content" if thinks else "content": piece}))
    end = answer.thinking_tokens + answer.visible_tokens
    if answer.tool is not None:
        yield Timed(end, chunk({"role": "assistant", "tool_calls": [{"index": 0, **_chat_tool(answer)[0]}]}))
    yield Timed(end, chunk({}, _chat_reason(answer)))
    if answer.reports and answer.wants_usage:
        yield Timed(end, write_event(_json({**head, "choices": [], "usage": _chat_usage(answer)})))
    yield Timed(end, write_event(b"[DONE]"))


# -- responses -----------------------------------------------------------------------------------------------------


def _response_usage(answer: FakeAnswer) -> dict[str, Any]:
    return {
        "input_tokens": answer.input_tokens,
        "input_tokens_details": {"cached_tokens": answer.found.read},
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }


def _response_items(answer: FakeAnswer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.thinking:
        text = {"type": "summary_text", "text": "".join(answer.thinking)}
        items.append({"type": "reasoning", "id": f"rs_{answer.answer_id}", "summary": [text]})
    if answer.tool is not None:
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{answer.answer_id}",
                "call_id": f"call_{answer.answer_id}",
                "name": answer.tool[0],
                "arguments": answer.tool[1],
                "status": "completed",
            }
        )
    else:
        items.append(
            {
                "type": "message",
                "id": f"msg_{answer.answer_id}",
                "role": "assistant",
                "status": "incomplete" if answer.by_length else "completed",
                "content": [{"type": "output_text", "text": answer.text, "annotations": []}],
            }
        )
    return items


def _response(answer: FakeAnswer, *, begun: bool = False) -> dict[str, Any]:
    cut = answer.by_length and not begun
    return {
        "id": f"resp_{answer.answer_id}",
        "object": "response",
        "created_at": answer.created_s,
        "status": "in_progress" if begun else "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": answer.model,
        "output": [] if begun else _response_items(answer),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if begun or not answer.reports else _response_usage(answer),
    }


def _response_events(answer: FakeAnswer) -> Iterator[Timed]:
    sequence = iter(range(1 << 30))
    items = _response_items(answer)

    def event(kind: str, **members: Any) -> bytes:
        return _event(kind, **members, sequence_number=next(sequence))

    yield Timed(0, event("response.created", response=_response(answer, begun=True)))
    tokens = 0
    for number, item in enumerate(items):
        empty = {**item, "status": "in_progress"} if item["type"] != "reasoning" else {**item, "summary": []}
        if "content" in empty:
            empty["content"] = []
        yield Timed(tokens, event("response.output_item.added", output_index=number, item=empty))
        place = {"item_id": item["id"], "output_index": number}
        for timed in _response_deltas(answer, item["type"], place, tokens):
            tokens = timed[0]
            yield Timed(tokens, event(timed[1], **timed[2]))
        yield Timed(tokens, event("response.output_item.done", output_index=number, item=item))
    kind = "response.incomplete" if answer.by_length else "response.completed"
    yield Timed(tokens, event(kind, response=_response(answer)))


def _response_deltas(
    answer: FakeAnswer, kind: str, place: dict[str, Any], tokens: int
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    if kind == "function_call":
        assert answer.tool is not None
        end = answer.thinking_tokens + answer.visible_tokens
        yield end, "response.function_call_arguments.delta", {**place, "delta": answer.tool[1]}
        done = {**place, "name": answer.tool[0], "arguments": answer.tool[1]}
        yield end, "response.function_call_arguments.done", done
        return
    thinks = kind == "reasoning"
    part = {"type": "summary_text" if thinks else "output_text", "text": ""}
    index = {"summary_index": 0} if thinks else {"content_index": 0}
    names = ("reasoning_summary_part", "reasoning_summary_text") if thinks else ("content_part", "output_text")
    extra: dict[str, Any] = {} if thinks else {"annotations": []}
    more: dict[str, Any] = {} if thinks else {"logprobs": []}
    yield tokens, f"response.{names[0]}.added", {**place, **index, "part": {**part, **extra}}
    said = answer.thinking if thinks else answer.visible
    for piece in said:
        tokens += len(piece) // TOKEN_BYTES
        yield tokens, f"response.{names[1]}.delta", {**place, **index, **more, "delta": piece}
    text = "".join(said)
    yield tokens, f"response.{names[1]}.done", {**place, **index, **more, "text": text}
    yield tokens, f"response.{names[0]}.done", {**place, **index, "part": {**part, **extra, "text": text}}


# -- messages ------------------------------------------------------------------------------------------------------


def _message_usage(answer: FakeAnswer, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": answer.input_tokens - answer.found.read - answer.found.written,
        "cache_read_input_tokens": answer.found.read,
        "cache_creation_input_tokens": answer.found.written,
        "output_tokens": output_tokens,
    }


def _message_blocks(answer: FakeAnswer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.thinking:
        blocks.append({"type": "thinking", "thinking": "".join(answer.thinking), "signature": answer.answer_id})
    if answer.tool is not None:
        arguments = json.loads(answer.tool[1])
        blocks.append(
            {"type": "tool_use", "id": f"toolu_{answer.answer_id}", "name": answer.tool[0], "input": arguments}
        )
    elif answer.visible:
        blocks.append({"type": "text", "text": answer.text})
    return blocks


def _message_reason(answer: FakeAnswer) -> str:
    return "tool_use" if answer.tool is not None else "max_tokens" if answer.by_length else "end_turn"


def _message(answer: FakeAnswer, *, begun: bool = False) -> dict[str, Any]:
    usage = _message_usage(answer, 1 if begun else answer.output_tokens)
    return {
        "id": f"msg_{answer.answer_id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [] if begun else _message_blocks(answer),
        "stop_reason": None if begun else _message_reason(answer),
        "stop_sequence": None,
        # The protocol knows no message without usage; a server that leaves it out breaks its clients.
        **({"usage": usage} if answer.reports or begun else {}),
    }


def _message_events(answer: FakeAnswer) -> Iterator[Timed]:
    begun = _message(answer, begun=True)
    if not answer.reports:
        del begun["usage"]
    yield Timed(0, _event("message_start", message=begun))
    tokens = 0
    for index, block in enumerate(_message_blocks(answer)):
        kind = block["type"]
        empty = block | dict.fromkeys(block.keys() & {"thinking", "signature", "text"}, "")
        if kind == "tool_use":
            empty["input"] = {}
        yield Timed(tokens, _event("content_block_start", index=index, content_block=empty))
        for tokens, delta in _message_deltas(answer, kind, tokens):  # noqa: B020 - It counts on.
            yield Timed(tokens, _event("content_block_delta", index=index, delta=delta))
        yield Timed(tokens, _event("content_block_stop", index=index))
    end = {"stop_reason": _message_reason(answer), "stop_sequence": None}
    usage = {"usage": {"output_tokens": answer.output_tokens}} if answer.reports else {}
    yield Timed(tokens, _event("message_delta", delta=end, **usage))
    yield Timed(tokens, _event("message_stop"))


def _message_deltas(answer: FakeAnswer, kind: str, tokens: int) -> Iterator[tuple[int, dict[str, Any]]]:
    if kind == "tool_use":
        assert answer.tool is not None
        yield tokens + answer.visible_tokens, {"type": "input_json_delta", "partial_json": answer.tool[1]}
        return
    for piece in answer.thinking if kind == "thinking" else answer.visible:
        tokens += len(piece) // TOKEN_BYTES
        yield tokens, {"type": f"{kind}_delta", kind: piece}
    if kind == "thinking":
        yield tokens, {"type": "signature_delta", "signature": answer.answer_id}
