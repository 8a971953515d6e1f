"""Find the cheapest feasible combination among more than can be listed.

Theory. Fix policy, service, sessions and kind of host. Cost does not fall with the number of replicas or hosts, and
feasibility, once reached, is not lost with more of them: waits fall and capacities rise. The feasible counts are
therefore the points above a falling staircase, and the cheapest stands on one of its corners: for each number of
hosts, the least number of replicas that suffices. Bisection over the replicas, for all rows and host counts at the
same time, finds every corner exactly in log2(replicas) evaluations of the whole array. Nothing is sampled and nothing
is guessed.

The Pareto front is drawn over these corners only: a combination off the staircase spends more than it has to in order
to wait less, and is not looked at here. Where every combination is listed the front is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsec.planner.outer import Key, Outer, numeric
from dsec.planner.table import Choice, Table, evaluate
from dsec.planner.workload import Workload


def corners(workload: Workload, outer: Outer, keys: Sequence[Key]) -> Table:
    """Return, for each row, kind and number of hosts, the least replicas that suffice; or the most, where none does."""
    numpy = numeric()
    pairs = _pairs(workload, keys)
    axes = [workload.services[key.service].replicas.values for key in keys]
    last = numpy.array([len(axis) - 1 for axis in axes])[pairs.row]
    low, high = numpy.full(len(pairs), -1), last.copy()
    while bool(numpy.any(high - low > 1)):
        middle = numpy.where(high - low > 1, (low + high) // 2, high)
        enough = evaluate(workload, outer, _with_units(pairs, axes, middle)).feasible
        high = numpy.where(enough, middle, high)
        low = numpy.where(enough, low, numpy.minimum(middle, high - 1))
    return evaluate(workload, outer, _with_units(pairs, axes, high))


def _pairs(workload: Workload, keys: Sequence[Key]) -> Choice:
    numpy = numeric()
    parts = []
    for index, host in enumerate(workload.hosts.values()):
        counts = numpy.array(host.count.values)
        row, count = numpy.meshgrid(numpy.arange(len(keys)), counts, indexing="ij")
        parts.append((row.ravel(), numpy.full(row.size, index), count.ravel()))
    row, which, count = (numpy.concatenate(columns) for columns in zip(*parts, strict=True))
    return Choice(row=row, host=which, units=numpy.ones(len(row), dtype=int), hosts=count)


def _with_units(pairs: Choice, axes: Sequence[Sequence[int]], index: object) -> Choice:
    """Return pairs with the replicas at an index of each row's axis; every axis is evenly spaced or short."""
    numpy = numeric()
    starts = numpy.array([axis[0] for axis in axes])
    steps = numpy.array([axis[1] - axis[0] if len(axis) > 1 else 1 for axis in axes])
    units = starts[pairs.row] + steps[pairs.row] * index
    for row, axis in enumerate(axes):
        if not isinstance(axis, range):
            here = pairs.row == row
            units[here] = numpy.array(axis)[numpy.asarray(index)[here]]
    return Choice(row=pairs.row, host=pairs.host, units=units, hosts=pairs.hosts)


def front(table: Table) -> list[int]:
    """Return the feasible combinations of which no other is both as cheap and as fast, cheapest first."""
    numpy = numeric()
    feasible = numpy.flatnonzero(table.feasible)
    order = feasible[numpy.lexsort((table.completion_s[feasible], table.usd[feasible]))]
    kept: list[int] = []
    fastest = numpy.inf
    for index in order.tolist():
        time_s = float(table.completion_s[index])
        if time_s < fastest * (1 - 1e-12):
            kept.append(index)
            fastest = time_s
    return kept
