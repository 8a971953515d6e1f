"""Anthropic's messages. A stream tells its usage twice: of the input at its beginning, of the whole at its end."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.gateway.config import Api
from dsec.gateway.failing import broken
from dsec.gateway.fronts.asked import Asked, Members, Target, estimate_tokens
from dsec.gateway.fronts.complaint import Complaint, anthropic_error, anthropic_status, encode
from dsec.gateway.fronts.observation import Observation, ThinkingMember, complaint_of
from dsec.gateway.fronts.openai_chat import read_model
from dsec.gateway.json_object import join_object, member
from dsec.gateway.sse import write_event

_LEAST_THINKING_TOKENS = 1024
"""The API takes no smaller budget; less is none."""


class _Block(msgspec.Struct):
    """A block of content, or a change of one."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    name: str | None = None
    input: Any = None
    stop_reason: str | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    type: str = ""
    model: str | None = None
    usage: dict[str, Any] | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    error: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int | None = None
    message: _Message | None = None
    delta: _Block | None = None
    content_block: _Block | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_flag = msgspec.json.Decoder(bool | None)
_count = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0)] | None)
_list = msgspec.json.Decoder(list[msgspec.Raw] | None)
_thinking = msgspec.json.Decoder(ThinkingMember | None)
_event = msgspec.json.Decoder(_Event)
_message = msgspec.json.Decoder(_Message)


class AnthropicMessages:
    """`POST /v1/messages`."""

    api = Api.MESSAGES

    def ask(self, members: Members) -> Asked:
        model = read_model(members)
        messages = member(members, "messages", _list, None)
        if not messages:
            raise InvalidRequestError("`messages` is missing or empty", resolution="send at least one message")
        limit = member(members, "max_tokens", _count, None)
        if limit is None:
            raise InvalidRequestError("`max_tokens` is missing", resolution="say how many tokens the answer may have")
        thinking = member(members, "thinking", _thinking, None)
        prompt = (*(members[name] for name in ("tools", "system") if name in members), *messages)
        return Asked(
            api=Api.MESSAGES,
            members=members,
            model=model,
            streaming=bool(member(members, "stream", _flag, False)),
            prompt=prompt,
            input_tokens=estimate_tokens(prompt),
            input_bytes=sum(map(len, prompt)),
            maximum_output_tokens=limit,
            thinking_asked=None if thinking is None else thinking.budget_tokens,
            wants_usage=True,
            cacheable=any(b'"cache_control"' in bytes(part) for part in prompt) or "cache_control" in members,
        )

    def body(self, asked: Asked, target: Target) -> bytes:
        members = dict(asked.members)
        if target.model != asked.model:
            members["model"] = encode(target.model)
        if target.maximum_output_tokens is not None:
            members["max_tokens"] = encode(target.maximum_output_tokens)
        if asked.thinking_asked is not None:
            _limit_thinking(members, asked.thinking_asked, target)
        return join_object(members)

    def watch(self, asked: Asked) -> MessagesWatcher:
        return MessagesWatcher()

    def status(self, complaint: Complaint) -> int:
        return anthropic_status(complaint)

    def error(self, complaint: Complaint) -> bytes:
        return encode(anthropic_error(complaint))

    def error_event(self, complaint: Complaint) -> bytes:
        return write_event(self.error(complaint), b"error")


def _limit_thinking(members: Members, asked: int, target: Target) -> None:
    """Lower the budget to what is allowed, and below the limit of the whole answer, as the API wants it."""
    allowed = asked
    if target.thinking_tokens is not None and target.by_tokens:
        allowed = min(allowed, target.thinking_tokens)
    if target.maximum_output_tokens is not None:
        allowed = min(allowed, target.maximum_output_tokens - 1)
    if allowed == asked:
        return
    if allowed < _LEAST_THINKING_TOKENS:
        members["thinking"] = encode({"type": "disabled"})
    else:
        members["thinking"] = encode({"type": "enabled", "budget_tokens": allowed})


class MessagesWatcher:
    """Watches one answer."""

    __slots__ = ("_open_block", "seen")

    def __init__(self) -> None:
        self.seen = Observation()
        self._open_block: int | None = None

    def event(self, name: bytes, data: bytes, raw: bytes) -> bytes:
        if not data:
            return raw
        try:
            event = _event.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise broken(f"not an event of a message: {error}") from error
        seen = self.seen
        if event.type == "content_block_delta" and event.delta is not None:
            _count_block(seen, event.delta)
        elif event.type == "content_block_start":
            self._open_block = event.index
            if event.content_block is not None:
                _count_block(seen, event.content_block)
        elif event.type == "content_block_stop":
            self._open_block = None
        elif event.type == "message_start" and event.message is not None:
            self._learn(event.message)
        elif event.type == "message_delta":
            seen.learn_usage(event.usage)
            seen.stopped_by_length = event.delta is not None and event.delta.stop_reason == "max_tokens"
        elif event.type == "message_stop":
            seen.finished = True
        elif event.type == "error":
            seen.complaint = complaint_of(event.error)
        return raw

    def whole(self, body: bytes) -> bytes:
        try:
            message = _message.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise broken(f"not a message: {error}") from error
        if message.content is None and message.error is None:
            raise broken("the answer has no content")
        self._learn(message)
        for block in message.content or ():
            _count_block(self.seen, block)
        if message.error:
            self.seen.complaint = complaint_of(message.error)
        self.seen.finished = True
        self.seen.stopped_by_length = message.stop_reason == "max_tokens"
        return body

    def finish(self) -> bytes:
        return b""

    def cut(self) -> bytes:
        """Say that a limit of length ended the answer."""
        seen = self.seen
        output = seen.thinking_tokens + seen.visible_tokens
        parts = []
        if self._open_block is not None:
            stop = {"type": "content_block_stop", "index": self._open_block}
            parts.append(write_event(encode(stop), b"content_block_stop"))
        change = {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
            "usage": {"output_tokens": output},
        }
        parts.append(write_event(encode(change), b"message_delta"))
        parts.append(write_event(encode({"type": "message_stop"}), b"message_stop"))
        return b"".join(parts)

    def _learn(self, message: _Message) -> None:
        self.seen.model = message.model or ""
        self.seen.answer_id = message.id or ""
        self.seen.learn_usage(message.usage)


def _count_block(seen: Observation, block: _Block) -> None:
    seen.say(block.text)
    seen.think(block.thinking)
    seen.say(block.partial_json)
    seen.say(block.name)
    if block.input:
        seen.say(encode(block.input).decode())
