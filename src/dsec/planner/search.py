"""Find the cheapest feasible combination among more than can be listed.

Theory. Fix policy, service, sessions and kind of host; call that a lane. Cost does not fall with the number of replicas
or hosts, and feasibility, once reached, is not lost with more of them: waits fall and capacities rise. The feasible
counts are therefore the points above a falling staircase, and the cheapest stands on one of its corners: for each
number of hosts the least number of replicas that suffices. Corners exist only between two numbers of hosts: the least
that suffices with all replicas, and the least that suffices with as few replicas as all hosts would allow. Beyond, a
further host saves nothing. So four bisections, each for all lanes at once, find every corner:

    hosts at least    least hosts with all replicas
    replicas at least least replicas with all hosts
    hosts at most     least hosts with that many replicas
    corners           least replicas for each number of hosts in between

Nothing is sampled and nothing is guessed; a billion combinations take some hundred evaluations of short arrays. The
Pareto front is drawn over the corners only: a combination off the staircase spends more than it has to in order to wait
less, and is not looked at. Where every combination is listed the front is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsec.base.errors import InvalidRequestError
from dsec.planner.choice import Choice
from dsec.planner.outer import Key, Outer, numeric
from dsec.planner.table import Table, evaluate
from dsec.planner.workload import Workload

MOST_CORNERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Lanes:
    """Rows with a kind of host, and the axes along which counts are chosen.

    Attributes:
        row, host: indices, one element for each lane.
        units, hosts: the values of each lane's axes.
    """

    row: Any
    host: Any
    units: tuple[Sequence[int], ...]
    hosts: tuple[Sequence[int], ...]

    def choice(self, lane: Any, units: Any, hosts: Any) -> Choice:
        """Return combinations of some lanes by the indices of their counts."""
        return Choice(
            row=self.row[lane],
            host=self.host[lane],
            units=_values(self.units, lane, units),
            hosts=_values(self.hosts, lane, hosts),
        )


def _values(axes: Sequence[Sequence[int]], lane: Any, index: Any) -> Any:
    """Return the values at an index of each lane's axis."""
    numpy = numeric()
    evenly = numpy.array([isinstance(axis, range) for axis in axes])[lane]
    starts = numpy.array([axis[0] for axis in axes])[lane]
    steps = numpy.array([axis[1] - axis[0] if len(axis) > 1 else 1 for axis in axes])[lane]
    found = starts + steps * index
    for at in numpy.flatnonzero(~evenly).tolist():
        found[at] = axes[int(lane[at])][int(index[at])]
    return found


def corners(workload: Workload, outer: Outer, keys: Sequence[Key]) -> Table:
    """Return the corners of every lane's staircase; of a lane without any, its largest counts.

    Raises:
        InvalidRequestError: there are too many corners, since more hosts save replicas over a very wide range.
    """
    numpy = numeric()
    lanes = _lanes(workload, keys)
    every = numpy.arange(len(lanes.row))
    most_units = numpy.array([len(axis) - 1 for axis in lanes.units])
    most_hosts = numpy.array([len(axis) - 1 for axis in lanes.hosts])

    def enough(lane: Any, units: Any, hosts: Any) -> Any:
        return evaluate(workload, outer, lanes.choice(lane, units, hosts)).feasible

    possible = every[enough(every, most_units, most_hosts)]
    first = _least(most_hosts[possible], lambda index: enough(possible, most_units[possible], index))
    fewest = _least(most_units[possible], lambda index: enough(possible, index, most_hosts[possible]))
    last = _least(most_hosts[possible], lambda index: enough(possible, fewest, index))
    widths = last - first + 1
    _check_corners(workload, int(widths.sum()))
    lane = numpy.repeat(possible, widths)
    hosts = numpy.concatenate([numpy.arange(a, b + 1) for a, b in zip(first, last, strict=True)] or [every[:0]])
    units = _least(most_units[lane], lambda index: enough(lane, index, hosts))
    rest = numpy.setdiff1d(every, possible)
    lane = numpy.concatenate([lane, rest])
    units, hosts = numpy.concatenate([units, most_units[rest]]), numpy.concatenate([hosts, most_hosts[rest]])
    return evaluate(workload, outer, lanes.choice(lane, units, hosts))


def _lanes(workload: Workload, keys: Sequence[Key]) -> Lanes:
    numpy = numeric()
    kinds = list(workload.hosts.values())
    row, host = (grid.ravel() for grid in numpy.meshgrid(range(len(keys)), range(len(kinds)), indexing="ij"))
    return Lanes(
        row,
        host,
        tuple(workload.services[keys[at].service].replicas.values for at in row.tolist()),
        tuple(kinds[at].count.values for at in host.tolist()),
    )


def _least(most: Any, suffices: Callable[[Any], Any]) -> Any:
    """Return, for each lane, the least index up to `most` that suffices; `most` does."""
    numpy = numeric()
    low, high = numpy.full(len(most), -1), most.copy()
    while bool(numpy.any(high - low > 1)):
        middle = numpy.where(high - low > 1, (low + high) // 2, high)
        fits = suffices(middle)
        low, high = numpy.where(fits, numpy.minimum(low, middle - 1), middle), numpy.where(fits, middle, high)
    return high


def _check_corners(workload: Workload, count: int) -> None:
    if count > MOST_CORNERS:
        widest = max((host.count for host in workload.hosts.values()), key=lambda axis: len(axis.values))
        raise InvalidRequestError(
            f"{widest.place}: {widest.name}: {count:,} combinations may be the cheapest, too many to be exact",
            detail=f"this range has {len(widest.values):,} values, and each further host still saves replicas",
            resolution=f"narrow {widest.name}, or give it a step",
        )


def front(table: Table) -> list[int]:
    """Return the feasible combinations of which no other is both as cheap and as fast, cheapest first."""
    numpy = numeric()
    feasible = numpy.flatnonzero(table.feasible)
    times_s = table.completion_s
    order = feasible[numpy.lexsort((times_s[feasible], table.usd[feasible]))]
    kept: list[int] = []
    fastest = numpy.inf
    for index, time_s in zip(order.tolist(), times_s[order].tolist(), strict=True):
        if time_s < fastest * (1 - 1e-12):
            kept.append(index)
            fastest = time_s
    return kept
