"""OpenAI's chat completions, as hosted services, vLLM and SGLang speak it.

Backends report the usage of a stream only when asked (`stream_options.include_usage`), in a last chunk without choices
or beside the last choice. The gateway always asks, and keeps from the caller a chunk that it did not ask for. Thinking
comes as `reasoning_content` or `reasoning`, by server.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.gateway.config import Api
from dsec.gateway.failing import broken
from dsec.gateway.fronts.asked import Asked, Members, Target, estimate_tokens
from dsec.gateway.fronts.complaint import Complaint, encode, openai_error, openai_status
from dsec.gateway.fronts.effort import allowed_effort
from dsec.gateway.fronts.observation import Observation, ThinkingMember, complaint_of
from dsec.gateway.json_object import join_object, member
from dsec.gateway.sse import write_event


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Said(msgspec.Struct):
    """A `message` or a `delta`."""

    content: str | list[Any] | dict[str, Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | dict[str, Any] | list[Any] | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_LONGEST_NAME = 256
_text = msgspec.json.Decoder(str)
_flag = msgspec.json.Decoder(bool | None)
_count = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0)] | None)
_optional_text = msgspec.json.Decoder(str | None)
_list = msgspec.json.Decoder(list[msgspec.Raw] | None)
_options = msgspec.json.Decoder(_StreamOptions | None)
_thinking = msgspec.json.Decoder(ThinkingMember | None)
_chunk = msgspec.json.Decoder(_Chunk)


class OpenaiChat:
    """`POST /v1/chat/completions`."""

    api = Api.CHAT

    def ask(self, members: Members) -> Asked:
        model = read_model(members)
        messages = member(members, "messages", _list, None)
        if not messages:
            raise InvalidRequestError("`messages` is missing or empty", resolution="send at least one message")
        tools = (members["tools"],) if "tools" in members else ()
        prompt = (*tools, *messages)
        options = member(members, "stream_options", _options, None)
        limit = member(members, "max_completion_tokens", _count, None)
        return Asked(
            api=Api.CHAT,
            members=members,
            model=model,
            streaming=bool(member(members, "stream", _flag, False)),
            prompt=prompt,
            input_tokens=estimate_tokens(prompt),
            input_bytes=sum(map(len, prompt)),
            maximum_output_tokens=member(members, "max_tokens", _count, None) if limit is None else limit,
            thinking_asked=_thinking_asked(members),
            wants_usage=options is not None and bool(options.include_usage),
        )

    def body(self, asked: Asked, target: Target) -> bytes:
        members = dict(asked.members)
        if target.model != asked.model:
            members["model"] = encode(target.model)
        if asked.streaming and not asked.wants_usage:
            members["stream_options"] = _asking_usage(members)
        if target.maximum_output_tokens is not None:
            name = "max_tokens" if "max_tokens" in members else "max_completion_tokens"
            members[name] = encode(target.maximum_output_tokens)
        if target.thinking_tokens is not None:
            _limit_thinking(members, asked, target, target.thinking_tokens)
        return join_object(members)

    def watch(self, asked: Asked) -> ChatWatcher:
        return ChatWatcher(asked)

    def status(self, complaint: Complaint) -> int:
        return openai_status(complaint)

    def error(self, complaint: Complaint) -> bytes:
        return encode({"error": openai_error(complaint)})

    def error_event(self, complaint: Complaint) -> bytes:
        return write_event(self.error(complaint))


def read_model(members: Members) -> str:
    """Return the member `model`.

    Raises:
        InvalidRequestError: it is absent or no text.
    """
    model = member(members, "model", _text, "")
    if not model:
        raise InvalidRequestError("`model` is missing", resolution="name a model; GET /v1/models lists them")
    if len(model) > _LONGEST_NAME:
        raise InvalidRequestError(f"`model` has {len(model)} characters", resolution=f"send at most {_LONGEST_NAME}")
    return model


def _thinking_asked(members: Members) -> int | None:
    asked = member(members, "thinking_token_budget", _count, None)
    if asked is None and "thinking" in members:
        thinking = member(members, "thinking", _thinking, None)
        asked = None if thinking is None else thinking.budget_tokens
    return asked


def _limit_thinking(members: Members, asked: Asked, target: Target, tokens: int) -> None:
    if target.by_tokens:
        limit = tokens if asked.thinking_asked is None else min(tokens, asked.thinking_asked)
        members["thinking_token_budget"] = encode(limit)
    if target.by_effort:
        effort = member(members, "reasoning_effort", _optional_text, None)
        members["reasoning_effort"] = encode(allowed_effort(effort, tokens))


def _asking_usage(members: Members) -> bytes:
    options = members.get("stream_options")
    plain = {} if options is None or bytes(options) == b"null" else msgspec.json.decode(options)
    return encode({**plain, "include_usage": True})


class ChatWatcher:
    """Watches one answer."""

    __slots__ = ("_last", "_wants_usage", "seen")

    def __init__(self, asked: Asked) -> None:
        self.seen = Observation()
        self._wants_usage = asked.wants_usage
        self._last = b""

    def event(self, name: bytes, data: bytes, raw: bytes) -> bytes:
        if not data:
            return raw
        if data == b"[DONE]":
            self.seen.finished = True
            return raw
        chunk = self._read(data)
        self._last = data
        return raw if chunk.choices or self._wants_usage or chunk.usage is None else b""

    def whole(self, body: bytes) -> bytes:
        chunk = self._read(body)
        if not chunk.choices and self.seen.complaint is None:
            raise broken("the answer has no choices")
        self.seen.finished = True
        return body

    def finish(self) -> bytes:
        return b""

    def cut(self) -> bytes:
        """Say that a limit of length ended the answer, in a chunk like the last one that came."""
        plain: dict[str, Any] = msgspec.json.decode(self._last) if self._last else {"object": "chat.completion.chunk"}
        plain["choices"] = [{"index": 0, "delta": {}, "finish_reason": "length"}]
        plain.setdefault("created", int(time.time()))
        plain.pop("usage", None)
        return write_event(encode(plain)) + write_event(b"[DONE]")

    def _read(self, data: bytes) -> _Chunk:
        try:
            chunk = _chunk.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise broken(f"not a chat completion: {error}") from error
        seen = self.seen
        if chunk.model and not seen.model:
            seen.model, seen.answer_id = chunk.model, chunk.id or ""
        if chunk.error:
            seen.complaint = complaint_of(chunk.error)
        if chunk.usage is not None:
            seen.learn_usage(chunk.usage)
        for choice in chunk.choices or ():
            said = choice.delta or choice.message
            if said is not None:
                _count_said(seen, said)
            if choice.finish_reason is not None:
                # Some servers leave out [DONE]; a reason to finish is an end, too.
                seen.finished = True
                seen.stopped_by_length = seen.stopped_by_length or choice.finish_reason == "length"
        return chunk


def _count_said(seen: Observation, said: _Said) -> None:
    seen.say(said.content)
    seen.say(said.refusal)
    seen.think(said.reasoning_content or said.reasoning)
    for call in said.tool_calls or ():
        if call.function is not None:
            seen.say(call.function.name)
            seen.say(call.function.arguments)
