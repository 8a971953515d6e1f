"""What a node says of the others, and how it is emptied."""

from __future__ import annotations

from dsec.model.value import Value


class PeerInfo(Value, frozen=True):
    """A peer, and how it answered.

    Attributes:
        node: the id that the settings give it.
        url: where it was asked.
        answers: whether it did, as this node, and knows the fleet's secret.
        takes: whether it takes sandboxes now.
        load: how full its fullest resource is (`dsec.placement.load`); 1: it is expected to refuse.
        sandboxes: how many live there.
        duration_s: how long its answer took.
        detail: what is wrong with it; empty: nothing.
    """

    node: str
    url: str
    answers: bool
    takes: bool = False
    load: float = 0.0
    sandboxes: int = 0
    duration_s: float = 0.0
    detail: str = ""


class FleetInfo(Value, frozen=True):
    """A node among its peers.

    Attributes:
        node: its id.
        draining: it takes no sandboxes, and gives away those it has.
        takes: whether it takes sandboxes now.
        load, sandboxes, detail: as of a peer.
        peers: the others, in the order of the settings.
    """

    node: str
    draining: bool = False
    takes: bool = True
    load: float = 0.0
    sandboxes: int = 0
    detail: str = ""
    peers: tuple[PeerInfo, ...] = ()


class DrainRequest(Value, frozen=True):
    """Empty a node.

    Attributes:
        to: ids or URLs of the peers that may take its sandboxes; empty: all.
        at_once: sandboxes that move at the same time.
    """

    to: tuple[str, ...] = ()
    at_once: int = 2


class DrainProgress(Value, frozen=True, tag="progress"):
    """How far it is.

    Attributes:
        done, total: sandboxes.
        sandbox_id: the one that was just done; empty at the beginning.
        node: where it went; empty: it is still here.
    """

    done: int
    total: int
    sandbox_id: str = ""
    node: str = ""


class DrainFailure(Value, frozen=True):
    """A sandbox that is still here, and why: the last refusal."""

    sandbox_id: str
    code: str
    brief: str


class DrainReport(Value, frozen=True, tag="report"):
    """How it ended. Asking again does what is left.

    Attributes:
        moved: where each sandbox went, by its id.
        ended: those that ended meanwhile.
        failed: those that are still here.
        duration_s: the whole.
    """

    moved: dict[str, str]
    ended: tuple[str, ...] = ()
    failed: tuple[DrainFailure, ...] = ()
    duration_s: float = 0.0


DrainEvent = DrainProgress | DrainReport
"""What the stream of a drain carries; the last one is the report."""
