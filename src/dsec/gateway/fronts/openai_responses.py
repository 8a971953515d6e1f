"""OpenAI's responses. A stream names each event twice, beside the data and in it; the last one carries the answer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.gateway.config import Api
from dsec.gateway.failing import broken
from dsec.gateway.fronts.asked import Asked, Members, Target, estimate_tokens
from dsec.gateway.fronts.complaint import Complaint, encode, openai_error, openai_status
from dsec.gateway.fronts.effort import allowed_effort
from dsec.gateway.fronts.observation import Observation, complaint_of
from dsec.gateway.fronts.openai_chat import read_model
from dsec.gateway.json_object import join_object, member
from dsec.gateway.sse import write_event


class _Content(msgspec.Struct):
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Content] | None = None
    summary: list[_Content] | None = None
    name: str | None = None
    arguments: str | None = None
    input: Any = None


class _Response(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    output: list[_Item] | None = None


class _Event(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw()
    delta: Any = None
    error: Any = None
    message: str | None = None
    sequence_number: int | None = None


_flag = msgspec.json.Decoder(bool | None)
_count = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0)] | None)
_name = msgspec.json.Decoder(str | None)
_input = msgspec.json.Decoder(str | list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, Any] | None)
_event = msgspec.json.Decoder(_Event)
_response = msgspec.json.Decoder(_Response)
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_NO_RESPONSE = (b"", b"null")
_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


class OpenaiResponses:
    """`POST /v1/responses`."""

    api = Api.RESPONSES

    def ask(self, members: Members) -> Asked:
        model = read_model(members)
        continues = member(members, "previous_response_id", _name, None) or ""
        given = member(members, "input", _input, "")
        if not given and not continues and "prompt" not in members:
            raise InvalidRequestError("`input` is missing or empty", resolution="send a text or a list of items")
        items: list[Any] = [members["input"]] if isinstance(given, str) and given else list(given)
        prompt = (*(members[name] for name in ("tools", "instructions") if name in members), *items)
        return Asked(
            api=Api.RESPONSES,
            members=members,
            model=model,
            streaming=bool(member(members, "stream", _flag, False)),
            prompt=prompt,
            input_tokens=estimate_tokens(prompt),
            input_bytes=sum(map(len, prompt)),
            maximum_output_tokens=member(members, "max_output_tokens", _count, None),
            wants_usage=True,
            continues=continues,
        )

    def body(self, asked: Asked, target: Target) -> bytes:
        members = dict(asked.members)
        if target.model != asked.model:
            members["model"] = encode(target.model)
        if target.maximum_output_tokens is not None:
            members["max_output_tokens"] = encode(target.maximum_output_tokens)
        if target.thinking_tokens is not None and target.by_effort:
            plain = member(members, "reasoning", _object, None) or {}
            members["reasoning"] = encode(
                {**plain, "effort": allowed_effort(plain.get("effort"), target.thinking_tokens)}
            )
        return join_object(members)

    def watch(self, asked: Asked) -> ResponsesWatcher:
        return ResponsesWatcher()

    def status(self, complaint: Complaint) -> int:
        return openai_status(complaint)

    def error(self, complaint: Complaint) -> bytes:
        return encode({"error": openai_error(complaint)})

    def error_event(self, complaint: Complaint) -> bytes:
        error = openai_error(complaint)
        # The API's own error event has its members at the top; clients raise on a member `error`.
        return write_event(encode({"type": "error", "error": error, **error, "sequence_number": 0}), b"error")


class ResponsesWatcher:
    """Watches one answer."""

    __slots__ = ("_began", "_sequence", "seen")

    def __init__(self) -> None:
        self.seen = Observation()
        self._began: bytes | msgspec.Raw = b""
        self._sequence = 0

    def event(self, name: bytes, data: bytes, raw: bytes) -> bytes:
        if not data or data == b"[DONE]":
            return raw
        try:
            event = _event.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise broken(f"not an event of a response: {error}") from error
        seen = self.seen
        self._sequence = event.sequence_number or self._sequence
        if event.type in _THOUGHTS:
            seen.think(event.delta)
        elif event.type.endswith(".delta"):
            seen.say(event.delta)
        elif (
            event.type in ("response.created", "response.in_progress", *_ENDS)
            and bytes(event.response) not in _NO_RESPONSE
        ):
            self._began = self._began or bytes(event.response)
            self._learn(_read_response(event.response), ended=event.type in _ENDS)
        elif event.type == "error":
            seen.complaint = complaint_of(event.error or {"message": event.message})
        return raw

    def whole(self, body: bytes) -> bytes:
        response = _read_response(body)
        if response.output is None and response.error is None and response.status is None:
            raise broken("the answer has no output")
        self._learn(response, ended=True)
        for item in response.output or ():
            _count_item(self.seen, item)
        return body

    def finish(self) -> bytes:
        return b""

    def cut(self) -> bytes:
        """Say that a limit of length ended the answer."""
        plain: dict[str, Any] = msgspec.json.decode(self._began) if self._began else {"object": "response"}
        plain |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        event = {"type": "response.incomplete", "response": plain, "sequence_number": self._sequence + 1}
        return write_event(encode(event), b"response.incomplete")

    def _learn(self, response: _Response, *, ended: bool) -> None:
        seen = self.seen
        if response.model:
            seen.model, seen.answer_id = response.model, response.id or ""
        if response.error:
            seen.complaint = complaint_of(response.error)
        if response.usage is not None:
            seen.learn_usage(response.usage)
        seen.finished = seen.finished or ended
        seen.stopped_by_length = response.status == "incomplete"


def _read_response(data: bytes | msgspec.Raw) -> _Response:
    try:
        return _response.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise broken(f"not a response: {error}") from error


def _count_item(seen: Observation, item: _Item) -> None:
    for content in (*(item.content or ()), *(item.summary or ())):
        if item.type == "reasoning":
            seen.think(content.text)
        else:
            seen.say(content.text)
            seen.say(content.refusal)
    seen.say(item.name)
    seen.say(item.arguments)
    seen.say(item.input)
