"""A node's side of the tracker: what it asks over HTTP, and telling it what is here.

The tracker is part of some node's API (docs/http-api.md): three requests behind the gate of its peers. It is told all
once and then what changed, with the numbers that let it notice what it missed (`dsec.distribution.announcer`). A silent
tracker is told again later, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import anyio
import msgspec

from dsec.distribution.announcer import COMPLETE, Announcer
from dsec.distribution.messages import Acknowledgement, Announcement, FailureKind, Lookup, LookupReply, Report
from dsec.distribution.speed import Speed
from dsec.images.lazy.peers.calling import Caller, PeerFailedError
from dsec.images.lazy.peers.seeder import SeederStatus
from dsec.images.lazy.peers.settings import PeerSettings

ANNOUNCE = "/v1/peer/chunks/announce"
LOOK_UP = "/v1/peer/chunks/lookup"
REPORT = "/v1/peer/chunks/report"
_REPLY_BYTES = 4 << 20
_ANNOUNCE_TIMEOUT_S = 10.0
_LOOK_UP_TIMEOUT_S = 1.0
HEARTBEAT_S = 3.0
"""Well within the tracker's lease."""
_APART_S = 0.02
"""Between two announcements: what comes within it travels together."""
_RETRY_S = 1.0
_LOOK_SHARE = 20
"""Going through all that is here may take one part in so many of the time."""

_T = TypeVar("_T")


class HttpTracker:
    """The tracker of a fleet. Implements `dsec.images.lazy.peers.source.Tracker`.

    Args:
        caller: calls the node that is the tracker.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.on_resend: Callable[[], None] = lambda: None
        """Called when the tracker does not know this node."""
        self.on_news_s: Callable[[float], None] = lambda _: None
        """Told how long nodes gather news, whenever the tracker says so."""

    async def announce(self, announcement: Announcement) -> Acknowledgement:
        """Tell what is here. Raises `PeerFailedError`."""
        answer = await self._ask(ANNOUNCE, announcement, Acknowledgement, _ANNOUNCE_TIMEOUT_S)
        self.on_news_s(answer.news_s)
        return answer

    async def look_up(self, lookup: Lookup) -> LookupReply:
        reply = await self._ask(LOOK_UP, lookup, LookupReply, _LOOK_UP_TIMEOUT_S)
        if reply.resend:
            self.on_resend()
        return reply

    async def report(self, report: Report) -> None:
        await self._ask(REPORT, report, None, _LOOK_UP_TIMEOUT_S)

    async def _ask(self, target: str, body: object, kind: type[_T] | None, timeout_s: float) -> _T:
        data = msgspec.json.encode(body)
        reply = await self._caller.ask("POST", target, data, limit=_REPLY_BYTES, timeout_s=timeout_s)
        if reply.status not in (200, 204):
            raise PeerFailedError(FailureKind.UNREACHABLE, f"the tracker answers with status {reply.status}")
        try:
            return msgspec.json.decode(reply.body or b"null", type=kind or None)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerFailedError(FailureKind.WRONG, f"the tracker answers nonsense: {error}") from error


class Inventory(Protocol):
    """What of layers is on this host."""

    def held(self) -> Mapping[str, frozenset[str] | None]:
        """Return the names of the manifests of layers, and of each the chunks that are there; None: all of them."""

    def gives(self, chunk: str) -> bool:
        """Whether a chunk can be given although no layer has it: it lies on the shelf."""


class Announcing:
    """Tells the tracker what is here, and what changes. Used from one event loop.

    Args:
        settings: of the peers.
        tracker: whom to tell.
        life: drawn anew for each process.
        inventory: what there is.
        status: how this node's seeder is; without an address nothing is given.
        speed: of this node's link.
    """

    def __init__(
        self,
        settings: PeerSettings,
        tracker: HttpTracker,
        life: str,
        inventory: Inventory,
        status: Callable[[], SeederStatus],
        speed: Speed,
    ) -> None:
        self._settings = settings
        self._tracker = tracker
        self._inventory = inventory
        self._status = status
        self._speed = speed
        self._announcer = Announcer(settings.node, "", life)
        self._told: dict[str, frozenset[str] | None] = {}
        self._look_again_s = 0.0
        self._must_look = True
        self._news = anyio.Event()
        self._apart_s = _APART_S
        tracker.on_resend = self._restate

    def gained(self, layer: str, chunk: str) -> None:
        """Note a chunk that is there now, and can be given."""
        told = self._told.get(layer, frozenset())
        if told is not COMPLETE and chunk not in told:
            self._told[layer] = told | {chunk}
            self._announcer.gained(layer, (chunk,))
            self.wake()

    def wake(self) -> None:
        """Announce soon."""
        self._news.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            self._news = anyio.Event()
            pause_s = await self._announce()
            if pause_s:
                await anyio.sleep(pause_s)
                continue
            with anyio.move_on_after(HEARTBEAT_S):
                await self._news.wait()
                await anyio.sleep(self._apart_s)

    async def _announce(self) -> float:
        """Tell what is new; return after which time to go on in any case."""
        held = await self._looked()
        status = self._status()
        self._announcer.address = status.address
        uploads = self._settings.uploads
        announcement = self._announcer.make(
            held,
            upload_bytes_per_s=self._speed.bound(uploads.bytes_per_s),
            upload_slots=uploads.slots if status.address else 0,
            uploads=status.sending,
        )
        try:
            answer = await self._tracker.announce(announcement)
        except PeerFailedError:
            return _RETRY_S
        self._announcer.acknowledged(announcement, answer)
        self._apart_s = min(max(_APART_S, answer.news_s), HEARTBEAT_S)
        return self._apart_s if self._announcer.has_news else 0.0

    async def _looked(self) -> dict[str, frozenset[str] | None]:
        """Return what there is: as was noted, or, now and then and when all has to be said, as it is found to be."""
        now_s = anyio.current_time()
        if now_s < self._look_again_s and not self._must_look:
            return self._told
        held = await anyio.to_thread.run_sync(self._inventory.held)
        self._compare(held)
        # A cache of many layers takes long to go through; what comes meanwhile is noted when it comes.
        self._look_again_s = now_s + max(HEARTBEAT_S, _LOOK_SHARE * (anyio.current_time() - now_s))
        self._must_look = False
        return self._told

    def _compare(self, held: Mapping[str, frozenset[str] | None]) -> None:
        """Note what came and went otherwise than by `gained`."""
        for layer in self._told.keys() - held.keys():
            self._announcer.removed(layer)
            del self._told[layer]
        for layer, chunks in held.items():
            told = self._told.get(layer, frozenset())
            if chunks == told:
                continue
            if chunks is COMPLETE:
                self._announcer.completed(layer)
            elif told is COMPLETE:
                self._announcer.restate()
            else:
                chunks |= self._changed(layer, chunks - told, told - chunks)
            self._told[layer] = chunks

    def _changed(self, layer: str, gained: frozenset[str], gone: frozenset[str]) -> frozenset[str]:
        """Note what came and what is not given any more; return what is given from the shelf."""
        kept = frozenset(filter(self._inventory.gives, gone))
        self._announcer.gained(layer, gained)
        self._announcer.lost(layer, gone - kept)
        return kept

    def _restate(self) -> None:
        self._must_look = True
        self._announcer.restate()
        self.wake()
