"""The contract by which a node is seen among its peers and emptied, beside `dsec.service.port.SandboxService`.

`dsec.node.fleet.fleet.Fleet` implements it on a host, `dsec.sdk.fleet.HttpFleet` against a server. How two nodes move a
sandbox is between them (`dsec.service.peers`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from dsec.model.fleet import DrainEvent, DrainRequest, FleetInfo


class FleetService(Protocol):
    """See a node among its peers, and empty it."""

    async def look(self) -> FleetInfo:
        """Ask every peer how full it is; one that does not answer says so in its place."""

    def drain(self, request: DrainRequest = DrainRequest()) -> AbstractAsyncContextManager[AsyncIterator[DrainEvent]]:
        """Take no more sandboxes, empty the pools, and move every sandbox to a peer that takes it.

        Progress comes first, the report last; leaving does not stop it. The node stays drained, also after a restart,
        until `undo_drain`. A sandbox that no peer takes goes on here and is in the report; asking again does what is
        left.

        Raises:
            InvalidRequestError: a node is named that is no peer, or a figure is out of range. Nothing has begun.
        """

    async def undo_drain(self) -> None:
        """Take sandboxes again, and fill the pools. What moves is moved to its end, and no more after it. Idempotent.
        What moved before stays where it is."""


@runtime_checkable
class HasFleet(Protocol):
    """A service whose node has peers."""

    fleet: FleetService
