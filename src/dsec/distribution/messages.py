"""What nodes and a tracker say to each other. Values only; how they travel is the shell's business.

A tracker remembers nothing across its death. Each node tells it what it has: once in full, then in deltas with growing
numbers. A tracker that missed one, or has just begun, asks for everything again (`Acknowledgement.resend`). All that it
knows is therefore hearsay and may be old: a peer that has not got what it is asked for says so, and whoever gets a
chunk verifies it.

The node in each message is who sent it *as its shell has proved it*; nothing here can tell whether that is so.
"""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from dsec.model.value import Value

MAXIMUM_CHANGES = 4096
MAXIMUM_CHUNKS_A_LOOKUP = 256
MAXIMUM_FAILURES = 256

Name = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
"""Of a chunk or a manifest: its BLAKE3, in hexadecimal digits. Checked where a message is decoded."""
NodeName = Annotated[str, Meta(min_length=1, max_length=64)]
Count = Annotated[int, Meta(ge=0, lt=1 << 48)]


class LayerChange(Value, frozen=True):
    """What changed of one layer at one node.

    Attributes:
        layer: name of its manifest.
        complete: whether all of its chunks are there now; says more than any list, and replaces it.
        gone: whether nothing that was said of it before is so any more; `gained` is then all that is there.
        gained, lost: names of chunks that came and went.
    """

    layer: Name
    complete: bool = False
    gone: bool = False
    gained: tuple[Name, ...] = ()
    lost: tuple[Name, ...] = ()


class Announcement(Value, frozen=True):
    """What a node has, and how much it can send.

    Attributes:
        node: its id.
        address: where its chunks are had; what it means, the shells know.
        life: drawn anew whenever the node's process begins; numbers count within one.
        sequence: 1 for the first of a life, one more with each; one that is sent again has its old number.
        full: whether this is everything; otherwise only what changed since the one before.
        upload_bytes_per_s: what it is willing to send, at most.
        upload_slots: transfers that it carries out at a time; 0: it sends nothing.
        uploads: transfers that it carries out now.
        changes: each layer at most once.
    """

    node: NodeName
    address: Annotated[str, Meta(max_length=256)]
    life: Annotated[str, Meta(max_length=64)]
    sequence: Annotated[int, Meta(ge=1)]
    full: bool = False
    upload_bytes_per_s: Count = 0
    upload_slots: Count = 0
    uploads: Count = 0
    changes: Annotated[tuple[LayerChange, ...], Meta(max_length=MAXIMUM_CHANGES)] = ()


class Acknowledgement(Value, frozen=True):
    """A tracker's answer to an announcement.

    Attributes:
        resend: whether the next one must be full: something before this one never arrived.
        lease_s: what was announced is forgotten after this, unless another announcement comes.
        news_s: what is new next is to wait so long for more of it: the more nodes there are, the longer.
        unlisted: chunks that there was no room to remember; nobody will ask for them.
    """

    resend: bool = False
    lease_s: float = 0.0
    news_s: float = 0.0
    unlisted: int = 0


class FailureKind(enum.Enum):
    """How a peer failed."""

    WRONG = "wrong"
    """What it gave did not verify."""
    UNREACHABLE = "unreachable"
    """Nobody answered there."""
    STALLED = "stalled"
    """It answered, and did not come to an end in time."""
    MISSING = "missing"
    """It says that it has not got the chunk. Not its fault: what the tracker knows is old."""
    BUSY = "busy"
    """It refused, as it sends as much as it will. Not its fault."""
    BROKEN = "broken"
    """It passed a chunk on while it got it itself, and not to the end. Anybody through whom it came may be at fault."""


class Failure(Value, frozen=True):
    """One peer that failed to give one chunk."""

    peer: NodeName
    chunk: Name
    kind: FailureKind


class Lookup(Value, frozen=True):
    """Ask who has chunks of a layer. Only what is going to be fetched at once may be asked for: the others are told
    that it will be there shortly.

    Attributes:
        node: who asks.
        layer: name of the manifest that the chunks are of; nodes that have all of it have them.
        chunks: names.
        ahead: names of chunks of the layer that are going to be fetched soon. A message costs the tracker ten times as
            much as a chunk in it, so that asking for each by itself would make it the slowest of all.
        failures: what happened since the last lookup or report; whom they name is not proposed for that chunk again.
    """

    node: NodeName
    layer: Name
    chunks: Annotated[tuple[Name, ...], Meta(max_length=MAXIMUM_CHUNKS_A_LOOKUP)]
    ahead: Annotated[tuple[Name, ...], Meta(max_length=MAXIMUM_CHUNKS_A_LOOKUP)] = ()
    failures: Annotated[tuple[Failure, ...], Meta(max_length=MAXIMUM_FAILURES)] = ()


class Report(Value, frozen=True):
    """Failures of peers, told without asking for anything."""

    node: NodeName
    failures: Annotated[tuple[Failure, ...], Meta(max_length=MAXIMUM_FAILURES)]


class Candidate(Value, frozen=True):
    """A peer that may have a chunk.

    Attributes:
        node: its id.
        address: where to ask it.
        pending: whether it is only fetching the chunk itself; it is asked to answer when it has it.
    """

    node: str
    address: str
    pending: bool = False


class Answer(Value, frozen=True):
    """Where one chunk is to be had: exactly one of the three is given.

    Attributes:
        chunk: its name.
        peers: whom to ask, one after the other.
        origin: whether to take it from the origin now; others are being told to wait for it.
        wait_s: ask again after this: those who have it send as much as they can already.
    """

    chunk: str
    peers: tuple[Candidate, ...] = ()
    origin: bool = False
    wait_s: float = 0.0


class LookupReply(Value, frozen=True):
    """A tracker's answer to a lookup.

    Attributes:
        answers: one for each chunk, in the order of the question.
        ahead: those of the chunks asked for ahead that somebody has, and whom to ask. Of the others nothing is said:
            they are asked for again when they are fetched.
        resend: whether the tracker does not know the node, which is to announce itself in full.
    """

    answers: tuple[Answer, ...]
    ahead: tuple[Answer, ...] = ()
    resend: bool = False


class VerdictKind(enum.Enum):
    """What a tracker decided about a node."""

    BLOCK_QUARANTINED = "block_quarantined"
    """One chunk of it is not taken from it."""
    PEER_QUARANTINED = "peer_quarantined"
    """Nothing is taken from it."""
    REPORTER_DISTRUSTED = "reporter_distrusted"
    """What it says of others counts for nobody but itself."""


class Verdict(Value, frozen=True):
    """Something that a tracker decided about a node, for its log.

    Attributes:
        kind: what.
        node: about whom.
        until_s: on the tracker's clock.
        chunk: of which chunk; empty: it is not about one.
        reporters: whose word it rests on.
    """

    kind: VerdictKind
    node: str
    until_s: float
    chunk: str = ""
    reporters: tuple[str, ...] = ()
