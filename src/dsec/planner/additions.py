"""What to add, and how much at least, so that a combination becomes feasible.

More replicas and more hosts never lengthen anything, so that the least count of one that suffices beside a given count
of the other is found by bisection. Limits of a service that is used by the call are not for us to bisect: they are
lifted, and what they would have to be is said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from dsec.planner.combination import DIMENSIONS, one, units_word
from dsec.planner.outer import Outer, numeric
from dsec.planner.quantity import show
from dsec.planner.table import evaluate
from dsec.planner.times import SLACK
from dsec.planner.workload import Billing, Workload

PLENTY = 10_000_000
_STEPS = 8
"""Host counts tried beyond the least: where more cores shorten waits, they can save replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """The least that makes a row feasible on a kind of host.

    Attributes:
        row, host: indices.
        units, hosts: how many are needed altogether.
        more_units, more_hosts: how many of them are not offered.
        limits: limits of the service that have to be raised, as text.
        usd: what one submitted task then costs.
        text: one line for people; empty: nothing has to be added.
    """

    row: int
    host: int
    units: int
    hosts: int
    more_units: int
    more_hosts: int
    limits: tuple[str, ...]
    usd: float
    text: str

    @property
    def size(self) -> int:
        """How many things come to what there is."""
        return self.more_units + self.more_hosts + len(self.limits)


def lift_limits(workload: Workload, outer: Outer) -> Outer:
    """Return rows whose services allow any number of calls."""
    numpy = numeric()
    by_tokens = [workload.services[row.key.service].billing is Billing.TOKENS for row in outer.rows]
    endless = numpy.full(len(outer.rows), numpy.inf)
    return dataclasses.replace(
        outer,
        calls_limit=endless,
        tokens_limit=endless,
        slot_limit=numpy.where(by_tokens, numpy.inf, outer.slot_limit),
    )


def find_addition(workload: Workload, outer: Outer, row: int, host: int) -> Addition | None:
    """Return the cheapest least counts with which a row becomes feasible on a kind of host.

    Returns:
        None: no number of replicas and hosts makes it feasible, it is too slow even without waiting.
    """
    lifted = lift_limits(workload, outer)

    def suffices(units: int, hosts: int) -> bool:
        return bool(evaluate(workload, lifted, one(row, host, units, hosts)).feasible[0])

    if not suffices(PLENTY, PLENTY):
        return None
    fewest = _least(lambda count: suffices(PLENTY, count))
    found = []
    for hosts in range(fewest, fewest + _STEPS):
        units = _least(lambda count, hosts=hosts: suffices(count, hosts))  # type: ignore[misc]
        found.append(_addition(workload, outer, row, host, units, hosts))
        if units == 1:
            break
    return min(found, key=lambda item: (item.usd, item.size, item.hosts))


def _least(suffices: Callable[[int], bool]) -> int:
    high = 1
    while not suffices(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _addition(workload: Workload, outer: Outer, row: int, host: int, units: int, hosts: int) -> Addition:
    key = outer.rows[row].key
    service, kind = workload.services[key.service], list(workload.hosts.values())[host]
    units, hosts = max(units, service.replicas.values[0]), max(hosts, kind.count.values[0])
    more_units = max(units - service.replicas.values[-1], 0)
    more_hosts = max(hosts - kind.count.values[-1], 0)
    limits = tuple(_raised(outer, row, service.billing))
    parts = []
    if more_units:
        parts.append(
            f"{more_units} more {units_word(workload, key.service, more_units)} of {key.service}, {units} in all"
        )
    if more_hosts:
        parts.append(f"{more_hosts} more {kind.name}, {hosts} in all")
    return Addition(
        row=row,
        host=host,
        units=units,
        hosts=hosts,
        more_units=more_units,
        more_hosts=more_hosts,
        limits=limits,
        usd=float(evaluate(workload, outer, one(row, host, units, hosts)).usd[0]),
        text="; ".join([*parts, *limits]),
    )


def _raised(outer: Outer, row: int, billing: Billing) -> list[str]:
    item = outer.rows[row]
    demands = {"calls": item.calls_per_s, "tokens": item.tokens_per_s, "model slots": item.slots}
    limits = {
        "calls": float(outer.calls_limit[row]),
        "tokens": float(outer.tokens_limit[row]),
        "model slots": float(outer.slot_limit[row]) if billing is Billing.TOKENS else float("inf"),
    }
    return [
        f"a limit of {show(demand, DIMENSIONS[name])} {name} instead of {show(limits[name], DIMENSIONS[name])}"
        for name, demand in demands.items()
        if demand > limits[name] * (1 + SLACK)
    ]
