"""What a layer daemon says of its peers."""

from __future__ import annotations

from dsec.model.value import Value


class PeersReport(Value, frozen=True):
    """What a layer daemon took from peers and gave to them, since its server began.

    Attributes:
        node: this node's id.
        address: where it gives chunks; empty: nowhere, or not at the moment.
        sending, waiting: transfers to peers under way, and peers that wait for one.
        sent_bytes, refused: what was sent to them, and how many requests were sent away.
        chunks, received_bytes: what came from them, as stored.
        failures: how often one failed, by kind (`dsec.distribution.messages.FailureKind`).
    """

    node: str
    address: str = ""
    sending: int = 0
    waiting: int = 0
    sent_bytes: int = 0
    refused: int = 0
    chunks: int = 0
    received_bytes: int = 0
    failures: dict[str, int] = {}
