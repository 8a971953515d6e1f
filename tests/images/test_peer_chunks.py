"""A node's chunk server and who calls it: in one process, over real sockets."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.abc import SocketStream
from msgspec.structs import replace

from dsec.base.errors import DsecError, ObjectNotFoundError, StateCorruptedError
from dsec.distribution.messages import Answer, Candidate, FailureKind, Lookup, LookupReply, Report
from dsec.distribution.places import is_turn
from dsec.distribution.policy import AcquisitionPolicy, UploadPolicy
from dsec.distribution.uploads import Uploads
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef, decode, encode, name_of
from dsec.images.lazy.peers.calling import Caller, PeerFailedError
from dsec.images.lazy.peers.chunk_server import ChunkServer, ChunkServerLimits
from dsec.images.lazy.peers.seeder import SHELF, SeederStatus
from dsec.images.lazy.peers.seeds import Seeds
from dsec.images.lazy.peers.settings import PeerSettings
from dsec.images.lazy.peers.shelf import LocalChunks, Shelf
from dsec.images.lazy.peers.source import PeerOptions, Peers, open_peers
from dsec.images.lazy.source import ChunkSource
from dsec.images.staging import remove_tree
from dsec.model.peer import Peer
from dsec.model.peer_proof import PeerGate
from dsec.testing.chunk_source_suite import ChunkSourceSuite, OpenSource
from dsec.testing.loopback import on_loopback

pytestmark = pytest.mark.anyio

SECRET = b"a secret of the fleet"
GIVER, TAKER = "giver", "taker"


class Giver:
    """A chunk server over a shelf, and its address."""

    def __init__(self, root: Path, uploads: UploadPolicy, limits: ChunkServerLimits) -> None:
        self.shelf = Shelf(root / "shelf", limit_bytes=1 << 30)
        self.roots = (root / "cache", root / "seeds")
        self.uploads = Uploads(uploads, time.monotonic())
        chunks = LocalChunks(self.roots, self.shelf)
        gate = PeerGate(GIVER, SECRET)
        self.server = ChunkServer(gate, chunks, self.uploads, time.monotonic, limits)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        self.callers: list[Caller] = []

    @property
    def peer(self) -> Peer:
        return Peer(node=GIVER, url=f"http://127.0.0.1:{self.address[1]}")

    def caller(self, secret: bytes = SECRET) -> Caller:
        self.callers.append(Caller(TAKER, self.peer, lambda: secret))
        return self.callers[-1]

    async def when(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        with anyio.fail_after(60):
            while not condition():  # noqa: ASYNC110 - what is waited for is a number of the server's.
                await anyio.sleep(0.002)

    def keep(self, content: bytes) -> ChunkRef:
        name, stored = encode(content)
        assert self.shelf.put(name, stored)
        return ChunkRef(id=name, content_bytes=len(content), stored_bytes=len(stored), blob_start=0)


class ToOne:
    """A tracker that sends everybody to one node."""

    def __init__(self, peer: Peer) -> None:
        self._candidate = Candidate(node=peer.node, address=peer.url)

    async def look_up(self, lookup: Lookup) -> LookupReply:
        asked = {failure.chunk for failure in lookup.failures}
        return LookupReply(
            answers=tuple(
                Answer(chunk=chunk, origin=True) if chunk in asked else Answer(chunk=chunk, peers=(self._candidate,))
                for chunk in lookup.chunks
            )
        )

    async def report(self, report: Report) -> None:
        pass


class NoArrivals:
    def expect(self, name: str) -> None:
        pass

    def land(self, name: str, size: int) -> None:
        pass

    def spoil(self, name: str) -> None:
        pass

    def settle(self, name: str) -> None:
        pass


@asynccontextmanager
async def open_giver(
    root: Path, uploads: UploadPolicy = UploadPolicy(), limits: ChunkServerLimits = ChunkServerLimits()
) -> AsyncIterator[Giver]:
    giver = Giver(root, uploads, limits)
    async with anyio.create_task_group() as group:
        group.start_soon(giver.server.serve, giver.listener)
        try:
            yield giver
        finally:
            group.cancel_scope.cancel()
            giver.listener.close()
            for caller in giver.callers:
                caller.close()


async def take(caller: Caller, ref: ChunkRef, *, wait: bool = False, timeout_s: float = 5, stall_s: float = 5) -> bytes:
    return decode(ref, await caller.chunk(ref.id, wait=wait, timeout_s=timeout_s, stall_s=stall_s), "the peer")


async def test_a_chunk_comes_over_one_kept_connection(tmp_path: Path) -> None:
    async with open_giver(tmp_path) as giver:
        caller = giver.caller()
        for content in (b"x" * 5000, os.urandom(4 << 20), b"y"):
            assert await take(caller, giver.keep(content)) == content
        assert giver.uploads.sending == 0


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    async with open_giver(tmp_path) as giver:
        with pytest.raises(PeerFailedError) as failed:
            await giver.caller().chunk("ab" * 32, wait=True, timeout_s=5, stall_s=5)
        assert failed.value.kind is FailureKind.MISSING


async def test_who_does_not_know_the_secret_gets_nothing_and_gives_nothing_away(tmp_path: Path) -> None:
    async with open_giver(tmp_path) as giver:
        ref = giver.keep(b"content")
        with pytest.raises(PeerFailedError, match="does not know the secret") as failed:
            await take(giver.caller(b"another secret of others"), ref)
        assert failed.value.kind is FailureKind.UNREACHABLE
        for head in (b"", b"Authorization: Bearer peer.taker.aa.bb.cc\r\n", b"Authorization: Bearer x\r\n"):
            answer = await _say(giver, b"GET /v1/chunks/%b HTTP/1.1\r\n%b\r\n" % (ref.id.encode(), head))
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"content" not in answer.split(b"\r\n\r\n")[1]


async def _say(giver: Giver, request: bytes) -> bytes:
    stream = await anyio.connect_tcp(*giver.address)
    async with stream:
        await stream.send(request)
        return await stream.receive()


async def test_a_server_that_began_anew_is_made_acquainted_with_again(tmp_path: Path) -> None:
    async with open_giver(tmp_path) as giver:
        ref, caller = giver.keep(b"content"), giver.caller()
        assert await take(caller, ref) == b"content"
        giver.server._gate = PeerGate(GIVER, SECRET)
        assert await take(caller, ref) == b"content"


async def test_a_peer_that_may_wait_gets_the_chunk_when_it_has_come(tmp_path: Path) -> None:
    async with open_giver(tmp_path) as giver:
        name, _ = encode(b"comes later")
        giver.server.expect(name)
        got: list[bytes] = []

        async def ask() -> None:
            got.append(await giver.caller().chunk(name, wait=True, timeout_s=5, stall_s=0.1))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await giver.when(lambda: giver.uploads.held == 1)
            giver.keep(b"comes later")
            giver.server.settle(name)
        assert got == [encode(b"comes later")[1]]


async def test_one_that_does_not_come_after_all_is_missing(tmp_path: Path) -> None:
    async with open_giver(tmp_path, limits=ChunkServerLimits(hold_s=0.05)) as giver:
        name, _ = encode(b"never")
        giver.server.expect(name)
        with pytest.raises(PeerFailedError) as failed:
            await giver.caller().chunk(name, wait=True, timeout_s=5, stall_s=5)
        assert failed.value.kind is FailureKind.MISSING
        assert giver.uploads.held == 0


async def test_who_waits_is_told_from_who_is_dead(tmp_path: Path) -> None:
    """A wait that is longer than what counts as a stall, with signs of life and without."""
    async with open_giver(tmp_path, limits=ChunkServerLimits(beat_s=0.02)) as giver:
        name, _ = encode(b"late")
        giver.server.expect(name)
        with pytest.raises(PeerFailedError) as failed:
            await giver.caller().chunk(name, wait=True, timeout_s=5.0, stall_s=0.1, hold_s=0.2)
        assert failed.value.kind is FailureKind.BUSY
    async with open_giver(tmp_path, limits=ChunkServerLimits(beat_s=60.0)) as giver:
        giver.server.expect(name)
        with pytest.raises(PeerFailedError) as failed:
            await giver.caller().chunk(name, wait=True, timeout_s=5.0, stall_s=0.1)
        assert failed.value.kind is FailureKind.STALLED


async def test_more_than_it_sends_at_a_time_waits_its_turn(tmp_path: Path) -> None:
    async with open_giver(tmp_path, UploadPolicy(slots=1), ChunkServerLimits(queue_s=60.0)) as giver:
        refs = [giver.keep(os.urandom(1 << 20)) for _ in range(6)]
        async with anyio.create_task_group() as group:
            for ref in refs:
                group.start_soon(_ignored, giver, ref)
        assert (giver.uploads.sending, giver.uploads.held, giver.uploads.refused) == (0, 0, 0)
        assert giver.uploads.sent_bytes > 6 << 20


async def test_whose_turn_does_not_come_soon_is_refused(tmp_path: Path) -> None:
    limits = ChunkServerLimits(queue_s=0.05)
    async with open_giver(tmp_path, UploadPolicy(slots=1, bytes_per_s=1, burst_bytes=1), limits) as giver:
        ref, other = giver.keep(os.urandom(2 << 20)), giver.keep(b"other")
        async with anyio.create_task_group() as group:
            group.start_soon(_ignored, giver, ref)
            await giver.when(lambda: giver.uploads.sending == 1)
            with pytest.raises(PeerFailedError) as failed:
                await take(giver.caller(), other)
            assert failed.value.kind is FailureKind.BUSY
            group.cancel_scope.cancel()


async def _ignored(giver: Giver, ref: ChunkRef) -> None:
    await take(giver.caller(), ref, timeout_s=60, stall_s=60)


async def test_who_reads_slowly_is_let_go(tmp_path: Path) -> None:
    async with open_giver(tmp_path, limits=ChunkServerLimits(stall_s=0.1)) as giver:
        ref, caller = giver.keep(os.urandom(4 << 20)), giver.caller()
        credential = await caller._met()
        connection = socket.create_connection(giver.address)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(f"GET /v1/chunks/{ref.id} HTTP/1.1\r\nAuthorization: Bearer {credential}\r\n\r\n".encode())
        await giver.when(lambda: giver.uploads.sending == 1)
        await giver.when(lambda: giver.uploads.sending == 0)
        connection.close()


async def test_strangers_have_little_time_and_little_room(tmp_path: Path) -> None:
    limits = ChunkServerLimits(request_s=0.2, strangers=2)
    async with open_giver(tmp_path, limits=limits) as giver:
        held = [socket.create_connection(giver.address) for _ in range(3)]
        held[0].sendall(b"GET /v1/chu")
        for connection in held:
            connection.setblocking(False)
            with anyio.fail_after(60):
                await anyio.wait_readable(connection)
            assert connection.recv(10) == b""
            connection.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1/chunks/../../etc/passwd HTTP/1.1\r\n\r\n",
        b"POST /v1/peer/hello HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/peer/hello HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        b"POST /v1/peer/hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"\x16\x03\x01" + bytes(600) + b"\r\n\r\n",
        b"GET " + b"/" * 20_000,
    ],
)
async def test_nonsense_is_refused_and_the_next_is_served(tmp_path: Path, request_bytes: bytes) -> None:
    async with open_giver(tmp_path) as giver:
        connection = socket.create_connection(giver.address)
        connection.sendall(request_bytes)
        connection.setblocking(False)
        with anyio.fail_after(60):
            await anyio.wait_readable(connection)
        try:
            answer = connection.recv(1000)
        except ConnectionResetError:
            answer = b""
        connection.close()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert await take(giver.caller(), giver.keep(b"content")) == b"content"


async def test_no_more_is_sent_in_a_second_than_it_may_send(tmp_path: Path) -> None:
    async with open_giver(tmp_path, UploadPolicy(bytes_per_s=2 << 20, burst_bytes=64 << 10)) as giver:
        ref = giver.keep(os.urandom(320 << 10))
        began_s = time.monotonic()
        await take(giver.caller(), ref)
        assert time.monotonic() - began_s > 0.09, "the first piece is 192 KiB more than the burst, at 2 MiB a second"


# -- whom to ask, and a tracker that says anything ------------------------------------------------------------------


class Told:
    """A tracker that says what it was told to say."""

    def __init__(self, *answers: Answer | None) -> None:
        self._answers = list(answers)
        self.reports: list[Report] = []
        self.lookups: list[Lookup] = []

    async def look_up(self, lookup: Lookup) -> LookupReply:
        self.lookups.append(lookup)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise PeerFailedError(FailureKind.UNREACHABLE, "the tracker is gone")
        return LookupReply(answers=(replace(answer, chunk=lookup.chunks[0]),))

    async def report(self, report: Report) -> None:
        self.reports.append(report)


def _of(*peers: Peer, pending: bool = False) -> Answer:
    candidates = tuple(Candidate(node=peer.node, address=peer.url, pending=pending) for peer in peers)
    return Answer(chunk="", peers=candidates)


def _opened(tracker: Told, options: PeerOptions = PeerOptions()) -> AbstractAsyncContextManager[Peers]:
    return open_peers(TAKER, lambda: SECRET, tracker, arrivals=NoArrivals(), clock=time.monotonic, options=options)


async def _obtained(
    tracker: Told, *refs: ChunkRef, options: PeerOptions = PeerOptions(), news_s: float = 0.0
) -> list[bytes | None]:
    """Return what came for each, one after the other; None: it is left to the origin."""
    found: list[bytes | None] = []
    async with _opened(tracker, options) as peers:
        peers.heed(news_s)
        for ref in refs:
            try:
                found.append(await peers.source("layer").fetch(ref))
            except ObjectNotFoundError:
                found.append(None)
    return found


async def test_without_a_tracker_those_are_asked_who_gave_before(tmp_path: Path) -> None:
    async with open_giver(tmp_path) as giver:
        refs = [giver.keep(b"%d" % number * 5000) for number in range(3)]
        tracker = Told(_of(giver.peer), None)
        assert None not in await _obtained(tracker, *refs)
        assert len(tracker.lookups) == 2, "it is not asked again at once"


@pytest.mark.parametrize(("news_s", "lookups"), [(0.5, 2), (0.01, 12)])
async def test_among_many_nodes_the_next_chunks_are_asked_of_who_gave_the_last_one(
    tmp_path: Path, news_s: float, lookups: int
) -> None:
    async with open_giver(tmp_path) as giver:
        refs = [ref for ref in (giver.keep(b"%d" % number * 500) for number in range(40)) if not is_turn(ref.id, 8)]
        turn = next(ref for ref in (giver.keep(b"%d" % number * 500) for number in count(40)) if is_turn(ref.id, 8))
        tracker = Told(_of(giver.peer, pending=True))
        assert None not in await _obtained(tracker, *refs[:8], turn, *refs[8:11], news_s=news_s)
        assert len(tracker.lookups) == lookups
        assert not tracker.reports


async def test_who_has_not_got_the_next_chunk_is_no_longer_followed_and_accused_of_nothing(tmp_path: Path) -> None:
    async with open_giver(tmp_path) as giver:
        refs = [ref for ref in (giver.keep(b"%d" % number * 500) for number in range(20)) if not is_turn(ref.id, 8)]
        missing = ChunkRef(id="1" * 64, content_bytes=1, stored_bytes=9, blob_start=0)
        tracker = Told(_of(giver.peer, pending=True), Answer(chunk="", origin=True))
        found = await _obtained(tracker, refs[0], refs[1], missing, refs[2], news_s=0.5)
        assert [chunk is None for chunk in found] == [False, False, True, True]
        assert [failure.kind for lookup in tracker.lookups for failure in lookup.failures] == [FailureKind.MISSING]


async def test_who_gave_wrong_bytes_is_not_followed(tmp_path: Path) -> None:
    async with open_giver(tmp_path) as giver:
        refs = [ref for ref in (giver.keep(b"%d" % number * 500) for number in range(20)) if not is_turn(ref.id, 8)]
        tracker = Told(_of(giver.peer, pending=True))
        async with _opened(tracker) as peers:
            peers.heed(0.5)
            source = peers.source("layer")
            await source.fetch(refs[0])
            source.blame(refs[0], StateCorruptedError("it is something else"))
            await source.fetch(refs[1])
            assert len(tracker.lookups) == 2


@pytest.mark.parametrize(
    "nonsense",
    [
        Answer(chunk="", wait_s=1e9),
        Answer(chunk="", peers=(Candidate(node="../..", address="http://127.0.0.1:1"),)),
        Answer(chunk="", peers=(Candidate(node=TAKER, address="http://127.0.0.1:1"),)),
        Answer(chunk="", peers=(Candidate(node="other", address="file:///etc/passwd"),)),
        Answer(chunk="", peers=(Candidate(node="other", address="http://127.0.0.1:1/x?y"),)),
        Answer(chunk="", peers=tuple(Candidate(node=f"n{n:04}", address="http://127.0.0.1:1") for n in range(500))),
        None,
    ],
)
async def test_a_tracker_that_talks_nonsense_costs_a_bounded_moment(nonsense: Answer | None) -> None:
    ref = ChunkRef(id="ab" * 32, content_bytes=1, stored_bytes=9, blob_start=0)
    options = PeerOptions(acquisition=AcquisitionPolicy(patience_s=0.1), stall_s=0.1)
    with anyio.fail_after(60):
        assert await _obtained(Told(nonsense), ref, options=options) == [None]


async def test_a_peer_that_gives_a_little_at_a_time_is_left_for_the_origin() -> None:
    async def drip(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                await stream.receive()
                await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n")
                while True:
                    await stream.send(b"{")
                    await anyio.sleep(0.01)

    async with on_loopback(drip) as port:
        ref = ChunkRef(id="ab" * 32, content_bytes=1, stored_bytes=9, blob_start=0)
        options = PeerOptions(acquisition=AcquisitionPolicy(patience_s=60, lookups=1), stall_s=0.1)
        tracker = Told(_of(Peer(node=GIVER, url=f"http://127.0.0.1:{port}")))
        with anyio.fail_after(30):
            assert await _obtained(tracker, ref, options=options) == [None]


async def test_who_gave_something_else_is_shunned_at_once_and_the_tracker_hears_of_it(tmp_path: Path) -> None:
    named: list[tuple[str, str]] = []
    async with open_giver(tmp_path) as giver:
        refs = [giver.keep(b"%d" % number * 5000) for number in range(4)]
        tracker = Told(_of(giver.peer))
        opening = open_peers(
            TAKER,
            lambda: SECRET,
            tracker,
            arrivals=NoArrivals(),
            clock=time.monotonic,
            on_bad_peer=lambda _, ref, node, __: named.append((ref.id, node)),
        )
        async with opening as peers:
            source = peers.source("layer")
            for ref in refs[:3]:
                await source.fetch(ref)
                source.blame(ref, StateCorruptedError("it is something else"))
            with pytest.raises(ObjectNotFoundError):
                await source.fetch(refs[3])
            await giver.when(lambda: len(tracker.reports) == 3)
        assert named == [(ref.id, GIVER) for ref in refs[:3]]
        assert {failure.kind for report in tracker.reports for failure in report.failures} == {FailureKind.WRONG}


# -- what a host can give ------------------------------------------------------------------------------------------


def _layer(root: Path, size: int) -> tuple[bytes, LayerManifest]:
    """Make a directory of a layer, with metadata in three extents, and return its file's content."""
    content = random.Random(size).randbytes(size)
    extents = (Extent(0, 4096), Extent(CHUNK_BYTES - 4096, 8192), Extent(size - 4096, 4096))
    packed = b"".join(content[each.start : each.end] for each in extents)
    pieces = [encode(content[at : at + CHUNK_BYTES]) for at in range(0, size, CHUNK_BYTES)]
    made = manifests.make(
        "sha256:" + "ab" * 32,
        size,
        1,
        chunks=[(name, len(stored)) for name, stored in pieces],
        metadata=extents,
        metadata_chunks=[(encode(packed)[0], len(encode(packed)[1]))],
    )
    directory = root / made.id
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_bytes(made.data)
    (directory / "data").write_bytes(content)
    return content, made


def _chunks(root: Path) -> LocalChunks:
    return LocalChunks((root / "cache",), Shelf(root / "shelf", limit_bytes=1 << 30), clock=count(0, 9).__next__)


def _taken(chunks: LocalChunks, ref: ChunkRef) -> bytes | None:
    descriptor = chunks.made(ref.id)
    if descriptor is None:
        return None
    with open(descriptor, "rb") as file:
        return decode(ref, file.read(), "here")


def test_chunks_and_metadata_of_layers_are_found_by_name(tmp_path: Path) -> None:
    chunks = LocalChunks(
        (tmp_path / "cache",), Shelf(tmp_path / "shelf", limit_bytes=1 << 30), clock=count(0, 9).__next__
    )
    content, made = _layer(tmp_path / "cache", 2 * CHUNK_BYTES + 4096)
    assert b"".join(_taken(chunks, ref) or b"" for ref in made.chunks) == content
    assert len(_taken(chunks, made.metadata_chunks[0]) or b"") == made.metadata_bytes
    remove_tree(tmp_path / "cache")
    assert _taken(chunks, made.chunks[0]) == content[:CHUNK_BYTES], "it lies on the shelf"


def test_holes_rot_and_damaged_manifests_are_not_given(tmp_path: Path) -> None:
    chunks = LocalChunks(
        (tmp_path / "cache",), Shelf(tmp_path / "shelf", limit_bytes=1 << 30), clock=count(0, 9).__next__
    )
    _, made = _layer(tmp_path / "cache", 3 * CHUNK_BYTES)
    data = tmp_path / "cache" / made.id / "data"
    with data.open("r+b") as file:
        os.truncate(data, CHUNK_BYTES)
        os.truncate(data, made.size_bytes)
        file.seek(100)
        file.write(b"rot")
    assert [_taken(chunks, ref) for ref in (*made.chunks, *made.metadata_chunks)] == [None] * 4
    (tmp_path / "cache" / made.id / "manifest.json").write_bytes(made.data + b" ")
    assert _taken(LocalChunks((tmp_path / "cache",), chunks.shelf), made.chunks[0]) is None


def test_a_shelf_keeps_what_was_asked_for_last(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, limit_bytes=3000)
    names = [name_of(b"%d" % number) for number in range(5)]
    for name in names:
        assert shelf.put(name, bytes(1000))
    for name in names[:2]:
        os.close(shelf.opened(name) or 0)
    (tmp_path / ".new-abc").touch()
    os.utime(tmp_path / ".new-abc", (0, 0))
    assert shelf.tidy() == 3000
    left = {entry.name for entry in tmp_path.iterdir()}
    assert len(left) == 3
    assert left <= set(names)
    assert shelf.tidy() == 3000


def test_a_whole_layer_is_given_while_its_file_is_there(tmp_path: Path) -> None:
    content, made = _layer(tmp_path / "elsewhere", 2 * CHUNK_BYTES + 4096)
    file = tmp_path / "layer.erofs"
    file.write_bytes(content)
    seeds = Seeds(tmp_path / "cache")
    for _ in range(2):
        seeds.add(made, file)
    assert seeds.names() == [made.id]
    assert _taken(_chunks(tmp_path), made.chunks[2]) == content[-4096:]
    file.unlink()
    assert _taken(_chunks(tmp_path), made.chunks[0]) is None
    assert seeds.names() == []
    assert list((tmp_path / "cache").iterdir()) == []


class _Taker:
    """A node without a chunk server, opened for each chunk."""

    name = "peers"

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = 30.0) -> bytes:
        opening = open_peers(TAKER, lambda: SECRET, ToOne(self._peer), arrivals=NoArrivals(), clock=time.monotonic)
        async with opening as peers:
            try:
                return await peers.source("layer").fetch(ref, timeout_s=timeout_s)
            except DsecError as error:
                failure = error
        raise failure

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        pass


@dataclass
class Seeder:
    """The process that gives a host's chunks, and where it finds stored ones."""

    peer: Peer
    shelf: Path

    def keep_only(self, stored: Mapping[str, bytes]) -> None:
        for file in self.shelf.iterdir():
            file.unlink()
        for name, data in stored.items():
            (self.shelf / name).write_bytes(data)


@pytest.fixture(scope="module")
def seeder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeder]:
    root = tmp_path_factory.mktemp("seeder")
    secret = root / "peer-token"
    secret.touch(0o600)
    secret.write_bytes(SECRET)
    settings = PeerSettings(
        node=GIVER, secret_file=str(secret), tracker="track=http://127.0.0.1:1", listen="127.0.0.1:0"
    )
    command = (sys.executable, "-m", "dsec.images.lazy.peers.seeder", str(root))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        status = msgspec.json.decode(process.stdout.readline(), type=SeederStatus)
        yield Seeder(Peer(node=GIVER, url=status.address), root / SHELF)
        process.stdin.close()
        assert process.wait(10) == 0, "it ends with its pipe"


class TestPeer(ChunkSourceSuite):
    """The suite over a real seeder that has everything, which the tracker knows."""

    @pytest.fixture
    def open_source(self, seeder: Seeder) -> OpenSource:
        async def open_source(stored: Mapping[str, bytes], refs: Sequence[ChunkRef]) -> ChunkSource:
            seeder.keep_only(stored)
            return _Taker(seeder.peer)

        return open_source
