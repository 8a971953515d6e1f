"""Which conversation a request belongs to, and where in it: by what the model was asked first and has answered since.

A replay by fingerprint wants the same bytes. An agent that is resumed, or that works on the same task once more, sends
others: ids of its operations, and what its tools found, with the times that tests took. What it cannot change is what
the model said. So the key of a place in a conversation is the task and the answers before it, and neither ids nor
results count; nor do instructions of the system, which are the agent's own and no part of the task. Whoever comes to
the same place is given the same answer, whatever was asked before and by whom. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from dsec.gateway.config import Api

_KEY_BYTES = 16
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def conversation_key(messages: Sequence[Any], *, streaming: bool, any_task: bool = False) -> str:
    """Return the key of the answer that comes next.

    Args:
        messages: of a chat completion, so far.
        streaming: whether the answer is a stream: its bytes are others.
        any_task: leave out what was asked first.
    """
    plain = [message for message in messages if isinstance(message, dict)]
    answers = [_answer(message) for message in plain if message.get("role") == "assistant"]
    task = None if any_task else _task(plain)
    said = msgspec.json.encode([streaming, task, answers])
    return blake2b(said, digest_size=_KEY_BYTES).hexdigest()


def conversation_of(api: Api, body: Any, *, any_task: bool = False) -> str:
    """Return the key of a request's place in its conversation; empty: its protocol has none."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if api is not Api.CHAT or not isinstance(messages, list):
        return ""
    return conversation_key(messages, streaming=body.get("stream") is True, any_task=any_task)


def seed_of(body: Any) -> int | None:
    """Return the seed that a request names."""
    seed = body.get("seed") if isinstance(body, dict) else None
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def _task(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return what was asked before the first answer."""
    asked: list[str] = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        if message.get("role") == "user":
            asked.append(text_of(message.get("content")))
    return asked


def _answer(message: dict[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    functions = [function_of(call) for call in calls] if isinstance(calls, list) else []
    shown = [[_shown_name(name), _canonical(arguments)] for name, arguments in functions]
    return [text_of(message.get("content")), shown]


def function_of(call: Any) -> tuple[str, str]:
    """Return the name and the arguments of a call; who writes by hand may leave out what stands around them."""
    function = call.get("function", call) if isinstance(call, dict) else {}
    if not isinstance(function, dict):
        return "", ""
    arguments = function.get("arguments", "")
    written = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return str(function.get("name") or ""), written


def text_of(content: Any) -> str:
    """Return the words of a message's content: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _shown_name(name: str) -> str:
    """Agents do not send back names that no tool can have; they all count as one."""
    return name if _NAME.fullmatch(name) else "unknown"


def _canonical(arguments: str) -> str:
    """Return arguments without spaces, in the order of their names; what is no JSON object counts as an empty one."""
    try:
        plain = msgspec.json.decode(arguments.encode(), type=dict[str, Any])
        return msgspec.json.encode(plain, order="deterministic").decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return "{}"
