"""A gateway over real HTTP before backends that do what a test tells them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web

from dsec.gateway.config_reading import parse_config
from dsec.gateway.keys import KEYS_FILE, add_key, make_key
from dsec.gateway.server import Serving, serve

Act = Callable[["Scripted", web.BaseRequest, dict[str, Any]], Awaitable[web.StreamResponse]]


def chat_answer(text: str = "hello", *, model: str = "m", usage: Any = "usual", **changes: Any) -> dict[str, Any]:
    """Return a chat completion."""
    told = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15} if usage == "usual" else usage
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    return {**answer, **({"usage": told} if told is not None else {}), **changes}


def chunk(delta: dict[str, Any] | None, *, finish: str | None = None, model: str = "m", **more: Any) -> bytes:
    """Return a chunk of a streamed chat completion; without a delta one without choices."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}
    return b"data: " + json.dumps({**body, **more}).encode() + b"\n\n"


def chat_events(words: Sequence[str] = ("one ", "two ", "three"), *, thoughts: Sequence[str] = ()) -> list[bytes]:
    """Return the events of a whole streamed chat completion."""
    usage = {"prompt_tokens": 12, "completion_tokens": len(words), "total_tokens": 12 + len(words)}
    return [
        *(chunk({"reasoning_content": thought}) for thought in thoughts),
        *(chunk({"content": word}) for word in words),
        chunk({}, finish="stop"),
        chunk(None, usage=usage),
        b"data: [DONE]\n\n",
    ]


def event(name: str, **members: Any) -> bytes:
    """Return a named event."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **members})}\n\n".encode()


def message_events(text: str = "hello", *, thinking: str = "") -> list[bytes]:
    """Return the events of a whole streamed message."""
    usage = {"input_tokens": 12, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    blocks = [("thinking", "thinking", thinking)] if thinking else []
    events = [event("message_start", message={**message, "stop_reason": None, "stop_sequence": None})]
    for index, (kind, member, said) in enumerate([*blocks, ("text", "text", text)]):
        events.append(event("content_block_start", index=index, content_block={"type": kind, member: ""}))
        delta = {"type": f"{kind}_delta", member: said}
        events.append(event("content_block_delta", index=index, delta=delta))
        events.append(event("content_block_stop", index=index))
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    return [*events, event("message_delta", delta=delta, usage={"output_tokens": 7}), event("message_stop")]


class Scripted:
    """A backend that does what it is told, and remembers what it got.

    Attributes:
        act: what it does with a request.
        bodies, headers: of requests, in order.
        gone: set when a caller went away before the answer's end.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.act: Act = answering(chat_answer())
        self.bodies: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.gone = asyncio.Event()
        self.release = asyncio.Event()
        self.url = ""

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.read()
        self.raw.append(raw)
        self.bodies.append(json.loads(raw))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        try:
            return await self.act(self, request, self.bodies[-1])
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise


def answering(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Act:
    """Answer at once, as a whole."""

    async def act(backend: Scripted, request: web.BaseRequest, asked: dict[str, Any]) -> web.StreamResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, body=data, headers={"content-type": "application/json", **(headers or {})})

    return act


def streaming(events: Sequence[bytes], *, then: str = "end") -> Act:
    """Answer event by event; `then` "end", "abort" the connection, or "hang" until released."""

    async def act(backend: Scripted, request: web.BaseRequest, asked: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for one in events:
            await response.write(one)
        if then == "abort":
            assert request.transport is not None
            await asyncio.sleep(0.01)
            request.transport.abort()
        elif then == "hang":
            await backend.release.wait()
        await response.write_eof()
        return response

    return act


def hanging() -> Act:
    """Say nothing until released."""

    async def act(backend: Scripted, request: web.BaseRequest, asked: dict[str, Any]) -> web.StreamResponse:
        await backend.release.wait()
        return await answering(chat_answer())(backend, request, asked)

    return act


class Shapes:
    """What tests make answers from."""

    chat_answer = staticmethod(chat_answer)
    chat_events = staticmethod(chat_events)
    chunk = staticmethod(chunk)
    event = staticmethod(event)
    message_events = staticmethod(message_events)
    answering = staticmethod(answering)
    streaming = staticmethod(streaming)
    hanging = staticmethod(hanging)


@pytest.fixture
def shapes() -> type[Shapes]:
    return Shapes


@pytest.fixture
async def backends() -> AsyncIterator[list[Scripted]]:
    """Two scripted backends that are heard on this host."""
    found = [Scripted("first"), Scripted("second")]
    async with AsyncExitStack() as stack:
        for backend in found:
            runner = web.ServerRunner(
                web.Server(backend, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            backend.url = "http://{}:{}/v1".format(*runner.addresses[0][:2])
        yield found
        for backend in found:
            backend.release.set()


class Gateway:
    """A gateway, and an HTTP client on it.

    Attributes:
        serving: the gateway.
        http: a client.
        directory: of its configuration.
    """

    def __init__(self, serving: Serving, http: httpx2.AsyncClient, directory: Path) -> None:
        self.serving = serving
        self.http = http
        self.directory = directory
        self.url = serving.url

    async def chat(
        self, text: str = "hi", *, headers: dict[str, str] | None = None, key: str = "", **more: Any
    ) -> httpx2.Response:
        """Make a chat call."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        head = {**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        return await self.http.post("/v1/chat/completions", json=body, headers=head)

    def attempts(self) -> list[Any]:
        """Return the attempts in its ledger that have ended."""
        from dsec.gateway.ledger import pair_attempts, read_records

        return list(pair_attempts(read_records(self.directory / "state"), open_too=False))


@pytest.fixture
def make_project_key(tmp_path: Path) -> Callable[..., str]:
    """Make a key in the gateway's file and return its text."""

    def make(project: str = "alpha", **more: Any) -> str:
        key, text = make_key(project, random_bytes=os.urandom, now_wall_s=time.time(), **more)
        add_key(tmp_path / "state" / KEYS_FILE, key)
        return text

    return make


Until = Callable[[Callable[[], Any]], Awaitable[None]]


@pytest.fixture
def until() -> Until:
    """Wait until something holds."""

    async def wait(holds: Callable[[], Any]) -> None:
        while not holds():  # noqa: ASYNC110 - What is waited for is a file, or the state of a server that tells nobody.
            await asyncio.sleep(0.005)

    return wait


Open = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def open_gateway(backends: list[Scripted], tmp_path: Path) -> AsyncIterator[Open]:
    """Open a gateway with both backends.

    Arguments of what it yields: `model` lines for the table of the model, `backend` lines for every backend, `first`
    and `second` for either, `door` lines for the gateway, `extra` whole tables, `environment` with the backends' keys,
    and `open_to_all`.
    """
    async with AsyncExitStack() as stack:

        async def open_(
            *,
            model: str = "",
            backend: str = "",
            first: str = "",
            second: str = "",
            door: str = "",
            extra: str = "",
            environment: dict[str, str] | None = None,
            open_to_all: bool = True,
            only_first: bool = False,
        ) -> Gateway:
            used = backends[:1] if only_first else backends
            text = (
                f'[gateway]\nport = 0\nstate_dir = "state"\nopen = {str(open_to_all).lower()}\ngrace = "0.1s"\n{door}\n'
            )
            text += f"[models.m]\n{model}\n{extra}\n"
            for one, lines in zip(used, (first, second), strict=False):
                group = "" if "group" in lines else 'group = "m"'
                text += f'[[backends]]\nname = "{one.name}"\nurl = "{one.url}"\n{group}\n{backend}\n{lines}\n'
            config = parse_config("gateway.toml", text)
            serving = await stack.enter_async_context(serve(config, tmp_path, environment=environment or {}))
            http = await stack.enter_async_context(httpx2.AsyncClient(base_url=serving.url, timeout=30))
            return Gateway(serving, http, tmp_path)

        yield open_
