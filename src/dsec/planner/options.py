"""The best of each policy, service and kind of host, and which of them to take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsec.planner.additions import Addition, find_addition, lift_limits
from dsec.planner.combination import Combination, combinations, one, shortfalls
from dsec.planner.decision import Option
from dsec.planner.outer import Outer, numeric
from dsec.planner.table import Table, evaluate
from dsec.planner.workload import Workload

MOST_EXTENDED = 16
"""Options for which additions are looked for, cheapest first; each takes some tens of evaluations."""


def make_options(workload: Workload, outer: Outer, table: Table) -> tuple[Option, ...]:
    """Return the best of each row and kind of host, the one to take first."""
    best = list(_best_of_each(table))
    order = sorted(best, key=lambda index: (not table.feasible[index], float(table.usd[index])))
    any_feasible = bool(table.feasible[order[0]]) if order else False
    found: list[Option] = []
    extended = 0
    for index in order:
        option = _option(workload, outer, table, index, look=extended < MOST_EXTENDED)
        extended += not option.combination.feasible
        found.append(option)
    return tuple(sorted(found, key=lambda option: rank(option, any_feasible=any_feasible)))


def rank(option: Option, *, any_feasible: bool) -> tuple[object, ...]:
    """Return by what options are sorted: feasible as offered, then possible with additions, then by cost."""
    addition = option.addition.size if option.addition is not None else 0
    offered = option.combination.feasible if any_feasible else True
    return (not option.is_possible, not offered, option.best.usd_per_thousand, addition, option.best.memory_peak_gib)


def _best_of_each(table: Table) -> Iterator[int]:
    """Return the index of the cheapest feasible combination of each row and host, or of the largest."""
    numpy = numeric()
    pair = table.choice.row * (int(table.choice.host.max()) + 1) + table.choice.host
    largest = table.choice.units.astype(float) + table.choice.hosts
    order = numpy.lexsort((-largest * ~table.feasible, table.usd * table.feasible, ~table.feasible, pair))
    _, first = numpy.unique(pair[order], return_index=True)
    yield from order[first].tolist()


def _option(workload: Workload, outer: Outer, table: Table, index: int, *, look: bool) -> Option:
    part = take(table, [index])
    combination = combinations(workload, outer, part)[0]
    if combination.feasible:
        return Option(line=index, combination=combination, shortfalls=(), addition=None, extended=None)
    addition = None
    if look:
        addition = find_addition(workload, outer, int(table.choice.row[index]), int(table.choice.host[index]))
    return Option(
        line=index,
        combination=combination,
        shortfalls=tuple(shortfalls(workload, outer, part, 0)),
        addition=addition,
        extended=extend(workload, outer, addition) if addition is not None else None,
    )


def extend(workload: Workload, outer: Outer, addition: Addition) -> Combination:
    """Return a combination with what has to be added."""
    lifted = lift_limits(workload, outer)
    table = evaluate(workload, lifted, one(addition.row, addition.host, addition.units, addition.hosts))
    return combinations(workload, lifted, table)[0]


def take(table: Table, indices: Iterable[int]) -> Table:
    """Return some lines of a table."""
    numpy = numeric()
    where = numpy.array(list(indices), dtype=int)
    return Table(
        choice=table.choice.at(where),
        path_s=table.path_s[where],
        wait_s=table.wait_s[where],
        memory_byte_s=table.memory_byte_s[where],
        share_in_time=table.share_in_time[where],
        demands={name: values[where] for name, values in table.demands.items()},
        capacities={name: values[where] for name, values in table.capacities.items()},
        usd=table.usd[where],
        model_usd=table.model_usd[where],
        environment_usd=table.environment_usd[where],
        sustained_per_s=table.sustained_per_s[where],
        feasible=table.feasible[where],
        goal=table.goal,
    )


def reasons(workload: Workload, options: tuple[Option, ...]) -> Iterator[str]:
    """Say why the first option is taken, and why nothing that is cheaper is."""
    chosen = options[0]
    if not chosen.is_possible:
        yield "no combination reaches the goal, whatever is added"
        return
    best = chosen.best
    if chosen.combination.feasible:
        feasible = sum(option.combination.feasible for option in options)
        yield f"of {feasible} that are feasible as offered, {best.name} is the cheapest: " + _cost(best)
    else:
        assert chosen.addition is not None  # It is possible and not feasible as offered.
        yield f"nothing is feasible as offered; {best.name} needs {chosen.addition.text} and then costs " + _cost(best)
    for other in options[1:]:
        line = _against(chosen, other)
        if line:
            yield line


def _cost(combination: Combination) -> str:
    per = f"{combination.usd_per_thousand:.4g} USD per thousand tasks"
    if combination.usd_per_thousand_in_time is not None:
        per += f", {combination.usd_per_thousand_in_time:.4g} USD per thousand that pass in time"
    return per


def _against(chosen: Option, other: Option) -> str:
    """Return why another option is not taken."""
    name, cost = other.combination.name, other.best.usd_per_thousand
    difference = cost - chosen.best.usd_per_thousand
    if not other.is_possible:
        cheaper = f" is cheaper ({cost:.4g} USD per thousand) but" if difference < 0 else ""
        lacks = other.shortfalls[0].text if other.shortfalls else "nothing that was looked for makes it feasible"
        return f"{name}{cheaper} cannot reach the goal: {lacks}"
    if other.addition is not None and chosen.combination.feasible:
        return f"{name} would cost {cost:.4g} USD per thousand, but needs {other.addition.text}"
    added = f" and needs {other.addition.text}" if other.addition is not None and other.addition.text else ""
    if difference == 0 and not added:
        return f"{name} costs the same"
    return f"{name} costs {difference:+.4g} USD per thousand{added}"
