"""The peers of a node over HTTP: the driver of `dsec.service.peers`.

Each peer is called as `dsec.model.peer_proof` says, with a credential instead of a token; a peer that started anew
refuses the old one before it does anything, and is made acquainted with again. A message is never repeated otherwise,
whatever happened to its answer. The content of a round goes straight from its stream to the connection, one piece at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import msgspec

from dsec.api.body import STALL_S
from dsec.api.routes import ROUTES, Route
from dsec.base.errors import InvalidRequestError, NodeUnavailableError, UnknownOutcomeError
from dsec.base.secret_file import read_secret
from dsec.linux.pipes import Pipe
from dsec.model.peer import Peer, origin, parse_peers
from dsec.model.peer_proof import PeerCall
from dsec.placement.view import NodeView
from dsec.sdk.http import OCTETS_HEADERS, decode_answer, encode_body, error_of
from dsec.sdk.keepalive import Endpoint, Reply
from dsec.sdk.links import Link
from dsec.sdk.streaming import CutError, StreamRequest
from dsec.service.content import ByteStream
from dsec.service.migration import (
    MigrationAccepted,
    MigrationCommit,
    MigrationOffer,
    MigrationRound,
    MigrationStatus,
    ReleaseAnswer,
    RoundReceipt,
)

_SLACK_S = 5.0
"""How much longer than the peer's own deadline its answer is waited for."""
_UNAUTHORIZED = 401


class HttpPeer:
    """Another node over HTTP. Implements `dsec.service.peers.Peer`; belongs to the event loop of its first use.

    Args:
        own: id of this node.
        peer: which one, and where.
        secret: returns what the nodes of the fleet share.
        stall_s: longest wait of a round for the peer to take more, or to answer.
    """

    def __init__(self, own: str, peer: Peer, secret: Callable[[], bytes], *, stall_s: float = STALL_S) -> None:
        self.node = peer.node
        self.url = peer.url
        self._own = own
        self._secret = secret
        self._stall_s = stall_s
        self._link: Link | None = None
        self._meeting = anyio.Lock()

    async def offer(self, offer: MigrationOffer) -> MigrationAccepted:
        accepted: MigrationAccepted = await self._ask("peer_offer", offer)
        return accepted

    async def commit(self, migration_id: str, commit: MigrationCommit) -> None:
        await self._ask("peer_commit", commit, migration_id=migration_id)

    async def release(self, migration_id: str) -> ReleaseAnswer:
        answer: ReleaseAnswer = await self._ask("peer_release", migration_id=migration_id)
        return answer

    async def abort(self, migration_id: str) -> None:
        await self._ask("peer_abort", migration_id=migration_id)

    async def status(self, migration_id: str) -> MigrationStatus:
        status: MigrationStatus = await self._ask("peer_status", migration_id=migration_id)
        return status

    async def view(self) -> NodeView:
        view: NodeView = await self._ask("peer_view")
        return view

    async def round(self, migration_id: str, head: MigrationRound, content: ByteStream) -> RoundReceipt:
        try:
            link = await self._acquainted()
            reply = await self._send(link, migration_id, head, content)
        finally:
            with anyio.CancelScope(shield=True):
                await content.aclose()
        if reply.status == _UNAUTHORIZED:
            self._forget(link)  # It started anew, and has given up what it had not prepared.
            raise NodeUnavailableError(f"the peer {self.node} started anew while it was sent to")
        receipt: RoundReceipt = self._read(ROUTES["peer_round"], reply)
        return receipt

    async def _send(self, link: Link, migration_id: str, head: MigrationRound, content: ByteStream) -> Reply:
        route = ROUTES["peer_round"]
        query = {name: value for name, value in msgspec.to_builtins(head).items() if value is not None}
        with anyio.CancelScope() as scope:
            request = StreamRequest(
                method=route.method,
                target=f"{route.target(migration_id=migration_id)}?{urlencode(query)}",
                headers=OCTETS_HEADERS,
                content=_Progress(content, scope, self._stall_s),
                timeout_s=route.deadline_s,
            )
            try:
                async with link.streams.stream(request) as reply:
                    return Reply(reply.status, reply.content_type, await reply.read())
            except CutError as error:
                raise self._lost(str(error)) from error
        raise self._lost(f"it took nothing for {self._stall_s:g} s")

    # -- messages ---------------------------------------------------------------------------------------------------

    async def _ask(self, name: str, body: Any = None, **path: str) -> Any:
        route = ROUTES[name]
        reply, link = await self._exchange(route, body, path)
        if reply.status == _UNAUTHORIZED:  # Nothing was done. It may have started anew.
            self._forget(link)
            reply, _ = await self._exchange(route, body, path)
        return self._read(route, reply)

    async def _exchange(self, route: Route, body: Any, path: dict[str, str]) -> tuple[Reply, Link]:
        link = await self._acquainted()
        try:
            reply = await link.unary.request(
                route.method,
                route.target((), **path),
                None if route.body is None else encode_body(body),
                repeatable=False,
                timeout_s=route.deadline_s + _SLACK_S,
            )
        except UnknownOutcomeError as error:
            raise self._lost(error.detail) from error
        return reply, link

    def _read(self, route: Route, reply: Reply) -> Any:
        if reply.status >= 400:
            raise error_of(reply)
        return None if route.status == 204 else decode_answer(reply.body, route.result)

    def _lost(self, detail: str) -> NodeUnavailableError:
        return NodeUnavailableError(f"the answer of the peer {self.node} at {self.url} did not come", detail=detail)

    # -- acquaintance -----------------------------------------------------------------------------------------------

    async def _acquainted(self) -> Link:
        """Return connections to the peer, which has proved that it is the peer."""
        async with self._meeting:
            if self._link is None:
                self._link = Link(Endpoint(url=self.url, token=await self._meet()))
            return self._link

    async def _meet(self) -> str:
        call = PeerCall(self._own, self.node, self._secret())
        route = ROUTES["peer_hello"]
        stranger = Link(Endpoint(url=self.url))
        try:
            reply = await stranger.unary.request(
                route.method,
                route.target(),
                encode_body(call.hello),
                repeatable=True,
                timeout_s=route.deadline_s + _SLACK_S,
            )
        finally:
            stranger.close()
        return call.credential(self._read(route, reply))

    def _forget(self, link: Link) -> None:
        link.close()
        if self._link is link:
            self._link = None

    def close(self) -> None:
        """Close every connection; what is under way is cut."""
        if self._link is not None:
            self._forget(self._link)


class HttpPeers:
    """The peers in a node's settings. Implements `dsec.service.peers.Peers`.

    Args:
        own: id of this node, whose own entry is skipped.
        listed: the setting `peers`.
        secret_file: what the nodes of the fleet share; read when a peer is first called.

    Raises:
        InvalidRequestError: the list is malformed.
    """

    def __init__(self, own: str, listed: str, secret_file: Path, *, stall_s: float = STALL_S) -> None:
        def secret() -> bytes:
            return read_secret(secret_file)

        self._own = own
        self._peers = [HttpPeer(own, peer, secret, stall_s=stall_s) for peer in parse_peers(listed) if peer.node != own]

    def known(self) -> Sequence[HttpPeer]:
        return tuple(self._peers)

    async def find(self, node: str) -> HttpPeer:
        """Return the peer of this id or URL. Nothing is asked of it: its first message tells whether it answers."""
        wanted = origin(node)
        for peer in self._peers:
            if node == peer.node or (wanted is not None and wanted == origin(peer.url)):
                return peer
        if node == self._own:
            raise InvalidRequestError(f"{node} is this node itself", resolution="name another node")
        listed = ", ".join(peer.node for peer in self._peers[:16]) or "none"
        raise InvalidRequestError(
            f"{node[:200]!r} is not a peer of this node",
            detail=f"its peers: {listed}",
            resolution="name it in this node's setting `peers` as ID=URL, and start the node anew",
        )

    def close(self) -> None:
        """Close every connection."""
        for peer in self._peers:
            peer.close()


class _Progress(ByteStream):
    """The content of a round. Each piece that is taken gives the sending more time."""

    def __init__(self, inner: ByteStream, scope: anyio.CancelScope, stall_s: float) -> None:
        self._inner = inner
        self._scope = scope
        self._stall_s = stall_s
        self._more_time()

    def _more_time(self) -> None:
        self._scope.deadline = anyio.current_time() + self._stall_s

    async def __anext__(self) -> bytes:
        self._more_time()
        try:
            return await anext(self._inner)
        finally:
            self._more_time()

    async def fill(self, pipe: Pipe) -> int:
        self._more_time()
        try:
            return await self._inner.fill(pipe)
        finally:
            self._more_time()

    async def aclose(self) -> None:
        await self._inner.aclose()
