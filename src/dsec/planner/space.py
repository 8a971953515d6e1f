"""All combinations of a workload, or the reason why they are too many to list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.planner.axis import Axis
from dsec.planner.choice import Choice
from dsec.planner.outer import Key, numeric
from dsec.planner.workload import Workload

MOST_LISTED = 50_000
"""Up to here every combination is computed; beyond, what rises and falls with counts is searched by bisection."""
MOST_ROWS = 20_000
"""Policies times services times sessions: each costs scalar formulas, about 50 microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many combinations there are.

    Attributes:
        rows: policies times services times sessions.
        combinations: all.
    """

    rows: int
    combinations: int

    @property
    def is_listed(self) -> bool:
        """Whether each is computed."""
        return self.combinations <= MOST_LISTED


def size_of(workload: Workload) -> Size:
    """Return how many combinations a workload has.

    Raises:
        InvalidRequestError: too many for any exact answer; it says which range to narrow.
    """
    services, hosts = workload.services.values(), workload.hosts.values()
    sessions = sum(len(item.sessions.values) for item in services)
    rows = len(workload.policies) * sessions
    counts = sum(len(item.count.values) for item in hosts)
    replicas = sum(len(item.sessions.values) * len(item.replicas.values) for item in services)
    size = Size(rows=rows, combinations=len(workload.policies) * replicas * counts)
    if rows > MOST_ROWS:
        axes = [item.sessions for item in services]
        raise _too_many(axes, f"{rows:,} rows of policies, services and sessions", MOST_ROWS, rows, size)
    return size


def _too_many(axes: Sequence[Axis], what: str, most: int, count: int, size: Size) -> InvalidRequestError:
    widest = max(axes, key=lambda axis: len(axis.values))
    keep = max(1, math.floor(len(widest.values) * most / count))
    return InvalidRequestError(
        f"{widest.place}: {widest.name}: the ranges make {size.combinations:,} combinations, too many to be exact",
        detail=f"there are {what}, and at most {most:,} can be searched; this range has {len(widest.values):,} values",
        resolution=f"narrow {widest.name} to about {keep:,} values, or give it a step",
    )


def everything(workload: Workload, keys: Sequence[Key]) -> Choice:
    """Return every combination, in the order policies, services, sessions, hosts, replicas, counts."""
    numpy = numeric()
    parts = []
    for row, key in enumerate(keys):
        units = numpy.array(workload.services[key.service].replicas.values)
        for index, host in enumerate(workload.hosts.values()):
            counts = numpy.array(host.count.values)
            grid = numpy.meshgrid(units, counts, indexing="ij")
            size = grid[0].size
            parts.append((numpy.full(size, row), numpy.full(size, index), grid[0].ravel(), grid[1].ravel()))
    row, which, units, counts = (numpy.concatenate(columns) for columns in zip(*parts, strict=True))
    return Choice(row=row, host=which, units=units, hosts=counts)
