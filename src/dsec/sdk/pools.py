"""Pools of ready sandboxes, of a node in this process or of a server elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.api import wire
from dsec.base.errors import CapabilityMissingError
from dsec.model.event import NodeEvent
from dsec.model.pool import PoolChange, PoolInfo
from dsec.model.sandbox import SandboxSpec
from dsec.sdk.http import HttpService
from dsec.service.pools import HasPools, PoolService
from dsec.service.port import SandboxService


class HttpPools:
    """The `PoolService` of a server. Belongs to the event loop of its `HttpService`."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def list_pools(self) -> Sequence[PoolInfo]:
        infos: Sequence[PoolInfo] = await self._service._call("list_pools")
        return infos

    async def set_pool(self, spec: SandboxSpec, change: PoolChange = PoolChange()) -> PoolInfo:
        info: PoolInfo = await self._service._call("set_pool", wire.SetPoolRequest(spec=spec, change=change))
        return info

    async def remove_pool(self, name: str) -> None:
        await self._service._call("remove_pool", pool_id=name)

    async def events(self, *, since_s: float = 0.0, task: str = "") -> Sequence[NodeEvent]:
        query = [("since_s", f"{since_s!r}"), ("task", task)]
        events: Sequence[NodeEvent] = await self._service._call("events", query=query)
        return events


def pools_of(service: SandboxService) -> PoolService:
    """Return the pools behind a service.

    Raises:
        CapabilityMissingError: there are none.
    """
    if isinstance(service, HttpService):
        return HttpPools(service)
    if isinstance(service, HasPools):
        return service.pools
    raise CapabilityMissingError("this service keeps no pools", resolution="talk to a node")
