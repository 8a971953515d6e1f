"""What is simulated of distribution: nodes, links, an origin, and what goes wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from dsec.distribution.policy import AcquisitionPolicy, AnnouncePolicy, TrackerPolicy, UploadPolicy
from dsec.model.value import Value
from dsec.sim.timed import TimedScenario

Share = Annotated[float, Meta(ge=0, le=1)]
Rate = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0)]


class Troubles(Value, frozen=True):
    """What goes wrong. Which nodes it befalls is drawn; shares are of all nodes.

    Attributes:
        failing_share: nodes that die for good, at a moment between their start and `failing_within_s`.
        failing_within_s: see there.
        wrong_share: nodes that give wrong bytes for everything.
        stalling_share: nodes that take requests and send nothing.
        lying_share: nodes that say of every chunk which they got that it was wrong.
        slow_share: nodes whose links have `slow_bytes_per_s`.
        slow_bytes_per_s: see there.
        tracker_restarts_s: when the tracker forgets everything.
    """

    failing_share: Share = 0.0
    failing_within_s: Seconds = 1.0
    wrong_share: Share = 0.0
    stalling_share: Share = 0.0
    lying_share: Share = 0.0
    slow_share: Share = 0.0
    slow_bytes_per_s: Rate = 1.25e8
    tracker_restarts_s: tuple[Seconds, ...] = ()


class DistributionScenario(TimedScenario, frozen=True, kw_only=True, tag_field="model", tag="distribution"):
    """One image, and nodes that want it.

    Attributes:
        way: `central`: everything comes from the origin; `peers`: from each other too.
        nodes: how many begin with nothing.
        seeds: nodes beside these that have all of it.
        image_bytes, chunk_bytes: what there is to move.
        first_share: of the image, what the first command reads; the same chunks for each node, in the same order. A
            sandbox touches 4 to 13 % of its image (arXiv 2609.22978).
        all: whether nodes fetch the rest too.
        parallel: chunks that a node fetches at a time. With many an origin of little bandwidth is asked for everything
            at once, and the first chunk comes as late as the last.
        link_bytes_per_s: of a node, in either direction.
        origin_bytes_per_s: that the origin sends in all.
        origin_latency_s: until it begins to.
        round_trip_s: between two nodes, and to the tracker.
        tracker_request_s, tracker_chunk_s: processor time of the tracker for each message, and for each chunk that is
            asked for; it has one processor. Over HTTP, for a quiet core of a machine like those of docs/benchmarks.md,
            reckoned from what a busy one takes (`dsec.bench.tracker_cost`) and took before.
        tracker_ahead_s: for each chunk that is asked for ahead, or announced.
        tracker_timeout_s, tracker_pause_s: after this without an answer it counts as silent, and is asked again after
            that.
        ahead: for how many chunks that come next a node asks too,
        ahead_s: and how long it goes by the answer;
        ahead_again_s: what nobody had is not asked for again within this.
        places: whether nodes that ask for none ahead keep their places for several chunks
            (`dsec.distribution.places`).
        gather_s: what a node asks within this travels together.
        relay_s: a chunk that is passed on while it comes is there so much later: its end is kept back until it is
            verified.
        pause_s: between a chunk's arrival and the moment when its reader wants the next one, in the mean; up to twice
            as long.
        connect_timeout_s: after this a dead node is known to be dead.
        stall_s: after this a node that sends nothing is given up.
        queue_s: after this somebody is sent away whose turn at a peer does not come.
        waves: the nodes begin in so many equal groups,
        wave_every_s: so long after each other,
        spread_s: and within a group spread evenly over this.
        troubles: what goes wrong.
        tracker, uploads, acquisition, announcing: the policies, as live nodes take them.
    """

    way: Literal["central", "peers"] = "peers"
    nodes: Annotated[int, Meta(ge=1, le=20_000)] = 500
    seeds: Annotated[int, Meta(ge=0)] = 0
    image_bytes: Annotated[int, Meta(ge=1)] = 1 << 30
    chunk_bytes: Annotated[int, Meta(ge=1)] = 4 << 20
    first_share: Share = 0.1
    all: bool = True
    parallel: Annotated[int, Meta(ge=1)] = 6
    link_bytes_per_s: Rate = 25 * 1.25e8
    origin_bytes_per_s: Rate = 100 * 1.25e8
    origin_latency_s: Seconds = 0.02
    round_trip_s: Seconds = 0.0005
    tracker_request_s: Seconds = 0.0001
    tracker_chunk_s: Seconds = 0.00004
    tracker_ahead_s: Seconds = 0.000007
    tracker_timeout_s: Seconds = 1.0
    tracker_pause_s: Seconds = 5.0
    ahead: Annotated[int, Meta(ge=0, le=256)] = 32
    ahead_s: Seconds = 5.0
    ahead_again_s: Seconds = 0.5
    places: bool = True
    gather_s: Seconds = 0.002
    relay_s: Seconds = 0.008
    pause_s: Seconds = 0.0
    connect_timeout_s: Seconds = 2.0
    stall_s: Seconds = 1.0
    queue_s: Seconds = 5.0
    waves: Annotated[int, Meta(ge=1)] = 1
    wave_every_s: Seconds = 1.0
    spread_s: Seconds = 0.05
    troubles: Troubles = Troubles()
    tracker: TrackerPolicy = TrackerPolicy()
    uploads: UploadPolicy = UploadPolicy()
    acquisition: AcquisitionPolicy = AcquisitionPolicy()
    announcing: AnnouncePolicy = AnnouncePolicy()

    @property
    def chunks(self) -> int:
        """How many chunks the image has."""
        return -(-self.image_bytes // self.chunk_bytes)

    @property
    def first(self) -> int:
        """How many of them the first command reads."""
        return max(1, round(self.chunks * self.first_share))
