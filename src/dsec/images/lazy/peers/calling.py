"""Call another node: connections that are kept, a credential that is made once, and bounds on every wait.

The same caller serves for chunks (`dsec.images.lazy.peers.chunk_server`) and for a tracker, which is part of a node's
API. Both prove themselves first (`dsec.model.peer_proof`). A server that began anew refuses the old credential before
it does anything, and is made acquainted with again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
import msgspec

from dsec.base.errors import InvalidRequestError, NodeUnavailableError
from dsec.base.foreign_json import decode_foreign
from dsec.distribution.messages import FailureKind
from dsec.distribution.speed import Speed
from dsec.images.lazy.formats.stored import HEADER_BYTES, MAXIMUM_STORED_BYTES
from dsec.images.lazy.peers.chunk_server import CHUNKS, HELLO, RELAYED, WAIT
from dsec.images.lazy.peers.landing import Land
from dsec.images.lazy.peers.wire import Head, Wire, WireError, connect, head_of
from dsec.model.peer import Peer, origin
from dsec.model.peer_proof import HelloAnswer, PeerCall

CONNECT_TIMEOUT_S = 2.0
"""For a connection and its first answer: a host that is there takes a round trip."""
_KEPT = 4
_SMALL_BODY_BYTES = 4096
_PROCESSING = 102
_SLOWEST_BYTES_S = 64 << 10
"""Who sends less in a second, for as long as a stall, stalls: one byte at a time keeps nobody here."""
_SIGNS = 256
"""Signs of life that are taken: more would be one that wants to keep us busy."""
_KINDS = {404: FailureKind.MISSING, 503: FailureKind.BUSY}


class PeerFailedError(Exception):
    """A peer gave nothing that is of use.

    Attributes:
        kind: how it failed.
    """

    def __init__(self, kind: FailureKind, words: str) -> None:
        super().__init__(words)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Reply:
    """What was answered."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of an answer is taken, and how long it is waited for.

    Attributes:
        body_bytes: the longest body.
        first_s: until the answer begins.
        stall_s: for the next bytes of it.
        hold_s: until it begins, if signs of life come meanwhile.
        connect_s: for a connection, and for each message by which both sides prove themselves.
        land: where a body comes that is asked for; None: it is of no use before it is whole.
    """

    body_bytes: int
    first_s: float
    stall_s: float
    hold_s: float = math.inf
    connect_s: float = CONNECT_TIMEOUT_S
    land: Land | None = None


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of a peer's address.

    Raises:
        InvalidRequestError: it is none.
    """
    # `origin` first: `urlsplit` raises at some of what it refuses.
    parts = urlsplit(url) if origin(url) is not None else None
    if parts is None or parts.scheme != "http" or parts.hostname is None:
        raise InvalidRequestError(
            f"{url[:200]!r} is not the address of a peer", resolution="write http://HOST:PORT, without a path"
        )
    return parts.hostname, parts.port or 80


class Caller:
    """Calls one other node. Used from one event loop.

    Args:
        own: id of this node.
        peer: who is called, and where.
        secret: returns what the nodes of the fleet share.
        speed: told what comes; None: nobody wants to know.

    Raises:
        InvalidRequestError: its URL is none that can be called.
    """

    def __init__(self, own: str, peer: Peer, secret: Callable[[], bytes], speed: Speed | None = None) -> None:
        self.peer = peer
        self._own = own
        self._secret = secret
        self._speed = speed
        self._host, self._port = address_of(peer.url)
        self._credential = ""
        self._meeting = anyio.Lock()
        self._idle: list[Wire] = []

    async def ask(self, method: str, target: str, body: bytes, *, limit: int, timeout_s: float) -> Reply:
        """Ask, and return the whole answer.

        Args:
            method, target, body: of the request; one that may be sent twice.
            limit: the longest body that is taken.
            timeout_s: for all of it.

        Raises:
            PeerFailedError: it does not answer in time, or not as it should.
        """
        with anyio.move_on_after(timeout_s):
            bounds = Bounds(body_bytes=limit, first_s=timeout_s, stall_s=timeout_s)
            return await self._proved(method, target, body, bounds)
        raise PeerFailedError(FailureKind.STALLED, f"{self.peer.node} did not answer within {timeout_s:g} s")

    async def chunk(
        self,
        name: str,
        *,
        wait: bool,
        timeout_s: float,
        stall_s: float,
        hold_s: float = math.inf,
        land: Land | None = None,
    ) -> bytes:
        """Return a stored chunk as the peer gives it, unverified.

        Args:
            name: of the chunk.
            wait: whether the peer may answer later, when it has the chunk.
            timeout_s: for all of it.
            stall_s: for the next bytes of an answer, or the next sign of life before it begins.
            hold_s: for it to begin, however many signs of life come.
            land: told its length when it begins to come; returns where it is passed on from.

        Raises:
            PeerFailedError: it gave none.
        """
        wait_s = min(stall_s, timeout_s)
        bounds = Bounds(
            body_bytes=MAXIMUM_STORED_BYTES,
            first_s=wait_s,
            stall_s=stall_s,
            hold_s=hold_s,
            connect_s=wait_s,
            land=land,
        )
        with anyio.move_on_after(timeout_s):
            reply = await self._proved("GET", CHUNKS + name + (WAIT if wait else ""), b"", bounds)
            if reply.status != 200:
                kind = _KINDS.get(reply.status, FailureKind.UNREACHABLE)
                raise PeerFailedError(kind, f"{self.peer.node} answers with status {reply.status}")
            if len(reply.body) <= HEADER_BYTES:
                raise PeerFailedError(FailureKind.WRONG, f"{self.peer.node} gives {len(reply.body)} bytes for a chunk")
            return reply.body
        raise PeerFailedError(FailureKind.STALLED, f"{self.peer.node} gave no chunk within {timeout_s:g} s")

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop().close()

    # -- who is called --------------------------------------------------------------------------------------------

    async def _proved(self, method: str, target: str, body: bytes, bounds: Bounds) -> Reply:
        """Ask with a credential; with another one, once, when the server has begun anew."""
        for _ in range(2):
            credential = await self._met(bounds.connect_s)
            reply = await self._exchange(method, target, body, bounds, credential)
            if reply.status != 401:
                return reply
            if self._credential == credential:
                self._credential = ""
        raise PeerFailedError(FailureKind.UNREACHABLE, f"{self.peer.node} does not believe that we are of its fleet")

    async def _met(self, timeout_s: float = CONNECT_TIMEOUT_S) -> str:
        async with self._meeting:
            if not self._credential:
                self._credential = await self._meet(timeout_s)
            return self._credential

    async def _meet(self, timeout_s: float) -> str:
        try:
            call = PeerCall(self._own, self.peer.node, self._secret())
        except InvalidRequestError as error:
            raise PeerFailedError(FailureKind.UNREACHABLE, error.brief) from error
        bounds = Bounds(body_bytes=_SMALL_BODY_BYTES, first_s=timeout_s, stall_s=timeout_s, connect_s=timeout_s)
        reply = await self._exchange("POST", HELLO, msgspec.json.encode(call.hello), bounds, "")
        try:
            return call.credential(decode_foreign(reply.body, HelloAnswer))
        except msgspec.MsgspecError as error:
            raise PeerFailedError(FailureKind.UNREACHABLE, f"{self.peer.url} is no peer") from error
        except NodeUnavailableError as error:
            raise PeerFailedError(FailureKind.UNREACHABLE, error.brief) from error

    # -- one exchange ---------------------------------------------------------------------------------------------

    async def _exchange(self, method: str, target: str, body: bytes, bounds: Bounds, credential: str) -> Reply:
        request = self._head(method, target, body, credential) + body
        while self._idle:
            wire = self._idle.pop()
            if wire.is_idle:
                try:
                    return await self._over(wire, request, bounds)
                except WireError:
                    continue  # Its server closed it, or began anew, which says nothing about the server.
            wire.close()
        try:
            with anyio.fail_after(bounds.connect_s):
                wire = await connect(self._host, self._port)
            return await self._over(wire, request, bounds)
        except WireError as error:
            words = f"{self.peer.node} at {self.peer.url}: {error}"
            raise PeerFailedError(FailureKind.UNREACHABLE, words) from error
        except TimeoutError as error:
            words = f"nobody answers at {self.peer.url}"
            raise PeerFailedError(FailureKind.UNREACHABLE, words) from error

    def _head(self, method: str, target: str, body: bytes, credential: str) -> bytes:
        fields = {"host": f"{self._host}:{self._port}"}
        if credential:
            fields["authorization"] = f"Bearer {credential}"
        if body:
            fields |= {"content-type": "application/json", "content-length": str(len(body))}
        return head_of(f"{method} {target} HTTP/1.1", fields)

    async def _over(self, wire: Wire, request: bytes, bounds: Bounds) -> Reply:
        """Ask over a connection, which is kept if the answer came whole, and closed otherwise."""
        whole = False
        try:
            await wire.send(request)
            reply = await self._reply(wire, bounds)
            whole = True
            return reply
        finally:
            if whole and len(self._idle) < _KEPT:
                self._idle.append(wire)
            else:
                wire.close()

    async def _next_head(self, wire: Wire, bounds: Bounds) -> Head:
        with anyio.move_on_after(bounds.first_s) as waiting:
            head = await wire.head()
        if waiting.cancelled_caught:
            raise PeerFailedError(FailureKind.STALLED, f"{self.peer.node} does not begin to answer")
        if head is None:
            raise WireError("it ended the connection")
        return head

    async def _reply(self, wire: Wire, bounds: Bounds) -> Reply:
        with anyio.move_on_after(bounds.hold_s) as holding:
            head = await self._next_head(wire, bounds)
            for _ in range(_SIGNS):
                if head.status != _PROCESSING or head.body_bytes:
                    break
                head = await self._next_head(wire, bounds)
        if holding.cancelled_caught:
            # It waits for others, and may be as honest as we are.
            raise PeerFailedError(FailureKind.BUSY, f"{self.peer.node} has nothing to give within {bounds.hold_s:g} s")
        count = head.body_bytes
        is_wanted = head.status == 200
        if count > (bounds.body_bytes if is_wanted else _SMALL_BODY_BYTES):
            raise PeerFailedError(FailureKind.WRONG, f"{self.peer.node} wants to give {count} bytes")
        try:
            return Reply(head.status, await self._body(wire, count, bounds.stall_s, bounds.land if is_wanted else None))
        except (WireError, PeerFailedError) as error:
            if RELAYED not in head.fields:
                raise
            # Whose fault it is that it ended early, nobody can say: it may be anybody's through whom it came.
            raise PeerFailedError(FailureKind.BROKEN, f"{self.peer.node} passed on no more of it: {error}") from error

    async def _body(self, wire: Wire, count: int, stall_s: float, land: Land | None) -> bytes:
        landing = land(count) if land is not None and count else None
        try:
            view = memoryview(bytearray(count)) if landing is None else landing.view
            at, looked_at, looked_s = 0, 0, anyio.current_time()
            while at < count:
                with anyio.move_on_after(stall_s) as waiting:
                    came = await wire.receive_into(view[at:])
                    at += came
                    if self._speed is not None:
                        self._speed.came(came)
                    if landing is not None:
                        landing.came(at)
                passed_s = anyio.current_time() - looked_s
                if waiting.cancelled_caught or (passed_s > stall_s and at - looked_at < passed_s * _SLOWEST_BYTES_S):
                    words = f"{self.peer.node} gave {at} of {count} bytes, and no more"
                    raise PeerFailedError(FailureKind.STALLED, words)
                if passed_s > stall_s:
                    looked_s, looked_at = looked_s + passed_s, at
        except BaseException:
            if landing is not None:
                landing.spoil()
            raise
        return bytes(view)
