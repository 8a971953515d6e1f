"""What a simulated backend reads of a call, in any of the three protocols. Pure.

A member `dsec_fake` of the body says how this one call is answered; a gateway passes it on like every member that it
does not know: ``{"visible_tokens": 200, "thinking_tokens": 1000, "trouble": "stalled", "tool": "name"}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.gateway.config import Api
from dsec.gateway.fake.prefix_store import Part
from dsec.gateway.fake.settings import Trouble

_EFFORT_TOKENS = {"none": 0, "minimal": 128, "low": 1024, "medium": 4096, "high": 16_384}


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one call is answered. What is absent is as in the settings.

    Attributes:
        visible_tokens, thinking_tokens: how much.
        trouble: what goes wrong.
        tool: the tool that is called.
    """

    visible_tokens: int | None = None
    thinking_tokens: int | None = None
    trouble: Trouble | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCall:
    """One call.

    Attributes:
        api: the protocol.
        model: what was asked for.
        streaming: whether events are wanted.
        wants_usage: whether a stream is to end with the usage.
        parts: of the prompt, in the order in which a model sees them.
        limit_tokens: the longest answer; None: any.
        thinking_limit_tokens: the longest thinking; None: any.
        tool: the tool to be called and its schema; None: none.
        earlier: id of the answer that it goes on from; empty: none.
        fingerprint: of the whole body.
        wish: how to answer.
    """

    api: Api
    model: str
    streaming: bool
    wants_usage: bool
    parts: tuple[Part, ...]
    limit_tokens: int | None
    thinking_limit_tokens: int | None
    tool: tuple[str, Mapping[str, Any]] | None
    earlier: str
    fingerprint: bytes
    wish: Wish


def read_call(api: Api, body: bytes) -> FakeCall:
    """Read a call.

    Raises:
        InvalidRequestError: it is none.
    """
    try:
        plain = json.loads(body)
        return _understood(api, plain, blake2b(body, digest_size=16).digest())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # A member of another type than the protocol's shows itself wherever it is used first.
        raise InvalidRequestError(f"the body is no call: {error}", resolution="send what the protocol says") from error


def _understood(api: Api, plain: Mapping[str, Any], fingerprint: bytes) -> FakeCall:
    wish = msgspec.convert(plain.get("dsec_fake") or {}, Wish)
    if not isinstance(plain.get("model"), str):
        raise InvalidRequestError("`model` is missing", resolution="name a model")
    parts = _parts(api, plain)
    if not parts and not plain.get("previous_response_id"):
        raise InvalidRequestError("there is no prompt", resolution="send messages, or an input")
    options = plain.get("stream_options") or {}
    limits = [plain.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens")]
    return FakeCall(
        api=api,
        model=plain["model"],
        streaming=bool(plain.get("stream")),
        wants_usage=api is not Api.CHAT or bool(options.get("include_usage")),
        parts=tuple(parts),
        limit_tokens=next((int(limit) for limit in limits if limit), None),
        thinking_limit_tokens=_thinking_limit(api, plain),
        tool=_tool(api, plain, wish),
        earlier=str(plain.get("previous_response_id") or ""),
        fingerprint=fingerprint,
        wish=wish,
    )


def _parts(api: Api, plain: Mapping[str, Any]) -> list[Part]:
    parts = []
    if tools := plain.get("tools"):
        marked = any(isinstance(tool, dict) and "cache_control" in tool for tool in tools)
        parts.append(Part("tools", json.dumps(tools).encode(), marked))
    for name in ("system", "instructions"):
        if plain.get(name):
            parts += _content_parts("system", plain[name])
    given = plain.get("input") if api is Api.RESPONSES else plain.get("messages")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    for message in given or ():
        if not isinstance(message, dict):
            raise InvalidRequestError(f"{message!r:.80} is no message", resolution="send objects with role and content")
        known = _content_parts(str(message.get("role") or message.get("type")), message.get("content"))
        rest = {name: value for name, value in message.items() if name not in ("role", "content", "type", "id")}
        parts += known
        if rest and (not known or "tool_calls" in rest):
            parts.append(Part(str(message.get("role") or message.get("type")), json.dumps(rest).encode()))
    return parts


def _content_parts(role: str, content: Any) -> list[Part]:
    if isinstance(content, str):
        return [Part(role, content.encode(errors="replace"))] if content else []
    parts = []
    for block in content or ():
        text = block.get("text") if isinstance(block, dict) else None
        shown = text if isinstance(text, str) else json.dumps(block)
        parts.append(
            Part(role, shown.encode(errors="replace"), isinstance(block, dict) and bool(block.get("cache_control")))
        )
    return parts


def _thinking_limit(api: Api, plain: Mapping[str, Any]) -> int | None:
    thinking = plain.get("thinking")
    if isinstance(thinking, dict):
        return int(thinking.get("budget_tokens") or 0) if thinking.get("type") == "enabled" else 0
    if isinstance(plain.get("thinking_token_budget"), int):
        return int(plain["thinking_token_budget"])
    effort = plain.get("reasoning_effort") or (plain.get("reasoning") or {}).get("effort")
    if effort in _EFFORT_TOKENS:
        return _EFFORT_TOKENS[effort]
    return 0 if api is Api.MESSAGES else None  # Messages think only when they are told to.


def _tool(api: Api, plain: Mapping[str, Any], wish: Wish) -> tuple[str, Mapping[str, Any]] | None:
    """Return the tool that is called: the one that is asked for, else the first, unless its result just came."""
    tools = {}
    for tool in plain.get("tools") or ():
        inner = tool.get("function") or tool
        if name := inner.get("name"):
            tools[name] = inner.get("parameters") or inner.get("input_schema") or {}
    choice = plain.get("tool_choice")
    wanted = wish.tool
    if isinstance(choice, dict):
        wanted = wanted or (choice.get("function") or choice).get("name")
        choice = choice.get("type")
    if wanted in tools:
        return str(wanted), tools[wanted]
    if not tools or choice == "none":
        return None
    if choice not in ("required", "any") and _ends_with_result(plain.get("messages") or plain.get("input")):
        return None
    return next(iter(tools.items()))


def _ends_with_result(messages: Sequence[Any] | str | None) -> bool:
    last = messages[-1] if messages and not isinstance(messages, str) else None
    if not isinstance(last, dict):
        return False
    if last.get("role") == "tool" or last.get("type") == "function_call_output":
        return True
    content = last.get("content")
    return isinstance(content, list) and any(isinstance(b, dict) and b.get("type") == "tool_result" for b in content)
