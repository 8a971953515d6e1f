"""The table of combinations: rows of `outer` spread over counts of replicas and hosts, all at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsec.planner.outer import Outer, numeric
from dsec.planner.waits import burst_share_within, burst_waits_s, mean_wait_s, share_within
from dsec.planner.workload import Pattern, Workload

if TYPE_CHECKING:
    from dsec.planner.waits import Floats

SLACK = 1e-9
"""Relative rest below which a demand counts as equal to a capacity."""
RESOURCES = ("cores", "memory", "model slots", "creations", "calls", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which combinations a table is about: one element of each array for each.

    Attributes:
        row: index into the rows of `outer`.
        host: index into the kinds of host.
        units: replicas or seats.
        hosts: how many hosts.
    """

    row: Any
    host: Any
    units: Any
    hosts: Any

    def __len__(self) -> int:
        return len(self.row)

    def at(self, where: Any) -> Choice:
        """Return some of them."""
        return Choice(row=self.row[where], host=self.host[where], units=self.units[where], hosts=self.hosts[where])


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
    times = _times(workload, outer, choice, capacities)
    memory_byte_s = outer.columns["memory_byte_s"][choice.row] + times.held_byte_s
    demands["memory"] = demands["memory"] + workload.arrivals.rate.value * times.held_byte_s
    strict = workload.arrivals.pattern is Pattern.POISSON
    enough = numpy.ones(len(choice), dtype=bool)
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


def _costs(workload: Workload, outer: Outer, choice: Choice, memory_byte_s: Floats) -> tuple[Floats, Floats]:
    rate = workload.arrivals.rate.value
    cpu, memory, fixed = (
        _host_column(workload, name, 0.0)[choice.host] for name in ("cpu_price", "memory_price", "price")
    )
    column = {name: outer.columns[name][choice.row] for name in ("model_usd", "cpu_s")}
    model = column["model_usd"] + choice.units * outer.unit_usd_per_s[choice.row] / rate
    environment = column["cpu_s"] * cpu + memory_byte_s * memory + choice.hosts * fixed / rate
    return model, environment


def _times(workload: Workload, outer: Outer, choice: Choice, capacities: dict[str, Floats]) -> _Times:
    numpy = numeric()
    column = {name: values[choice.row] for name, values in outer.columns.items()}
    cores = numpy.maximum(column["tool_cores"], 1e-12)
    servers = (
        numpy.floor(numpy.minimum(capacities["model slots"], 1e12) + SLACK),
        numpy.floor(numpy.maximum(capacities["cores"] - column["prepare_cores"], 0.0) / cores + SLACK),
    )
    if workload.arrivals.pattern is Pattern.BURST:
        return _burst_times(workload, outer, choice, servers)
    return _random_times(workload, outer, choice, servers)


@dataclass(frozen=True, slots=True)
class _Times:
    """What waiting does to a task.

    Attributes:
        wait_s: mean over all rounds and classes.
        held_byte_s: memory over time that is held while waiting.
        share: of the submitted tasks that pass in time.
    """

    wait_s: Floats
    held_byte_s: Floats
    share: Floats


def _random_times(workload: Workload, outer: Outer, choice: Choice, servers: tuple[Floats, Floats]) -> _Times:
    """Return mean waits and shares in time; where a queue grows the wait counts as none (see `Table`)."""
    numpy = numeric()
    column = {name: values[choice.row] for name, values in outer.columns.items()}
    gaps = _dispersion(workload) if workload.arrivals.pattern is Pattern.POISSON else 0.0
    waits, each_s = [], []
    for count, kind in zip(servers, ("call", "tool"), strict=True):
        variation = (gaps + column[f"{kind}_variation"]) / 2
        offered = column["calls_per_s"] * column[f"{kind}_s"]
        chance, each = mean_wait_s(offered, count, column[f"{kind}_s"], variation)
        grows = ~numpy.isfinite(each)
        waits.append(numpy.where(grows, 0.0, chance))
        each_s.append(numpy.where(grows, 0.0, each))
    means = (waits[0] * each_s[0], waits[1] * each_s[1])
    wait_s, held, share = _waiting(workload, outer, choice, means)
    for index, item in enumerate(workload.classes.values()):
        passed = item.share.value * outer.quality[choice.row, index]
        for path_s, chance in _possibilities(outer, choice, index):
            slack_s = _slack_s(item.deadline.value if item.deadline else float("inf"), path_s)
            whole = (item.rounds * each_s[0], item.rounds * each_s[1])
            within = share_within(slack_s, (waits[0], waits[1]), whole)
            share += passed * chance * within
    return _Times(wait_s, held, share)


def _waiting(
    workload: Workload, outer: Outer, choice: Choice, means: tuple[Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return a task's mean wait, the memory over time that it holds while it waits, and zeros for the share.

    A kept environment stands through every wait, any other only while its tool waits for a core.
    """
    numpy = numeric()
    kept = outer.is_kept[choice.row]
    wait_s, held = numpy.zeros(len(choice)), numpy.zeros(len(choice))
    for item in workload.classes.values():
        often = item.share.value * item.rounds
        wait_s += often * (means[0] + means[1])
        held += often * item.memory.value * (numpy.where(kept, means[0], 0.0) + means[1])
    return wait_s, held, numpy.zeros(len(choice))


def _dispersion(workload: Workload) -> float:
    """Return the index of dispersion of calls when tasks of several rounds arrive independently; see `waits`."""
    shares = [(item.share.value, item.rounds) for item in workload.classes.values()]
    mean = sum(share * rounds for share, rounds in shares)
    return sum(share * rounds**2 for share, rounds in shares) / mean


def _burst_times(workload: Workload, outer: Outer, choice: Choice, servers: tuple[Floats, Floats]) -> _Times:
    """Return mean waits and shares in time of bursts; servers that other bursts hold are not there.

    Where a queue grows the wait counts as none (see `Table`).
    """
    numpy = numeric()
    column = {name: values[choice.row] for name, values in outer.columns.items()}
    pieces = workload.arrivals.burst
    others = (column["slots_peak"], column["cores_peak"] / numpy.maximum(column["tool_cores"], 1e-12))
    used = (column["slots"], (column["cores"] - column["prepare_cores"]) / numpy.maximum(column["tool_cores"], 1e-12))
    free = []
    for count, peak, mean in zip(servers, others, used, strict=True):
        left = numpy.clip(count - (peak - pieces), 1.0, pieces)
        alone = (peak <= count * (1 + SLACK)) | (mean > count * (1 + SLACK))
        free.append(numpy.where(alone, float(pieces), left))
    times = (column["call_s"], column["tool_s"])
    means = [burst_waits_s(pieces, count, time)[0] for count, time in zip(free, times, strict=True)]
    wait_s, held, share = _waiting(workload, outer, choice, (means[0], means[1]))
    for index, item in enumerate(workload.classes.values()):
        passed = item.share.value * outer.quality[choice.row, index]
        waves = (item.rounds * times[0], item.rounds * times[1])
        for path_s, chance in _possibilities(outer, choice, index):
            slack_s = _slack_s(item.deadline.value if item.deadline else float("inf"), path_s)
            share += passed * chance * burst_share_within(slack_s, pieces, (free[0], free[1]), waves)
    return _Times(wait_s, held, share)


def _possibilities(outer: Outer, choice: Choice, index: int) -> list[tuple[Floats, Floats]]:
    paths, chances = outer.path_s[:, index], outer.chance[:, index]
    return [(paths[choice.row, number], chances[choice.row, number]) for number in range(paths.shape[1])]


def _slack_s(deadline_s: float, path_s: Floats) -> Floats:
    """Return what a deadline leaves; a rest of rounding counts as in time."""
    numpy = numeric()
    slack = deadline_s - path_s
    slack_s: Floats = numpy.where(numpy.abs(slack) <= SLACK * numpy.maximum(path_s, 1.0), 0.0, slack)
    return slack_s
