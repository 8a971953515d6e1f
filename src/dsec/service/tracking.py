"""The contract by which a node is the tracker of chunks for a fleet, beside `dsec.service.port.SandboxService`.

`dsec.node.tracking.NodeTracker` implements it; the nodes' layer daemons ask it over HTTP
(`dsec.images.lazy.peers.tracking`). It answers at once, and remembers nothing that would have to outlive it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dsec.distribution.messages import Acknowledgement, Announcement, Lookup, LookupReply, Report, VerdictKind
from dsec.distribution.overview import PeerStatus, TrackerStatistics
from dsec.model.value import Value


class DatedVerdict(Value, frozen=True):
    """Something that a tracker decided about a node.

    Attributes:
        wall_s: when, in seconds since the epoch.
        kind: what.
        node: about whom.
        chunk: of which chunk; empty: it is not about one.
        reporters: whose word it rests on.
        for_s: for how long it holds.
    """

    wall_s: float
    kind: VerdictKind
    node: str
    chunk: str
    reporters: tuple[str, ...]
    for_s: float


class TrackerOverview(Value, frozen=True):
    """What a tracker knows, for people.

    Attributes:
        node: the tracker's id.
        statistics: in numbers.
        peers: each node that has said something lately.
        verdicts: what was decided about nodes, the oldest first.
    """

    node: str
    statistics: TrackerStatistics
    peers: tuple[PeerStatus, ...]
    verdicts: tuple[DatedVerdict, ...]


class TrackerService(Protocol):
    """Know who has which chunk. The node in each message is the one that its sender has proved to be."""

    def announce(self, announcement: Announcement) -> Acknowledgement:
        """Take what a node has.

        Raises:
            InvalidRequestError: its address is none that can be called.
        """

    def look_up(self, lookup: Lookup) -> LookupReply:
        """Say where chunks are to be had."""

    def report(self, report: Report) -> None:
        """Take failures of peers."""

    def overview(self) -> TrackerOverview:
        """Say what is known."""


@runtime_checkable
class HasTracker(Protocol):
    """A service that can be a tracker."""

    tracker: TrackerService
