"""What a successful answer costs on a route whose prefix cache hits sometimes, and how often answers come in time.

With the hit rate h, cost c_h and success s_h of a hit, and c_m, s_m of a miss, one successful answer costs on average

    C(h) = (h c_h + (1 - h) c_m) / (h s_h + (1 - h) s_m),

and the share of requests that succeed in time is

    P(h) = h s_h [t_h <= D] + (1 - h) s_m [t_m <= D].

Both are solved for h in closed form, since numerator and denominator are linear in it. With s_h = s_m, success does
not depend on the cache. Source: the chapter, example 11-7, figures 11-40 and 11-41, exercise 11-7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_not_negative, check_positive, check_probability


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A model service as one kind of request sees it.

    Attributes:
        hit_cost_usd: cost of a call whose prefix is cached.
        miss_cost_usd: cost of a call whose prefix is not.
        hit_success: probability that a hit passes the acceptance rule.
        miss_success: the same for a miss.
        hit_time_s: time of the whole request on a hit, queue and generation included.
        miss_time_s: the same on a miss.
    """

    hit_cost_usd: float
    miss_cost_usd: float
    hit_success: float
    miss_success: float
    hit_time_s: float = 0.0
    miss_time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePoint:
    """A route at one hit rate.

    Attributes:
        call_cost_usd: mean cost of a call.
        success_share: share of calls that pass.
        success_cost_usd: cost of one that passes.
        timely_share: share of calls that pass in time.
        timely_success_cost_usd: cost of one that passes in time; infinite when none does.
    """

    call_cost_usd: float
    success_share: float
    success_cost_usd: float
    timely_share: float
    timely_success_cost_usd: float


def _check(route: Route) -> None:
    check_not_negative("hit_cost_usd", route.hit_cost_usd, "USD")
    check_not_negative("miss_cost_usd", route.miss_cost_usd, "USD")
    check_probability("hit_success", route.hit_success)
    check_probability("miss_success", route.miss_success)
    check_not_negative("hit_time_s", route.hit_time_s, "s")
    check_not_negative("miss_time_s", route.miss_time_s, "s")


def _mixed(hit_rate: float, on_hit: float, on_miss: float) -> float:
    return hit_rate * on_hit + (1 - hit_rate) * on_miss


def _timely(route: Route, deadline_s: float | None) -> tuple[float, float]:
    if deadline_s is None:
        return route.hit_success, route.miss_success
    check_positive("deadline_s", deadline_s, "s")
    return (
        route.hit_success if route.hit_time_s <= deadline_s else 0.0,
        route.miss_success if route.miss_time_s <= deadline_s else 0.0,
    )


def success_cost_usd(*, route: Route, hit_rate: float) -> float:
    """Return the mean cost of one successful answer.

    Raises:
        InvalidRequestError: an input is out of range, or nothing succeeds at all.

    Formula:
        C(h) = (h · c_h + (1 - h) · c_m) / (h · s_h + (1 - h) · s_m)

    Source:
        the chapter, example 11-7 and exercise 11-7
    """
    _check(route)
    check_probability("hit_rate", hit_rate)
    success = _mixed(hit_rate, route.hit_success, route.miss_success)
    if success == 0:
        raise InvalidRequestError(
            "the route has no successful answer at this hit rate",
            detail=f"hit rate {hit_rate:g}, success {route.hit_success:g} on hits, {route.miss_success:g} on misses",
            resolution="a cost for each success exists only where something succeeds",
        )
    return _mixed(hit_rate, route.hit_cost_usd, route.miss_cost_usd) / success


def route_at(*, route: Route, hit_rate: float, deadline_s: float | None = None) -> RoutePoint:
    """Return cost and success of a route at one hit rate.

    Args:
        route: costs, success and times of hits and misses.
        hit_rate: share of requests whose prefix is cached.
        deadline_s: until when a whole request has to be done (an answer at the deadline is in time); absent: any time.

    Raises:
        InvalidRequestError: an input is out of range, or nothing succeeds at all.

    Formula:
        C(h) as in success_cost_usd,   P(h) = h · s_h · [t_h ≤ D] + (1 - h) · s_m · [t_m ≤ D]

    Source:
        the chapter, example 11-7
    """
    per_success = success_cost_usd(route=route, hit_rate=hit_rate)
    call_cost_usd = _mixed(hit_rate, route.hit_cost_usd, route.miss_cost_usd)
    timely = _mixed(hit_rate, *_timely(route, deadline_s))
    return RoutePoint(
        call_cost_usd=call_cost_usd,
        success_share=_mixed(hit_rate, route.hit_success, route.miss_success),
        success_cost_usd=per_success,
        timely_share=timely,
        timely_success_cost_usd=call_cost_usd / timely if timely else math.inf,
    )


def hit_rate_for_cost(*, route: Route, target_usd: float) -> float:
    """Return the hit rate from which on a successful answer costs at most `target_usd`.

    Args:
        route: costs and success of hits and misses.
        target_usd: cost of a successful answer elsewhere.

    Returns:
        The least h such that the route is as cheap from h up to 1; infinite when it is dearer even at 1.

    Raises:
        InvalidRequestError: an input is out of range.

    Formula:
        h = (c_m - C · s_m) / ((c_m - C · s_m) - (c_h - C · s_h)), at least 0

    Source:
        the chapter, example 11-7
    """
    _check(route)
    check_positive("target_usd", target_usd, "USD")
    excess_miss = route.miss_cost_usd - target_usd * route.miss_success
    excess_hit = route.hit_cost_usd - target_usd * route.hit_success
    if excess_hit > 0:
        return math.inf
    return max(excess_miss / (excess_miss - excess_hit), 0.0) if excess_miss > excess_hit else 0.0


def hit_rate_for_deadline(*, route: Route, deadline_s: float, target_share: float) -> float:
    """Return the least hit rate at which `target_share` of the requests succeed in time.

    Args:
        route: success and times of hits and misses.
        deadline_s: until when a whole request has to be done.
        target_share: share of all requests.

    Returns:
        The least h, 0 when even misses do; infinite when the share is not reached even where all hit.

    Raises:
        InvalidRequestError: an input is out of range.

    Formula:
        h = (target - P(0)) / (P(1) - P(0)), at least 0

    Source:
        the chapter, example 11-7 and exercise 11-7
    """
    _check(route)
    check_probability("target_share", target_share)
    on_hit, on_miss = _timely(route, deadline_s)
    if on_hit < target_share:
        return math.inf
    return max((target_share - on_miss) / (on_hit - on_miss), 0.0) if on_hit > on_miss else 0.0
