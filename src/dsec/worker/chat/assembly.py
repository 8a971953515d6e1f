"""Put an answer together from the events of a stream, or from one document. Pure, and bounded.

What a stream says is not believed: a chunk that is no chunk breaks the answer off as the service's failure
(`BackendFailedError`), and an answer that grows beyond its limit is cut there and called so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from dsec.base.errors import BackendFailedError
from dsec.base.units import MIB
from dsec.episode.content import recordable
from dsec.episode.identity import ModelIdentity
from dsec.episode.operations import TokenUsage
from dsec.worker.chat.port import ChatAnswer, WrittenCall

MAXIMUM_ANSWER_BYTES = 1 * MIB
"""Of words and calls; no model writes as much in one answer that is of use."""
MAXIMUM_EVENT_BYTES = 2 * MIB
MAXIMUM_CALLS = 256
MAXIMUM_NAME_CHARACTERS = 200
"""Of the name of a tool, as it is told while an answer goes on."""
_BLANK = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class _Function(msgspec.Struct):
    """Services send texts here; what else a model made of them is its own fault, and told to it."""

    name: Any = None
    arguments: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    function: _Function | None = None


class _Said(msgspec.Struct):
    content: Any = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(msgspec.Struct):
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw | None = None


_DECODER = msgspec.json.Decoder(_Chunk)


class AnswerAssembly:
    """One answer in the making.

    Args:
        maximum_bytes: of words and calls.
        hear: called with the name of each tool once its arguments begin.

    Attributes:
        is_over: nothing more need be read.
    """

    def __init__(self, maximum_bytes: int = MAXIMUM_ANSWER_BYTES, *, hear: Callable[[str], None] | None = None) -> None:
        self._maximum = maximum_bytes
        self._hear = hear
        self._heard: set[int] = set()
        self._rest = bytearray()
        self._text: list[str] = []
        self._calls: dict[int, tuple[list[str], list[str]]] = {}
        self._length = 0
        self._finish = ""
        self._cut = ""
        self._model = ""
        self._usage = _Usage()
        self._has_begun = False
        self.is_over = False

    @property
    def is_whole(self) -> bool:
        """Whether it came to its own end, and was not cut."""
        return self.is_over and not self._cut

    def feed(self, data: bytes) -> None:
        """Take in a piece of a stream of server-sent events.

        Raises:
            BackendFailedError: it is none.
        """
        searched = max(0, len(self._rest) - 3)
        self._rest += data
        if _BLANK.search(self._rest, searched):  # Otherwise a long event would be looked through again and again.
            *events, rest = _BLANK.split(bytes(self._rest))
            self._rest = bytearray(rest)
            for event in events:
                if self.is_over:
                    return
                self._event(event)
        if len(self._rest) > MAXIMUM_EVENT_BYTES:
            raise _broken(f"an event is longer than {MAXIMUM_EVENT_BYTES} bytes")

    def feed_document(self, data: bytes) -> None:
        """Take in an answer that came in one piece.

        Raises:
            BackendFailedError: it is none.
        """
        self._chunk(data)
        self.is_over = True

    def stop(self, reason: str) -> None:
        """Read no further: the answer is cut here."""
        self._cut = self._cut or reason
        self.is_over = True

    def answer(self, *, asked_for: str, calls: int) -> ChatAnswer:
        """Return what there is.

        Args:
            asked_for: the model's name.
            calls: how often the service was asked.

        Raises:
            BackendFailedError: it broke off before it said that it is whole.
        """
        if not self._finish and not self._cut:
            raise _broken("it broke off in the middle")
        if not self._has_begun:
            raise _broken(f"nothing of it came: {self._cut or 'it has no choices'}")
        if self._finish == "length":
            self._cut = self._cut or "it reached the limit of an answer's length"
        return ChatAnswer(
            text=recordable("".join(self._text)),
            calls=tuple(
                WrittenCall(name=recordable("".join(name)), arguments=recordable("".join(arguments)))
                for _, (name, arguments) in sorted(self._calls.items())
            ),
            cut=self._cut,
            model=ModelIdentity(name=asked_for, version=recordable(self._model)[:200]),
            usage=self.used(calls=calls),
        )

    def used(self, *, calls: int = 1) -> TokenUsage:
        """Return what the service said was used, also of an answer that is of no use."""
        usage = self._usage
        inside = usage.prompt_tokens_details or _InputDetails()
        outside = usage.completion_tokens_details or _OutputDetails()
        return TokenUsage(
            input_tokens=max(0, usage.prompt_tokens or 0),
            cached_tokens=max(0, inside.cached_tokens or 0),
            output_tokens=max(0, usage.completion_tokens or 0),
            thinking_tokens=max(0, outside.reasoning_tokens or 0),
            calls=calls,
        )

    def _event(self, event: bytes) -> None:
        lines = [line for line in event.splitlines() if line and not line.startswith(b":")]
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        if lines and not data and not any(line.startswith((b"event:", b"id:", b"retry:", b"data:")) for line in lines):
            raise _broken("it is no stream of events")
        if data == b"[DONE]":
            self.is_over = True
        elif data:
            self._chunk(data)

    def _chunk(self, data: bytes) -> None:
        chunk = _read_chunk(data)
        if chunk.error is not None and bytes(chunk.error) != b"null":
            raise _broken(f"it reports an error: {bytes(chunk.error)[:300].decode(errors='replace')}")
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        for choice in (chunk.choices or [])[:1]:
            self._has_begun = True
            said = choice.delta or choice.message
            if said is not None:
                self._take(said)
            self._finish = choice.finish_reason or self._finish

    def _take(self, said: _Said) -> None:
        self._add(self._text, _words(said.content))
        for place, call in enumerate(said.tool_calls or ()):
            index = place if call.index is None else call.index
            if MAXIMUM_CALLS <= index <= len(self._calls):
                self.stop(f"it made more than {MAXIMUM_CALLS} calls")
                return
            if not 0 <= index < MAXIMUM_CALLS:
                raise _broken(f"it numbers a call {index}")
            name, arguments = self._calls.setdefault(index, ([], []))
            if call.function is not None:
                self._add(name, _text(call.function.name))
                written = _text(call.function.arguments)
                if written:
                    self._name_is_whole(index, name)
                self._add(arguments, written)

    def _name_is_whole(self, index: int, name: list[str]) -> None:
        if self._hear is not None and index not in self._heard:
            self._heard.add(index)
            self._hear(recordable("".join(name))[:MAXIMUM_NAME_CHARACTERS])

    def _add(self, texts: list[str], text: str) -> None:
        self._length += len(text)
        if self._length > self._maximum:
            self.stop(f"it was longer than {self._maximum} bytes")
        elif text and not self.is_over:
            texts.append(text)


def _text(value: Any) -> str:
    """Return a text, or the JSON of what is there in its place."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _words(content: Any) -> str:
    """Return the words of a content, which may be a list of parts."""
    if not isinstance(content, list):
        return _text(content)
    return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))


def _read_chunk(data: bytes) -> _Chunk:
    """Return a chunk, also one with half a character in it: a model said that, and asking again would change nothing.

    Raises:
        BackendFailedError: it is none.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if b"\\ud" not in data.lower():
            raise _broken(f"it holds what is no part of an answer: {error}") from error
    try:
        return _DECODER.decode(recordable(json.dumps(json.loads(data), ensure_ascii=False)))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _broken(f"it holds what is no part of an answer: {error}") from error


def _broken(what: str) -> BackendFailedError:
    return BackendFailedError(f"the model's answer cannot be used: {recordable(what)}", resolution="ask it again")
