"""A chat endpoint for tests: it answers by the place in a conversation, and fails when it is told to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from dsec.testing.loopback import on_loopback

Calls = Sequence[tuple[str, dict[str, Any]]]


@dataclass(slots=True)
class ChatService:
    """See the module.

    Attributes:
        answers: the calls of each answer, by the number of answers before it.
        broken_from: from this place on the connection is closed in the middle.
        on_asked: called with the place of each question, before it is answered.
        url: where it is heard, up to and with its version.
        asked: the places of all questions, in order.
        bodies: of these questions.
    """

    answers: Sequence[Calls]
    broken_from: int = 10_000
    on_asked: Callable[[int], None] | None = None
    url: str = ""
    asked: list[int] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Answer one connection."""
        try:
            async with stream:
                await self._answer(stream)
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            return  # The caller has gone.

    async def _answer(self, stream: anyio.abc.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += await stream.receive()
        head, _, body = data.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            await _send(stream, {"object": "list", "data": [{"id": "m-listed"}]})
            return
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += await stream.receive()
        asked = json.loads(body)
        place = sum(message["role"] == "assistant" for message in asked["messages"])
        self.asked.append(place)
        self.bodies.append(asked)
        if self.on_asked is not None:
            self.on_asked(place)
        if place < self.broken_from:
            await _send(stream, _completion(self.answers[place]))


def _completion(calls: Calls) -> dict[str, Any]:
    written = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
    said = {"content": "", "tool_calls": written}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 50}}
    return {"model": "m-7", "choices": [{"message": said, "finish_reason": "tool_calls"}], "usage": usage}


async def _send(stream: anyio.abc.SocketStream, document: dict[str, Any]) -> None:
    reply = json.dumps(document).encode()
    await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply)


@asynccontextmanager
async def serve_chat(service: ChatService) -> AsyncIterator[ChatService]:
    """Serve it on loopback until the context is left."""
    async with on_loopback(service.serve) as port:
        service.url = f"http://127.0.0.1:{port}/v1"
        yield service
