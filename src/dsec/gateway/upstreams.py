"""Which driver a backend has, by what is configured."""

from __future__ import annotations

import aiohttp

from dsec.base.errors import CapabilityMissingError
from dsec.gateway.config import Service
from dsec.gateway.http_upstream import HttpUpstream, Secret
from dsec.gateway.upstream import Upstream
from dsec.routing.backend import BackendKind


def upstream_of(service: Service, secret: Secret | None, session: aiohttp.ClientSession) -> Upstream:
    """Return the way to a backend.

    Raises:
        CapabilityMissingError: there is no driver of its kind.
    """
    if service.kind is BackendKind.REPLAY:
        raise CapabilityMissingError(
            f"backend {service.name!r} is of kind {service.kind.value!r}, which this gateway cannot be yet",
            resolution="use a backend of kind openai or anthropic",
        )
    return HttpUpstream(service, secret, session)
