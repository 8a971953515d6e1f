"""Choosing a backend: ask routing, and where it says "not now", wait if that is worth it.

Limits per minute, and backends that are left out for a short while, open again by themselves and are waited for. Full
queues are not: they are bounded so that callers hear of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from dsec.base.clock import Clock
from dsec.base.errors import DsecError, GatewayBusyError, RateLimitedError
from dsec.gateway.call import Call
from dsec.gateway.config import GatewayConfig
from dsec.gateway.failing import ToldError
from dsec.gateway.ledger_record import Considered
from dsec.gateway.line import Line
from dsec.routing.choice import Candidate, Choice, Refusal, Verdict, Why
from dsec.routing.request import RouteRequest
from dsec.routing.router import Router

_LIMITS = frozenset({Verdict.PAUSED, Verdict.REQUESTS, Verdict.TOKENS})
_LOOK_AGAIN_S = 0.05
_RIDDEN_OUT_S = 10.0
"""A backend that is left out for longer is not waited for: the caller is told when to come again."""
_MOST_WAITING = 10_000
"""Calls that wait for a limit or a backend to open; more are refused."""


class Chooser:
    """Chooses backends for calls.

    Args:
        config, lines: what there is.
        router: decides.
        clock: for its time.
    """

    def __init__(self, config: GatewayConfig, lines: Mapping[str, Line], router: Router, clock: Clock) -> None:
        self._router = router
        self._clock = clock
        self._waiting = 0
        most = config.gateway.explained_candidates
        self._explains = {
            name: 1 < sum(line.service.group in config.groups(name) for line in lines.values()) <= most
            for name in router.models
        }

    async def choose(self, call: Call, request: RouteRequest) -> Choice:
        """Return where a call goes, now or as soon as something opens.

        Raises:
            ToldError: nowhere.
        """
        until_s = min(self._clock.boot_s() + call.model.queue_timeout_s, call.deadline_s)
        while True:
            now_s = self._clock.boot_s()
            found = self._decide(request, now_s)
            if isinstance(found, Choice):
                return found
            await self._wait_open(call, found, now_s, until_s)

    def _decide(self, request: RouteRequest, now_s: float) -> Choice | Refusal:
        if not self._explains.get(request.model):
            found = self._router.decide(request, now_s)
            if isinstance(found, Choice) or found.candidates:
                return found
        return self._router.explain(request, now_s)

    async def _wait_open(self, call: Call, refusal: Refusal, now_s: float, until_s: float) -> None:
        """Wait until a limit opens or a backend is tried again, if that is what keeps the call out, and will be soon.

        Raises:
            ToldError: it is not.
        """
        opens_s = _opens_s(refusal, now_s, ill_too=not call.denied)
        if opens_s is None or opens_s > until_s or self._waiting >= _MOST_WAITING:
            hint_s = None if refusal.opens_at_s is None else max(0.0, refusal.opens_at_s - now_s)
            limited = any(one.verdict in _LIMITS for one in refusal.candidates)
            raise ToldError(_refusal_error(refusal, limited=limited), hint_s)
        self._waiting += 1
        try:
            await asyncio.sleep(max(0.005, opens_s - now_s))
        finally:
            self._waiting -= 1


def considered_of(candidates: Sequence[Candidate]) -> tuple[Considered, ...]:
    """Return the backends of a decision as the ledger keeps them."""
    return tuple(
        Considered(
            backend=one.backend,
            verdict=one.verdict.value,
            why=one.why,
            queue_s=one.prediction.queue_s,
            first_token_s=one.prediction.first_token_s,
            completion_s=one.prediction.completion_s,
            hit_tokens=one.prediction.hit_tokens,
            success_usd=one.prediction.success_usd,
        )
        for one in candidates
    )


def _opens_s(refusal: Refusal, now_s: float, *, ill_too: bool) -> float | None:
    """Return when the first limit opens, or a backend that failed is tried again; None if neither will be soon."""
    times = []
    for one in refusal.candidates if refusal.retryable else ():
        if one.verdict in _LIMITS and one.opens_at_s is not None:
            times.append(one.opens_at_s)
        elif one.verdict is Verdict.UNHEALTHY and ill_too:
            # While one call tries a backend, nobody knows how long that takes: look again.
            opens_s = now_s + _LOOK_AGAIN_S if one.opens_at_s is None else one.opens_at_s
            if opens_s - now_s <= _RIDDEN_OUT_S:
                times.append(opens_s)
    return min(times, default=None)


def _refusal_error(refusal: Refusal, *, limited: bool) -> DsecError:
    if refusal.why is Why.EXCLUDED:
        return GatewayBusyError(
            f"no backend of {refusal.model!r} speaks this protocol, or none is left for this call",
            detail=refusal.detail,
            resolution="see `dsec gateway explain`",
        )
    if limited:
        return RateLimitedError(refusal.brief, detail=refusal.detail, resolution="try again later, or add a backend")
    return refusal.error()
