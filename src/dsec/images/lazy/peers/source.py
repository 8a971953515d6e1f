"""Take chunks from peers: the shell around `dsec.distribution.acquisition`.

A chunk's way is decided there: ask the tracker, ask whom it names, wait where it says so, and leave it to the origin in
the end. Here it is carried out: lookups of a moment travel together, callers of peers are kept, a peer that stalls is
left, and what each gave is remembered for as long as it may still turn out to be wrong. Whoever gave wrong bytes is
shunned at once, whatever the tracker thinks of it, and the tracker is told.

Without a tracker there is what was learned before: peers that gave chunks of the same layer are asked for others, and
the tracker is asked again after a while. A chunk that no peer has is `ObjectNotFoundError`: then an origin is asked.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from dsec.base.errors import DsecError, InvalidRequestError, ObjectNotFoundError
from dsec.base.ids import is_node_id
from dsec.distribution.acquisition import Acquisition, Ask, LookUp, Pause
from dsec.distribution.messages import Answer, Candidate, Failure, FailureKind, Lookup, LookupReply, Report
from dsec.distribution.places import Places
from dsec.distribution.policy import AcquisitionPolicy, SuspicionPolicy
from dsec.distribution.speed import Speed
from dsec.distribution.suspicion import Suspicion
from dsec.images.lazy.formats.stored import ChunkRef
from dsec.images.lazy.peers.ahead import Ahead
from dsec.images.lazy.peers.calling import Caller, PeerFailedError
from dsec.images.lazy.peers.landing import Landing
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, PEERS
from dsec.model.peer import Peer
from dsec.model.value import Value
from dsec.placement.trust import smoothed

_GIVEN = 1024
_CALLERS = 128
_NEIGHBOURS = 8
_NEVER = float("-inf")
_SILENCE_LIMIT_S = 300.0
_BROKEN = 2
"""Chunks in a row that a peer passed on and not to the end; then it is left alone as one that is silent."""


class Tracker(Protocol):
    """Whom this node asks who has what."""

    async def look_up(self, lookup: Lookup) -> LookupReply:
        """Return where chunks are to be had. Raises `PeerFailedError`."""

    async def report(self, report: Report) -> None:
        """Tell what peers did. Raises `PeerFailedError`."""


class Arrivals(Protocol):
    """Who serves this node's chunks to others, and is told what is on its way here."""

    def expect(self, name: str) -> None:
        """A chunk is on its way; others may wait for it here."""

    def land(self, name: str, size: int) -> Landing | None:
        """It begins to come, so long in its stored form; others may have it from there. None: when it has come."""

    def spoil(self, name: str) -> None:
        """What came is something else."""

    def settle(self, name: str) -> None:
        """It has come, or does not come after all."""


OnBadPeer = Callable[[str, ChunkRef, str, str], None]
"""Told the manifest, the chunk, the node that gave something else for it, and in words what."""


class PeerOptions(Value, frozen=True):
    """How peers are asked.

    Attributes:
        acquisition: how long, and how many of them.
        suspicion: when one is not asked any more.
        stall_s: the longest wait for the next bytes of an answer; after it another is asked.
        silence_s: so long one is left alone that did not answer; twice as long with each time in a row.
        tracker_timeout_s: the longest wait for the tracker.
        tracker_pause_s: after a silence of the tracker it is not asked for so long.
        gather_s: lookups within this travel together.
    """

    acquisition: AcquisitionPolicy = AcquisitionPolicy()
    suspicion: SuspicionPolicy = SuspicionPolicy()
    stall_s: float = 1.0
    silence_s: float = 2.0
    tracker_timeout_s: float = 1.0
    tracker_pause_s: float = 5.0
    gather_s: float = 0.002


@dataclass(slots=True)
class PeerCounts:
    """What came from peers since this process began.

    Attributes:
        chunks, received_bytes: that they gave, of stored chunks.
        failures: how often one failed, by kind.
    """

    chunks: int = 0
    received_bytes: int = 0
    failures: dict[FailureKind, int] = field(default_factory=dict)


class Peers:
    """All peers of this node; make it with `open_peers`. Used from one event loop.

    Attributes:
        counts: what came of asking them.
        speed: of this node's link, as what came from them tells.
    """

    def __init__(
        self,
        own: str,
        secret: Callable[[], bytes],
        tracker: Tracker,
        group: TaskGroup,
        *,
        arrivals: Arrivals,
        on_bad_peer: OnBadPeer,
        clock: Callable[[], float],
        options: PeerOptions,
    ) -> None:
        self.counts = PeerCounts()
        self.speed = Speed()
        self._own = own
        self._secret = secret
        self._tracker = tracker
        self._group = group
        self._arrivals = arrivals
        self._on_bad_peer = on_bad_peer
        self._clock = clock
        self._options = options
        self._suspicion = Suspicion(options.suspicion)
        self._silences: dict[str, _Silence] = {}
        self._broken: dict[str, int] = {}
        self._callers: OrderedDict[Peer, Caller] = OrderedDict()
        self._given: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._neighbours: dict[str, OrderedDict[Peer, None]] = {}
        self._waiting: dict[str, list[_Question]] = {}
        self._asking: set[str] = set()
        self._silent_until_s = _NEVER
        self._usual_s = 0.0
        self._ahead = Ahead(clock)
        self._places = Places()

    def heed(self, news_s: float) -> None:
        """Take the tracker's word how long nodes gather news, which says how often one asks it."""
        self._places.heed(news_s)

    def plan(self, names: Sequence[str]) -> None:
        """Say in which order the chunks of a layer are going to be fetched."""
        self._ahead.plan(names)

    def source(self, layer: str) -> PeerSource:
        """Return the source of the chunks of one layer.

        Args:
            layer: name of its manifest.
        """
        return PeerSource(self, layer)

    async def obtain(self, layer: str, ref: ChunkRef, timeout_s: float) -> bytes:
        """Return a stored chunk, unverified. Raises `ObjectNotFoundError`."""
        policy = self._options.acquisition
        if timeout_s < policy.patience_s:
            policy = msgspec.structs.replace(policy, patience_s=timeout_s)
        acquisition = Acquisition(ref.id, policy, self._clock(), self._usual_s)
        self._arrivals.expect(ref.id)
        named = self._ahead.take(ref.id) if self._ahead.has(ref.id) else self._in_place(layer, ref.id)
        if named is not None and (sifted := self._sifted(named)).peers:
            acquisition.answered(sifted)
        try:
            while True:
                step = acquisition.next(self._clock())
                if isinstance(step, LookUp):
                    acquisition.answered(await self._answer(layer, ref.id, step.failures))
                elif isinstance(step, Pause):
                    await anyio.sleep(step.wait_s)
                elif isinstance(step, Ask):
                    stored = await self._asked(layer, ref, step, acquisition)
                    if stored is not None:
                        self._tell(acquisition.untold())
                        return stored
                else:
                    self._tell(step.failures)
                    raise ObjectNotFoundError(f"no peer has chunk {ref.id[:12]}, or gives it now")
        except ObjectNotFoundError:
            raise  # It is still on its way, from an origin: who waits for it here goes on waiting.
        except BaseException:
            self._arrivals.settle(ref.id)
            raise
        finally:
            self._places.over(ref.id)

    def _in_place(self, layer: str, chunk: str) -> Answer | None:
        """Return where a chunk is to be had by the place that this node has, without asking the tracker."""
        parent = self._places.take(layer, chunk)
        return None if parent is None else Answer(chunk=chunk, peers=(parent,))

    async def _asked(self, layer: str, ref: ChunkRef, step: Ask, acquisition: Acquisition) -> bytes | None:
        candidate = step.peer
        begun_s, begun = self._clock(), self.speed.begin()
        try:
            caller = self._caller(candidate)
            stored = await caller.chunk(
                ref.id,
                wait=candidate.pending,
                timeout_s=step.timeout_s,
                stall_s=self._options.stall_s,
                hold_s=step.hold_s,
                land=partial(self._arrivals.land, ref.id),
            )
        except PeerFailedError as error:
            self._failed(acquisition, candidate.node, error.kind)
            return None
        except InvalidRequestError:  # An address that is none.
            self._failed(acquisition, candidate.node, FailureKind.UNREACHABLE)
            return None
        took_s = self._clock() - begun_s
        self.speed.end(begun, took_s)
        self._usual_s = smoothed(self._usual_s or None, took_s)
        self._places.came(layer, ref.id, candidate, took_s, self._usual_s)
        self._silences.pop(candidate.node, None)
        self._broken.pop(candidate.node, None)
        self.counts.chunks += 1
        self.counts.received_bytes += len(stored)
        self._given[ref.id] = (layer, candidate.node)
        if len(self._given) > _GIVEN:
            self._given.popitem(last=False)
        self._remember(layer, caller.peer)
        return stored

    def _failed(self, acquisition: Acquisition, node: str, kind: FailureKind) -> None:
        self.counts.failures[kind] = self.counts.failures.get(kind, 0) + 1
        acquisition.failed(node, kind)
        self._bear(Failure(peer=node, chunk=acquisition.chunk, kind=kind))

    def blame(self, layer: str, ref: ChunkRef, error: DsecError) -> None:
        """Shun who gave a chunk that did not verify, and tell the tracker."""
        self._arrivals.spoil(ref.id)
        found = self._given.pop(ref.id, None)
        if found is None:
            return
        node = found[1]
        self._places.leave(node)
        self.counts.failures[FailureKind.WRONG] = self.counts.failures.get(FailureKind.WRONG, 0) + 1
        failure = Failure(peer=node, chunk=ref.id, kind=FailureKind.WRONG)
        self._bear(failure)
        self._tell((failure,))
        self._on_bad_peer(layer, ref, node, error.detail or error.brief)

    def _bear(self, failure: Failure) -> None:
        """Shun a peer for oneself: nobody has to agree."""
        now_s = self._clock()
        self._suspicion.accuse(self._own, failure, now_s, sent=False, nodes=0)
        if failure.kind is FailureKind.BROKEN:
            # Nobody's fault, once. Who never passes anything on to its end is of no use, or wants to be of none.
            self._broken[failure.peer] = self._broken.get(failure.peer, 0) + 1
        is_futile = self._broken.get(failure.peer, 0) >= _BROKEN
        if is_futile or failure.kind in (FailureKind.STALLED, FailureKind.UNREACHABLE):
            self._broken.pop(failure.peer, None)
            silence = self._silences.get(failure.peer, _Silence(0, now_s))
            if now_s >= silence.until_s:  # What was under way when it fell silent counts once.
                pause_s = min(self._options.silence_s * 2.0**silence.times, _SILENCE_LIMIT_S)
                self._silences[failure.peer] = _Silence(silence.times + 1, now_s + pause_s)

    def _shuns(self, node: str, chunk: str) -> bool:
        now_s = self._clock()
        silence = self._silences.get(node)
        if node == self._own or (silence is not None and now_s < silence.until_s):
            return True
        return self._suspicion.shuns(self._own, node, chunk, now_s)

    # -- whom to ask ----------------------------------------------------------------------------------------------

    async def _answer(self, layer: str, chunk: str, failures: tuple[Failure, ...]) -> Answer | None:
        """Return what the tracker says; where it is silent, what is known here."""
        answer = None
        if self._clock() >= self._silent_until_s:
            answer = await self._looked_up(layer, chunk, failures)
        if answer is None:
            known = [
                Candidate(node=peer.node, address=peer.url)
                for peer in self._neighbours.get(layer, {})
                if not self._shuns(peer.node, chunk)
            ]
            # Any of them: were it always the last, all who are ahead of others would be asked by all.
            return Answer(chunk=chunk, peers=tuple(random.sample(known, min(2, len(known))))) if known else None
        if not answer.peers:
            return answer
        sifted = self._sifted(answer)
        # When all whom the tracker names are shunned here, it knows of nobody who is of use.
        return msgspec.structs.replace(sifted, origin=answer.origin or not sifted.peers)

    def _sifted(self, answer: Answer) -> Answer:
        """Leave out who is shunned here."""
        peers = tuple(peer for peer in answer.peers if not self._shuns(peer.node, answer.chunk))
        return msgspec.structs.replace(answer, peers=peers)

    async def _looked_up(self, layer: str, chunk: str, failures: tuple[Failure, ...]) -> Answer | None:
        question = _Question(chunk, failures)
        self._waiting.setdefault(layer, []).append(question)
        if layer not in self._asking:
            self._asking.add(layer)
            self._group.start_soon(self._look_up, layer)
        await question.done.wait()
        return question.answer

    async def _look_up(self, layer: str) -> None:
        """Ask the tracker all that was asked within a moment, and then what came up until it answered: a message costs
        it ten times as much as a chunk in it.
        """
        await anyio.sleep(self._options.gather_s)
        try:
            while questions := self._waiting.pop(layer, []):
                try:
                    if self._clock() >= self._silent_until_s:
                        await self._ask_tracker(layer, questions)
                finally:
                    for question in questions:
                        question.done.set()
        finally:
            self._asking.discard(layer)

    async def _ask_tracker(self, layer: str, questions: Sequence[_Question]) -> None:
        failures = tuple(failure for question in questions for failure in question.failures)
        chunks = tuple(dict.fromkeys(question.chunk for question in questions))
        lookup = Lookup(node=self._own, layer=layer, chunks=chunks, ahead=self._ahead.next(chunks), failures=failures)
        try:
            reply = await self._tracker.look_up(lookup)
        except PeerFailedError:
            self._silent_until_s = self._clock() + self._options.tracker_pause_s
            return
        self._ahead.told(reply.ahead)
        answers = {answer.chunk: answer for answer in reply.answers}
        for question in questions:
            question.answer = answers.get(question.chunk)

    def _tell(self, failures: Sequence[Failure]) -> None:
        """Tell the tracker, without waiting for it; when it is silent it never hears of these."""
        if failures and self._clock() >= self._silent_until_s:
            self._group.start_soon(self._report, Report(node=self._own, failures=tuple(failures)))

    async def _report(self, report: Report) -> None:
        try:
            await self._tracker.report(report)
        except PeerFailedError:
            self._silent_until_s = self._clock() + self._options.tracker_pause_s

    def _remember(self, layer: str, peer: Peer) -> None:
        known = self._neighbours.setdefault(layer, OrderedDict())
        known[peer] = None
        known.move_to_end(peer)
        if len(known) > _NEIGHBOURS:
            known.popitem(last=False)

    def _caller(self, candidate: Candidate) -> Caller:
        """Return who calls a peer. Raises `InvalidRequestError`: what the tracker gave is no address."""
        if not is_node_id(candidate.node):
            raise InvalidRequestError(f"{candidate.node[:40]!r} is no node")
        peer = Peer(node=candidate.node, url=candidate.address)
        if peer not in self._callers:
            self._callers[peer] = Caller(self._own, peer, self._secret, self.speed)
            if len(self._callers) > _CALLERS:
                self._callers.popitem(last=False)[1].close()
        self._callers.move_to_end(peer)
        return self._callers[peer]

    def close(self) -> None:
        """Close all connections."""
        for caller in self._callers.values():
            caller.close()


@dataclass(frozen=True, slots=True)
class _Silence:
    """How often in a row a peer did not answer, and until when it is left alone for it."""

    times: int
    until_s: float


class _Question:
    """A chunk that somebody waits to hear of."""

    __slots__ = ("answer", "chunk", "done", "failures")

    def __init__(self, chunk: str, failures: tuple[Failure, ...]) -> None:
        self.chunk = chunk
        self.failures = failures
        self.done = anyio.Event()
        self.answer: Answer | None = None


class PeerSource:
    """The peers, as a source of one layer's chunks. Implements `ChunkSource`."""

    name = PEERS

    def __init__(self, peers: Peers, layer: str) -> None:
        self._peers = peers
        self._layer = layer

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        return await self._peers.obtain(self._layer, ref, timeout_s)

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        self._peers.blame(self._layer, ref, error)


def _to_nobody(layer: str, ref: ChunkRef, node: str, words: str) -> None:
    """Tell nobody."""


@asynccontextmanager
async def open_peers(
    own: str,
    secret: Callable[[], bytes],
    tracker: Tracker,
    *,
    arrivals: Arrivals,
    clock: Callable[[], float],
    on_bad_peer: OnBadPeer = _to_nobody,
    options: PeerOptions = PeerOptions(),
) -> AsyncIterator[Peers]:
    """Open the peers of a node; at the end, what is under way is given up.

    Args:
        own: id of this node.
        secret: returns what the nodes of the fleet share.
        tracker: whom to ask who has what.
        arrivals: told what is on its way here.
        clock: seconds that only go forward.
        on_bad_peer: told who gave something else than it was asked for.
        options: how they are asked.
    """
    async with anyio.create_task_group() as group:
        peers = Peers(
            own, secret, tracker, group, arrivals=arrivals, on_bad_peer=on_bad_peer, clock=clock, options=options
        )
        try:
            yield peers
        finally:
            peers.close()
            group.cancel_scope.cancel()
