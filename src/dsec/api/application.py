"""The ASGI application: from bytes to a call of the service and back.

It is written against ASGI itself. The way of a unary command is: find the route (a tree over segments), compare the
token, decode the body with a cached msgspec decoder, run under one cancel scope, encode, answer. Starlette's
application adds two middlewares, a regular expression per route and a Request object to that.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import anyio
import structlog
from anyio.lowlevel import checkpoint
from starlette.websockets import WebSocket

from dsec.api import wire
from dsec.api.body import RequestBody
from dsec.api.face import SANDBOXES, Face
from dsec.api.guard import ClientGoneError, Guard, Receive, Send, shutting_down
from dsec.api.handlers import Call
from dsec.api.patience import WAITING
from dsec.api.peers import open_gate
from dsec.api.protocol import DIRECT, Direct
from dsec.api.refusal import Refusal
from dsec.api.router import Router
from dsec.api.routes import STREAM_S, Carry, Route, convert_query, deadline_of, parse_query
from dsec.api.short import ShortWay
from dsec.api.terminals import converse, deny
from dsec.base.errors import DsecError, InvalidRequestError, NotFoundError, UnauthorizedError
from dsec.base.ids import check_sandbox_id
from dsec.linux.pipes import Pipe
from dsec.model.peer_proof import PeerGate
from dsec.model.value import Value
from dsec.service.content import ByteStream
from dsec.service.episodes import HasEpisodes
from dsec.service.port import SandboxService

_log = structlog.get_logger("dsec.api")

ERROR_SEND_S = 5.0
"""How long a client may take to accept an error when it may not be reading at all."""

_LONG_PIECE_BYTES = 64 << 10
"""Pieces from here on are sent past the transport, which costs a descriptor once and a system call more."""
_LONG_BODY_BYTES = 128 << 10
"""What follows these is moved rather than copied: a pipe costs more than copying them."""
_YIELD_BYTES = 1 << 20
"""How much is sent before others get their turn, where neither the producer nor the connection ever waits."""

Scope = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one server.

    Attributes:
        body_bytes: largest JSON or msgpack body; a command's stdin must fit. File bodies are streamed and bounded by
            the sandbox's disk.
        head_bytes: largest request head (line and headers).
        head_s: seconds to send a request head completely.
        grace_s: seconds that unary requests get to finish at shutdown.
        keep_alive_s: seconds an idle connection is kept; longer than clients keep theirs.
        connections: open connections.
    """

    body_bytes: int = 32 << 20
    head_bytes: int = 64 << 10
    head_s: float = 15.0
    grace_s: float = 10.0
    keep_alive_s: float = 120.0
    connections: int = 8192


class _Response:
    """One response being sent."""

    __slots__ = ("_send", "_unyielded_bytes", "direct", "events", "msgpack", "started")

    def __init__(self, send: Send, *, msgpack: bool, direct: Direct | None = None) -> None:
        self._send = send
        self._unyielded_bytes = 0
        self.direct = direct
        self.msgpack = msgpack
        self.started = False
        self.events = False

    async def whole(self, status: int, data: bytes, content_type: bytes, *headers: tuple[bytes, bytes]) -> None:
        self.started = True
        head = [(b"content-type", content_type), (b"content-length", b"%d" % len(data)), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": data})

    async def nothing(self) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": 204, "headers": []})
        await self._send({"type": "http.response.body", "body": b""})

    async def begin(self, content_type: str) -> None:
        self.started = True
        head = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")]
        await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def chunk(self, data: bytes) -> None:
        """Send a piece, and let others run: neither a ready producer nor uvicorn's send need ever suspend."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            await checkpoint()

    async def piece(self, data: bytes) -> None:
        """Send a piece of a long body, past the transport where that can be."""
        if self.direct is None or len(data) < _LONG_PIECE_BYTES:
            await self.chunk(data)
            return
        try:
            sent = await self.direct.send(data)
        except OSError as error:
            raise ClientGoneError from error
        if not sent:
            await self.chunk(data)
            return
        self._unyielded_bytes += len(data)
        if self._unyielded_bytes >= _YIELD_BYTES:
            self._unyielded_bytes = 0
            await checkpoint()

    async def pour(self, pipe: Pipe, count: int) -> None:
        """Send as a piece what a pipe holds."""
        try:
            sent = self.direct is not None and await self.direct.send_from(pipe, count)
        except OSError as error:
            raise ClientGoneError from error
        while not sent and (data := pipe.take(count)):
            await self.chunk(data)

    async def event(self, event: object) -> None:
        await self.chunk(wire.encode_event(event, msgpack=self.msgpack))

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})


class Application:
    """Serve a service over ASGI: a `SandboxService`, unless another face is given.

    Args:
        service: what does the work; the handlers of `face` know what it is.
        token: what callers must send as ``Authorization: Bearer``; None: the transport itself keeps strangers out.
        gate: knows the node's peers, and lets them in where nobody else comes in; None: it has none.
        face: the routes, and what is behind them.
    """

    def __init__(
        self,
        service: SandboxService | HasEpisodes,
        *,
        token: str | None,
        limits: Limits = Limits(),
        gate: PeerGate | None = None,
        face: Face = SANDBOXES,
    ) -> None:
        self._service = cast(SandboxService, service)
        self._face = face
        self._token = None if token is None else f"Bearer {token}".encode()
        self._limits = limits
        self._gate = gate
        self._router = Router(face.routes.values())
        self.short = None if gate is None else ShortWay(self._service, gate, face.routes, face.shorts)
        """What is answered where it is received; None: nothing."""
        self._endless: set[Guard] = set()
        self._is_draining = False

    def drain(self) -> None:
        """End the streams that would never end by themselves, and begin no more of them: whose stream was ended asks
        for another at once."""
        self._is_draining = True
        for guard in tuple(self._endless):
            guard.shut_down()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if scope["type"] == "websocket":
            await self._socket(scope, headers, receive, send)
            return
        direct: Direct | None = scope.get("extensions", {}).get(DIRECT, {}).get("direct")
        response = _Response(send, msgpack=b"msgpack" in headers.get(b"accept", b""), direct=direct)
        try:
            route, parameters = self._admit(scope, headers)
            await self._answer(route, parameters, scope, headers, receive, response)
        except DsecError as error:
            await self._fail(response, error, error.http_status)
        except Refusal as refusal:
            await self._fail(response, refusal.error, refusal.status, *refusal.headers)
        except ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001 - one request's defect must not leak its words, nor end the server.
            _log.error("request failed", path=scope["path"], exc_info=error)
            await self._fail(response, DsecError(str(error)), 500)

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[Route, dict[str, str]]:
        """Find the route and check the token and the sandbox id.

        Raises:
            UnauthorizedError, NotFoundError, InvalidRequestError, Refusal.
        """
        method = scope.get("method", "GET")
        methods, parameters = self._router.find(scope["path"], scope.get("raw_path") or b"")
        route = methods.get(method)
        if route is None or not (route.public or route.peer):
            self._authorize(headers)
        if route is None:
            raise _no_route(method, methods)
        if "sandbox_id" in parameters:
            check_sandbox_id(parameters["sandbox_id"])
        return route, parameters

    async def _socket(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        try:
            route, parameters = self._admit(scope, headers)
            if route.result_carry is not Carry.SOCKET:
                raise InvalidRequestError(f"{route.path} is not a WebSocket")
        except DsecError as error:
            await deny(socket, error, error.http_status)
        except Refusal as refusal:
            await deny(socket, refusal.error, refusal.status)
        else:
            await converse(self._service, route, parameters, socket)

    def _authorize(self, headers: dict[bytes, bytes]) -> None:
        if self._token is None or hmac.compare_digest(headers.get(b"authorization", b""), self._token):
            return
        raise UnauthorizedError(
            "the token is missing or wrong", resolution="send 'Authorization: Bearer TOKEN' (DSEC_TOKEN for the SDK)"
        )

    async def _answer(
        self,
        route: Route,
        parameters: dict[str, str],
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        response: _Response,
    ) -> None:
        call = Call(service=self._service, path=parameters, gate=self._gate)
        if route.peer:
            call.peer = open_gate(self._gate).check(headers.get(b"authorization", b""))
        if route.filters:
            call.query = self._face.filter_of(parse_query(scope["query_string"]))
        elif route.query is not None or scope["query_string"]:
            # Also where none is known: a checkpoint named in the wrong place must not lead to the clean state.
            call.query = convert_query(route.query or Value, parse_query(scope["query_string"]))
        if route.body is not None:
            with Guard(self._limits.head_s + route.deadline_s, None):
                call.body = await self._read_value(route, headers, receive)
        elif route.body_carry is not Carry.VALUE:
            call.body = RequestBody(receive, response.direct)
        watch = receive if route.ends_with_client and route.body_carry is Carry.VALUE else None
        guard = Guard(deadline_of(route, call.body), watch, call.paused_s if route.name in WAITING else None)
        if route.deadline_s == STREAM_S:
            if self._is_draining:
                raise shutting_down()
            self._endless.add(guard)
        try:
            with guard, response.direct or nullcontext():
                await _ANSWERS[route.result_carry](self._face, route, call, response)
        finally:
            self._endless.discard(guard)

    async def _read_value(self, route: Route, headers: dict[bytes, bytes], receive: Receive) -> Any:
        content_type = headers.get(b"content-type", b"application/json")
        msgpack = content_type.startswith(b"application/msgpack")
        if not msgpack and not content_type.startswith(b"application/json"):
            raise Refusal(
                InvalidRequestError(
                    "the body's content type is not supported",
                    resolution=f"send {wire.JSON} or {wire.MSGPACK} as content-type (curl: --json)",
                ),
                415,
            )
        data = await self._read_all(headers, receive)
        if not data:
            return wire.decode(b"{}", route.body, msgpack=False)
        return wire.decode(data, route.body, msgpack=msgpack)

    async def _read_all(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        limit = self._limits.body_bytes
        if int(headers.get(b"content-length", b"0")) > limit:
            raise await _too_large(limit, receive)
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            return bytes(message["body"])
        parts, size = [], 0
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message["body"])
            size += len(message["body"])
            if size > limit:
                raise await _too_large(limit, receive)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await receive()

    async def _fail(self, response: _Response, error: DsecError, status: int, *headers: tuple[bytes, bytes]) -> None:
        """Say what went wrong: as a status, as the last event, or (octets under way) by breaking off."""
        with anyio.move_on_after(ERROR_SEND_S):
            if not response.started:
                if error.retry_after_s is not None:
                    headers = (*headers, (b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
                data = wire.encode(wire.error_body(error), msgpack=response.msgpack)
                await response.whole(status, data, _content_type(response.msgpack), *headers)
            elif response.events:
                await response.event(wire.error_event(error))
                await response.end()


def _content_type(msgpack: bool) -> bytes:
    return b"application/msgpack" if msgpack else b"application/json"


async def _answer_value(face: Face, route: Route, call: Call, response: _Response) -> None:
    result = await face.values[route.name](call)
    if route.status == 204:
        await response.nothing()
        return
    data = wire.encode(result, msgpack=response.msgpack)
    await response.whole(route.status, data, _content_type(response.msgpack))


async def _answer_events(face: Face, route: Route, call: Call, response: _Response) -> None:
    async with face.events[route.name](call) as events:
        response.events = True
        await response.begin(wire.MSGPACK if response.msgpack else wire.JSON_LINES)
        async for event in events:
            await response.event(event)
    await response.end()


async def _answer_octets(face: Face, route: Route, call: Call, response: _Response) -> None:
    """Stream bytes. The head waits for the first chunk, so that an error at the start has its own status."""
    async with _closing(face.octets[route.name](call)) as chunks:
        first = await anext(chunks, b"")
        await response.begin(wire.TAR if route.result_carry is Carry.TAR else wire.OCTETS)
        await response.piece(first)
        sent_bytes = len(first)
        async for chunk in chunks:
            await response.piece(chunk)
            sent_bytes += len(chunk)
            if sent_bytes >= _LONG_BODY_BYTES and response.direct is not None and isinstance(chunks, ByteStream):
                await _pour_all(chunks, response)
                break
    await response.end()


@asynccontextmanager
async def _closing(chunks: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    try:
        yield chunks
    finally:
        if isinstance(chunks, ByteStream | AsyncGenerator):
            await chunks.aclose()


async def _pour_all(stream: ByteStream, response: _Response) -> None:
    with Pipe() as pipe:
        while count := await stream.fill(pipe):
            await response.pour(pipe, count)


async def _answer_upgrade(face: Face, route: Route, call: Call, response: _Response) -> None:
    raise Refusal(
        InvalidRequestError(f"{route.path} is a WebSocket", resolution="ask for an upgrade to 'websocket'"),
        426,
        ((b"upgrade", b"websocket"),),
    )


_ANSWERS = {
    Carry.VALUE: _answer_value,
    Carry.EVENTS: _answer_events,
    Carry.OCTETS: _answer_octets,
    Carry.TAR: _answer_octets,
    Carry.SOCKET: _answer_upgrade,
}


async def _too_large(limit: int, receive: Receive) -> Refusal:
    """Drop what is still coming for a while: a client whose connection is closed while it sends never reads why."""
    with anyio.move_on_after(ERROR_SEND_S):
        while (await receive()).get("more_body"):
            pass
    error = InvalidRequestError(
        f"the body is larger than {limit} bytes", resolution="send large input as a file, which is streamed"
    )
    return Refusal(error, 413, ((b"connection", b"close"),))


def _no_route(method: str, methods: dict[str, Route]) -> Exception:
    if not methods:
        return NotFoundError("there is no such path", resolution="GET /v1/openapi.json lists them all")
    allowed = ", ".join(sorted(methods))
    error = InvalidRequestError(f"{method} is not possible here", resolution=f"use one of: {allowed}")
    return Refusal(error, 405, ((b"allow", allowed.encode()),))
