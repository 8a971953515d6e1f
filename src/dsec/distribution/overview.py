"""What a tracker knows, in values for people."""

from __future__ import annotations

from dsec.model.value import Value


class TrackerStatistics(Value, frozen=True):
    """What a tracker knows and did.

    Attributes:
        nodes: with a lease.
        layers: that some node has all of.
        chunks, entries: that are listed one by one, and at how many nodes in all.
        flights: chunks under way.
        lookups, chunks_asked: questions, and chunks in them.
        sent_to_peers, sent_to_origin, told_to_wait: what the answers were.
        quarantined: peers that nothing is taken from.
    """

    nodes: int
    layers: int
    chunks: int
    entries: int
    flights: int
    lookups: int
    chunks_asked: int
    sent_to_peers: int
    sent_to_origin: int
    told_to_wait: int
    quarantined: tuple[str, ...]


class PeerLayer(Value, frozen=True):
    """What a node has of one layer.

    Attributes:
        layer: name of its manifest.
        chunks: how many of its chunks, where it has not got all.
        complete: whether it has all.
    """

    layer: str
    chunks: int
    complete: bool


class PeerStatus(Value, frozen=True):
    """What a tracker knows of one node, for people.

    Attributes:
        node, address: who, and where.
        lease_s: how long it is remembered if it says nothing.
        upload_bytes_per_s, upload_slots: what it says it sends.
        uploads: what it carries out, by its own word or the tracker's, whichever is more.
        quarantined: whether nothing is taken from it.
        distrusted: whether its accusations count for itself only.
        layers: what it has.
    """

    node: str
    address: str
    lease_s: float
    upload_bytes_per_s: int
    upload_slots: int
    uploads: int
    quarantined: bool
    distrusted: bool
    layers: tuple[PeerLayer, ...]
