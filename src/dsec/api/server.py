"""Serve a service over TCP (with a token) and a unix socket (mode 0600, without one), by uvicorn.

Shutdown: the sockets stop accepting, endless streams end with `node_unavailable`, unary requests get `Limits.grace_s`
to finish, what still runs is cancelled (which ends its command). Sandboxes are the service's and stay.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import uvicorn

from dsec.api.application import Application, Limits
from dsec.api.face import SANDBOXES, Face
from dsec.api.protocol import LongBodyProtocol
from dsec.api.short import ShortWay
from dsec.base.errors import InvalidRequestError
from dsec.model.peer_proof import PeerGate
from dsec.service.episodes import HasEpisodes
from dsec.service.port import SandboxService

SOCKET_BACKLOG = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpAddress:
    """Where to listen, and the token that callers must know.

    Attributes:
        host: loopback by default.
        port: 0: any free one.
        token: never empty.
    """

    token: str
    host: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where a server is heard.

    Attributes:
        url: of the TCP side; empty without one.
        socket_path: of the unix side.
    """

    url: str = ""
    socket_path: Path | None = None


@asynccontextmanager
async def serve(
    service: SandboxService | HasEpisodes,
    *,
    tcp: TcpAddress | None = None,
    socket_path: Path | None = None,
    limits: Limits = Limits(),
    gate: PeerGate | None = None,
    face: Face = SANDBOXES,
) -> AsyncIterator[Serving]:
    """Serve until the context is left; then shut down gracefully, within `limits.grace_s` and a little more.

    Args:
        service: what does the work: a `SandboxService`, unless `face` is another's.
        tcp, socket_path: where to listen.
        limits: bounds of each.
        gate: lets the node's peers in, over TCP; None: it has none.
        face: the routes, and what is behind them.

    Raises:
        InvalidRequestError: an address cannot be bound, or the token is empty.
    """
    ends: list[tuple[socket.socket, Application]] = []
    url, bound = "", 0
    try:
        if socket_path is not None:
            ends.append((_bind_unix(socket_path), Application(service, token=None, limits=limits, face=face)))
            bound = socket_path.stat().st_ino
        if tcp is not None:
            listener = _bind_tcp(tcp)
            ends.append((listener, Application(service, token=tcp.token, limits=limits, gate=gate, face=face)))
            url = f"http://{_authority(tcp.host, listener.getsockname()[1])}"
        servers = [_Server(application, limits) for _, application in ends]
        async with anyio.create_task_group() as group:
            for server, (listener, _) in zip(servers, ends, strict=True):
                group.start_soon(server.serve, [listener])
            for server in servers:
                await server.is_listening.wait()
            try:
                yield Serving(url=url, socket_path=socket_path)
            finally:
                for server in servers:
                    server.begin_shutdown()
    finally:
        for listener, _ in ends:
            listener.close()
        if socket_path is not None and bound:
            _unlink_own(socket_path, bound)


def _unlink_own(path: Path, inode: int) -> None:
    """Take our socket away, and not what somebody has put in its place."""
    try:
        if path.stat().st_ino == inode:
            path.unlink()
    except OSError:
        return


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind_tcp(address: TcpAddress) -> socket.socket:
    if not address.token:
        raise InvalidRequestError("the token is empty", resolution="give a token of at least 16 random characters")
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family, backlog=SOCKET_BACKLOG)
    except OSError as error:
        raise InvalidRequestError(
            f"cannot listen on {_authority(address.host, address.port)}",
            detail=str(error),
            resolution="choose another port, or end what listens there",
        ) from error
    # Accepted sockets inherit it. asyncio sets it only for sockets made with an explicit protocol, which this one is
    # not: without it an answer's body would wait for the client's delayed acknowledgement of its head (40 ms).
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _bind_unix(path: Path) -> socket.socket:
    """Bind in a private directory and move into place: the socket is never seen with other permissions than 0600."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".s") as directory:
            bound = Path(directory) / "s"
            listener.bind(str(bound))
            bound.chmod(0o600)
            listener.listen(SOCKET_BACKLOG)
            os.replace(bound, path)
    except OSError as error:
        listener.close()
        raise InvalidRequestError(
            f"cannot listen on {path}", detail=str(error), resolution="use a writable state directory with a short path"
        ) from error
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its hold on signals, and with a word when it listens."""

    def __init__(self, application: Application, limits: Limits) -> None:
        self._application = application
        self.is_listening = anyio.Event()
        super().__init__(
            uvicorn.Config(
                application,
                http=_protocol(limits, application.short),
                ws="websockets-sansio",
                ws_max_size=1 << 20,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(limits.keep_alive_s),
                timeout_graceful_shutdown=int(limits.grace_s),
                limit_concurrency=limits.connections,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # Signals belong to the program around us.

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    def begin_shutdown(self) -> None:
        self.should_exit = True
        self._application.drain()


def _protocol(bounds: Limits, way: ShortWay | None) -> type[LongBodyProtocol]:
    class BoundedProtocol(LongBodyProtocol):
        head_bytes = bounds.head_bytes
        head_s = bounds.head_s
        # In the instance's place: a function of the class would be given the instance.
        short = staticmethod(way.answer) if way is not None else None

    return BoundedProtocol
