"""The settings of distribution between peers, each with the reason for its default."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dsec.base.units import GIB
from dsec.model.value import Value

Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(gt=0)]
Number = Annotated[int, Meta(ge=1)]


class ChoicePolicy(Value, frozen=True):
    """Which peer is asked.

    Attributes:
        bandwidth_weight, load_weight: of the score (training report: 0.6 and 0.4, found from its distribution logs; it
            advises to weigh load more where all have the same bandwidth).
        sampled: how many of those that have a chunk are drawn at random and compared. With all compared, every node
            would choose the same one, and 500 would be looked at for each chunk.
        candidates: how many are proposed, the best first; the others are for when that one fails.
        fair_share: who was sent to more than so many times as often as the mean of those it is compared with comes
            last. Well below the 2 that no node may exceed, so that there is room for chance.
        fanout: how many are told to wait for one chunk at one node that is only fetching it, at most.
        depth: how long such a chain of waiting nodes may be. Two followers each, eight levels would do for 500
            nodes; chance makes some branches twice as long.
        relay_s: what each further node on a chunk's way costs: it is passed on while it comes, but its end only when
            it is verified. A second follower costs a whole transfer. Where that takes longer, nodes form chains, which
            spread the sending too, and have a second one only when there is no end of a chain left.
        chunk_bytes: what a chunk is taken to have, when it is reckoned how long it takes.
    """

    bandwidth_weight: Share = 0.6
    load_weight: Share = 0.4
    sampled: Number = 6
    candidates: Number = 3
    fair_share: Annotated[float, Meta(gt=1)] = 1.25
    fanout: Number = 2
    depth: Number = 16
    relay_s: Annotated[float, Meta(ge=0)] = 0.008
    chunk_bytes: Number = 4 << 20


class SuspicionPolicy(Value, frozen=True):
    """When a peer's blocks, a peer or an accuser is not believed any more.

    Attributes:
        blocks: distinct chunks that a peer gave wrongly after which nothing is taken from it (for whoever accused it of
            all of them: at once; for everybody: with `reporters`).
        failures: times that it was unreachable or stalled, for the same.
        reporters: how many different nodes must have said so.
        window_s: accusations older than this do not count any more.
        quarantine_s: of a peer that gave wrong bytes, doubled with each time until `quarantine_limit_s`.
        pause_s: of one that did not answer, doubled likewise: it may only have been busy or cut off.
        quarantine_limit_s: the longest.
        block_quarantine_s: of a single block. Long: a bad disk does not heal, and others have the block.
        parole_s: within this after a quarantine a single accusation brings it back.
        accused: distinct peers that a node may accuse of wrong bytes with nobody agreeing. One that accuses more is
            likelier to be wrong itself (bad memory, a bad card, or malice), and its word counts for itself only.
        distrust_s: for how long.
        quarantined_share: at most this share of the known nodes is in quarantine at a time, the latest ones. Nodes that
            conspire could otherwise take everybody out; wrong bytes are found by whoever gets them in any case.
    """

    blocks: Number = 3
    failures: Number = 4
    reporters: Number = 2
    window_s: Seconds = 300.0
    quarantine_s: Seconds = 60.0
    pause_s: Seconds = 5.0
    quarantine_limit_s: Seconds = 3600.0
    block_quarantine_s: Seconds = 900.0
    parole_s: Seconds = 300.0
    accused: Number = 3
    distrust_s: Seconds = 600.0
    quarantined_share: Share = 0.34


class TrackerPolicy(Value, frozen=True):
    """What a tracker remembers and grants.

    Attributes:
        choice, suspicion: see there.
        lease_s: a node that says nothing for so long is forgotten. Three announcements of 5 s.
        news_s: how long nodes gather what is new, for each node that there is: announcements then take about as much of
            the tracker's time as a fixed share, however many nodes there are. 0.5 s for 500.
        flight_s: so long is a node believed to be fetching a chunk that it was told where to get.
        grants: how many fetch one chunk from the origin at a time.
        extra_grants: how many more do when a node cannot take it from any of those, or they take too long.
        overdue_s: a chunk that is longer on its way than this, and than 4 times as long as chunks take lately, is not
            waited for any more: whoever is to bring it is dead, or waits for one that is.
        wait_s: how long a node waits when all that have a chunk are busy.
        stand_back_s: how long one lets others go before it that was sent to more often than is fair.
        waiting: transfers beyond its slots that a node may be given at a time.
        nodes, layers_a_node, chunks_a_node: the most that are remembered; 16,384 chunks are 64 GiB.
        entries: of chunks at nodes in all; each takes about 200 bytes of memory.
        flights_a_node: chunks that one node is believed to be fetching at a time.
        bandwidth_most_bytes_per_s: nobody is believed to have more.
    """

    choice: ChoicePolicy = ChoicePolicy()
    suspicion: SuspicionPolicy = SuspicionPolicy()
    lease_s: Seconds = 15.0
    news_s: Seconds = 0.001
    flight_s: Seconds = 10.0
    grants: Number = 1
    extra_grants: Annotated[int, Meta(ge=0)] = 3
    overdue_s: Seconds = 0.5
    wait_s: Seconds = 0.05
    stand_back_s: Seconds = 0.1
    waiting: Annotated[int, Meta(ge=0)] = 60
    nodes: Number = 10_000
    layers_a_node: Number = 512
    chunks_a_node: Number = 16_384
    entries: Number = 2_000_000
    flights_a_node: Number = 512
    bandwidth_most_bytes_per_s: Number = 50 * GIB


class UploadPolicy(Value, frozen=True):
    """What a node sends to others.

    Attributes:
        slots: transfers at a time; more would make each slower, and the first of them is what others wait for.
        slots_a_peer: of these to one peer.
        bytes_per_s: to all together; 0: no limit.
        burst_bytes: what may be sent at once after a pause.
        holds: requests that may wait, for a slot or for a chunk that is not there yet.
        retry_s: what a refused peer is told.
    """

    slots: Annotated[int, Meta(ge=0)] = 4
    slots_a_peer: Number = 2
    bytes_per_s: Annotated[int, Meta(ge=0)] = 0
    burst_bytes: Number = 8 << 20
    holds: Annotated[int, Meta(ge=0)] = 64
    retry_s: Seconds = 0.05


class AnnouncePolicy(Value, frozen=True):
    """When a node tells the tracker what it has.

    Attributes:
        every_s: at least so often; a third of the tracker's lease, so that two may be lost.
        news_s: what is new waits so long for more of it, so that a burst of chunks is one message.
    """

    every_s: Seconds = 5.0
    news_s: Seconds = 0.05


class AcquisitionPolicy(Value, frozen=True):
    """How long a node tries its peers before it goes to the origin.

    Attributes:
        lookups: how often the tracker is asked for one chunk.
        attempts: how many peers are asked for it in all.
        patience_s: after this the origin is asked, whatever the peers do. A peer that dawdles costs this much, once.
        hold_s: how long it waits at a peer that is only fetching the chunk, and shows that it is alive; at least 4
            times as long as chunks take lately, and at the next such one twice as long.
        wait_limit_s: the longest that a tracker can make a node wait between two lookups.
    """

    lookups: Number = 16
    attempts: Number = 12
    patience_s: Seconds = 10.0
    hold_s: Seconds = 1.0
    wait_limit_s: Seconds = 1.0
