"""The door for a node's peers, where it has any; what opens it is `dsec.model.peer_proof`."""

from __future__ import annotations

from dsec.base.errors import CapabilityMissingError
from dsec.model.peer_proof import PeerGate


def open_gate(gate: PeerGate | None) -> PeerGate:
    """Return the gate of a server.

    Raises:
        CapabilityMissingError: it has none.
    """
    if gate is None:
        raise CapabilityMissingError(
            "this node has no peers", resolution="name them in its setting `peers`, and serve it with `dsec up`"
        )
    return gate
