"""What a scheduler decides: a placement, or a refusal that says why."""

from __future__ import annotations

import enum

import msgspec

from dsec.base.errors import CapabilityMissingError, DsecError, NodeUnavailableError


class Reason(enum.Enum):
    """Why this node."""

    CHOICE = "choice"  # The least loaded of a few random ones.
    HOME = "home"  # The task's other sandboxes are there.
    SPILL = "spill"  # Away from a home that is too loaded.
    SCAN = "scan"  # The random ones were full; every node was looked at.
    AGAIN = "again"  # The same node, tried once more.


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Create this sandbox on this node.

    Attributes:
        sandbox_id: the sandbox.
        node: id of the node.
        number: 1 for the first node that is asked, 2 for the next.
        load: the node's load with this sandbox, as far as the scheduler knows; 1 is full.
        reason: why this node.
        repeated: whether this is the answer to a request that had been placed already.
    """

    sandbox_id: str
    node: str
    number: int
    load: float
    reason: Reason
    repeated: bool = False


class Why(enum.Enum):
    """What kind of refusal."""

    EMPTY = "empty"  # No node is known.
    INCAPABLE = "incapable"  # No node could ever hold it.
    UNOFFERED = "unoffered"  # Those that could are closed, draining, failed, lost or suspended.
    FULL = "full"  # Those that could are full.
    REJECTED = "rejected"  # As many nodes as are tried refused it.


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """No node for this sandbox now.

    Attributes:
        sandbox_id: the sandbox.
        why: the kind of refusal.
        brief: one line for people.
        detail: the closest misses.
        tried: nodes that rejected it, in order.
    """

    sandbox_id: str
    why: Why
    brief: str
    detail: str = ""
    tried: tuple[str, ...] = ()

    @property
    def retryable(self) -> bool:
        """Whether waiting may help; more or other nodes are needed where it does not."""
        return self.why is not Why.INCAPABLE

    def error(self) -> DsecError:
        """Return the refusal as an error: the caller's when no node could ever hold it, the platform's otherwise."""
        if self.why is Why.INCAPABLE:
            return CapabilityMissingError(
                self.brief, detail=self.detail, resolution="ask for less, or add a node that has what is missing"
            )
        return NodeUnavailableError(
            self.brief, detail=self.detail, resolution="try again later, stop sandboxes, or add nodes"
        )


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """Withdraw the claim on this sandbox on this node: it is not, or no longer, meant to be there.

    The node removes it when nobody else has a claim (`dsec.placement.ledger`). If it comes from a verdict on
    duplicates, the node removes it whoever has one.

    Attributes:
        sandbox_id: the sandbox.
        node: where it is or may be.
        reason: why it must go.
    """

    sandbox_id: str
    node: str
    reason: str
