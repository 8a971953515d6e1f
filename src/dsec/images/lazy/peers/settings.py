"""What a layer daemon is told of its peers (docs/formats/layer-daemon.md)."""

from __future__ import annotations

from dsec.base.units import GIB
from dsec.distribution.policy import AcquisitionPolicy, SuspicionPolicy, UploadPolicy
from dsec.images.lazy.peers.source import PeerOptions
from dsec.model.value import Value


class PeerSettings(Value, frozen=True):
    """How a node takes part in giving and taking chunks.

    Attributes:
        node: its id.
        secret_file: what the nodes of the fleet share.
        tracker: whom it asks who has what, as ``ID=URL``.
        listen: ``HOST:PORT`` at which it gives chunks, an address that its peers reach; empty: it gives none.
        uploads: how much it gives.
        acquisition: how long it asks peers before it asks an origin.
        suspicion: when it does not ask one any more.
        stall_s: the longest wait for the next bytes of a peer.
        shelf_bytes: stored chunks that are kept for others.
    """

    node: str
    secret_file: str
    tracker: str
    listen: str = ""
    uploads: UploadPolicy = UploadPolicy()
    acquisition: AcquisitionPolicy = AcquisitionPolicy()
    suspicion: SuspicionPolicy = SuspicionPolicy()
    stall_s: float = 1.0
    shelf_bytes: int = 1 * GIB

    def asking(self) -> PeerOptions:
        """Return how peers are asked."""
        return PeerOptions(acquisition=self.acquisition, suspicion=self.suspicion, stall_s=self.stall_s)
