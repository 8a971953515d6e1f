"""How many sandboxes stand on one node: what binds, and how far cores can be promised twice.

A node of C cores and M GiB holds sandboxes that each ask for c cores and m GiB, and keep their cores busy for a share
u of the time:

    by memory               floor(M / m)
    by cores as asked       floor(C / c)
    by cores as used        floor(C / (u c))
    overcommitment          n c / C                 cores asked for over cores there are, at n sandboxes

Cores come back the moment that a tool ends, memory only when its environment does: cores can be promised several
times over, and memory binds. The mean share says nothing about many tools that start together (`dsec.costs.burst`).

Assumes sandboxes alike, each with its memory taken whole. Source: the chapter, section 11.1.2; "DeepSeek Elastic
Compute", arXiv 2609.22978, section 2.4.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count, check_positive, check_probability

_ROUNDING = 1e-9


class Binding(enum.Enum):
    """What keeps another sandbox off a node."""

    MEMORY = "memory"
    CORES = "cores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """How many sandboxes a node holds.

    Attributes:
        by_memory: as many as its memory holds.
        by_cores_asked: as many as its cores hold when none is promised twice.
        by_cores_used: as many as its cores hold when each is promised as often as it is idle.
        sandboxes: the lesser of memory and cores as used.
        binding: which of the two that is.
        overcommitment: cores asked for over cores there are, with that many.
        mean_busy_cores: cores at work on average, with that many.
    """

    by_memory: int
    by_cores_asked: int
    by_cores_used: int
    sandboxes: int
    binding: Binding
    overcommitment: float
    mean_busy_cores: float


def density(
    *, node_cores: float, node_memory_gib: float, asked_cores: float, asked_memory_gib: float, busy_share: float
) -> Density:
    """Return how many sandboxes a node holds, and what binds.

    Args:
        node_cores: cores of the node.
        node_memory_gib: its memory.
        asked_cores: cores that a sandbox asks for.
        asked_memory_gib: memory of a sandbox.
        busy_share: share of the time in which it keeps those cores busy.

    Raises:
        InvalidRequestError: a size is not above zero, or the share is not above 0 and at most 1.

    Formula:
        n = min(floor(M / m), floor(C / (u · c))),   overcommitment = n · c / C

    Source:
        the chapter, section 11.1.2
    """
    for name, value, unit in (
        ("node_cores", node_cores, "CPU"),
        ("node_memory_gib", node_memory_gib, "GiB"),
        ("asked_cores", asked_cores, "CPU"),
        ("asked_memory_gib", asked_memory_gib, "GiB"),
    ):
        check_positive(name, value, unit)
    check_positive("busy_share", check_probability("busy_share", busy_share))
    by_memory = _floor(node_memory_gib / asked_memory_gib)
    by_cores_used = _floor(node_cores / (busy_share * asked_cores))
    sandboxes = min(by_memory, by_cores_used)
    return Density(
        by_memory=by_memory,
        by_cores_asked=_floor(node_cores / asked_cores),
        by_cores_used=by_cores_used,
        sandboxes=sandboxes,
        binding=Binding.MEMORY if by_memory <= by_cores_used else Binding.CORES,
        overcommitment=sandboxes * asked_cores / node_cores,
        mean_busy_cores=sandboxes * asked_cores * busy_share,
    )


def creations_on_each_per_s(*, creations_per_s: float, nodes: int) -> float:
    """Return how many sandboxes each node makes in a second when they are spread evenly.

    Raises:
        InvalidRequestError: the rate is not above zero, or there are no nodes.

    Formula:
        rate / nodes

    Source:
        the chapter, section 11.3.2
    """
    return check_positive("creations_per_s", creations_per_s, "1/s") / check_count("nodes", nodes)


def creation_share(*, creations_per_s: float, limit_per_s: float) -> float:
    """Return the share of a host's creation rate that is used.

    Raises:
        InvalidRequestError: a rate is not above zero, or the host cannot make that many.

    Formula:
        rate / limit

    Source:
        the chapter, section 11.2.4
    """
    check_positive("creations_per_s", creations_per_s, "1/s")
    share = creations_per_s / check_positive("limit_per_s", limit_per_s, "1/s")
    if share > 1:
        raise InvalidRequestError(
            f"{creations_per_s:g} creations/s exceed the {limit_per_s:g} that a host can do",
            resolution="spread them over more hosts, or keep environments instead of making them anew",
        )
    return share


def _floor(quotient: float) -> int:
    return math.floor(quotient * (1 + _ROUNDING))
