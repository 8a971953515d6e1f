"""An answer of chat completions as one of messages, whole or event by event.

A stream of chat completions is one line of pieces; messages have blocks that are opened and closed. A block is open as
long as pieces of its kind come: thinking, then text, then one block for each call of a tool.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.gateway.failing import broken
from dsec.gateway.fronts.asked import Asked
from dsec.gateway.fronts.complaint import encode
from dsec.gateway.fronts.observation import Observation
from dsec.gateway.fronts.openai_chat import ChatWatcher
from dsec.gateway.sse import write_event
from dsec.gateway.tariff import usage_of

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessagesOverChat:
    """Watches an answer of chat completions and tells it as one of messages.

    Args:
        watcher: understands it.
        asked: the caller's call.
    """

    __slots__ = ("_block", "_index", "_input", "_kind", "_model", "_reason", "_started", "_watcher", "seen")

    def __init__(self, watcher: ChatWatcher, asked: Asked) -> None:
        self.seen: Observation = watcher.seen
        self._watcher = watcher
        self._model = asked.model
        self._input = (asked.input_tokens, asked.input_bytes)
        self._started = False
        self._kind = ""
        self._index = -1
        self._block: object = None
        self._reason = "end_turn"

    def whole(self, body: bytes) -> bytes:
        """Return the answer as one of messages.

        Raises:
            AttemptFailedError: it cannot be understood.
        """
        self._watcher.whole(body)
        if self.seen.complaint is not None:
            return body
        choice = msgspec.json.decode(body)["choices"][0]
        said = choice.get("message") or {}
        content: list[dict[str, Any]] = []
        if thought := said.get("reasoning_content") or said.get("reasoning"):
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        if text := said.get("content") or said.get("refusal"):
            content.append({"type": "text", "text": text})
        for call in said.get("tool_calls") or ():
            function = call.get("function") or {}
            block = {"type": "tool_use", "id": call.get("id"), "name": function.get("name")}
            content.append({**block, "input": _arguments(function)})
        reason = _REASONS.get(choice.get("finish_reason") or "stop", "end_turn")
        return encode({**self._head(), "content": content, "stop_reason": reason, "usage": self._usage()})

    def event(self, name: bytes, data: bytes, raw: bytes) -> bytes:
        """Return the events of messages that say the same.

        Raises:
            AttemptFailedError: it cannot be understood.
        """
        self._watcher.event(name, data, raw)
        if not data:
            return raw
        if self.seen.complaint is not None:
            return b""
        if data == b"[DONE]":
            return self._close()
        chunk = msgspec.json.decode(data)
        parts = [self._start()]
        for choice in chunk.get("choices") or ():
            parts += self._said(choice.get("delta") or {})
            if choice.get("finish_reason"):
                self._reason = _REASONS.get(choice["finish_reason"], "end_turn")
        return b"".join(parts)

    def finish(self) -> bytes:
        """Return what is left to say where the stream ended without a last word."""
        return self._close()

    def cut(self) -> bytes:
        """Return the events that end the stream as if a limit of length had."""
        self._reason = "max_tokens"
        return self._start() + self._close()

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        message = {**self._head(), "content": [], "stop_reason": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        return _event("message_start", message=message)

    def _said(self, delta: dict[str, Any]) -> list[bytes]:
        parts = []
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            parts.append(self._open("thinking", None, {"type": "thinking", "thinking": "", "signature": ""}))
            parts.append(self._delta({"type": "thinking_delta", "thinking": thought}))
        if text := delta.get("content") or delta.get("refusal"):
            parts.append(self._open("text", None, {"type": "text", "text": ""}))
            parts.append(self._delta({"type": "text_delta", "text": text}))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            block = {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": {}}
            parts.append(self._open("tool_use", call.get("index", 0), block))
            if arguments := function.get("arguments"):
                parts.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return parts

    def _open(self, kind: str, block: object, content: dict[str, Any]) -> bytes:
        if self._kind == kind and self._block == block:
            return b""
        stopped = self._stop_block()
        self._kind, self._block = kind, block
        self._index += 1
        return stopped + _event("content_block_start", index=self._index, content_block=content)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _stop_block(self) -> bytes:
        if not self._kind:
            return b""
        self._kind = ""
        return _event("content_block_stop", index=self._index)

    def _close(self) -> bytes:
        if not self._started:
            return b""
        self._started = False
        delta = {"stop_reason": self._reason, "stop_sequence": None}
        return b"".join(
            (self._stop_block(), _event("message_delta", delta=delta, usage=self._usage()), _event("message_stop"))
        )

    def _head(self) -> dict[str, Any]:
        answer_id = self.seen.answer_id or "msg"
        return {
            "id": answer_id,
            "type": "message",
            "role": "assistant",
            "model": self.seen.model or self._model,
            "stop_sequence": None,
        }

    def _usage(self) -> dict[str, int]:
        usage = usage_of(self.seen, *self._input)
        return {
            "input_tokens": usage.plain_input.tokens,
            "cache_read_input_tokens": usage.cache_read.tokens,
            "cache_creation_input_tokens": usage.cache_write.tokens,
            "output_tokens": usage.output_tokens,
        }


def _arguments(function: dict[str, Any]) -> object:
    try:
        return msgspec.json.decode(function.get("arguments") or "{}")
    except msgspec.MsgspecError as error:
        raise broken(f"the arguments of {function.get('name')!r} are not JSON") from error


def _event(name: str, **members: Any) -> bytes:
    return write_event(encode({"type": name, **members}), name.encode())
