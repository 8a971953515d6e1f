"""One backend as the running gateway has it: what is declared, the way there, its slots and its prices."""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.token_prices import TokenPrices
from dsec.gateway.config import Service
from dsec.gateway.flow import Turnstile
from dsec.gateway.tariff import Tariff
from dsec.gateway.upstream import Upstream
from dsec.routing.backend import Backend, Limits, Pace, PrefixCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One backend.

    Attributes:
        service: as configured.
        backend: as routing knows it.
        upstream: the way there.
        turnstile: its slots.
        tariff: its prices.
    """

    service: Service
    backend: Backend
    upstream: Upstream
    turnstile: Turnstile
    tariff: Tariff


def declared(service: Service, prices: TokenPrices | None) -> Backend:
    """Return a backend as routing knows it."""
    cache = service.cache
    return Backend(
        name=service.name,
        group=service.group,
        kind=service.kind,
        model=service.model,
        aliases=service.aliases,
        limits=Limits(
            slots=service.slots,
            waiting=service.waiting,
            context_tokens=service.context_tokens,
            requests_per_minute=service.requests_per_minute,
            tokens_per_minute=service.tokens_per_minute,
        ),
        pace=tuple(Pace(calls=step.calls, s_per_token=step.token_time_s) for step in service.pace),
        prefill_tokens_per_s=service.prefill_tokens_per_s,
        cached_tokens_per_s=service.cached_tokens_per_s,
        network_s=service.network_s,
        prices=prices,
        reserved_usd_per_h=service.reserved_usd_per_h,
        success=service.success,
        cache=PrefixCache(
            capacity_tokens=cache.capacity_tokens, lifetime_s=cache.lifetime_s, minimum_tokens=cache.minimum_tokens
        )
        if service.keeps_prefixes
        else None,
    )
