"""Conversations written down as chat messages, one a line, which a replay answers from: for tests, examples and demos.

Such a file is what an agent sent last, with the final answer behind it (docs/formats/gateway-recording.md). Each answer
in it becomes two recordings, one as a stream and one as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.gateway.config import Api
from dsec.gateway.conversation import conversation_key, function_of, text_of
from dsec.gateway.recording_record import Recorded
from dsec.gateway.sse import write_event

CONVERSATION_PATTERN = "conversation*.jsonl"
DEFAULT_MODEL = "recorded"
_PIECE_CHARACTERS = 24
_CHARACTERS_A_TOKEN = 4


def read_conversation(file: Path) -> list[Recorded]:
    """Return the answers of a conversation, each as a stream and as a whole.

    Raises:
        NotFoundError: it cannot be read.
        InvalidRequestError: it is no conversation; the brief names the line.
    """
    messages = _read(file)
    any_task = not any(message["role"] == "user" for message in messages)
    answers: list[Recorded] = []
    model, seed = DEFAULT_MODEL, None
    for place, message in enumerate(messages):
        model = str(message.get("model") or model)
        seed = message.get("seed", seed)
        if message["role"] == "assistant":
            for streaming in (True, False):
                key = conversation_key(messages[:place], streaming=streaming, any_task=any_task)
                answers.append(_recorded(message, key, model, seed, messages[:place], streaming=streaming))
    if not answers:
        raise InvalidRequestError(f"{file} holds no answer", resolution='write lines with "role": "assistant"')
    return answers


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"the conversation {file} cannot be read", detail=str(error)) from error
    messages: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                message = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise InvalidRequestError(f"{file}:{number}: no message: {error}") from error
            if message.get("role") not in ("system", "developer", "user", "assistant", "tool"):
                raise InvalidRequestError(
                    f"{file}:{number}: no message of a chat", resolution='write {"role": "assistant", "content": "..."}'
                )
            messages.append(message)
    return messages


def _recorded(
    message: dict[str, Any],
    key: str,
    model: str,
    seed: int | None,
    before: Sequence[dict[str, Any]],
    *,
    streaming: bool,
) -> Recorded:
    after_s = float(message.get("after_s") or 0.0)
    usage = message.get("usage") or _usage(message, before)
    pieces = _events(message, key, model, usage) if streaming else [_whole(message, key, model, usage)]
    step_s = after_s / len(pieces)
    return Recorded(
        fingerprint="",
        api=Api.CHAT.value,
        backend="",
        model=model,
        wall_s=0.0,
        status=200,
        content_type="text/event-stream" if streaming else "application/json",
        head_s=0.0,
        ended_s=after_s,
        whole=True,
        pieces=tuple((round(step_s * (place + 1), 6), piece) for place, piece in enumerate(pieces)),
        conversation=key,
        seed=seed,
    )


def _usage(message: dict[str, Any], before: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return a guess that is the same each time: nobody counted the tokens of what was written by hand."""
    read = sum(len(json.dumps(each)) for each in before) // _CHARACTERS_A_TOKEN
    written = len(json.dumps(message)) // _CHARACTERS_A_TOKEN
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _calls(message: dict[str, Any], key: str) -> list[dict[str, Any]]:
    functions = [function_of(call) for call in message.get("tool_calls") or ()]
    return [
        {
            "index": place,
            "id": f"call_{key[:8]}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for place, (name, arguments) in enumerate(functions)
    ]


def _finish(message: dict[str, Any]) -> str:
    return str(message.get("finish_reason") or ("tool_calls" if message.get("tool_calls") else "stop"))


def _whole(message: dict[str, Any], key: str, model: str, usage: dict[str, int]) -> str:
    said: dict[str, Any] = {"role": "assistant", "content": text_of(message.get("content"))}
    if calls := _calls(message, key):
        said["tool_calls"] = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
    choice = {"index": 0, "message": said, "finish_reason": _finish(message)}
    head = {"id": f"chatcmpl-{key}", "object": "chat.completion", "created": 0, "model": model}
    return json.dumps({**head, "choices": [choice], "usage": usage})


def _events(message: dict[str, Any], key: str, model: str, usage: dict[str, int]) -> list[str]:
    head = {"id": f"chatcmpl-{key}", "object": "chat.completion.chunk", "created": 0, "model": model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return write_event(json.dumps({**head, "choices": [choice]}).encode()).decode()

    text = text_of(message.get("content"))
    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": piece}) for piece in _cut(text)]
    for call in _calls(message, key):
        function = call["function"]
        events.append(chunk({"tool_calls": [{**call, "function": {"name": function["name"], "arguments": ""}}]}))
        for piece in _cut(function["arguments"]):
            events.append(chunk({"tool_calls": [{"index": call["index"], "function": {"arguments": piece}}]}))
    events.append(chunk({}, _finish(message)))
    events.append(write_event(json.dumps({**head, "choices": [], "usage": usage}).encode()).decode())
    events.append(write_event(b"[DONE]").decode())
    return events


def _cut(text: str) -> list[str]:
    return [text[at : at + _PIECE_CHARACTERS] for at in range(0, len(text), _PIECE_CHARACTERS)]
