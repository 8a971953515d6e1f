"""The receiving half of a migration: what this node answers its peers.

Order (docs/formats/migration.md): the journal says `receiving`, a place is taken, and the offer is accepted; rounds are
applied to layers that nobody is served from; at the commit the copy is launched, fenced, and the journal says
`prepared`; at the release it says `done`, and the sandbox is ready. Before `prepared` an error, a silence longer than
the lease or a restart discards everything. After it only the source's decision does, and it is asked for that.
"""

from __future__ import annotations

from dsec.base.errors import CapabilityMissingError
from dsec.node.core import Core
from dsec.node.lifetimes import Lifetimes
from dsec.node.view import view_of
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


class Migrations:
    """What a node lets its peers do: implements `dsec.service.peers.Peer`, whose docstrings are the contract.

    A server hands the messages of authenticated peers to these methods, one call each. Messages of one migration are
    answered in the order of their arrival; those of several run side by side. Cancelling `round` breaks the migration
    off; the other methods finish although their caller is gone.

    Attributes:
        node: this node's id.
        url: empty: a node does not know under which name its peers reach it.
    """

    def __init__(self, core: Core, lifetimes: Lifetimes) -> None:
        self._core = core
        self._lifetimes = lifetimes
        self.node = core.parts.node_id
        self.url = ""

    async def offer(self, offer: MigrationOffer) -> MigrationAccepted:
        raise CapabilityMissingError("this node receives no sandboxes yet")

    async def round(self, migration_id: str, head: MigrationRound, content: ByteStream) -> RoundReceipt:
        raise CapabilityMissingError("this node receives no sandboxes yet")

    async def commit(self, migration_id: str, commit: MigrationCommit) -> None:
        raise CapabilityMissingError("this node receives no sandboxes yet")

    async def release(self, migration_id: str) -> ReleaseAnswer:
        raise CapabilityMissingError("this node receives no sandboxes yet")

    async def abort(self, migration_id: str) -> None:
        raise CapabilityMissingError("this node receives no sandboxes yet")

    async def status(self, migration_id: str) -> MigrationStatus:
        raise CapabilityMissingError("this node receives no sandboxes yet")

    async def view(self) -> NodeView:
        return view_of(self._core)
