"""A node as the tracker of chunks: `dsec.distribution.tracker` with a clock, chance and a log around it.

Every node is ready to be one; it is one when the others name it in their setting `tracker`. What it knows lies in
memory only: after a restart every node that speaks to it tells it all again, and until then chunks come from their
origins.
"""

from __future__ import annotations

import secrets
from collections import deque

import anyio
import structlog

from dsec.base.clock import Clock
from dsec.base.errors import InvalidRequestError
from dsec.distribution.messages import Acknowledgement, Announcement, Lookup, LookupReply, Report
from dsec.distribution.policy import AcquisitionPolicy, ChoicePolicy, TrackerPolicy, UploadPolicy
from dsec.distribution.tracker import Tracker
from dsec.images.lazy.peers.settings import PeerSettings
from dsec.model.peer import origin
from dsec.node.settings import NodeSettings, secret_file
from dsec.service.tracking import DatedVerdict, TrackerOverview

_log = structlog.get_logger("dsec.tracker")

_EXPIRE_S = 1.0
_VERDICTS = 256


class NodeTracker:
    """Implements `dsec.service.tracking.TrackerService`.

    Args:
        node: this node's id.
        policy: settings.
        clock: tells the time.
    """

    def __init__(self, node: str, policy: TrackerPolicy, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._tracker = Tracker(policy, secrets.randbits)
        self._verdicts: deque[DatedVerdict] = deque(maxlen=_VERDICTS)

    async def run(self) -> None:
        """Forget what is too old, for ever."""
        while True:
            await anyio.sleep(_EXPIRE_S)
            self._tracker.expire(self._clock.boot_s())

    def announce(self, announcement: Announcement) -> Acknowledgement:
        if announcement.address and origin(announcement.address) is None:
            raise InvalidRequestError(f"{announcement.address[:200]!r} is not the address of a node")
        return self._tracker.announce(announcement, self._clock.boot_s())

    def look_up(self, lookup: Lookup) -> LookupReply:
        reply = self._tracker.look_up(lookup, self._clock.boot_s())
        self._judged()
        return reply

    def report(self, report: Report) -> None:
        self._tracker.report(report, self._clock.boot_s())
        self._judged()

    def overview(self) -> TrackerOverview:
        now_s = self._clock.boot_s()
        return TrackerOverview(
            node=self._node,
            statistics=self._tracker.statistics(now_s),
            peers=self._tracker.peers(now_s),
            verdicts=tuple(self._verdicts),
        )

    def _judged(self) -> None:
        """Log what was decided about nodes."""
        for verdict in self._tracker.take_verdicts():
            dated = DatedVerdict(
                wall_s=self._clock.wall_s(),
                kind=verdict.kind,
                node=verdict.node,
                chunk=verdict.chunk,
                reporters=verdict.reporters,
                for_s=verdict.until_s - self._clock.boot_s(),
            )
            self._verdicts.append(dated)
            _log.warning(verdict.kind.value, node=verdict.node, chunk=verdict.chunk[:12], reporters=verdict.reporters)


def tracker_policy(settings: NodeSettings) -> TrackerPolicy:
    """Return a tracker's policy by the settings of its node."""
    choice = ChoicePolicy(bandwidth_weight=settings.peer_bandwidth_weight, load_weight=settings.peer_load_weight)
    return TrackerPolicy(choice=choice)


def peer_settings(settings: NodeSettings, node: str) -> PeerSettings | None:
    """Return how the layer daemon of a node gives chunks and takes them; None: it does not.

    Args:
        settings: the node's, with `state_dir` filled in.
        node: its id.
    """
    if not settings.tracker:
        return None
    return PeerSettings(
        node=node,
        secret_file=str(secret_file(settings).absolute()),
        tracker=settings.tracker,
        listen=settings.peer_listen,
        uploads=UploadPolicy(slots=settings.peer_uploads, bytes_per_s=settings.peer_upload_bytes_s),
        acquisition=AcquisitionPolicy(patience_s=settings.peer_patience_s),
        stall_s=settings.peer_stall_s,
        shelf_bytes=settings.peer_shelf_bytes,
    )
