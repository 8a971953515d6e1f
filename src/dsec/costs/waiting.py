"""How long work waits at c servers when it arrives at random: M/M/c exactly, M/G/c and G/G/c approximately.

With λ arrivals a second, c servers and a mean service of s seconds, a = λ s servers are busy on average and each is
busy for the share u = a / c of the time. For Poisson arrivals and exponential service (M/M/c) the probability of
waiting at all is Erlang's C, and all waits follow from it:

    B(0) = 1,  B(k) = a B(k-1) / (k + a B(k-1))         Erlang's loss formula, by recursion
    C    = B(c) / (1 - u (1 - B(c)))                    probability of waiting
    W    = C s / (c (1 - u))                            mean wait
    P(wait > t) = C exp(-c (1 - u) t / s)               tail

The recursion neither overflows nor cancels, unlike the textbook's sums of factorials. For other distributions the
wait scales about with the squared coefficients of variation (variance / mean²) of the gaps between arrivals, v_a, and
of the service, v_s:

    W ≈ (v_a + v_s) / 2 · W(M/M/c)

With v_a = 1 this is the M/G/c approximation of Lee and Longton, exact for c = 1 (Pollaczek and Khinchine); otherwise
that of Allen and Cunneen. It is good to a few per cent at high utilisation, where waiting matters, and poorer when u
is low or v_a is far above 1. With v_a = v_s = 0 it says 0, which is right for evenly spaced work as long as u < 1.

At u ≥ 1 there is no mean wait: the queue grows by λ - c / s pieces every second for ever. `OverloadedError` says so.

Assumes one queue, first come first served, that no piece leaves, servers alike, gaps and services independent.

Source: the chapter, section 11.3.2 asks for more than means. A. K. Erlang 1917; A. M. Lee and P. A. Longton,
"Queueing processes associated with airline passenger check-in", 1959; A. O. Allen, "Probability, Statistics and
Queueing Theory", 1990.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count, check_not_negative, check_positive


class OverloadedError(InvalidRequestError):
    """More work arrives than the servers can do: no mean wait exists; the brief says how fast the queue grows."""

    code: ClassVar[str] = "overloaded"


def _overloaded(arrivals_per_s: float, servers: int, service_s: float) -> OverloadedError:
    growth_per_s = arrivals_per_s - servers / service_s
    share = arrivals_per_s * service_s / servers
    enough = math.floor(arrivals_per_s * service_s) + 1
    return OverloadedError(
        f"utilisation is {share:.4g}: the queue grows by {growth_per_s:.4g} pieces a second and never empties",
        detail=f"{arrivals_per_s:g} arrivals/s of {service_s:g} s each on {servers} servers",
        resolution=f"use at least {enough} servers, a service below {servers / arrivals_per_s:.4g} s, "
        f"or fewer than {servers / service_s:.4g} arrivals/s",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a queue does on average.

    Attributes:
        utilisation: share of the time that a server is busy, below 1.
        busy_servers: servers busy on average.
        waits: probability that a piece waits at all.
        mean_wait_s: over all pieces, those that do not wait included.
        mean_queued: pieces waiting on average.
        mean_response_s: wait and service.
    """

    utilisation: float
    busy_servers: float
    waits: float
    mean_wait_s: float
    mean_queued: float
    mean_response_s: float


def utilisation(*, arrivals_per_s: float, servers: int, service_s: float) -> float:
    """Return the share of the servers' time that the work takes; 1 and more means overload.

    Raises:
        InvalidRequestError: a rate, time or number of servers is not above zero.

    Formula:
        u = λ · s / c

    Source:
        the chapter, example 11-1
    """
    check_positive("arrivals_per_s", arrivals_per_s, "1/s")
    check_count("servers", servers)
    return arrivals_per_s * check_positive("service_s", service_s, "s") / servers


def queue_growth_per_s(*, arrivals_per_s: float, servers: int, service_s: float) -> float:
    """Return by how many pieces a second the queue grows; 0 below a utilisation of 1.

    Raises:
        InvalidRequestError: a rate, time or number of servers is not above zero.

    Formula:
        growth = max(λ - c / s, 0)

    Source:
        the chapter, example 11-1
    """
    utilisation(arrivals_per_s=arrivals_per_s, servers=servers, service_s=service_s)
    return max(arrivals_per_s - servers / service_s, 0.0)


def probability_of_waiting(*, arrivals_per_s: float, servers: int, service_s: float) -> float:
    """Return the probability that a piece finds every server busy (M/M/c, Erlang's C).

    Raises:
        OverloadedError: the utilisation is 1 or more.
        InvalidRequestError: a rate, time or number of servers is not above zero.

    Formula:
        C = B(c) / (1 - u · (1 - B(c))),   B(k) = a · B(k-1) / (k + a · B(k-1)),   B(0) = 1,   a = λ · s

    Source:
        A. K. Erlang, 1917
    """
    share = utilisation(arrivals_per_s=arrivals_per_s, servers=servers, service_s=service_s)
    if share >= 1:
        raise _overloaded(arrivals_per_s, servers, service_s)
    offered = arrivals_per_s * service_s
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1 - share * (1 - blocked))


def waiting(
    *,
    arrivals_per_s: float,
    servers: int,
    service_s: float,
    arrival_variation: float = 1.0,
    service_variation: float = 1.0,
) -> Waiting:
    """Return what a queue at some servers does on average.

    Args:
        arrivals_per_s: pieces that arrive.
        servers: how many run at the same time.
        service_s: mean time of a piece.
        arrival_variation: squared coefficient of variation of the gaps; 0 evenly spaced, 1 Poisson, above 1 bursty.
        service_variation: squared coefficient of variation of the service; 0 constant, 1 exponential.

    Raises:
        OverloadedError: the utilisation is 1 or more; it says how fast the queue grows.
        InvalidRequestError: a rate, time or number of servers is not above zero, or a variation is negative.

    Formula:
        W = (v_a + v_s) / 2 · C · s / (c · (1 - u))

    Source:
        A. K. Erlang, 1917; A. M. Lee and P. A. Longton, 1959; A. O. Allen, 1990
    """
    check_not_negative("arrival_variation", arrival_variation)
    check_not_negative("service_variation", service_variation)
    waits = probability_of_waiting(arrivals_per_s=arrivals_per_s, servers=servers, service_s=service_s)
    share = arrivals_per_s * service_s / servers
    wait_s = (arrival_variation + service_variation) / 2 * waits * service_s / (servers * (1 - share))
    return Waiting(
        utilisation=share,
        busy_servers=share * servers,
        waits=waits,
        mean_wait_s=wait_s,
        mean_queued=arrivals_per_s * wait_s,
        mean_response_s=wait_s + service_s,
    )


def probability_of_waiting_longer(*, arrivals_per_s: float, servers: int, service_s: float, than_s: float) -> float:
    """Return the probability of waiting longer than a time, for Poisson arrivals and exponential service (M/M/c).

    Raises:
        OverloadedError: the utilisation is 1 or more.
        InvalidRequestError: a rate, time or number of servers is not above zero, or the time to wait is negative.

    Formula:
        P(wait > t) = C · exp(-c · (1 - u) · t / s)

    Source:
        A. K. Erlang, 1917
    """
    check_not_negative("than_s", than_s, "s")
    waits = probability_of_waiting(arrivals_per_s=arrivals_per_s, servers=servers, service_s=service_s)
    return waits * math.exp(-(servers / service_s - arrivals_per_s) * than_s)


def servers_for_wait(
    *,
    arrivals_per_s: float,
    service_s: float,
    wait_s: float,
    arrival_variation: float = 1.0,
    service_variation: float = 1.0,
) -> int:
    """Return the least number of servers whose mean wait is at most `wait_s`.

    The mean wait falls with every server, so that the least number is found by doubling and halving. The other
    arguments are those of `waiting`.

    Raises:
        InvalidRequestError: a rate or time is not above zero, or a variation is negative.

    Formula:
        least c with W(c) ≤ wait

    Source:
        A. O. Allen, 1990
    """
    check_positive("wait_s", wait_s, "s")
    check_positive("arrivals_per_s", arrivals_per_s, "1/s")
    check_positive("service_s", service_s, "s")

    def suffices(servers: int) -> bool:
        seen = waiting(
            arrivals_per_s=arrivals_per_s,
            servers=servers,
            service_s=service_s,
            arrival_variation=arrival_variation,
            service_variation=service_variation,
        )
        return seen.mean_wait_s <= wait_s

    base = math.floor(arrivals_per_s * service_s)
    low, step = base, 1
    while not suffices(base + step):
        low, step = base + step, step * 2
    enough = base + step
    while enough - low > 1:
        middle = (low + enough) // 2
        low, enough = (low, middle) if suffices(middle) else (middle, enough)
    return enough
