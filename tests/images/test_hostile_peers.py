"""Peers that know the fleet's secret and mean ill, and a tracker that does: over real sockets, with the real tracker's
policy between them. Whoever takes chunks gets them right, in time, and finds out who it was."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from dsec.base.errors import ObjectNotFoundError
from dsec.distribution.messages import Announcement, Answer, Candidate, FailureKind, LayerChange, Lookup, LookupReply
from dsec.distribution.messages import Report as FailureReport
from dsec.distribution.policy import AcquisitionPolicy, TrackerPolicy, UploadPolicy
from dsec.distribution.tracker import Tracker
from dsec.distribution.uploads import Uploads
from dsec.images.lazy.formats.stored import ChunkRef, encode
from dsec.images.lazy.peers.chunk_server import HELLO, ChunkServer
from dsec.images.lazy.peers.shelf import LocalChunks, Shelf
from dsec.images.lazy.peers.source import PeerOptions, Peers, open_peers
from dsec.images.lazy.peers.wire import Wire, WireError, head_of
from dsec.images.lazy.source import MemorySource, fetch_verified
from dsec.model.peer_proof import Hello, PeerGate

pytestmark = pytest.mark.anyio

SECRET = b"a secret of the fleet"
LAYER = "a" * 64
GOOD, EVIL, TAKER = "giver", "knave", "taker"
OPTIONS = PeerOptions(
    acquisition=AcquisitionPolicy(patience_s=1.0, hold_s=0.1, attempts=4), stall_s=0.1, tracker_timeout_s=1.0
)
_MEGABYTE = 1 << 20

Behaviour = Callable[[Wire, bytes], "object"]


async def wrong_bytes(wire: Wire, stored: bytes) -> None:
    await answer(wire, stored[:-1] + bytes([stored[-1] ^ 1]))


async def another_chunk(wire: Wire, stored: bytes) -> None:
    await answer(wire, encode(b"something else")[1])


async def silence(wire: Wire, stored: bytes) -> None:
    await anyio.sleep(5)


async def endless_signs_of_life(wire: Wire, stored: bytes) -> None:
    while True:
        await wire.send(head_of("HTTP/1.1 102 Processing", {}) * 50)
        await anyio.lowlevel.checkpoint()


async def drips(wire: Wire, stored: bytes) -> None:
    await wire.send(head_of("HTTP/1.1 200 OK", {"content-length": str(len(stored))}))
    for at in range(len(stored)):
        await wire.send(stored[at : at + 1])
        await anyio.sleep(0.02)


async def endless_body(wire: Wire, stored: bytes) -> None:
    await wire.send(head_of("HTTP/1.1 200 OK", {"content-length": str(10**14)}))
    while True:
        await wire.send(bytes(_MEGABYTE))


async def endless_head(wire: Wire, stored: bytes) -> None:
    await wire.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await wire.send(b"x-more: " + b"y" * 4096 + b"\r\n")


async def half_a_body(wire: Wire, stored: bytes) -> None:
    await wire.send(head_of("HTTP/1.1 200 OK", {"content-length": str(len(stored))}) + stored[: len(stored) // 2])
    raise WireError("enough")


async def empty_body(wire: Wire, stored: bytes) -> None:
    await answer(wire, b"")


async def elsewhere(wire: Wire, stored: bytes) -> None:
    await wire.send(head_of("HTTP/1.1 302 Found", {"location": "http://127.0.0.1:1/", "content-length": "0"}))


async def no_http(wire: Wire, stored: bytes) -> None:
    await wire.send(b"\x00\xff\x00\xff" * 64 + b"\r\n\r\n")


async def more_than_was_asked(wire: Wire, stored: bytes) -> None:
    """The right answer, and behind it one to the next question, which is not asked yet."""
    await answer(wire, stored)
    await answer(wire, encode(b"poison")[1])


async def answer(wire: Wire, body: bytes) -> None:
    await wire.send(head_of("HTTP/1.1 200 OK", {"content-length": str(len(body))}) + body)


WRONG = [wrong_bytes, another_chunk, endless_body, empty_body]
SLOW = [pytest.param(each, marks=pytest.mark.slow, id=each.__name__) for each in (silence, drips)]
SILENT = [half_a_body, endless_head, no_http, elsewhere, endless_signs_of_life]


class Fleet:
    """A tracker, an origin, an honest and a hostile peer that say they have everything, and one that takes."""

    def __init__(self, root: Path, behaviour: Behaviour, chunks: int) -> None:
        contents = [random.Random(number).randbytes(20_000) for number in range(chunks)]
        self.stored = dict(encode(content) for content in contents)
        self.refs = [
            ChunkRef(id=name, content_bytes=len(content), stored_bytes=len(stored), blob_start=0)
            for content, (name, stored) in zip(contents, self.stored.items(), strict=True)
        ]
        self.contents = contents
        self.origin = Counting(self.stored)
        self.tracker = Tracker(TrackerPolicy(), random.Random(1).getrandbits)
        shelf = Shelf(root / "shelf", limit_bytes=1 << 30)
        for name, stored in self.stored.items():
            shelf.put(name, stored)
        gate = PeerGate(GOOD, SECRET)
        uploads = Uploads(UploadPolicy(), time.monotonic())
        self.server = ChunkServer(gate, LocalChunks((root,), shelf), uploads, time.monotonic)
        self.good, self.evil = listener(), listener()
        self.behaviour = behaviour
        self.evil_requests = 0
        self.lookups = 0
        for node, socket_, bandwidth in ((GOOD, self.good, 1), (EVIL, self.evil, 10**9), (TAKER, None, 1)):
            self.announce(node, socket_, bandwidth)

    def announce(self, node: str, socket_: socket.socket | None, bandwidth: int) -> None:
        address = f"http://127.0.0.1:{socket_.getsockname()[1]}" if socket_ is not None else ""
        changes = (LayerChange(layer=LAYER, complete=True),) if socket_ is not None else ()
        message = Announcement(
            node=node, address=address, life="1", sequence=1, full=True, upload_slots=4 if address else 0,
            upload_bytes_per_s=bandwidth, changes=changes,
        )  # fmt: skip
        assert not self.tracker.announce(message, time.monotonic()).resend

    async def serve_evil(self) -> None:
        gate = PeerGate(EVIL, SECRET)
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(self.evil)
                connection, _ = self.evil.accept()
                group.start_soon(self._misbehave, Wire(connection), gate)

    async def _misbehave(self, wire: Wire, gate: PeerGate) -> None:
        try:
            while (head := await wire.head()) is not None:
                body = await wire.body(head.body_bytes)
                if HELLO in head.line:
                    await answer(wire, msgspec.json.encode(gate.answer(msgspec.json.decode(body, type=Hello))))
                    continue
                self.evil_requests += 1
                name = head.line.split(" ")[1].split("/")[-1].removesuffix("?wait")
                await self.behaviour(wire, self.stored[name])  # type: ignore[misc]
        except WireError:
            pass
        finally:
            wire.close()

    # The tracker, as `Peers` asks it.

    async def look_up(self, lookup: Lookup) -> LookupReply:
        self.lookups += 1
        return self.tracker.look_up(lookup, time.monotonic())

    async def report(self, report: FailureReport) -> None:
        self.tracker.report(report, time.monotonic())


class Counting(MemorySource):
    """An origin that counts what is asked of it."""

    asked = 0

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = 1.0) -> bytes:
        self.asked += 1
        return await super().fetch(ref, timeout_s=timeout_s)


class NoArrivals:
    def expect(self, name: str) -> None:
        pass

    def land(self, name: str, size: int) -> None:
        pass

    def spoil(self, name: str) -> None:
        pass

    def settle(self, name: str) -> None:
        pass


def listener() -> socket.socket:
    found = socket.create_server(("127.0.0.1", 0))
    found.setblocking(False)
    return found


@asynccontextmanager
async def opened(fleet: Fleet) -> AsyncIterator[Peers]:
    with fleet.good, fleet.evil:
        async with anyio.create_task_group() as group:
            group.start_soon(fleet.server.serve, fleet.good)
            group.start_soon(fleet.serve_evil)
            async with open_peers(
                TAKER, lambda: SECRET, fleet, arrivals=NoArrivals(), clock=time.monotonic, options=OPTIONS
            ) as peers:
                yield peers
            group.cancel_scope.cancel()


async def take_all(fleet: Fleet, peers: Peers) -> None:
    """Take every chunk, several at a time, and look at what came."""
    limiter = anyio.CapacityLimiter(4)

    async def take(ref: ChunkRef, content: bytes) -> None:
        async with limiter:
            got = await fetch_verified((peers.source(LAYER), fleet.origin), ref, timeout_s=5.0)
            assert got == content

    async with anyio.create_task_group() as group:
        for ref, content in zip(fleet.refs, fleet.contents, strict=True):
            group.start_soon(take, ref, content)


@pytest.mark.parametrize("behaviour", [*WRONG, *SILENT, *SLOW, more_than_was_asked], ids=lambda each: each.__name__)
async def test_a_hostile_peer_costs_time_and_nothing_else(tmp_path: Path, behaviour: Behaviour) -> None:
    fleet = Fleet(tmp_path, behaviour, 24)
    async with opened(fleet) as peers:
        with anyio.fail_after(60):
            await take_all(fleet, peers)
    assert fleet.evil_requests < len(fleet.refs)
    assert peers.counts.chunks > len(fleet.refs) // 2
    assert fleet.origin.asked < len(fleet.refs) // 2


@pytest.mark.parametrize("behaviour", WRONG, ids=lambda each: each.__name__)
async def test_one_that_gives_wrong_bytes_is_left_alone_after_a_few(tmp_path: Path, behaviour: Behaviour) -> None:
    fleet = Fleet(tmp_path, behaviour, 40)
    async with opened(fleet) as peers:
        await take_all(fleet, peers)
        assert peers.counts.failures[FailureKind.WRONG] >= 3
        assert fleet.evil_requests <= 12
        assert not any(peer.node == EVIL for peer in fleet.tracker.look_up(
            Lookup(node=TAKER, layer=LAYER, chunks=(fleet.refs[0].id,)), time.monotonic()
        ).answers[0].peers)  # fmt: skip


@pytest.mark.parametrize("behaviour", [wrong_bytes, no_http, more_than_was_asked], ids=lambda each: each.__name__)
async def test_what_is_fetched_in_a_known_order_is_asked_for_many_at_a_time(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    fleet = Fleet(tmp_path, behaviour, 64)
    async with opened(fleet) as peers:
        peers.plan([ref.id for ref in fleet.refs])
        await take_all(fleet, peers)
        # Each failure is a question of its own.
        assert fleet.lookups <= 16 + sum(peers.counts.failures.values())
        assert fleet.origin.asked < len(fleet.refs) // 2


def lie(*peers: Candidate, origin: bool = False, wait_s: float = 0.0) -> Callable[[str], tuple[Answer, ...]]:
    return lambda chunk: (Answer(chunk=chunk, peers=peers, origin=origin, wait_s=wait_s),)


def nobody_at(address: str, node: str = "whiff") -> Candidate:
    return Candidate(node=node, address=address, pending=True)


LIES = {
    "waits for ever": lie(wait_s=1e300),
    "waits for no time": lie(wait_s=5e-324),
    "says nothing": lie(),
    "forgets the chunk": lambda chunk: (),
    "another chunk": lambda chunk: (Answer(chunk="b" * 64, origin=True),),
    "thousands": lie(*(nobody_at(f"http://127.0.0.1:{1 + number % 50}") for number in range(5000))),
    "ourselves": lie(nobody_at("http://127.0.0.1:1", TAKER)),
    "no node": lie(nobody_at("http://127.0.0.1:1", "../../etc")),
    "no address": lie(
        *(nobody_at(address) for address in ("", "file:///etc/passwd", "http://[", "http://x:99999/", "\0"))
    ),
    "a path": lie(nobody_at("http://127.0.0.1:1/v1/sandboxes?x=")),
    "a line more": lie(nobody_at("http://127.0.0.1:1\r\nx: y")),
    "everything at once": lie(nobody_at("http://127.0.0.1:1"), origin=True, wait_s=9.0),
}


class LyingTracker:
    def __init__(self, said: Callable[[str], tuple[Answer, ...]]) -> None:
        self._said = said
        self.lookups = 0

    async def look_up(self, lookup: Lookup) -> LookupReply:
        self.lookups += 1
        return LookupReply(answers=tuple(answer for chunk in lookup.chunks for answer in self._said(chunk)))

    async def report(self, report: FailureReport) -> None:
        pass


@pytest.mark.parametrize("said", LIES)
async def test_a_hostile_tracker_costs_a_bounded_time(said: str) -> None:
    tracker = LyingTracker(LIES[said])
    ref = ChunkRef(id="c" * 64, content_bytes=10, stored_bytes=14, blob_start=0)
    options = msgspec.structs.replace(OPTIONS, acquisition=AcquisitionPolicy(patience_s=0.2, wait_limit_s=0.05))
    async with open_peers(
        TAKER, lambda: SECRET, tracker, arrivals=NoArrivals(), clock=time.monotonic, options=options
    ) as peers:
        with anyio.fail_after(60), pytest.raises(ObjectNotFoundError):
            await peers.source(LAYER).fetch(ref)
    assert tracker.lookups <= options.acquisition.lookups


@pytest.mark.slow
async def test_a_peer_that_hangs_up_on_everybody_is_no_reason_to_stop(tmp_path: Path) -> None:
    """Connections that are reset before a word was said."""
    fleet = Fleet(tmp_path, silence, 8)

    async def reset() -> None:
        while True:
            await anyio.wait_readable(fleet.evil)
            connection, _ = fleet.evil.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    fleet.serve_evil = reset  # type: ignore[method-assign]
    async with opened(fleet) as peers:
        with anyio.fail_after(60):
            await take_all(fleet, peers)
