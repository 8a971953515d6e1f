"""The contract between two nodes by which a sandbox moves (docs/formats/migration.md, `dsec.lifecycle.migration`).

`Peer` is what one node can ask of another. The receiving half of a node implements it (`Node.migrations`), a driver
carries it over a network, and in a test two nodes hold each other's directly. `Peers` finds one.

What every driver holds to:

- **A message that fails has no outcome.** `NodeUnavailableError` says that the answer is not known: the other side may
  have acted. The protocol is made for that; a driver repeats nothing by itself.
- **Refusals travel.** What the other node raises is raised here as the same error with the same words.
- **Cancellation** ends the wait for the answer, not what the other side does. A cancelled `round` also breaks its
  stream off, so that the other side discards what it has of the migration.
- **Bounds.** A driver gives up a message that makes no progress for a time (settings), and never buffers a round: who
  receives slowly slows the sender down.
- Both sides are nodes of one owner: a driver authenticates each to the other before the first message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dsec.base.errors import InvalidRequestError
from dsec.placement.view import NodeView
from dsec.service.content import ByteStream
from dsec.service.migration import (
    MigrationAccepted,
    MigrationCommit,
    MigrationOffer,
    MigrationRound,
    MigrationStatus,
    ReleaseAnswer,
    RoundReceipt,
)


class Peer(Protocol):
    """Another node, as a migration sees it.

    Attributes:
        node: its id; empty: not known before it answered.
        url: where clients reach it; empty: nowhere (two nodes in one process).
    """

    node: str
    url: str

    async def offer(self, offer: MigrationOffer) -> MigrationAccepted:
        """Ask whether the node takes a sandbox. When it says so, it has written down that it receives (`receiving`),
        and keeps a place for it until its lease ends.

        Raises:
            ImageNotFoundError: it has not all layers; names the digests.
            AlreadyExistsError: it has a sandbox of this id, or knows this migration.
            CapabilityMissingError: it cannot read the encoding, or enforce what the spec asks for.
            InvalidRequestError: another version of the protocol, or an offer that contradicts itself.
            NodeUnavailableError, HostDiskFullError, HostOutOfMemoryError: it is full, or cannot be reached.
        """

    async def round(self, migration_id: str, head: MigrationRound, content: ByteStream) -> RoundReceipt:
        """Send one increment. The node has applied all of it when this returns.

        After any error the source gives the migration up, and so has the node by itself, but for `InvalidStateError`:
        half a round cannot be repeated. The content is closed in every case.

        Raises:
            InvalidStateError: it is not the next round, or the migration is unknown there. Nothing was taken.
            InvalidRequestError: the content is no stream of the encoding, or leaves its bounds.
            SandboxDiskFullError, HostDiskFullError: no room for it.
        """

    async def commit(self, migration_id: str, commit: MigrationCommit) -> None:
        """Have the node prepare: the copy is made, launched, and given what its hook exported; it is not served. May
        be repeated.

        Raises:
            InvalidStateError: rounds are missing, or the migration is unknown there.
            HookFailedError, RuntimeFailedError: it cannot be launched there; nothing of it is left.
        """

    async def release(self, migration_id: str) -> ReleaseAnswer:
        """Hand the sandbox over: it is served there when this returns. Repeated until it is acknowledged.

        Raises:
            InvalidStateError: it is not prepared there, which a source that keeps to the protocol never sees.
        """

    async def abort(self, migration_id: str) -> None:
        """Have the node forget the migration. Best effort; of an unknown one, no error.

        Raises:
            InvalidStateError: it is done; nothing is undone.
        """

    async def status(self, migration_id: str) -> MigrationStatus:
        """Ask how a migration stands there, as its source or as its target. An unknown one was given up. To a target
        this is also a sign of life of its source, which keeps the lease."""

    async def view(self) -> NodeView:
        """Ask how full the node is, and whether it takes sandboxes. Changes nothing; may be repeated."""


@runtime_checkable
class HasPeerSide(Protocol):
    """A service whose node answers its peers."""

    migrations: Peer


class Peers(Protocol):
    """The other nodes that this one may move sandboxes to, and take them from."""

    def known(self) -> Sequence[Peer]:
        """Return all of them, in the order of the settings; nothing is asked of any."""

    async def find(self, node: str) -> Peer:
        """Return the peer of this id or URL.

        Raises:
            InvalidRequestError: it is not among the peers in this node's settings.
            NodeUnavailableError: none of those that could be it answers.
        """


class NoPeers:
    """The `Peers` of a node that has none."""

    def known(self) -> Sequence[Peer]:
        return ()

    async def find(self, node: str) -> Peer:
        raise InvalidRequestError(
            f"{node[:200]!r} is not a peer of this node: it has none",
            detail="one that was started in the background for a command has none either, whatever its settings say",
            resolution="name it in this node's setting `peers`, and serve it with `dsec up`, where peers reach it",
        )
