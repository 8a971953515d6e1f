"""Telling a node what comes next, of a node in this process or of a server elsewhere."""

from __future__ import annotations

from dsec.base.errors import CapabilityMissingError
from dsec.distribution.prefetch import PrefetchProgress
from dsec.model.prefetch import PrefetchHint
from dsec.sdk.http import HttpService
from dsec.service.port import SandboxService
from dsec.service.prefetch import HasPrefetch, PrefetchService


class HttpPrefetches:
    """The `PrefetchService` of a server. Belongs to the event loop of its `HttpService`."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def hint(self, hint: PrefetchHint) -> PrefetchProgress:
        progress: PrefetchProgress = await self._service._call("prefetch", hint)
        return progress


def prefetches_of(service: SandboxService) -> PrefetchService:
    """Return who is told what comes next, behind a service.

    Raises:
        CapabilityMissingError: nobody is.
    """
    if isinstance(service, HttpService):
        return HttpPrefetches(service)
    if isinstance(service, HasPrefetch):
        return service.prefetch
    raise CapabilityMissingError("this service prefetches nothing", resolution="talk to a node")
