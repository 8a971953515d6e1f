"""A node among its peers, of a node in this process or of a server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dsec.api import wire
from dsec.base.errors import CapabilityMissingError
from dsec.model.fleet import DrainEvent, DrainRequest, FleetInfo
from dsec.sdk.events import events_of
from dsec.sdk.http import HttpService, encode_body
from dsec.service.fleet import FleetService, HasFleet
from dsec.service.port import SandboxService


class HttpFleet:
    """The `FleetService` of a server. Belongs to the event loop of its `HttpService`."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def look(self) -> FleetInfo:
        info: FleetInfo = await self._service._call("fleet")
        return info

    @asynccontextmanager
    async def drain(self, request: DrainRequest = DrainRequest()) -> AsyncIterator[AsyncIterator[DrainEvent]]:
        async with self._service._stream("drain", (), encode_body(request)) as reply:
            yield events_of(reply, wire.DrainStreamEvent)

    async def undo_drain(self) -> None:
        await self._service._call("undo_drain")


def fleet_of(service: SandboxService) -> FleetService:
    """Return a service's node among its peers.

    Raises:
        CapabilityMissingError: it is no node.
    """
    if isinstance(service, HttpService):
        return HttpFleet(service)
    if isinstance(service, HasFleet):
        return service.fleet
    raise CapabilityMissingError("this service has no peers", resolution="talk to a node")
