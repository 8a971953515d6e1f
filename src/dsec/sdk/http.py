"""`HttpService`: the `SandboxService` of a server elsewhere.

Unary operations go through one thin client, files, archives and watches through another (their bodies have any length),
commands with events through WebSockets (input, signals and resizing need both directions). All three follow a sandbox
that has moved to another server (`dsec.sdk.links`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from dsec.api import wire
from dsec.api.patience import WAITING
from dsec.api.routes import METADATA_PREFIX, ROUTES, Route, deadline_of
from dsec.base.errors import (
    DsecError,
    InvalidRequestError,
    NodeUnavailableError,
    SandboxMovedError,
    UnknownOutcomeError,
    WrongNodeError,
)
from dsec.base.ids import CLIENTS_OWN_LENGTH, new_sandbox_id
from dsec.linux.pipes import Pipe
from dsec.model.capability import CapabilityReport
from dsec.model.files import FileChange, FileInfo
from dsec.model.image import ImageInfo
from dsec.model.node import NodeInfo
from dsec.model.process import (
    CommandRequest,
    CommandResult,
    ProcessInfo,
    SessionCommand,
    SessionInfo,
    SessionRequest,
)
from dsec.model.sandbox import Lifetime, SandboxFilter, SandboxInfo, SandboxSpec, SandboxStats
from dsec.model.state import ForkRequest, RestoreRequest
from dsec.sdk.events import events_of
from dsec.sdk.keepalive import Endpoint, Reply
from dsec.sdk.links import Link, Links, Trail
from dsec.sdk.sockets import CommandSocket, open_command
from dsec.sdk.streaming import CutError, StreamReply, StreamRequest
from dsec.service.content import ByteStream, GeneratedStream
from dsec.service.port import DEFAULT_CREATE_TIMEOUT_S, CommandStream

ANSWER_SLACK_S = 30.0
"""How much longer than the server's own deadline a client waits for its answer."""

CHUNK_BYTES = 1 << 20
"""Pieces in which a transfer is handed on: each costs the sync half two hops between threads."""

_STREAM_HEADERS = f"accept: {wire.MSGPACK}, */*\r\n".encode()
OCTETS_HEADERS = _STREAM_HEADERS + f"content-type: {wire.OCTETS}\r\n".encode()
"""Headers of a request whose body is bytes."""
_VALUE_HEADERS = _STREAM_HEADERS + f"content-type: {wire.MSGPACK}\r\n".encode()

_REPEATABLE = frozenset({"create", "restore", "pause", "resume", "stop", "end_processes", "wait_process"})
"""POST operations that may be sent again: doing them twice is doing them once. GET, PUT and DELETE are by nature."""


def _is_repeatable(route: Route, body: Any) -> bool:
    if isinstance(body, ForkRequest):
        return bool(body.sandbox_ids)  # They are what tells that the children exist already.
    return route.method in ("GET", "PUT", "DELETE") or route.name in _REPEATABLE


class HttpService:
    """A `SandboxService` over HTTP. Belongs to the event loop in which it is first used.

    Args:
        endpoint: where the server is.
        peers: servers to which sandboxes may be followed, each with its token.
    """

    def __init__(self, endpoint: Endpoint, *, peers: Iterable[Endpoint] = ()) -> None:
        self._links = Links(endpoint, peers)

    # -- the three ways to call ----------------------------------------------------------------------------------

    async def _call(
        self, name: str, body: Any = None, query: Iterable[tuple[str, str]] = (), *, kind: Any = None, **path: str
    ) -> Any:
        route = ROUTES[name]
        trail = self._links.trail(path.get("sandbox_id") or _made(body))
        waits = name in WAITING
        while True:
            reply = await trail.link.unary.request(
                route.method,
                route.target(query, **path),
                None if route.body is None else encode_body(body),
                repeatable=_is_repeatable(route, body),
                timeout_s=deadline_of(route, body) + ANSWER_SLACK_S,
                paused_s=(lambda: self._paused_s(path["sandbox_id"])) if waits else None,
            )
            if reply.status < 400:
                return None if route.status == 204 else decode_answer(reply.body, kind or route.result)
            trail.follow(error_of(reply))

    async def _paused_s(self, sandbox_id: str) -> float:
        return (await self.inspect(sandbox_id)).paused_s

    @asynccontextmanager
    async def _stream(
        self, name: str, query: Iterable[tuple[str, str]], content: AsyncIterable[bytes] | bytes | None, **path: str
    ) -> AsyncIterator[StreamReply]:
        route = ROUTES[name]
        request = StreamRequest(
            method=route.method,
            target=route.target(query, **path),
            headers=_headers(route, content),
            content=content,
            timeout_s=route.deadline_s + ANSWER_SLACK_S,
        )
        sent_once = content is not None and not isinstance(content, bytes)
        if sent_once:
            await self._find(path["sandbox_id"])
        trail = self._links.trail(path.get("sandbox_id"))
        while True:
            try:
                async with trail.link.streams.stream(request) as reply:
                    if reply.status < 400:
                        yield reply
                        return
                    error = error_of(Reply(reply.status, reply.content_type, await reply.read()))
            except CutError as cut:
                raise self._cut(route, cut) from cut
            trail.follow(error)
            if sent_once:
                raise error  # It moved just now, and part of the content is used up: the next attempt goes there.

    async def _find(self, sandbox_id: str) -> None:
        """Learn where a sandbox is, where that can be another place than was thought."""
        if self._links.has_peers:
            await self._call("inspect", sandbox_id=sandbox_id)

    @asynccontextmanager
    async def _command(self, name: str, request: CommandRequest | None, **path: str) -> AsyncIterator[CommandSocket]:
        target = ROUTES[name].target((), **path)
        trail = self._links.trail(path["sandbox_id"])
        async with AsyncExitStack() as stack:
            command = await self._open(stack, trail, target, request)
            yield command

    async def _open(
        self, stack: AsyncExitStack, trail: Trail, target: str, request: CommandRequest | None
    ) -> CommandSocket:
        while True:
            try:
                return await stack.enter_async_context(open_command(trail.link.endpoint, target, request))
            except SandboxMovedError as error:  # It was refused: a command that began ends with another error.
                trail.follow(error)

    def _cut(self, route: Route, error: Exception) -> DsecError:
        if route.method == "GET":
            return NodeUnavailableError("the transfer broke off", detail=str(error), resolution="ask again")
        return UnknownOutcomeError(
            "the transfer broke off", detail=str(error), resolution="look at the target before sending again"
        )

    # -- life ---------------------------------------------------------------------------------------------------

    async def create(
        self, spec: SandboxSpec, *, sandbox_id: str | None = None, timeout_s: float = DEFAULT_CREATE_TIMEOUT_S
    ) -> SandboxInfo:
        """Create a sandbox. An id that names the node is always sent, so that a cut connection is answered by asking
        again."""
        if sandbox_id is not None:
            return await self._create(spec, sandbox_id, timeout_s)
        home = self._links.home
        known = home.node_id is not None
        try:
            return await self._create(spec, await self._new_id(), timeout_s)
        except WrongNodeError:
            if not known:
                raise
        home.node_id = None  # Another node serves at this address by now.
        return await self._create(spec, await self._new_id(), timeout_s)

    async def _create(self, spec: SandboxSpec, sandbox_id: str, timeout_s: float) -> SandboxInfo:
        body = wire.CreateRequest(spec=spec, sandbox_id=sandbox_id, timeout_s=timeout_s)
        info: SandboxInfo = await self._call("create", body)
        return info

    async def _new_id(self, *, beside: str | None = None) -> str:
        """Return a fresh id for the node of our server, or for that where the sandbox `beside` is."""
        link = self._links.trail(beside).link
        if link.node_id is None:
            link.node_id = (await self._node(link)).node
        return new_sandbox_id(link.node_id, os.urandom, length=CLIENTS_OWN_LENGTH)

    async def inspect(self, sandbox_id: str) -> SandboxInfo:
        info: SandboxInfo = await self._call("inspect", sandbox_id=sandbox_id)
        return info

    async def list(self, query: SandboxFilter = SandboxFilter()) -> Sequence[SandboxInfo]:
        pairs = [("state", state.value) for state in query.states]
        pairs += [(METADATA_PREFIX + key, value) for key, value in query.metadata.items()]
        infos: Sequence[SandboxInfo] = await self._call("list", query=pairs)
        return infos

    async def statistics(self, sandbox_id: str) -> SandboxStats:
        stats: SandboxStats = await self._call("statistics", sandbox_id=sandbox_id)
        return stats

    async def extend(self, sandbox_id: str, lifetime: Lifetime) -> SandboxInfo:
        info: SandboxInfo = await self._call("extend", lifetime, sandbox_id=sandbox_id)
        return info

    async def pause(self, sandbox_id: str, *, keep_memory: bool = False) -> SandboxInfo:
        query = [("keep_memory", "true")] if keep_memory else []
        info: SandboxInfo = await self._call("pause", query=query, sandbox_id=sandbox_id)
        return info

    async def resume(self, sandbox_id: str) -> SandboxInfo:
        info: SandboxInfo = await self._call("resume", sandbox_id=sandbox_id)
        return info

    async def rollback(self, sandbox_id: str, *, snapshot: str | None = None) -> SandboxInfo:
        body = wire.RollbackRequest(snapshot=snapshot)
        info: SandboxInfo = await self._call("rollback", body, sandbox_id=sandbox_id)
        return info

    async def end_processes(self, sandbox_id: str) -> None:
        await self._call("end_processes", sandbox_id=sandbox_id)

    async def stop(self, sandbox_id: str) -> SandboxInfo:
        info: SandboxInfo = await self._call("stop", sandbox_id=sandbox_id)
        return info

    async def remove(self, sandbox_id: str) -> None:
        await self._call("remove", sandbox_id=sandbox_id)

    # -- commands -----------------------------------------------------------------------------------------------

    async def run(self, sandbox_id: str, request: CommandRequest) -> CommandResult:
        result: CommandResult = await self._call("run", request, sandbox_id=sandbox_id)
        return result

    @asynccontextmanager
    async def stream(self, sandbox_id: str, request: CommandRequest) -> AsyncIterator[CommandStream]:
        async with self._command("terminal", request, sandbox_id=sandbox_id) as command:
            yield command

    async def start_process(self, sandbox_id: str, request: CommandRequest) -> ProcessInfo:
        info: ProcessInfo = await self._call("start_process", request, sandbox_id=sandbox_id)
        return info

    async def list_processes(self, sandbox_id: str) -> Sequence[ProcessInfo]:
        infos: Sequence[ProcessInfo] = await self._call("list_processes", sandbox_id=sandbox_id)
        return infos

    def attach(self, sandbox_id: str, process_id: str) -> AbstractAsyncContextManager[CommandSocket]:
        return self._command("attach", None, sandbox_id=sandbox_id, process_id=process_id)

    async def wait_process(self, sandbox_id: str, process_id: str, *, timeout_s: float | None = None) -> CommandResult:
        body = wire.WaitRequest(timeout_s=timeout_s)
        result: CommandResult = await self._call("wait_process", body, sandbox_id=sandbox_id, process_id=process_id)
        return result

    async def signal_process(self, sandbox_id: str, process_id: str, number: int) -> None:
        body = wire.SignalRequest(number=number)
        await self._call("signal_process", body, sandbox_id=sandbox_id, process_id=process_id)

    async def open_session(self, sandbox_id: str, request: SessionRequest) -> SessionInfo:
        info: SessionInfo = await self._call("open_session", request, sandbox_id=sandbox_id)
        return info

    async def run_in_session(self, sandbox_id: str, session_id: str, command: SessionCommand) -> CommandResult:
        result: CommandResult = await self._call(
            "run_in_session", command, sandbox_id=sandbox_id, session_id=session_id
        )
        return result

    async def close_session(self, sandbox_id: str, session_id: str) -> None:
        await self._call("close_session", sandbox_id=sandbox_id, session_id=session_id)

    # -- files --------------------------------------------------------------------------------------------------

    def read_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> ByteStream:
        return GeneratedStream(self._content("read_file", sandbox_id, path, user))

    async def write_file(
        self,
        sandbox_id: str,
        path: str,
        content: AsyncIterable[bytes] | bytes,
        *,
        append: bool = False,
        permissions: int = 0o644,
        user: str | None = None,
    ) -> FileInfo:
        query = [*_path(path, user), ("append", _flag(append)), ("permissions", f"{permissions:04o}")]
        async with self._stream("write_file", query, content, sandbox_id=sandbox_id) as reply:
            info: FileInfo = decode_answer(await reply.read(), FileInfo)
            return info

    async def stat_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> FileInfo:
        info: FileInfo = await self._call("stat_file", query=_path(path, user), sandbox_id=sandbox_id)
        return info

    async def list_files(
        self, sandbox_id: str, path: str, *, depth: int = 1, user: str | None = None
    ) -> Sequence[FileInfo]:
        query = [*_path(path, user), ("depth", str(depth))]
        infos: Sequence[FileInfo] = await self._call("list_files", query=query, sandbox_id=sandbox_id)
        return infos

    async def make_directory(self, sandbox_id: str, path: str, *, user: str | None = None) -> bool:
        made: wire.DirectoryMade = await self._call("make_directory", query=_path(path, user), sandbox_id=sandbox_id)
        return made.created

    async def move_file(self, sandbox_id: str, source: str, target: str, *, user: str | None = None) -> None:
        query = [("source", source), ("target", target), *_user(user)]
        await self._call("move_file", query=query, sandbox_id=sandbox_id)

    async def remove_file(
        self, sandbox_id: str, path: str, *, recursive: bool = False, user: str | None = None
    ) -> None:
        query = [*_path(path, user), ("recursive", _flag(recursive))]
        await self._call("remove_file", query=query, sandbox_id=sandbox_id)

    @asynccontextmanager
    async def watch_files(
        self, sandbox_id: str, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AsyncIterator[AsyncIterator[FileChange]]:
        query = [*_path(path, user), ("recursive", _flag(recursive))]
        async with self._stream("watch_files", query, None, sandbox_id=sandbox_id) as reply:
            events = events_of(reply, wire.WatchEvent)
            await anext(events)  # The server's word that the watch stands.
            yield _changes(events)

    def download(self, sandbox_id: str, path: str, *, user: str | None = None) -> ByteStream:
        return GeneratedStream(self._content("download", sandbox_id, path, user))

    async def _content(
        self, name: str, sandbox_id: str, path: str, user: str | None
    ) -> AsyncGenerator[bytes | int, Pipe | None]:
        async with self._stream(name, _path(path, user), None, sandbox_id=sandbox_id) as reply:
            pipe = yield 0
            while taken := await reply.take(pipe, CHUNK_BYTES):
                pipe = yield taken

    async def upload(
        self, sandbox_id: str, path: str, archive: AsyncIterable[bytes], *, user: str | None = None
    ) -> None:
        async with self._stream("upload", _path(path, user), archive, sandbox_id=sandbox_id):
            pass

    # -- the node -----------------------------------------------------------------------------------------------

    async def node(self) -> NodeInfo:
        return await self._node(self._links.home)

    async def _node(self, link: Link) -> NodeInfo:
        route = ROUTES["node"]
        timeout_s = route.deadline_s + ANSWER_SLACK_S
        reply = await link.unary.request(route.method, route.target(), None, repeatable=True, timeout_s=timeout_s)
        if reply.status >= 400:
            raise error_of(reply)
        info: NodeInfo = decode_answer(reply.body, NodeInfo)
        return info

    async def images(self) -> Sequence[ImageInfo]:
        infos: Sequence[ImageInfo] = await self._call("images")
        return infos

    async def capabilities(self) -> Sequence[CapabilityReport]:
        reports: Sequence[CapabilityReport] = await self._call("capabilities")
        return reports

    async def health(self) -> wire.Health:
        """Ask whether the server answers."""
        health: wire.Health = await self._call("health")
        return health

    async def aclose(self) -> None:
        self._links.close()


def _headers(route: Route, content: AsyncIterable[bytes] | bytes | None) -> bytes:
    if content is None:
        return _STREAM_HEADERS
    return OCTETS_HEADERS if route.body is None else _VALUE_HEADERS


def _made(body: Any) -> str | None:
    """Return the id of the sandbox that a request makes: it may have been made before, and have moved since."""
    return body.sandbox_id if isinstance(body, wire.CreateRequest | RestoreRequest) else None


def encode_body(body: Any) -> bytes:
    """Return what travels of a request's value.

    Raises:
        InvalidRequestError: it cannot be sent.
    """
    try:
        return msgspec.msgpack.encode(body)
    except (UnicodeEncodeError, TypeError, OverflowError) as error:
        raise InvalidRequestError(
            "a value of the request cannot be sent", detail=str(error), resolution="use UTF-8 text and 64-bit numbers"
        ) from error


def decode_answer(data: bytes, kind: Any) -> Any:
    """Read a server's answer.

    Raises:
        NodeUnavailableError: it is not understood.
    """
    try:
        return wire.decode(data, kind, msgpack=True)
    except InvalidRequestError as error:
        raise NodeUnavailableError(
            "the server's answer is not understood", detail=error.brief, resolution="use the same version at both ends"
        ) from error


def error_of(reply: Reply) -> DsecError:
    """Return the error that a server answered with."""
    msgpack = reply.content_type.startswith(wire.MSGPACK.encode())
    try:
        body: wire.ErrorBody = wire.decode(reply.body, wire.ErrorBody, msgpack=msgpack)
    except InvalidRequestError:
        detail = reply.body[:200].decode("utf-8", "replace")
        return NodeUnavailableError(f"the server answered with HTTP status {reply.status}", detail=detail)
    return wire.raise_error(body)


async def _changes(events: AsyncIterator[Any]) -> AsyncIterator[FileChange]:
    async for event in events:
        if isinstance(event, wire.ChangeEvent):
            yield event.change


def _user(user: str | None) -> list[tuple[str, str]]:
    return [] if user is None else [("user", user)]


def _path(path: str, user: str | None) -> list[tuple[str, str]]:
    return [("path", path), *_user(user)]


def _flag(value: bool) -> str:
    return "true" if value else "false"
