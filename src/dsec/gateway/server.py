"""The HTTP server of a gateway: paths, bodies, streams.

Bodies are bounded in size and time before anything of them is understood. A caller that goes away cancels its call,
and with it the work of the backend. What goes wrong in here is told in the protocol of the path.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from dsec.base.errors import (
    BodyTooLargeError,
    DeadlineExceededError,
    DsecError,
    GatewayBusyError,
    InvalidRequestError,
    NotFoundError,
)
from dsec.base.units import format_size
from dsec.gateway.building import open_proxy
from dsec.gateway.config import Door, GatewayConfig
from dsec.gateway.explain import explain_call
from dsec.gateway.fronts.anthropic_messages import AnthropicMessages
from dsec.gateway.fronts.front import Front
from dsec.gateway.fronts.openai_chat import OpenaiChat
from dsec.gateway.fronts.openai_responses import OpenaiResponses
from dsec.gateway.proxy import Proxy, sent_key

log = structlog.get_logger(__name__)
FRONTS: dict[str, Front] = {
    "/v1/chat/completions": OpenaiChat(),
    "/v1/responses": OpenaiResponses(),
    "/v1/messages": AnthropicMessages(),
}
EXPLAIN_PREFIX = "/dsec/explain"
_STREAM_HEADERS = {
    "server": "dsec",
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_KEEP_ALIVE_S = 75.0
_SERVER = {"server": "dsec"}


class CallerGoneError(ConnectionError):
    """The caller takes nothing any more."""


class HttpReply:
    """The way back to one caller.

    Args:
        request: its request.
        stall_timeout_s: how long one write may wait for the caller.
    """

    def __init__(self, request: web.BaseRequest, stall_timeout_s: float) -> None:
        self._request = request
        self._stall_timeout_s = stall_timeout_s
        self.response: web.StreamResponse | None = None

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send an answer as a whole."""
        self.response = response = web.Response(
            status=status, headers={"content-type": "application/json", **_SERVER, **headers}, body=body
        )
        if status == 413:
            response.force_close()
        await response.prepare(self._request)
        await response.write_eof()

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Begin a stream of events."""
        self.response = response = web.StreamResponse(headers={**headers, **_STREAM_HEADERS})
        await response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send events; returns when there is room for more.

        Raises:
            CallerGoneError: there was none for too long.
        """
        assert self.response is not None
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await self.response.write(data)
        except TimeoutError as error:
            raise CallerGoneError(f"the caller took nothing for {self._stall_timeout_s:g} s") from error

    async def end(self) -> None:
        """End the stream."""
        assert self.response is not None
        await self.response.write_eof()


def _server_log() -> logging.Logger:
    """Return a log without heads that could not be read: anybody could fill the disk with their traces."""
    found = logging.getLogger("dsec.gateway.http")
    found.addFilter(_is_ours)
    return found


def _is_ours(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


class HeadGuard(web.Server):
    """A server that cuts off connections whose first head is not here in time; later ones have the keep-alive's time.

    Args:
        handler: answers requests.
        head_timeout_s: how long a connection may be silent, or slow, before its first request.
    """

    def __init__(self, handler: Handler, head_timeout_s: float) -> None:
        super().__init__(
            self._answer,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE_S,
            auto_decompress=False,
            logger=_server_log(),
        )
        self._handler = handler
        self._head_timeout_s = head_timeout_s
        self._waiting: dict[object, asyncio.TimerHandle] = {}

    def __call__(self) -> web.RequestHandler:
        protocol = super().__call__()
        self._waiting[protocol] = asyncio.get_running_loop().call_later(self._head_timeout_s, self._cut_off, protocol)
        return protocol

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._heard(handler)
        super().connection_lost(handler, exc)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._heard(request.protocol)
        return await self._handler(request)

    def _heard(self, protocol: object) -> None:
        if (timer := self._waiting.pop(protocol, None)) is not None:
            timer.cancel()

    def _cut_off(self, protocol: web.RequestHandler) -> None:
        del self._waiting[protocol]
        if protocol.transport is not None:
            protocol.transport.abort()


class Handler:
    """Answers requests.

    Args:
        proxy: does the work.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._door = proxy.config.gateway
        self._started_s = int(time.time())
        self.server: web.Server | None = None

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        reply = HttpReply(request, self._door.client_stall_timeout_s)
        front = FRONTS.get(request.path)
        try:
            if front is not None and request.method == "POST":
                await self._call(front, request, reply)
            else:
                await self._other(request, reply)
        except (ConnectionError, CallerGoneError):
            log.info("caller_gone", path=request.path)
            if request.transport is not None:
                request.transport.abort()
        return reply.response or web.Response(status=499)

    async def _call(self, front: Front, request: web.BaseRequest, reply: HttpReply) -> None:
        try:
            self._check_room()
            self._proxy.keys.find(sent_key(request.headers))  # Before a body is taken from anybody.
            body = await read_body(request, self._door)
            call = self._proxy.call_of(front, request.headers, body)
        except DsecError as error:
            await self._proxy.refuse(front, error, reply)
            return
        await self._proxy.serve(call, reply)

    def _check_room(self) -> None:
        if self.server is not None and len(self.server.connections) > self._door.maximum_connections:
            raise GatewayBusyError("the gateway has too many connections", resolution="try again later")

    async def _other(self, request: web.BaseRequest, reply: HttpReply) -> None:
        front = _front_for(request)
        try:
            body = await self._plain(request)
        except DsecError as error:
            await self._proxy.refuse(front, error, reply)
            return
        await reply.whole(200, _SERVER, msgspec.json.encode(body))

    async def _plain(self, request: web.BaseRequest) -> Any:
        """Return what a path shows that is no call.

        Raises:
            DsecError: it shows nothing, or not to this caller.
        """
        path, method = request.path, request.method
        if path == "/health" and method == "GET":
            return {"status": "ok"}
        key = self._proxy.keys.find(sent_key(request.headers))
        if path == "/v1/models" and method == "GET":
            return models_page([name for name in self._proxy.models if key.allows(name)], self._started_s)
        if path.startswith("/v1/models/") and method == "GET":
            return self._model(path.removeprefix("/v1/models/"), key.allows)
        if path.startswith(EXPLAIN_PREFIX) and method == "POST":
            front = FRONTS.get(path.removeprefix(EXPLAIN_PREFIX))
            if front is not None:
                return explain_call(self._proxy, front, request.headers, await read_body(request, self._door))
        if path == "/dsec/statistics" and method == "GET":
            return self._proxy.statistics()
        known = ", ".join(f"POST {known}" for known in FRONTS)
        raise NotFoundError(
            f"{method} {path[:200]} is not served here", resolution=f"served are: {known}, GET /v1/models"
        )

    def _model(self, name: str, allows: Any) -> dict[str, object]:
        if name not in self._proxy.models or not allows(name):
            known = ", ".join(one for one in self._proxy.models if allows(one))
            raise NotFoundError(f"no backend serves the model {name[:200]!r}", resolution=f"ask for one of: {known}")
        return model_entry(name, self._started_s)


async def read_body(request: web.BaseRequest, door: Door) -> bytes:
    """Read a request's body within its bounds.

    Raises:
        BodyTooLargeError: it is longer than allowed, or says that it will be.
        DeadlineExceededError: it was not here in time.
        InvalidRequestError: it is compressed.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequestError("the body is compressed", resolution="send it as it is")
    limit = door.maximum_body_bytes
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(door.body_timeout_s):
            if request.headers.get("expect", "").lower() == "100-continue":
                await _tell_to_go_on(request)
            while part := await request.content.readany():
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"the body was not here within {door.body_timeout_s:g} s", resolution="send it faster"
        ) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _tell_to_go_on(request: web.BaseRequest) -> None:
    """Tell a caller that asks first that its body is welcome."""
    if request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is longer than {format_size(limit)}", resolution="shorten it")


def _front_for(request: web.BaseRequest) -> Front:
    """Return in whose words an error is told on a path that is none of the fronts'."""
    anthropic = "anthropic-version" in request.headers or request.path.startswith("/v1/messages")
    return FRONTS["/v1/messages" if anthropic else "/v1/chat/completions"]


def model_entry(name: str, created_s: int) -> dict[str, object]:
    """Return a model as the clients of either protocol expect it."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_s))
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "dsec",
        "type": "model",
        "display_name": name,
        "created_at": stamp,
    }


def models_page(names: list[str], created_s: int) -> dict[str, object]:
    """Return the list of models as the clients of either protocol expect it."""
    return {
        "object": "list",
        "data": [model_entry(name, created_s) for name in names],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A gateway that is heard.

    Attributes:
        url: where, without a path.
        proxy: what is behind it.
    """

    url: str
    proxy: Proxy


@asynccontextmanager
async def serve(config: GatewayConfig, directory: Path, **options: Any) -> AsyncIterator[Serving]:
    """Serve a gateway until the context is left; open calls then have `grace_s` to end.

    Args:
        config: the configuration; port 0 takes any free one.
        directory: what relative paths in it start from.
        options: of `dsec.gateway.building.open_proxy`.

    Raises:
        InvalidRequestError: the address cannot be listened on, or a part of the configuration cannot be had.
    """
    door = config.gateway
    async with open_proxy(config, directory, **options) as proxy:
        handler = Handler(proxy)
        server = HeadGuard(handler, door.body_timeout_s)
        handler.server = server
        runner = web.ServerRunner(server, shutdown_timeout=door.grace_s)
        await runner.setup()
        try:
            site = web.TCPSite(runner, door.host, door.port, backlog=1024)
            try:
                await site.start()
            except OSError as error:
                raise InvalidRequestError(
                    f"{door.host}:{door.port} cannot be listened on: {error.strerror}", resolution="set another port"
                ) from error
            host, port = runner.addresses[0][:2]
            yield Serving(url=f"http://{f'[{host}]' if ':' in host else host}:{port}", proxy=proxy)
        finally:
            proxy.shut_down()
            await runner.cleanup()
