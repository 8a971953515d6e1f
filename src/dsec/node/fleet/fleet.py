"""A node among its peers: implements `dsec.service.fleet.FleetService`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from dsec.model.fleet import DrainEvent, DrainRequest, FleetInfo
from dsec.node.core import Core
from dsec.node.fleet.balance import Balance
from dsec.node.fleet.drain import Drain
from dsec.node.fleet.moving import Migrate
from dsec.node.fleet.targets import ask, others
from dsec.node.view import view_of
from dsec.placement.load import load_of
from dsec.placement.view import Health


class Fleet:
    """See this node among its peers, empty it, and balance it.

    Args:
        core: the node's inner state.
        migrate: moves one sandbox of this node to one peer.
    """

    def __init__(self, core: Core, migrate: Migrate) -> None:
        self._core = core
        self._drain = Drain(core, migrate, self._drain_changed)
        self._balance = Balance(core, migrate)

    def open(self) -> None:
        """Take up what an earlier node left: before pools fill and before anything is admitted."""
        self._drain.read()

    async def run(self) -> None:
        """Balance, where the settings ask for it, for ever."""
        await self._balance.run()

    async def look(self) -> FleetInfo:
        self._core.check_open()
        view = view_of(self._core)
        seen = await ask(self._core, others(self._core))
        return FleetInfo(
            node=view.node,
            draining=view.health is Health.DRAINING,
            takes=view.health is Health.ACCEPTING,
            load=load_of(view.used, view.capacity),
            sandboxes=view.used.sandboxes,
            detail=view.note,
            peers=tuple(each.info() for each in seen),
        )

    def drain(self, request: DrainRequest = DrainRequest()) -> AbstractAsyncContextManager[AsyncIterator[DrainEvent]]:
        return self._drain.drain(request)

    async def undo_drain(self) -> None:
        self._core.check_open()
        self._drain.undo()

    def _drain_changed(self) -> None:
        if self._core.pools is not None:
            self._core.pools.refresh()
