"""What waits when work arrives together: exact first-come-first-served waits on c servers.

A mean says how long the servers work; the order of arrivals says how long each piece waits. A burst of n pieces of s
seconds on c idle servers runs in waves of c:

    wait of the i-th piece (i = 0, 1, …)   floor(i / c) · s
    waves                                  k = ceil(n / c)
    makespan                               k · s
    mean wait                              s · [ c · k (k - 1) / 2 - (k c - n)(k - 1) ] / n

The bracket counts waits wave by wave: c pieces in each of k waves, less the places of the last wave that stay empty.
For arbitrary arrivals and service times `queue_run` plays the queue itself (`dsec.costs.first_come`). A burst that
repeats every T seconds stays exact as long as it is over before the next one comes, k · s ≤ T.

Assumes that the servers are idle when the burst comes and that no piece is abandoned. Source: the chapter, section
11.3.2, figures 11-26 and 11-27.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count, check_not_empty, check_not_negative, check_positive
from dsec.costs.first_come import serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """How a burst is worked off.

    Attributes:
        at_once: pieces that start at once.
        waiting: pieces that wait first.
        waves: times that the servers start together.
        mean_wait_s: over all pieces, those that do not wait included.
        longest_wait_s: wait of the last piece.
        makespan_s: from the arrival to the end of the last piece.
    """

    at_once: int
    waiting: int
    waves: int
    mean_wait_s: float
    longest_wait_s: float
    makespan_s: float


def burst(*, pieces: int, servers: int, service_s: float) -> Burst:
    """Return how a burst of equal pieces runs on idle servers.

    Args:
        pieces: how many arrive together.
        servers: how many run at the same time.
        service_s: time of one piece.

    Raises:
        InvalidRequestError: there are no pieces, no servers, or the pieces take no time.

    Formula:
        wait of piece i = floor(i / c) · s,   makespan = ceil(n / c) · s

    Source:
        the chapter, section 11.3.2
    """
    check_count("pieces", pieces)
    check_count("servers", servers)
    check_positive("service_s", service_s, "s")
    waves = -(-pieces // servers)
    empty = waves * servers - pieces
    waited = servers * waves * (waves - 1) / 2 - empty * (waves - 1)
    return Burst(
        at_once=min(pieces, servers),
        waiting=max(pieces - servers, 0),
        waves=waves,
        mean_wait_s=service_s * waited / pieces,
        longest_wait_s=service_s * (waves - 1),
        makespan_s=service_s * waves,
    )


def servers_for_burst(*, pieces: int, service_s: float, within_s: float) -> int:
    """Return the least number of servers that end a burst of equal pieces in time.

    Raises:
        InvalidRequestError: the time is shorter than one piece, so that no number suffices.

    Formula:
        c = ceil(n / floor(within / s))

    Source:
        the chapter, section 11.3.2
    """
    check_count("pieces", pieces)
    check_positive("service_s", service_s, "s")
    waves = int(check_positive("within_s", within_s, "s") / service_s * (1 + 1e-9))
    if waves < 1:
        raise InvalidRequestError(
            f"within_s is {within_s:g} s, less than the {service_s:g} s of one piece",
            resolution="allow at least the time of one piece, or make the piece shorter",
        )
    return -(-pieces // waves)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRun:
    """What each piece of work did, in the order of arrival, and the whole.

    Attributes:
        arrivals_s, starts_s, ends_s, waits_s: of each piece.
        mean_wait_s: over all pieces, those that do not wait included.
        longest_wait_s: the longest of the waits.
        makespan_s: when the last piece ends.
        busy_s: time that servers work, over all of them.
        most_running: pieces running at the same time, at most.
    """

    arrivals_s: tuple[float, ...]
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    waits_s: tuple[float, ...]
    mean_wait_s: float
    longest_wait_s: float
    makespan_s: float
    busy_s: float
    most_running: int


def queue_run(*, arrivals_s: Sequence[float], services_s: Sequence[float], servers: int) -> QueueRun:
    """Play a first-come-first-served queue.

    Args:
        arrivals_s: when each piece arrives, never falling.
        services_s: how long each runs.
        servers: how many run at the same time.

    Raises:
        InvalidRequestError: the lists differ in length, are empty, are out of order, or hold a negative time.

    Formula:
        start = max(arrival, moment at which the first server is free)

    Source:
        the chapter, figures 11-26 and 11-27; J. Kiefer and J. Wolfowitz, 1955
    """
    _check_pieces(arrivals_s, services_s)
    served = serve(arrivals_s=arrivals_s, works_s=services_s, servers=check_count("servers", servers))
    waits_s = tuple(start_s - arrival_s for start_s, arrival_s in zip(served.starts_s, arrivals_s, strict=True))
    return QueueRun(
        arrivals_s=tuple(arrivals_s),
        starts_s=served.starts_s,
        ends_s=served.ends_s,
        waits_s=waits_s,
        mean_wait_s=sum(waits_s) / len(waits_s),
        longest_wait_s=max(waits_s),
        makespan_s=max(served.ends_s),
        busy_s=sum(services_s),
        most_running=_most_at_once(served.starts_s, served.ends_s),
    )


def _check_pieces(arrivals_s: Sequence[float], services_s: Sequence[float]) -> None:
    check_not_empty("arrivals_s", arrivals_s)
    if len(arrivals_s) != len(services_s):
        raise InvalidRequestError(
            f"there are {len(arrivals_s)} arrivals_s and {len(services_s)} services_s",
            resolution="give one service time for each arrival",
        )
    before_s = 0.0
    for number, (arrival_s, service_s) in enumerate(zip(arrivals_s, services_s, strict=True)):
        check_not_negative(f"services_s[{number}]", service_s, "s")
        check_not_negative(f"arrivals_s[{number}] less the arrival before it", arrival_s - before_s, "s")
        before_s = arrival_s


def _most_at_once(starts_s: Sequence[float], ends_s: Sequence[float]) -> int:
    """Return how many run together at most; a piece that ends makes room for one that starts at that moment."""
    edges = sorted([(end_s, -1) for end_s in ends_s] + [(start_s, 1) for start_s in starts_s])
    most = running = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    return most
