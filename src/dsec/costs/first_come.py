"""A queue in front of several servers, played first come, first served.

Each piece of work goes to the server that is free first (Kiefer and Wolfowitz):

    start = max(arrival, moment at which the first server is free)

Assumes that a server does one piece at a time, that it starts at once, and that no piece is abandoned. Source: the
chapter, figures 11-26, 11-27, 11-35 and 11-36; J. Kiefer and J. Wolfowitz, 1955.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """When each piece of work is done, in the order of the input.

    Attributes:
        starts_s, ends_s: of each piece.
        servers: which server took each piece, from 0.
    """

    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    servers: tuple[int, ...]


def serve(*, arrivals_s: Sequence[float], works_s: Sequence[float], servers: int) -> Service:
    """Play the queue. Pieces that arrive together are taken in the order in which they are listed.

    Args:
        arrivals_s: when each piece arrives, in any order.
        works_s: how long each takes; as many as there are arrivals.
        servers: how many work at the same time.
    """
    # More servers than pieces stay idle: the first n are enough for n pieces.
    free = [(0.0, server) for server in range(min(servers, len(arrivals_s)))]
    served: dict[int, tuple[float, int]] = {}
    for piece in sorted(range(len(arrivals_s)), key=lambda index: arrivals_s[index]):
        free_s, server = free[0]
        start_s = max(arrivals_s[piece], free_s)
        heapq.heapreplace(free, (start_s + works_s[piece], server))
        served[piece] = (start_s, server)
    starts_s = tuple(served[piece][0] for piece in range(len(arrivals_s)))
    return Service(
        starts_s=starts_s,
        ends_s=tuple(start_s + work_s for start_s, work_s in zip(starts_s, works_s, strict=True)),
        servers=tuple(served[piece][1] for piece in range(len(arrivals_s))),
    )
