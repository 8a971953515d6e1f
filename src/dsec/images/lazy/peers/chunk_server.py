"""Give chunks to the nodes of the same owner, over HTTP.

::

    POST /v1/peer/hello          {"node", "challenge"} -> {"node", "answer", "proof"}     dsec.model.peer_proof
    GET  /v1/chunks/NAME         the stored chunk     (Authorization: Bearer peer....)
    GET  /v1/chunks/NAME?wait    the same; where it is on its way here, the answer comes with it; until it begins to
                                 "102 Processing" several times a second, so that a dead node is told from a patient one

An answer with the field ``Dsec-Relayed`` is passed on while it comes (`dsec.images.lazy.peers.landing`), its end only
when it is verified here. If it is something else, or ends early, so does the answer, and that is nobody's fault.

401: who asks did not prove to know the secret. 404: it is not here, and not on its way. 503: as much is being sent as
this node sends (`dsec.distribution.uploads`); Retry-After says when to try again, in seconds.

What a hostile peer can do. Whoever does not know the secret gets an answer to his first message and nothing else; the
connections of strangers are few, and each has seconds. Whoever knows it gets chunks, by name, and nothing that is no
chunk. Heads and bodies of requests have bounds in bytes and time; an answer that is read slowly ends after a while,
and so does the connection; transfers at a time are bounded in all and for each peer, and so is what goes in a second.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import InvalidRequestError, UnauthorizedError
from dsec.base.foreign_json import decode_foreign
from dsec.distribution.uploads import Refused, Upload, Uploads
from dsec.images.lazy.formats.stored import is_name
from dsec.images.lazy.peers.landing import Part, State
from dsec.images.lazy.peers.shelf import LocalChunks
from dsec.images.lazy.peers.wire import Head, Wire, WireError, head_of
from dsec.model.peer_proof import Hello, PeerGate

CHUNKS = "/v1/chunks/"
HELLO = "/v1/peer/hello"
WAIT = "?wait"
"""Behind the name of a chunk."""
RELAYED = "dsec-relayed"
"""Field of an answer that is passed on while it comes."""
_ALIVE = head_of("HTTP/1.1 102 Processing", {})
_SLICE_BYTES = 256 << 10
_LOOK_AGAIN_S = 0.1
_BODY_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkServerLimits:
    """Bounds of one server; how much it sends says `UploadPolicy`.

    Attributes:
        connections: open at a time; the next are closed at once.
        strangers: of these, who has not proved anything yet.
        request_s: for a request to come, once it began; and for a stranger to prove itself.
        idle_s: a connection without a request.
        stall_s: an answer of which nothing is read.
        upload_s: the longest that one transfer holds its slot.
        hold_s: the longest wait for a chunk that is on its way.
        beat_s: who waits for either hears this often that we are alive; below what peers take for a stall.
        queue_s: the longest wait for a slot.
        encodings: chunks that are encoded at a time.
    """

    connections: int = 512
    strangers: int = 64
    request_s: float = 5.0
    idle_s: float = 75.0
    stall_s: float = 10.0
    upload_s: float = 60.0
    hold_s: float = 10.0
    beat_s: float = 0.25
    queue_s: float = 5.0
    encodings: int = 2


class _RefusedError(Exception):
    """A request is answered with this status and no body of interest."""

    def __init__(self, status: str, **fields: str) -> None:
        super().__init__(status)
        self.status = status
        self.fields = {name.replace("_", "-"): value for name, value in fields.items()}


class _Coming:
    """A chunk on its way here.

    Attributes:
        part: what of it can be passed on; None: it has not begun to come.
        is_over: whether it has come, or does not come after all.
        changed: set, and made anew, when any of it is.
    """

    __slots__ = ("changed", "is_over", "part")

    def __init__(self) -> None:
        self.part: Part | None = None
        self.is_over = False
        self.changed = anyio.Event()

    def land(self, part: Part | None) -> None:
        """Have it be passed on from there; what was so before is let go."""
        if self.part is not None:
            self.part.close()
        self.part = part
        self.change()

    def change(self) -> None:
        """Wake all that wait."""
        self.changed.set()
        self.changed = anyio.Event()

    def relayed(self) -> Part | None:
        """Return what can be passed on, which the caller closes."""
        if self.part is None or self.part.state is State.SPOILT:
            return None
        return self.part.copy()


class ChunkServer:
    """Serves one node's chunks. Used from one event loop.

    Args:
        gate: knows who may ask.
        chunks: what there is to give.
        uploads: how much of it at a time.
        clock: seconds that only go forward.
        limits: the server's bounds.
    """

    def __init__(
        self,
        gate: PeerGate,
        chunks: LocalChunks,
        uploads: Uploads,
        clock: Callable[[], float],
        limits: ChunkServerLimits = ChunkServerLimits(),
    ) -> None:
        self.uploads = uploads
        self._gate = gate
        self._chunks = chunks
        self._clock = clock
        self._limits = limits
        self._coming: dict[str, _Coming] = {}
        self._freed = anyio.Event()
        self._connections = 0
        self._strangers = 0
        self._encoding = anyio.CapacityLimiter(limits.encodings)

    def expect(self, name: str) -> None:
        """Note that a chunk is on its way here; who may wait for it does."""
        self._coming.setdefault(name, _Coming())

    def land(self, name: str, part: Part) -> None:
        """Pass a chunk on while it comes. Closes the part when it is over."""
        coming = self._coming.get(name)
        if coming is None:
            part.close()
        else:
            coming.land(part)

    def progress(self, name: str) -> None:
        """Note that more of a chunk is there, or that it ended."""
        coming = self._coming.get(name)
        if coming is not None:
            coming.change()

    def settle(self, name: str) -> None:
        """Note that a chunk has come, or does not come after all; who waits for it is answered."""
        coming = self._coming.pop(name, None)
        if coming is not None:
            coming.is_over = True
            coming.land(None)

    async def serve(self, listener: socket.socket) -> None:
        """Take connections of a listening, non-blocking socket until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(listener)
                try:
                    connection, _ = listener.accept()
                except BlockingIOError:
                    continue
                except OSError:
                    await anyio.sleep(0.1)  # Out of descriptors: those that we have will be given back.
                    continue
                group.start_soon(self._converse, Wire(connection))

    async def _converse(self, wire: Wire) -> None:
        """Answer the requests of one connection, until it ends or breaks the rules."""
        if self._connections >= self._limits.connections or self._strangers >= self._limits.strangers:
            wire.close()
            return
        self._connections += 1
        self._strangers += 1
        is_stranger = True
        try:
            with anyio.move_on_after(self._limits.request_s) as patience:
                while (head := await wire.head()) is not None:
                    patience.deadline = anyio.current_time() + self._limits.request_s
                    known = await self._respond(wire, head, patience)
                    if known and is_stranger:
                        self._strangers -= 1
                        is_stranger = False
                    idle_s = self._limits.request_s if is_stranger else self._limits.idle_s
                    patience.deadline = anyio.current_time() + idle_s
        except WireError:
            pass  # Whoever it was is gone, or is told nothing more.
        finally:
            wire.close()
            self._connections -= 1
            self._strangers -= is_stranger

    async def _respond(self, wire: Wire, head: Head, patience: anyio.CancelScope) -> bool:
        """Answer one request; return whether who asked has proved to be a peer."""
        body = b"" if not head.body_bytes else await self._body(wire, head)
        peer = ""
        try:
            method, _, target = head.line.removesuffix(" HTTP/1.1").partition(" ")
            if (method, target) == ("POST", HELLO):
                await _send(wire, "200 OK", self._hello(body), "application/json")
                return False
            name, _, query = target.removeprefix(CHUNKS).partition("?")
            if method != "GET" or not target.startswith(CHUNKS) or not is_name(name):
                raise _RefusedError("404 Not Found")
            peer = self._peer(head)
            patience.deadline = anyio.current_time() + self._limits.hold_s + self._limits.upload_s
            await self._give(wire, peer, name, may_wait=f"?{query}" == WAIT)
        except _RefusedError as answer:
            await _send(wire, answer.status, b"", "text/plain", **answer.fields)
        return bool(peer)

    async def _body(self, wire: Wire, head: Head) -> bytes:
        if head.body_bytes > _BODY_BYTES:
            raise WireError("a long body")
        return await wire.body(head.body_bytes)

    def _hello(self, body: bytes) -> bytes:
        try:
            return msgspec.json.encode(self._gate.answer(decode_foreign(body, Hello)))
        except (msgspec.MsgspecError, InvalidRequestError) as error:
            raise _RefusedError("400 Bad Request") from error

    def _peer(self, head: Head) -> str:
        try:
            return self._gate.check(head.fields.get("authorization", "").encode("latin1"))
        except UnauthorizedError as error:
            raise _RefusedError("401 Unauthorized") from error

    # -- one transfer ---------------------------------------------------------------------------------------------

    async def _give(self, wire: Wire, peer: str, name: str, *, may_wait: bool) -> None:
        upload = _granted(self.uploads.hold(peer))
        try:
            coming = self._coming.get(name) if may_wait else None
            part = None if coming is None else await self._hold(wire, coming)
            if coming is None or part is None:
                await self._turn(wire, upload)
                await self._send_whole(wire, name)
            else:
                with part:
                    await self._turn(wire, upload)
                    await self._relay(wire, coming, part)
        finally:
            self.uploads.end(upload)
            self._freed.set()
            self._freed = anyio.Event()

    async def _send_whole(self, wire: Wire, name: str) -> None:
        """Send a chunk that is here. Raises `_RefusedError`."""
        descriptor = self._chunks.opened(name)
        if descriptor is None:
            descriptor = await anyio.to_thread.run_sync(self._chunks.made, name, limiter=self._encoding)
        if descriptor is None:
            raise _RefusedError("404 Not Found")
        try:
            size = os.fstat(descriptor).st_size
            await wire.send(self._head(size))
            await self._pour(wire, descriptor, 0, size)
        finally:
            os.close(descriptor)

    async def _relay(self, wire: Wire, coming: _Coming, part: Part) -> None:
        """Send a chunk while it comes. Raises `WireError` where it ends early: what was sent then cannot be more."""
        if part.state is State.SPOILT:  # While it waited for its turn.
            raise _RefusedError("503 Service Unavailable", retry_after="0")
        part.follow()
        await wire.send(self._head(part.size, **{RELAYED: "1"}))
        at = 0
        while at < part.size:
            end = await self._sendable(coming, part, at)
            await self._pour(wire, part.descriptor, at, end)
            at = end

    async def _sendable(self, coming: _Coming, part: Part, at: int) -> int:
        """Wait until more of a chunk may be passed on; return how much of it. Raises `WireError`."""
        end_s = self._clock() + self._limits.hold_s
        while (end := part.sendable_bytes) <= at:
            # Looked at again after each wait: a full pipe loses what we are told.
            if part.state is State.SPOILT or coming.is_over or self._clock() >= end_s:
                raise WireError("a chunk ended early that was passed on")
            with anyio.move_on_after(_LOOK_AGAIN_S):
                await coming.changed.wait()
        return end

    def _head(self, size: int, **more: str) -> bytes:
        fields = {"content-type": "application/octet-stream", "content-length": str(size), **more}
        fields["dsec-uploads"] = f"{self.uploads.sending}/{self.uploads.policy.slots}"
        return head_of("HTTP/1.1 200 OK", fields)

    async def _hold(self, wire: Wire, coming: _Coming) -> Part | None:
        """Let somebody wait for a chunk that is on its way; return it if it can be passed on. Raises `WireError`."""
        end_s = self._clock() + self._limits.hold_s
        while not coming.is_over and self._clock() < end_s:
            part = coming.relayed()
            if part is not None:
                return part
            await self._alive_until(wire, coming.changed, end_s)
        return None

    async def _turn(self, wire: Wire, upload: Upload) -> None:
        """Wait for a slot; those who wait get theirs in the order in which they came.

        Raises:
            _RefusedError: it took too long.
            WireError: the other side is gone.
        """
        end_s = self._clock() + self._limits.queue_s
        while (refused := self.uploads.advance(upload)) is not None:
            if self._clock() >= end_s:
                raise _busy(refused)
            await self._alive_until(wire, self._freed, end_s)

    async def _alive_until(self, wire: Wire, event: anyio.Event, end_s: float) -> None:
        """Wait a moment for an event; if it does not come, say that we are alive. Raises `WireError`."""
        with anyio.move_on_after(min(self._limits.beat_s, max(0.0, end_s - self._clock()))):
            await event.wait()
            return
        # Not within the limit of time above: half a head would spoil the answer that follows.
        with anyio.move_on_after(self._limits.stall_s) as patience:
            await wire.send(_ALIVE)
        if patience.cancelled_caught:
            raise WireError("nothing of the answer is read")

    async def _pour(self, wire: Wire, descriptor: int, at: int, end: int) -> None:
        """Send of a file at the rate that all transfers together may have."""
        while at < end:
            with anyio.move_on_after(self._limits.stall_s) as patience:
                sent = await wire.send_from(descriptor, at, min(_SLICE_BYTES, end - at))
            if patience.cancelled_caught:
                raise WireError("nothing of the answer is read")
            at += sent
            pause_s = self.uploads.spend(sent, self._clock())
            if pause_s:
                await anyio.sleep(pause_s)


def _granted(given: Upload | Refused) -> Upload:
    if isinstance(given, Refused):
        raise _busy(given)
    return given


def _busy(refused: Refused) -> _RefusedError:
    return _RefusedError("503 Service Unavailable", retry_after=f"{refused.retry_after_s:g}")


async def _send(wire: Wire, status: str, body: bytes, content_type: str, **fields: str) -> None:
    head = {"content-type": content_type, "content-length": str(len(body)), **fields}
    await wire.send(head_of(f"HTTP/1.1 {status}", head) + body)
