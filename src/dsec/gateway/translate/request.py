"""A call of messages as a call of chat completions.

What has no counterpart is refused by name and not left out: a caller who asks for something gets it or hears that it
cannot be had. Left out is only what changes no answer: marks for caches, names of tiers, and earlier thinking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.gateway.fronts.asked import Members
from dsec.gateway.fronts.complaint import encode

_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
_LEFT_OUT = ("service_tier", "cache_control", "thinking")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_members(members: Members) -> Members:
    """Return the members of a chat completion that asks for the same.

    Raises:
        InvalidRequestError: something in the call has no counterpart; the brief names it.
    """
    try:
        return _told(members)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(
            f"the call has something in it that is not of its protocol: {error!r}", resolution="see the API's reference"
        ) from error


def _told(members: Members) -> Members:
    plain: dict[str, Any] = {name: msgspec.json.decode(value) for name, value in members.items()}
    told: dict[str, Any] = {name: plain.pop(name) for name in _SAME if name in plain}
    for name in _LEFT_OUT:
        plain.pop(name, None)
    told["messages"] = [*_system(plain.pop("system", None)), *_messages(plain.pop("messages", []))]
    for name, read in _OTHERS.items():
        if (value := plain.pop(name, None)) is not None:
            told.update(read(value))
    if plain:
        raise _untold(f"`{next(iter(plain))}`")
    return {name: encode(value) for name, value in told.items()}


def _untold(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{what} cannot be told to the backends of this model, which speak chat completions",
        resolution="leave it out, or use a model whose backends speak messages",
    )


def _metadata(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"user": value["user_id"]} if value.get("user_id") else {}


def _tools(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tools": [_tool(tool) for tool in tools]} if tools else {}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom" or "input_schema" not in tool:
        raise _untold(f"the tool {tool.get('name') or tool.get('type')!r}, which the service itself would run,")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if choice.get("disable_parallel_tool_use"):
        told["parallel_tool_calls"] = False
    if choice.get("type") == "tool":
        return {**told, "tool_choice": {"type": "function", "function": {"name": choice["name"]}}}
    if choice.get("type") not in _CHOICES:
        raise _untold(f"`tool_choice` of type {choice.get('type')!r}")
    return {**told, "tool_choice": _CHOICES[choice["type"]]}


_OTHERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "tools": _tools,
    "tool_choice": _tool_choice,
    "stop_sequences": lambda value: {"stop": value},
    "metadata": _metadata,
}


def _system(system: Any) -> list[dict[str, Any]]:
    if not system:
        return []
    text = system if isinstance(system, str) else "\n\n".join(_text(block) for block in system)
    return [{"role": "system", "content": text}]


def _text(block: Mapping[str, Any]) -> str:
    if block.get("type") != "text":
        raise _untold(f"content of type {block.get('type')!r} here")
    return str(block["text"])


def _messages(messages: list[Any]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise InvalidRequestError("`messages` holds something without a role", resolution="see the API's reference")
        content = message.get("content")
        if isinstance(content, str):
            told.append({"role": message["role"], "content": content})
        elif message["role"] == "assistant":
            told.append(_assistant(content or []))
        else:
            told += _user(content or [])
    return told


def _assistant(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    texts, calls = [], []
    for block in blocks:
        if block.get("type") == "tool_use":
            function = {"name": block["name"], "arguments": encode(block.get("input") or {}).decode()}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif block.get("type") not in ("thinking", "redacted_thinking"):
            texts.append(_text(block))
    return {"role": "assistant", "content": "".join(texts) or None, **({"tool_calls": calls} if calls else {})}


def _user(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of tools first, as chat completions want them right after the call, and then the rest."""
    results, parts = [], []
    for block in blocks:
        if block.get("type") == "tool_result":
            results.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block)})
        else:
            parts.append(_part(block))
    if not parts:
        return results
    plain = all(part["type"] == "text" for part in parts)
    content = "".join(part["text"] for part in parts) if plain else parts
    return [*results, {"role": "user", "content": content}]


def _result(block: Mapping[str, Any]) -> str:
    content = block.get("content") or ""
    text = content if isinstance(content, str) else "".join(_text(part) for part in content)
    return f"Error: {text}" if block.get("is_error") else text


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    if block.get("type") != "image":
        return {"type": "text", "text": _text(block)}
    source = block.get("source") or {}
    if source.get("type") == "base64":
        return {"type": "image_url", "image_url": {"url": f"data:{source['media_type']};base64,{source['data']}"}}
    if source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source["url"]}}
    raise _untold(f"a picture from {source.get('type')!r}")
