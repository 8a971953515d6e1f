"""The table of combinations: rows of `outer` spread over counts of replicas and hosts, all at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsec.planner.choice import Choice
from dsec.planner.outer import Outer, numeric
from dsec.planner.times import SLACK, task_times
from dsec.planner.workload import Pattern, Workload

if TYPE_CHECKING:
    from dsec.planner.waits import Floats

RESOURCES = ("cores", "memory", "model slots", "creations", "calls", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What every combination comes to, in base units; each array has one element for each.

    A combination that lacks a resource shows the time and the share that it would have with enough of it.

    Attributes:
        choice: which combinations.
        path_s, wait_s: time of a task without waiting, and what it waits, on average.
        memory_byte_s: memory over time of a task, what it holds while it waits included.
        share_in_time: of the tasks that pass before their deadline.
        demands, capacities: by resource; a capacity may be infinite.
        usd: what one submitted task costs.
        model_usd, environment_usd: its parts.
        sustained_per_s: tasks that can be worked off in a second.
        feasible: whether every resource suffices and the goal is reached.
    """

    choice: Choice
    path_s: Floats
    wait_s: Floats
    memory_byte_s: Floats
    share_in_time: Floats
    demands: dict[str, Floats]
    capacities: dict[str, Floats]
    usd: Floats
    model_usd: Floats
    environment_usd: Floats
    sustained_per_s: Floats
    feasible: Any
    goal: float = field(default=0.0)

    @property
    def completion_s(self) -> Floats:
        """Mean time from arrival to result."""
        return self.path_s + self.wait_s

    def __len__(self) -> int:
        return len(self.choice)


def evaluate(workload: Workload, outer: Outer, choice: Choice) -> Table:
    """Return what combinations come to."""
    numpy = numeric()
    demands, capacities = _demands(workload, outer, choice)
    times = task_times(workload, outer, choice, capacities)
    memory_byte_s = outer.columns["memory_byte_s"][choice.row] + times.held_byte_s
    demands["memory"] = demands["memory"] + workload.arrivals.rate.value * times.held_byte_s
    strict = workload.arrivals.pattern is Pattern.POISSON
    enough = numpy.ones(len(choice), dtype=bool)
    for name, part in times.usable.items():
        # Whole servers may do less than the cores in them: of 48 cores, tools of 10 use 40.
        grows = numpy.isfinite(part)
        enough &= ~grows
        capacities[name] = numpy.where(grows, numpy.minimum(capacities[name], demands[name] * part), capacities[name])
    for name in RESOURCES:
        limit = capacities[name] * (1 + SLACK)
        queues = strict and name in ("cores", "model slots")
        enough &= (demands[name] < capacities[name]) if queues else (demands[name] <= limit)
    share = times.share
    model_usd, environment_usd = _costs(workload, outer, choice, memory_byte_s)
    goal = workload.goal.value
    return Table(
        choice=choice,
        path_s=outer.columns["path_s"][choice.row],
        wait_s=times.wait_s,
        memory_byte_s=memory_byte_s,
        share_in_time=share,
        demands=demands,
        capacities=capacities,
        usd=model_usd + environment_usd,
        model_usd=model_usd,
        environment_usd=environment_usd,
        sustained_per_s=_sustained(workload, outer, choice, demands, capacities),
        feasible=enough & (share >= goal * (1 - SLACK)),
        goal=goal,
    )


def _host_column(workload: Workload, name: str, absent: float) -> Any:
    figures = [getattr(host, name) for host in workload.hosts.values()]
    return numeric().array([absent if figure is None else figure.value for figure in figures], dtype=float)


def _demands(workload: Workload, outer: Outer, choice: Choice) -> tuple[dict[str, Floats], dict[str, Floats]]:
    column = {name: values[choice.row] for name, values in outer.columns.items()}
    demands = {
        "cores": column["cores"],
        "memory": column["memory_peak_bytes"],
        "model slots": column["slots"],
        "creations": column["made_per_s"],
        "calls": column["calls_per_s"],
        "tokens": column["tokens_per_s"],
    }
    capacities = {
        "cores": choice.hosts * _host_column(workload, "cpus", 0.0)[choice.host],
        "memory": choice.hosts * _host_column(workload, "memory", 0.0)[choice.host],
        "model slots": choice.units * outer.slot_limit[choice.row],
        "creations": choice.hosts * _host_column(workload, "creations", float("inf"))[choice.host],
        "calls": outer.calls_limit[choice.row],
        "tokens": outer.tokens_limit[choice.row],
    }
    return demands, capacities


def _sustained(
    workload: Workload, outer: Outer, choice: Choice, demands: dict[str, Floats], capacities: dict[str, Floats]
) -> Floats:
    """Return the rate at which the scarcest resource is used up; memory counts with its mean (Little's law)."""
    numpy = numeric()
    rate = workload.arrivals.rate.value
    least: Floats = numpy.full(len(choice), numpy.inf)
    for name in RESOURCES:
        used = outer.columns["memory_bytes"][choice.row] if name == "memory" else demands[name]
        with numpy.errstate(divide="ignore", invalid="ignore"):
            sustained = numpy.where(used > 0, rate * capacities[name] / used, numpy.inf)
        least = numpy.minimum(least, sustained)
    return least


def standing_usd(workload: Workload, outer: Outer, choice: Choice) -> Floats:
    """Return what the replicas and hosts of combinations cost each submitted task by being there."""
    fixed = _host_column(workload, "price", 0.0)[choice.host]
    usd_per_s: Floats = choice.units * outer.unit_usd_per_s[choice.row] + choice.hosts * fixed
    return usd_per_s / workload.arrivals.rate.value


def _costs(workload: Workload, outer: Outer, choice: Choice, memory_byte_s: Floats) -> tuple[Floats, Floats]:
    rate = workload.arrivals.rate.value
    cpu, memory, fixed = (
        _host_column(workload, name, 0.0)[choice.host] for name in ("cpu_price", "memory_price", "price")
    )
    column = {name: outer.columns[name][choice.row] for name in ("model_usd", "cpu_s")}
    model = column["model_usd"] + choice.units * outer.unit_usd_per_s[choice.row] / rate
    environment = column["cpu_s"] * cpu + memory_byte_s * memory + choice.hosts * fixed / rate
    return model, environment
