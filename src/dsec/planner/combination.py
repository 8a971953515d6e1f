"""Combinations as people read them: names, amounts, what binds and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsec.base.units import GIB
from dsec.planner.choice import Choice
from dsec.planner.dimension import BYTES, CPU, PURE, TIME, TOKEN, Dimension
from dsec.planner.outer import Outer, Row, numeric
from dsec.planner.quantity import show
from dsec.planner.table import RESOURCES, Table
from dsec.planner.times import SLACK
from dsec.planner.workload import Billing, Workload

DIMENSIONS: dict[str, Dimension] = {
    "cores": CPU,
    "memory": BYTES,
    "model slots": PURE,
    "creations": PURE / TIME,
    "calls": PURE / TIME,
    "tokens": TOKEN / TIME,
}
THOUSAND = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """One thing that keeps a combination from being feasible.

    Attributes:
        resource: `time`, or one of `dsec.planner.table.RESOURCES`.
        demand, capacity: in base units; of `time`: the share in time and the goal.
        text: one line for people.
    """

    resource: str
    demand: float
    capacity: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One line of the table.

    Attributes:
        name: by which its figures are asked for.
        policy, service, sessions, units, host, hosts: what it is made of; units are replicas or seats.
        completion_s, wait_s: mean time of a task, and what of it is waiting.
        cpu_s, memory_gib_s: what one task takes.
        memory_mean_gib, memory_peak_gib, cores_mean, slots_mean: what all of them take.
        usd_per_thousand: what a thousand submitted tasks cost.
        usd_per_thousand_in_time: what a thousand tasks that pass in time cost; None: none does.
        share_in_time: of the submitted tasks.
        feasible: whether everything suffices and the goal is reached.
        binding: what is missing most; empty: nothing.
        load: demand over capacity of the resource that is used most.
    """

    name: str
    policy: str
    service: str
    sessions: int
    units: int
    host: str
    hosts: int
    completion_s: float
    wait_s: float
    cpu_s: float
    memory_gib_s: float
    memory_mean_gib: float
    memory_peak_gib: float
    cores_mean: float
    slots_mean: float
    usd_per_thousand: float
    usd_per_thousand_in_time: float | None
    share_in_time: float
    feasible: bool
    binding: str
    load: float


class Names:
    """How combinations are named: by service and policy, and by whatever else there is a choice of."""

    def __init__(self, workload: Workload) -> None:
        services = workload.services.values()
        self._hosts = tuple(workload.hosts)
        self._sessions = {item.name for item in services if item.sessions.is_open}
        self._units = {item.name for item in services if item.replicas.is_open}
        self._counts = {item.name for item in workload.hosts.values() if item.count.is_open}
        self._several_hosts = len(self._hosts) > 1

    def name(self, row: Row, host: str, units: int, hosts: int) -> str:
        """Return the name of a combination."""
        parts = [row.key.service, row.key.policy]
        if self._several_hosts:
            parts.append(host)
        if row.key.service in self._sessions:
            parts.append(f"sessions{row.key.sessions}")
        if row.key.service in self._units:
            parts.append(f"units{units}")
        if host in self._counts:
            parts.append(f"hosts{hosts}")
        return ".".join(parts)


def combinations(workload: Workload, outer: Outer, table: Table) -> tuple[Combination, ...]:
    """Return a table line by line."""
    numpy = numeric()
    names, hosts, rate = Names(workload), tuple(workload.hosts), workload.arrivals.rate.value
    binding, load = _binding(table)
    in_time = numpy.where(table.share_in_time > 0, table.share_in_time, numpy.nan)
    columns = zip(
        table.choice.row.tolist(), table.choice.host.tolist(), table.choice.units.tolist(), table.choice.hosts.tolist(),
        table.completion_s.tolist(), table.wait_s.tolist(), (THOUSAND * table.usd).tolist(),
        (THOUSAND * table.usd / in_time).tolist(), table.share_in_time.tolist(), table.feasible.tolist(), binding,
        load.tolist(), (table.memory_byte_s / GIB).tolist(), (table.demands["memory"] / GIB).tolist(), strict=True,
    )  # fmt: skip
    found = []
    for at, which, units, count, time_s, wait_s, usd, usd_in_time, share, feasible, bound, used, held, peak in columns:
        row = outer.rows[at]
        found.append(
            Combination(
                name=names.name(row, hosts[which], units, count),
                policy=row.key.policy,
                service=row.key.service,
                sessions=row.key.sessions,
                units=units,
                host=hosts[which],
                hosts=count,
                completion_s=time_s,
                wait_s=wait_s,
                cpu_s=row.cpu_s,
                memory_gib_s=held,
                memory_mean_gib=rate * held,
                memory_peak_gib=peak,
                cores_mean=row.cores,
                slots_mean=row.slots,
                usd_per_thousand=usd,
                usd_per_thousand_in_time=None if usd_in_time != usd_in_time else usd_in_time,
                share_in_time=share,
                feasible=feasible,
                binding=bound,
                load=used,
            )
        )
    return tuple(found)


def _binding(table: Table) -> tuple[list[str], Any]:
    """Return what each combination lacks most, and the load of its most used resource."""
    numpy = numeric()
    with numpy.errstate(divide="ignore", invalid="ignore"):
        loads = numpy.stack([table.demands[name] / table.capacities[name] for name in RESOURCES])
    worst = numpy.argmax(loads, axis=0)
    load = numpy.max(loads, axis=0)
    late = table.share_in_time < table.goal * (1 - SLACK)
    labels = numpy.where(late, "time", numpy.array(RESOURCES, dtype=object)[worst])
    return [name if not fine else "" for name, fine in zip(labels.tolist(), table.feasible.tolist(), strict=True)], load


def shortfalls(workload: Workload, outer: Outer, table: Table, index: int) -> Iterator[Shortfall]:
    """Return everything that one combination lacks."""
    row = outer.rows[int(table.choice.row[index])]
    share = float(table.share_in_time[index])
    if share < table.goal * (1 - SLACK):
        yield Shortfall(resource="time", demand=share, capacity=table.goal, text=_lateness(workload, row, share))
    for name in RESOURCES:
        demand, capacity = float(table.demands[name][index]), float(table.capacities[name][index])
        if demand > capacity * (1 + SLACK) or (demand == capacity and not table.feasible[index] and capacity > 0):
            yield Shortfall(
                resource=name, demand=demand, capacity=capacity, text=_missing(workload, table, index, name)
            )


def _lateness(workload: Workload, row: Row, share: float) -> str:
    parts = [f"{share:.3%} pass in time, the goal is {workload.goal}"]
    for profile in row.profiles:
        item = profile.task_class
        best_s = min(path_s for chance, path_s in profile.phases.paths if chance > 0)
        if item.deadline is not None and best_s > item.deadline.value * (1 + SLACK):
            model_s = profile.rounds * profile.model_s
            parts.append(
                f"{item.name} takes {best_s:g} s without any waiting, {best_s - item.deadline.value:g} s beyond its "
                f"deadline; its model calls alone take {model_s:g} s"
            )
    return "; ".join(parts)


def _missing(workload: Workload, table: Table, index: int, name: str) -> str:
    demand, capacity = float(table.demands[name][index]), float(table.capacities[name][index])
    dimension = DIMENSIONS[name]
    missing = show(demand - capacity, dimension)
    text = f"{name}: {show(demand, dimension)} of {show(capacity, dimension)}, {missing} missing"
    sustained = float(table.sustained_per_s[index])
    rate = workload.arrivals.rate.value
    if sustained < rate:
        text += f"; {sustained:.4g} tasks/s can be worked off, so that {rate - sustained:.4g} tasks/s pile up"
    return text


def units_word(workload: Workload, service: str, count: int) -> str:
    """Return what replicas of a service are called."""
    billing = workload.services[service].billing
    word = "seat" if billing is Billing.SUBSCRIPTION else "replica"
    return word if count == 1 else f"{word}s"


def one(row: int, host: int, units: int, hosts: int) -> Choice:
    """Return a choice of a single combination."""
    numpy = numeric()
    return Choice(
        row=numpy.array([row]), host=numpy.array([host]), units=numpy.array([units]), hosts=numpy.array([hosts])
    )
