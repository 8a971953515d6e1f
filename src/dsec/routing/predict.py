"""What a call would meet at a backend: time until its answer begins and ends, its cost, and its chance of success.

    first token  T = network + queue + prefill,      prefill short where the cache holds the prefix
    completion   T + output tokens x time of a token with the calls that would be side by side
    counted      T + crowding x load,                what is compared

The cache is a model of what others did not tell, so each figure is taken for a hit and for a miss and weighed with the
probability h that the cache really holds what it should. Cost and timely success follow as for a route whose requests
hit with that probability (`dsec.costs.routing`); example 11-7 of the chapter is this computation with given times.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs import first_token, model_service, routing, token_prices
from dsec.routing.backend import Backend
from dsec.routing.choice import Prediction
from dsec.routing.policy import RoutingPolicy
from dsec.routing.request import RouteRequest
from dsec.routing.view import BackendView, queue_time_s


@dataclass(frozen=True, slots=True)
class _Way:
    """A call at a backend whose cache does, or does not, hold the prefix."""

    prefill_s: float
    first_token_s: float
    completion_s: float
    call_usd: float | None


def predict(request: RouteRequest, view: BackendView, policy: RoutingPolicy) -> Prediction:
    """Return what a call would meet at a backend."""
    backend = view.backend
    queue_s = queue_time_s(
        slots=backend.limits.slots,
        calls=view.running + view.waiting,
        hold_s=view.hold_s,
        reported_queue_s=view.reported_queue_s,
    )
    share = view.hit_share if view.hit_tokens else 0.0
    hit = _way(request, view, queue_s, view.hit_tokens)
    miss = _way(request, view, queue_s, 0) if view.hit_tokens else hit
    crowding_s = policy.crowding_s * view.fill
    base_s = backend.network_s + queue_s + crowding_s
    call_usd, success_usd, timely = _worth(request, backend, share, hit, miss)
    return Prediction(
        network_s=backend.network_s,
        queue_s=queue_s,
        hit_tokens=view.hit_tokens,
        hit_share=share,
        hit_prefill_s=hit.prefill_s,
        miss_prefill_s=miss.prefill_s,
        first_token_s=mixed(share, hit.first_token_s, miss.first_token_s),
        completion_s=mixed(share, hit.completion_s, miss.completion_s),
        crowding_s=crowding_s,
        counted_s=mixed(share, base_s + hit.prefill_s, base_s + miss.prefill_s),
        call_usd=call_usd,
        success_usd=success_usd,
        timely_success=timely,
    )


def mixed(share: float, on_hit: float, on_miss: float) -> float:
    """Return the mean over hit and miss."""
    return share * on_hit + (1 - share) * on_miss


def _way(request: RouteRequest, view: BackendView, queue_s: float, cached: int) -> _Way:
    backend = view.backend
    prefill_s = backend.prefill_s(request.input_tokens, cached)
    first_s = first_token.time_to_generation_s(
        backend=first_token.Backend(queue_s=queue_s, prefix_s=prefill_s, network_s=backend.network_s)
    )
    beside = view.running + view.waiting + 1
    calls = beside if backend.limits.slots is None else min(beside, backend.limits.slots)
    generation_s = model_service.call_time_s(
        output_tokens=request.output_tokens + request.thinking(backend.thinking_tokens),
        pace_s_per_token=backend.s_per_token(calls),
    )
    return _Way(
        prefill_s=prefill_s,
        first_token_s=first_s,
        completion_s=first_s + generation_s,
        call_usd=_call_usd(request, backend, cached, prefill_s + generation_s),
    )


def _call_usd(request: RouteRequest, backend: Backend, cached: int, hold_s: float) -> float | None:
    """Return the cost of a call by tokens, by time or by both; None where neither has a price.

    A service that sells no cache reads or writes by themselves charges them as ordinary input.
    """
    if backend.prices is None and backend.reserved_usd_per_h is None:
        return None
    usd = 0.0
    if backend.prices is not None:
        prices = backend.prices
        read = cached if prices.cache_read_usd_per_mtoken is not None else 0
        new = request.input_tokens - read
        written = 0
        if prices.cache_write_usd_per_mtoken is not None:
            written = min(max(request.cacheable_tokens - cached, 0), new)
        if prices.input_usd_per_mtoken is None or prices.output_usd_per_mtoken is None:
            return None
        usd = token_prices.call_cost(
            prices=prices,
            input_tokens=new - written,
            cache_write_tokens=written,
            cache_read_tokens=read,
            thinking_tokens=request.thinking(backend.thinking_tokens),
            visible_tokens=request.output_tokens,
        ).total_usd
    if backend.reserved_usd_per_h is not None:
        occupied = model_service.call_gpu_s(call_s=hold_s, gpus_per_replica=1, sessions=backend.limits.slots or 1)
        usd += model_service.call_usd(call_gpu_s=occupied, price_usd_per_gpu_h=backend.reserved_usd_per_h)
    return usd


def _worth(
    request: RouteRequest, backend: Backend, share: float, hit: _Way, miss: _Way
) -> tuple[float | None, float | None, float]:
    """Return cost of a call, cost of a success, and the share of successes in time."""
    route = routing.Route(
        hit_cost_usd=hit.call_usd or 0.0,
        miss_cost_usd=miss.call_usd or 0.0,
        hit_success=backend.success,
        miss_success=backend.success,
        hit_time_s=hit.completion_s,
        miss_time_s=miss.completion_s,
    )
    point = routing.route_at(route=route, hit_rate=share, deadline_s=request.complete_within_s)
    if hit.call_usd is None:
        return None, None, point.timely_share
    return point.call_cost_usd, point.success_cost_usd, point.timely_share
