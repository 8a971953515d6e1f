"""A chat endpoint whose models answer as a test says, one answer after another, and fail as services do."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import SocketStream

from dsec.testing.loopback import on_loopback

INPUT_TOKENS, OUTPUT_TOKENS = 1000, 100
"""That each answer is said to have used."""


@dataclass(frozen=True, slots=True)
class Says:
    """An answer: words, and calls of tools as pairs of a name and arguments, an object or text."""

    calls: Sequence[tuple[str, dict[str, Any] | str]] = ()
    text: str = ""

    def reply(self, model: str) -> bytes:
        calls = [
            {
                "id": f"call-{place}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for place, (name, arguments) in enumerate(self.calls)
        ]
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        if calls:
            said["tool_calls"] = calls
        body = {
            "model": f"{model}-2026-11-30",
            "choices": [{"index": 0, "message": said, "finish_reason": "tool_calls" if calls else "stop"}],
            "usage": {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS},
        }
        return _response(200, json.dumps(body).encode())


@dataclass(frozen=True, slots=True)
class Breaks:
    """The connection ends without an answer."""


@dataclass(frozen=True, slots=True)
class Refuses:
    """The service answers with a status that is no answer."""

    status: int = 503


@dataclass(frozen=True, slots=True)
class Wastes:
    """The answer holds nothing, and is paid for."""


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing comes until the test ends, or whoever asked goes away."""


Answer = Says | Breaks | Refuses | Wastes | Silent


def shell(command: str) -> Says:
    """Return an answer that runs a command."""
    return Says(calls=[("shell", {"command": command})])


def submit(summary: str = "done") -> Says:
    """Return an answer that submits."""
    return Says(calls=[("submit", {"summary": summary})])


@dataclass(slots=True)
class ScriptedChat:
    """The endpoint.

    Attributes:
        answers: of each model, by the number of its question from 0; or a list, whose last one is given for ever.
        url: of the endpoint, while it is served.
        asked: how often each model was asked.
        seen: the messages of each question, by model.
    """

    answers: dict[str, Sequence[Answer] | Callable[[int], Answer]]
    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    seen: dict[str, list[list[dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def wait_asked(self, model: str, times: int) -> None:
        """Wait until a model was asked so often."""
        while self.asked[model] < times:
            self._changed = anyio.Event()
            await self._changed.wait()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[ScriptedChat]:
        """Serve until the block ends."""
        async with on_loopback(self._serve) as port:
            self.url = f"http://127.0.0.1:{port}/v1"
            yield self

    async def _serve(self, stream: SocketStream) -> None:
        async with stream:
            try:
                question = json.loads(await _body(stream))
            except anyio.EndOfStream:
                return
            model = question["model"]
            number = self.asked[model]
            self.asked[model] += 1
            self.seen[model].append(question["messages"])
            self._changed.set()
            chosen = self.answers[model]
            answer = chosen(number) if callable(chosen) else chosen[min(number, len(chosen) - 1)]
            await self._give(stream, model, answer)

    async def _give(self, stream: SocketStream, model: str, answer: Answer) -> None:
        match answer:
            case Says():
                await stream.send(answer.reply(model))
            case Refuses():
                await stream.send(_response(answer.status, b'{"error": {"message": "not now"}}'))
            case Wastes():
                usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS}
                await stream.send(_response(200, json.dumps({"choices": [], "usage": usage}).encode()))
            case Silent():
                try:
                    await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
            case Breaks():
                pass


async def _body(stream: SocketStream) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += await stream.receive()
    return body


def _response(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
