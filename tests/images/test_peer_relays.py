"""Chunks that are passed on while they come: what whoever gets them sees, whatever becomes of them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import ObjectNotFoundError, StateCorruptedError
from dsec.distribution.messages import Answer, Candidate, FailureKind, Lookup, LookupReply, Report
from dsec.distribution.policy import UploadPolicy
from dsec.distribution.uploads import Uploads
from dsec.images.lazy.formats.stored import ChunkRef, decode, encode
from dsec.images.lazy.peers.calling import Caller, PeerFailedError
from dsec.images.lazy.peers.chunk_server import ChunkServer, ChunkServerLimits
from dsec.images.lazy.peers.landing import KEPT_BACK_BYTES, Landing, Part, State, open_part
from dsec.images.lazy.peers.shelf import LocalChunks, Shelf
from dsec.images.lazy.peers.source import open_peers
from dsec.model.peer import Peer
from dsec.model.peer_proof import PeerGate

pytestmark = pytest.mark.anyio

SECRET = b"a secret of the fleet"
CONTENT = os.urandom(300 << 10)
NAME, STORED = encode(CONTENT)
REF = ChunkRef(id=NAME, content_bytes=len(CONTENT), stored_bytes=len(STORED), blob_start=0)


class Node:
    """A node's chunk server, and what is on its way there. Its `land`, `spoil` and `settle` are those of arrivals."""

    def __init__(self, root: Path, name: str, limits: ChunkServerLimits = ChunkServerLimits()) -> None:
        self.name = name
        self.uploads = Uploads(UploadPolicy(), time.monotonic())
        self.shelf = Shelf(root / name, limit_bytes=1 << 30)
        chunks = LocalChunks((root / "none",), self.shelf)
        self.server = ChunkServer(PeerGate(name, SECRET), chunks, self.uploads, time.monotonic, limits)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.landings: list[Landing] = []

    @property
    def peer(self) -> Peer:
        return Peer(node=self.name, url=f"http://127.0.0.1:{self.listener.getsockname()[1]}")

    def expect(self, name: str) -> None:
        self.server.expect(name)

    def land(self, name: str, size: int) -> Landing:
        landing = Landing(name, size, partial(self.server.progress, name))
        part = open_part(os.getpid(), landing.descriptor, name, size)
        assert part is not None
        self.server.land(name, part)
        self.landings.append(landing)
        return landing

    def spoil(self, name: str) -> None:
        for landing in self.landings:
            landing.spoil()

    def settle(self, name: str) -> None:
        for landing in self.landings:
            landing.close()
        self.server.settle(name)


@asynccontextmanager
async def nodes(root: Path, *names: str, limits: ChunkServerLimits = ChunkServerLimits()) -> AsyncIterator[list[Node]]:
    made = [Node(root, name, limits) for name in names]
    async with anyio.create_task_group() as group:
        for node in made:
            group.start_soon(node.server.serve, node.listener)
        yield made
        group.cancel_scope.cancel()
        for node in made:
            node.listener.close()
            for landing in node.landings:
                landing.close()


class Taker:
    """Somebody who takes the chunk from a node, for which it may wait."""

    def __init__(self, node: Node, own: Node | None = None) -> None:
        self.caller = Caller("taker", node.peer, lambda: SECRET)
        self.own = own
        self.came: bytes | PeerFailedError | None = None

    async def take(self) -> None:
        land = None if self.own is None else partial(self.own.land, NAME)
        try:
            self.came = await self.caller.chunk(NAME, wait=True, timeout_s=5, stall_s=2, land=land)
        except PeerFailedError as error:
            self.came = error
        self.caller.close()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - what is waited for are bytes that came.
            await anyio.sleep(0.002)


def fill(landing: Landing, count: int, stored: bytes = STORED) -> None:
    landing.view[:count] = stored[:count]
    landing.came(count)


async def test_a_chunk_is_passed_on_while_it_comes_and_its_end_when_it_is_verified(tmp_path: Path) -> None:
    async with nodes(tmp_path, "giver", "taker") as (giver, own), anyio.create_task_group() as group:
        giver.expect(NAME)
        own.expect(NAME)
        taker = Taker(giver, own)
        group.start_soon(taker.take)
        await until(lambda: giver.uploads.held == 1)
        landing = giver.land(NAME, len(STORED))
        fill(landing, 200_000)
        await until(lambda: bool(own.landings) and bytes(own.landings[0].view[:200_000]) == STORED[:200_000])
        fill(landing, len(STORED))
        await anyio.sleep(0.05)
        assert taker.came is None, "all of it came, and nobody knows yet what it is"
        landing.verified(STORED)
        await until(lambda: taker.came is not None)
    assert taker.came == STORED
    assert giver.uploads.sending == giver.uploads.held == 0


@pytest.mark.parametrize("how", ["spoil", "settle"])
async def test_what_ends_early_is_nobodys_fault_and_never_whole(tmp_path: Path, how: str) -> None:
    async with nodes(tmp_path, "giver") as (giver,), anyio.create_task_group() as group:
        giver.expect(NAME)
        taker = Taker(giver)
        group.start_soon(taker.take)
        await until(lambda: giver.uploads.held == 1)
        fill(giver.land(NAME, len(STORED)), len(STORED))
        await until(lambda: giver.uploads.sending == 1)
        getattr(giver, how)(NAME)
        await until(lambda: taker.came is not None)
        assert isinstance(taker.came, PeerFailedError)
        assert taker.came.kind is FailureKind.BROKEN
        await until(lambda: giver.uploads.sending == 0)


async def test_a_relay_that_stands_still_is_given_up_at_both_ends(tmp_path: Path) -> None:
    async with nodes(tmp_path, "giver", limits=ChunkServerLimits(hold_s=0.2)) as (giver,):
        giver.expect(NAME)
        fill(giver.land(NAME, len(STORED)), 150_000)
        taker = Taker(giver)
        await taker.take()
        assert isinstance(taker.came, PeerFailedError)
        assert taker.came.kind is FailureKind.BROKEN
        assert giver.uploads.sending == 0


async def test_a_chunk_that_was_verified_as_somebody_else_gave_it_does_not_vouch_for_what_is_passed_on(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, "giver") as (giver,), anyio.create_task_group() as group:
        giver.expect(NAME)
        landing = giver.land(NAME, len(STORED))
        fill(landing, len(STORED), os.urandom(len(STORED)))
        taker = Taker(giver)
        group.start_soon(taker.take)
        await until(lambda: giver.uploads.sending == 1)
        landing.verified(STORED)
        await until(lambda: taker.came is not None)
        assert isinstance(taker.came, PeerFailedError)
        assert taker.came.kind is FailureKind.BROKEN


async def test_a_chunk_that_begins_to_come_again_is_passed_on_from_its_beginning(tmp_path: Path) -> None:
    async with nodes(tmp_path, "giver") as (giver,), anyio.create_task_group() as group:
        giver.expect(NAME)
        fill(giver.land(NAME, len(STORED)), 1000)
        giver.spoil(NAME)
        taker = Taker(giver)
        group.start_soon(taker.take)
        await until(lambda: giver.uploads.held == 1)
        landing = giver.land(NAME, len(STORED))
        fill(landing, len(STORED))
        landing.verified(STORED)
        await until(lambda: taker.came is not None)
        assert taker.came == STORED


async def test_who_passed_on_a_liars_bytes_is_not_taken_for_the_liar(tmp_path: Path) -> None:
    """A liar gives all of something else to `middle`, who passes it on to the next one while it comes."""
    lie = b"".join((STORED[:8], os.urandom(len(STORED) - 8)))
    async with nodes(tmp_path, "liar", "middle") as (liar, middle), anyio.create_task_group() as group:
        assert liar.shelf.put(NAME, lie)
        middle.expect(NAME)
        deceived, last = Taker(liar, middle), Taker(middle)
        group.start_soon(last.take)
        await until(lambda: middle.uploads.held == 1)
        await deceived.take()
        assert isinstance(deceived.came, bytes), "whoever gives all of it has lied"
        with pytest.raises(StateCorruptedError):
            decode(REF, deceived.came, "liar")
        await until(lambda: middle.uploads.sending == 1)
        middle.spoil(NAME)
        await until(lambda: last.came is not None)
        assert isinstance(last.came, PeerFailedError)
        assert last.came.kind is FailureKind.BROKEN


class ToOne:
    """A tracker that sends everybody to one node that is fetching the chunk, and notes what it hears."""

    def __init__(self, peer: Peer) -> None:
        self._candidate = Candidate(node=peer.node, address=peer.url, pending=True)
        self.heard: list[FailureKind] = []

    async def look_up(self, lookup: Lookup) -> LookupReply:
        self.heard += [failure.kind for failure in lookup.failures]
        return LookupReply(answers=tuple(Answer(chunk=chunk, peers=(self._candidate,)) for chunk in lookup.chunks))

    async def report(self, report: Report) -> None:
        self.heard += [failure.kind for failure in report.failures]


async def test_who_never_passes_anything_on_to_the_end_is_left_alone_and_accused_of_nothing(tmp_path: Path) -> None:
    async with nodes(tmp_path, "giver", "taker", limits=ChunkServerLimits(hold_s=0.05)) as (giver, own):
        giver.expect(NAME)
        fill(giver.land(NAME, len(STORED)), 150_000)
        tracker = ToOne(giver.peer)
        opening = open_peers("taker", lambda: SECRET, tracker, arrivals=own, clock=time.monotonic)
        async with opening as peers:
            for _ in range(3):
                with pytest.raises(ObjectNotFoundError), anyio.fail_after(60):
                    await peers.source("a" * 64).fetch(REF, timeout_s=1.0)
            assert peers.counts.failures == {FailureKind.BROKEN: 2}, "the third time it is not asked"
        assert set(tracker.heard) == {FailureKind.BROKEN}


def test_only_the_memory_of_that_chunk_is_opened(tmp_path: Path) -> None:
    file = os.open(tmp_path, os.O_RDONLY)
    other = os.memfd_create("other")
    landing = Landing(NAME, 1000, lambda: None)
    try:
        for descriptor, name, size in (
            (file, NAME, 1000),
            (other, NAME, 1000),
            (landing.descriptor, "ab" * 32, 1000),
            (landing.descriptor, NAME, 999),
            (1 << 20, NAME, 1000),
        ):
            assert open_part(os.getpid(), descriptor, name, size) is None
    finally:
        landing.close()
        os.close(file)
        os.close(other)


@given(
    st.integers(0, 5000),
    st.lists(st.sampled_from(["more", "verified", "spoil", "close"]) | st.integers(0, 5000), max_size=8),
)
def test_the_end_of_a_chunk_is_never_passed_on_before_it_is_verified(size: int, steps: list[str | int]) -> None:
    landing = Landing(NAME, size, lambda: None)
    found = open_part(os.getpid(), landing.descriptor, NAME, size)
    assert found is not None
    with found as part:
        count, ended = 0, ""
        for step in steps:
            if isinstance(step, int):
                count = max(count, min(step, size))
                landing.came(count)
            elif step != "more":
                if step == "verified":
                    landing.verified(bytes(landing.view))
                else:
                    getattr(landing, step)()
                ended = ended or step
            expected = size if ended == "verified" else max(0, min(count, size - KEPT_BACK_BYTES))
            assert part.sendable_bytes == expected
            assert (part.state is State.SPOILT) == (ended in ("spoil", "close"))
    landing.close()


def test_what_another_process_says_of_a_chunk_is_not_believed_blindly() -> None:
    memory = os.memfd_create("anything")
    os.ftruncate(memory, 1010)
    os.pwrite(memory, b"\xff" * 9, 1000)
    with Part(memory, 1000) as part:
        assert part.state is State.SPOILT
        assert part.sendable_bytes <= 1000
