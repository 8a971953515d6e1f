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

Where memory is paid for by use, a further replica or host can save more of what waiting tasks hold than it costs. Then
the cheapest may stand above the staircase, and boxes of counts are halved instead: nothing in a box costs less than the
use at its upper corner with the replicas and hosts of its lower one, and nothing in it is feasible if its upper corner
is not. Boxes that cannot hold a cheaper one are dropped (branch and bound), and the cheapest of each lane joins the
corners.

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
from dsec.planner.table import Table, evaluate, standing_usd
from dsec.planner.workload import Workload

MOST_CORNERS = 1_000_000
_EQUAL = 1e-9
"""Relative difference of costs below which no cheaper combination is looked for."""
_AS_FAST = 1e-4
"""Relative difference of times that nobody would pay for: the front leaves it out."""


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
    if _memory_is_paid_by_use(workload):
        part = _cheaper(workload, outer, lanes, evaluate(workload, outer, lanes.choice(lane, units, hosts)), lane)
        lane, units, hosts = (numpy.concatenate(both) for both in zip((lane, units, hosts), part, strict=True))
    rest = numpy.setdiff1d(every, possible)
    lane = numpy.concatenate([lane, rest])
    units, hosts = numpy.concatenate([units, most_units[rest]]), numpy.concatenate([hosts, most_hosts[rest]])
    return evaluate(workload, outer, lanes.choice(lane, units, hosts))


def _memory_is_paid_by_use(workload: Workload) -> bool:
    return any(host.memory_price is not None and host.memory_price.value > 0 for host in workload.hosts.values())


def _cheaper(workload: Workload, outer: Outer, lanes: Lanes, known: Table, lane_of_known: Any) -> tuple[Any, Any, Any]:
    """Return lanes, replicas and hosts (as indices) of combinations that are cheaper than a lane's known ones."""
    numpy = numeric()
    best = numpy.full(len(lanes.row), numpy.inf)
    numpy.minimum.at(best, lane_of_known, numpy.where(known.feasible, known.usd, numpy.inf))
    lane = numpy.flatnonzero(numpy.isfinite(best))
    low = numpy.zeros((2, len(lane)), dtype=int)
    high = numpy.array([[len(axes[at]) - 1 for at in lane.tolist()] for axes in (lanes.units, lanes.hosts)], dtype=int)
    found: dict[int, tuple[int, int]] = {}
    looked = 0
    while len(lane):
        looked += len(lane)
        _check_corners(workload, looked)
        upper, lower = lanes.choice(lane, *high), lanes.choice(lane, *low)
        table = evaluate(workload, outer, upper)
        usd = numpy.where(table.feasible, table.usd, numpy.inf)
        for at in numpy.flatnonzero(usd < best[lane] * (1 - _EQUAL)).tolist():
            if usd[at] < best[lane[at]]:
                best[lane[at]], found[int(lane[at])] = usd[at], (int(high[0, at]), int(high[1, at]))
        least = usd - (standing_usd(workload, outer, upper) - standing_usd(workload, outer, lower))
        kept = numpy.flatnonzero((least < best[lane] * (1 - _EQUAL)) & (low < high).any(axis=0))
        lane, low, high = _halved(lane[kept], low[:, kept], high[:, kept])
    lane = numpy.array(list(found), dtype=int)
    units, hosts = (numpy.array([counts[axis] for counts in found.values()], dtype=int) for axis in (0, 1))

    def as_cheap(units: Any, hosts: Any) -> Any:
        table = evaluate(workload, outer, lanes.choice(lane, units, hosts))
        return table.feasible & (table.usd <= best[lane] * (1 + _EQUAL))

    # What stands there for nothing is not taken for nothing: the least that costs the same.
    hosts = _least(hosts, lambda index: as_cheap(units, index))
    return lane, _least(units, lambda index: as_cheap(index, hosts)), hosts


def _halved(lane: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Return boxes cut in two along their longer side."""
    numpy = numeric()
    along = numpy.argmax(high - low, axis=0)
    each = numpy.arange(len(lane))
    middle = (low[along, each] + high[along, each]) // 2
    lower, upper = high.copy(), low.copy()
    lower[along, each], upper[along, each] = middle, middle + 1
    return (
        numpy.concatenate([lane, lane]),
        numpy.concatenate([low, upper], axis=1),
        numpy.concatenate([lower, high], axis=1),
    )


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
    about = numpy.round(numpy.log(numpy.maximum(times_s[feasible], 1e-12)) / _AS_FAST)
    order = feasible[numpy.lexsort((table.demands["memory"][feasible], about, table.usd[feasible]))]
    kept: list[int] = []
    fastest = numpy.inf
    for index, time_s in zip(order.tolist(), times_s[order].tolist(), strict=True):
        if time_s < fastest * (1 - _AS_FAST):
            kept.append(index)
            fastest = time_s
    return kept
