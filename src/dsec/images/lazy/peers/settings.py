"""What a layer daemon is told of its peers (docs/formats/layer-daemon.md)."""

from __future__ import annotations

from dsec.base.errors import InvalidRequestError
from dsec.base.units import GIB
from dsec.distribution.policy import AcquisitionPolicy, SuspicionPolicy, UploadPolicy
from dsec.images.lazy.peers.calling import address_of
from dsec.images.lazy.peers.source import PeerOptions
from dsec.model.peer import Peer, parse_peers
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


def parse_tracker(text: str) -> Peer:
    """Read the setting `tracker`.

    Raises:
        InvalidRequestError: it is not one ``ID=URL``.
    """
    peers = parse_peers(text)
    if len(peers) != 1:
        raise InvalidRequestError(
            f"the tracker is one node, and {text[:100]!r} names {len(peers)}",
            resolution="write ID=URL, such as k3x9a=http://10.0.0.2:8620",
        )
    address_of(peers[0].url)
    return peers[0]


def parse_listen(text: str) -> tuple[str, int]:
    """Read the setting `peer_listen`: a host, and a port (0: any free one).

    Raises:
        InvalidRequestError: it is no address, or one at which others cannot be sent to this node.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isdecimal() and int(port) < 1 << 16):
        raise InvalidRequestError(
            f"{text[:100]!r} is no address to listen on", resolution="write HOST:PORT, such as 10.0.0.2:8621"
        )
    if host in ("0.0.0.0", "::"):
        raise InvalidRequestError(
            f"{text[:100]!r} is no address that peers can be told", resolution="name the host's own address"
        )
    return host, int(port)
