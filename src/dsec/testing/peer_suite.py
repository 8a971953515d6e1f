"""What every driver of `dsec.service.peers.Peer` does: subclass with a fixture `connect`, which puts the driver in
front of a receiving half."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import blake2b

import anyio
import pytest

from dsec.base.errors import (
    DsecError,
    HookFailedError,
    HostDiskFullError,
    ImageNotFoundError,
    InvalidStateError,
    NodeUnavailableError,
)
from dsec.lifecycle.migration import TargetPhase, Verdict
from dsec.linux.pipes import Pipe
from dsec.model.image import ImageConfig
from dsec.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from dsec.placement.view import Capacity, NodeView
from dsec.service.content import ByteStream, GeneratedStream
from dsec.service.migration import (
    PRESENT,
    MigrationAccepted,
    MigrationCommit,
    MigrationOffer,
    MigrationRound,
    MigrationStatus,
    MovedCheckpoint,
    Part,
    ReleaseAnswer,
    RoundReceipt,
)
from dsec.service.peers import Peer

MIGRATION = "mig-0123456789abcdef"
SOURCE, TARGET = "srce0", "trgt0"
LAYER_ROUND = MigrationRound(number=0, part=Part.LAYER, of=PRESENT)
STANDING_BYTES = 32 << 20
"""What may be on its way between two ends that both wait: pipes and the buffers of sockets."""
_DIGEST_BYTES = 16

SPEC = SandboxSpec(env={"WORD": "grüße\n"}, seed=7, metadata={"job": "a/b"})
INFO = SandboxInfo(sandbox_id="sbx-one", state=SandboxState.READY, spec=SPEC, created_at_s=1.5, node=TARGET)
OFFER = MigrationOffer(
    version=1,
    migration_id=MIGRATION,
    source=SOURCE,
    sandbox_id="sbx-one",
    requested=SPEC,
    spec=SPEC,
    image_config=ImageConfig(env={"PATH": "/bin"}),
    layers=("sha256:" + "0" * 64,),
    encoding="memory-1",
    generation=3,
    remaining_s=12.25,
    written_bytes=1 << 40,
    checkpoints=(MovedCheckpoint(checkpoint_id="ckp-a"), MovedCheckpoint(checkpoint_id="ckp-b", parent="ckp-a")),
    current="ckp-b",
)


@dataclass
class ScriptedSide:
    """A receiving half that writes down what it is told, and does what it is told to.

    Attributes:
        node, url: as the port says.
        heard: names of the messages, in order.
        values: what came with them.
        received: content of the last round.
        failure, failed: what a round ended with, if not with a receipt; set then.
        fails: by message, what it raises.
        fails_after_bytes: a round raises `fails["round"]` once it has read so much; None: before it reads.
        holds: messages wait for this before they answer; a round before it reads.
        entered: set when a message waits.
        by_pipe: whether content is taken by pipe.
    """

    node: str = TARGET
    url: str = ""
    heard: list[str] = field(default_factory=list)
    values: list[object] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)
    failure: BaseException | None = None
    failed: anyio.Event = field(default_factory=anyio.Event)
    fails: dict[str, DsecError] = field(default_factory=dict)
    fails_after_bytes: int | None = None
    holds: dict[str, anyio.Event] = field(default_factory=dict)
    entered: anyio.Event = field(default_factory=anyio.Event)
    finished: list[str] = field(default_factory=list)
    by_pipe: bool = True

    async def _hear(self, message: str, value: object = None) -> None:
        self.heard.append(message)
        self.values.append(value)
        if message in self.holds:
            self.entered.set()
            await self.holds[message].wait()
        if message in self.fails and (message != "round" or self.fails_after_bytes is None):
            raise self.fails[message]

    async def offer(self, offer: MigrationOffer) -> MigrationAccepted:
        await self._hear("offer", offer)
        return MigrationAccepted(node=self.node, lease_s=30.0)

    async def round(self, migration_id: str, head: MigrationRound, content: ByteStream) -> RoundReceipt:
        try:
            await self._hear("round", (migration_id, head))
            await self._read(content)
        except BaseException as error:
            self.failure = error
            self.failed.set()
            raise
        finally:
            await content.aclose()
        self.finished.append("round")
        return RoundReceipt(number=head.number, size_bytes=len(self.received), digest=_digest(self.received))

    async def _read(self, content: ByteStream) -> None:
        self.received.clear()
        with Pipe() as pipe:
            while piece := await self._piece(content, pipe):
                self.received += piece
                if self.fails_after_bytes is not None and len(self.received) >= self.fails_after_bytes:
                    raise self.fails["round"]

    async def _piece(self, content: ByteStream, pipe: Pipe) -> bytes:
        if not self.by_pipe:
            return await anext(content, b"")
        count = await content.fill(pipe)
        parts = bytearray()
        while len(parts) < count:
            parts += pipe.take(count - len(parts))
        return bytes(parts)

    async def commit(self, migration_id: str, commit: MigrationCommit) -> None:
        await self._hear("commit", (migration_id, commit))
        self.finished.append("commit")

    async def release(self, migration_id: str) -> ReleaseAnswer:
        await self._hear("release", migration_id)
        return ReleaseAnswer(sandbox=INFO)

    async def abort(self, migration_id: str) -> None:
        await self._hear("abort", migration_id)

    async def status(self, migration_id: str) -> MigrationStatus:
        await self._hear("status", migration_id)
        return MigrationStatus(source=None, target=TargetPhase.PREPARED, verdict=Verdict.OPEN)

    async def view(self) -> NodeView:
        await self._hear("view")
        capacity = Capacity(cpu_millis=2000, memory_bytes=1, disk_bytes=1, sandboxes=1, creations=1)
        return NodeView(node=self.node, capacity=capacity, note="vue d'où")


Connect = Callable[[ScriptedSide], AbstractAsyncContextManager[Peer]]


@dataclass
class Content:
    """Bytes to send, with what became of them.

    Attributes:
        pieces: the bytes.
        produced: how many were asked for so far.
        closed: whether their owner was told that they are not needed any more.
        error: raised after the pieces instead of an end.
    """

    pieces: list[bytes]
    produced: int = 0
    closed: bool = False
    error: DsecError | None = None

    def stream(self) -> ByteStream:
        return GeneratedStream(self._pieces())

    async def _pieces(self) -> AsyncGenerator[bytes | int, Pipe | None]:
        try:
            pipe = yield 0
            for piece in self.pieces:
                left = piece
                while left:
                    count = len(left) if pipe is None else pipe.put(left)
                    self.produced += count
                    told: bytes | int = left if pipe is None else count
                    left = left[count:]
                    pipe = yield told
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def _digest(data: bytes | bytearray) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


class PeerSuite:
    """The contract of a driver."""

    @pytest.mark.anyio
    async def test_what_is_said_arrives_as_it_was_said_and_so_does_the_answer(self, connect: Connect) -> None:
        side = ScriptedSide()
        async with connect(side) as peer:
            assert await peer.offer(OFFER) == MigrationAccepted(node=TARGET, lease_s=30.0)
            await peer.commit(MIGRATION, MigrationCommit(rounds=3))
            assert await peer.release(MIGRATION) == ReleaseAnswer(sandbox=INFO)
            assert (await peer.status(MIGRATION)).target is TargetPhase.PREPARED
            assert (await peer.view()).note == "vue d'où"
            await peer.abort(MIGRATION)
        assert side.heard == ["offer", "commit", "release", "status", "view", "abort"]
        assert side.values == [OFFER, (MIGRATION, MigrationCommit(rounds=3)), MIGRATION, MIGRATION, None, MIGRATION]

    @pytest.mark.anyio
    @pytest.mark.parametrize("by_pipe", [True, False])
    @pytest.mark.parametrize(
        "pieces", [[], [b"x"], [b"ab", b"c" * 70_000, b"d"], [bytes(range(256)) * 4096] * 3], ids=len
    )
    async def test_a_round_arrives_byte_by_byte(self, connect: Connect, pieces: list[bytes], by_pipe: bool) -> None:
        side, content = ScriptedSide(by_pipe=by_pipe), Content(pieces)
        head = MigrationRound(number=12, part=Part.EXPORT, of="ckp-ä&b=c d", base="origin")
        async with connect(side) as peer:
            receipt = await peer.round(MIGRATION, head, content.stream())
        sent = b"".join(pieces)
        assert receipt == RoundReceipt(number=12, size_bytes=len(sent), digest=_digest(sent))
        assert (bytes(side.received), side.values) == (sent, [(MIGRATION, head)])
        assert content.closed or not pieces

    @pytest.mark.anyio
    @pytest.mark.parametrize(
        "error",
        [
            ImageNotFoundError("no layer sha256:1", detail="and sha256:2", resolution="import it"),
            HostDiskFullError("full"),
            InvalidStateError("not the next round"),
            HookFailedError("the hook said no", detail="last words"),
        ],
        ids=lambda error: error.code,
    )
    async def test_refusals_travel_with_their_words(self, connect: Connect, error: DsecError) -> None:
        side = ScriptedSide()
        async with connect(side) as peer:
            for message in ("offer", "commit", "release", "abort", "status"):
                side.fails = {message: error}
                with pytest.raises(type(error)) as raised:
                    await self._say(peer, message)
                told = raised.value
                assert (told.brief, told.detail, told.resolution) == (error.brief, error.detail, error.resolution)
        assert len(side.heard) == 5

    async def _say(self, peer: Peer, message: str) -> None:
        if message == "offer":
            await peer.offer(OFFER)
        elif message == "commit":
            await peer.commit(MIGRATION, MigrationCommit(rounds=1))
        else:
            await getattr(peer, message)(MIGRATION)

    @pytest.mark.anyio
    @pytest.mark.parametrize("after_bytes", [None, 1 << 20], ids=["before it reads", "in the middle"])
    async def test_a_round_that_is_refused_stops_the_sender(self, connect: Connect, after_bytes: int | None) -> None:
        error = HostDiskFullError("no room for the round")
        side = ScriptedSide(fails={"round": error}, fails_after_bytes=after_bytes)
        content = Content([b"x" * (1 << 20)] * 200)
        async with connect(side) as peer:
            with pytest.raises(DsecError) as raised:
                await peer.round(MIGRATION, LAYER_ROUND, content.stream())
        # Where the connection breaks before its answer is read, the outcome is not known.
        assert isinstance(raised.value, HostDiskFullError | NodeUnavailableError)
        assert content.produced <= (after_bytes or 0) + STANDING_BYTES
        assert content.closed or not content.produced

    @pytest.mark.anyio
    async def test_who_receives_slowly_slows_the_sender_down(self, connect: Connect) -> None:
        side = ScriptedSide(holds={"round": anyio.Event()})
        content = Content([b"x" * (1 << 20)] * 40)
        async with connect(side) as peer, anyio.create_task_group() as group:
            group.start_soon(peer.round, MIGRATION, LAYER_ROUND, content.stream())
            await side.entered.wait()
            before = -1
            while content.produced != before:  # Until it stands still: nothing is read at the other end.
                before = content.produced
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
                await anyio.sleep(0.01)
            assert content.produced <= STANDING_BYTES
            side.holds["round"].set()
        assert len(side.received) == 40 << 20

    @pytest.mark.anyio
    async def test_content_that_fails_is_never_taken_for_whole(self, connect: Connect) -> None:
        side, content = ScriptedSide(), Content([b"x" * 100_000], error=HostDiskFullError("cannot be read"))
        async with connect(side) as peer:
            with pytest.raises(HostDiskFullError, match="cannot be read"):
                await peer.round(MIGRATION, LAYER_ROUND, content.stream())
            with anyio.fail_after(60):
                await side.failed.wait()
        assert not side.finished
        assert content.closed

    @pytest.mark.anyio
    async def test_a_cancelled_round_breaks_off_at_the_other_end(self, connect: Connect) -> None:
        side, stuck = ScriptedSide(), anyio.Event()

        async def pieces() -> AsyncGenerator[bytes | int, Pipe | None]:
            pipe = yield 0
            pipe = yield b"x" if pipe is None else pipe.put(b"x")
            stuck.set()
            await anyio.sleep_forever()

        async with connect(side) as peer:
            async with anyio.create_task_group() as group:
                group.start_soon(peer.round, MIGRATION, LAYER_ROUND, GeneratedStream(pieces()))
                await stuck.wait()
                group.cancel_scope.cancel()
            with anyio.fail_after(60):
                await side.failed.wait()
        assert not side.finished

    @pytest.mark.anyio
    async def test_other_messages_pass_while_a_round_is_under_way(self, connect: Connect) -> None:
        side = ScriptedSide(holds={"round": anyio.Event()})
        async with connect(side) as peer, anyio.create_task_group() as group:
            group.start_soon(peer.round, MIGRATION, LAYER_ROUND, Content([b"x"]).stream())
            await side.entered.wait()
            assert (await peer.status(MIGRATION)).verdict is Verdict.OPEN
            side.holds["round"].set()
        assert side.finished == ["round"]

    @pytest.mark.anyio
    async def test_what_is_said_twice_is_heard_twice_and_nothing_by_itself(self, connect: Connect) -> None:
        side = ScriptedSide()
        async with connect(side) as peer:
            await peer.release(MIGRATION)
            await peer.release(MIGRATION)
        assert side.heard == ["release", "release"]
