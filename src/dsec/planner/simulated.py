"""The same workload by formula and by simulation, side by side.

A formula gives means of a steady state under assumptions; the simulator plays every task. Where the assumptions hold
the two agree within sampling error, and 2 % on means is what is promised. Where they do not, the difference is
printed with what causes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dsec.base.errors import CapabilityMissingError, NotFoundError
from dsec.base.units import GIB
from dsec.planner.additions import lift_limits
from dsec.planner.combination import Combination, combinations, one
from dsec.planner.decision import Decision
from dsec.planner.outer import Outer, Row, make_outer
from dsec.planner.profile import Profile
from dsec.planner.table import Table, evaluate
from dsec.planner.workload import Billing, Pattern, PolicyKind, Workload
from dsec.planner.workload_pictures import key_of
from dsec.sim import Arrivals, Distribution, Result, RoundsScenario, constant, exponential, run

AGREEMENT = 0.02
TASKS = 20_000
"""Tasks that are played: sampling errors of means are then well below what is promised."""
_Z99 = 2.3263478740408408
_KINDS = {PolicyKind.KEPT: "resident", PolicyKind.REBUILT: "per_round"}
_LARGE = 10**12
_TAIL = "the formula takes the varying part of a task's time as Gamma distributed; the share depends on its tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure both ways.

    Attributes:
        name: of the figure.
        unit: of both values.
        formula, simulated: the values.
        off_by: simulated less formula, relative to the formula (of waits: relative to the task's time).
        agrees: whether that is within 2 %.
        why: what the formula leaves out; empty: nothing known.
    """

    name: str
    unit: str
    formula: float
    simulated: float
    off_by: float
    agrees: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A combination by formula and by simulation.

    Attributes:
        combination: which.
        tasks: how many were played.
        simulated_s: how long that was in simulated time.
        rows: the figures.
        assumptions: what the formulas assume and this workload does not keep.
    """

    combination: Combination
    tasks: int
    simulated_s: float
    rows: tuple[Compared, ...]
    assumptions: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether every figure does."""
        return all(row.agrees for row in self.rows)


def check(decision: Decision, name: str | None = None, *, seed: int = 0, tasks: int = TASKS) -> Check:
    """Simulate a combination and compare.

    Args:
        decision: of the workload.
        name: of the combination; None: the recommended one, with what has to be added.
        seed: of the simulation.
        tasks: about how many are played.

    Raises:
        NotFoundError: there is no such combination, or none is recommended.
        CapabilityMissingError: the simulator does not play this policy, or several classes.
    """
    combination = _chosen(decision, name)
    workload = decision.workload
    outer = lift_limits(workload, make_outer(workload, [key_of(combination)]))
    table = _line(workload, outer, combination)
    scenario = make_scenario(workload, outer.rows[0], combination, seed=seed, tasks=tasks)
    result = run(scenario)
    shown = combinations(workload, outer, table)[0]
    rows = tuple(_rows(workload, outer.rows[0], table, shown, result))
    return Check(
        combination=shown,
        tasks=result.figures["task_s"].count,
        simulated_s=result.simulated_s,
        rows=rows,
        assumptions=tuple(_assumptions(workload, outer.rows[0], table)),
    )


def _chosen(decision: Decision, name: str | None) -> Combination:
    if name is None:
        if decision.chosen is None:
            raise NotFoundError(
                "no combination is recommended, so that none is simulated", resolution="name one: --combination NAME"
            )
        return decision.chosen.best
    for item in decision.combinations:
        if item.name == name:
            return item
    raise NotFoundError(
        f"there is no combination {name!r}",
        detail=", ".join(item.name for item in decision.combinations[:12]),
        resolution="name one of the table",
    )


def _line(workload: Workload, outer: Outer, combination: Combination) -> Table:

    host = list(workload.hosts).index(combination.host)
    return evaluate(workload, outer, one(0, host, combination.units, combination.hosts))


def make_scenario(workload: Workload, row: Row, combination: Combination, *, seed: int, tasks: int) -> RoundsScenario:
    """Return the scenario that plays a combination.

    Raises:
        CapabilityMissingError: the simulator does not play this policy, or several classes.
    """
    profile = _only_profile(workload, row)
    item, policy = profile.task_class, profile.policy
    host, service = workload.hosts[combination.host], workload.services[combination.service]
    rate, path_s = workload.arrivals.rate.value, row.path_s
    warmup_s = 3 * path_s
    limited = service.billing is not Billing.TOKENS
    fitting = math.floor(combination.hosts * host.memory.value / item.memory.value * (1 + 1e-9))
    cores = combination.hosts * host.cpus.value - row.prepare_cores
    return RoundsScenario(
        title=workload.heading.title,
        seed=seed,
        arrivals=_arrivals(workload),
        duration_s=warmup_s + max(tasks / rate, 10 * path_s),
        warmup_s=warmup_s,
        rounds=item.rounds,
        model_call_s=_distribution(profile.model_s, item.model_variation.value),
        tool_s=_distribution(item.tool.value, item.tool_variation.value),
        tool_cores=item.tool_cores.value,
        commit_s=item.commit.value,
        model_slots=min(combination.units * combination.sessions, _LARGE) if limited else 0,
        cores=cores,
        environments=min(fitting, _LARGE),
        environment_bytes=round(item.memory.value),
        environment=_KINDS[policy.kind],  # type: ignore[arg-type]
        prepare_s=policy.prepare.value,
        prepare_cpu_s=policy.prepare_cpu.value,
        deadline_s=item.deadline.value if item.deadline is not None else 0.0,
    )


def _only_profile(workload: Workload, row: Row) -> Profile:
    if len(row.profiles) > 1:
        raise CapabilityMissingError(
            f"the simulator plays one class of tasks, and there are {', '.join(workload.classes)}",
            resolution="check each class in a workload of its own",
        )
    if row.profiles[0].policy.kind not in _KINDS:
        played = ", ".join(kind.value for kind in _KINDS)
        raise CapabilityMissingError(
            f"the simulator does not play the policy {row.key.policy!r} ({row.profiles[0].policy.kind.value})",
            resolution=f"name a combination whose policy is one of: {played}",
        )
    return row.profiles[0]


def _arrivals(workload: Workload) -> Arrivals:
    arrivals = workload.arrivals
    if arrivals.pattern is Pattern.BURST:
        return Arrivals(kind="bursts", every_s=arrivals.period_s, group=constant(float(arrivals.burst)))
    kind = "poisson" if arrivals.pattern is Pattern.POISSON else "uniform"
    return Arrivals(kind=kind, rate_per_s=arrivals.rate.value)  # type: ignore[arg-type]


def _distribution(mean_s: float, variation: float) -> Distribution:
    """Return a distribution with a mean and a squared coefficient of variation."""
    if variation == 0 or mean_s == 0:
        return constant(mean_s)
    if variation == 1:
        return exponential(mean_s)
    sigma = math.sqrt(math.log1p(variation))
    median_s = mean_s / math.sqrt(1 + variation)
    return Distribution(kind="lognormal", median=median_s, p99=median_s * math.exp(_Z99 * sigma))


def _rows(workload: Workload, row: Row, table: Table, shown: Combination, result: Result) -> Iterator[Compared]:
    levels, figures = result.levels, result.figures
    item = row.profiles[0].task_class
    quality = item.quality_with(row.key.service).value
    tasks = figures["task_s"].count
    path_s = row.path_s
    wait_s = sum(figures[name].mean for name in ("model_wait_s", "tool_wait_s")) * item.rounds
    why = _why(workload, table)
    yield _compare("mean time of a task", "s", shown.completion_s, figures["task_s"].mean, why)
    yield _compare("mean wait of a task", "s", shown.wait_s, wait_s, why, against=path_s)
    yield _compare(
        "mean memory", "GiB", shown.memory_mean_gib, levels["memory_bytes"].mean / GIB, _memory_why(why, table)
    )
    cores = levels["tool_cores"].mean + result.counts["prepare_cores"]
    yield _compare("mean cores", "CPU", shown.cores_mean, cores, why)
    yield _compare("mean model calls in progress", "", shown.slots_mean, levels["model_calls"].mean, why)
    if item.deadline is not None and tasks:
        share = result.counts["on_time"] / tasks * quality
        tail = _TAIL if row.profiles[0].is_random else why
        yield _compare("share that passes in time", "", shown.share_in_time, share, tail, against=1.0)


def _compare(
    name: str, unit: str, formula: float, simulated: float, why: str, *, against: float | None = None
) -> Compared:
    base = abs(formula) if against is None else against
    off_by = (simulated - formula) / base if base else (0.0 if simulated == formula else math.inf)
    agrees = abs(off_by) <= AGREEMENT
    return Compared(
        name=name, unit=unit, formula=formula, simulated=simulated, off_by=off_by, agrees=agrees,
        why="" if agrees else why,
    )  # fmt: skip


def _why(workload: Workload, table: Table) -> str:
    if not bool(table.feasible[0]):
        return "a resource is overloaded: the queue grows as long as the run goes on, and no mean exists"
    pattern = workload.arrivals.pattern
    if pattern is Pattern.BURST:
        return "the formula lets every round of a burst collide like the first; waits spread the tasks out in time"
    if pattern is Pattern.POISSON:
        return "at moderate load the formula errs on the safe side: it lets all rounds of a task meet the same crowd"
    return "evenly spaced tasks of variable length meet as if they came at random; the formula takes gaps as even"


def _memory_why(why: str, table: Table) -> str:
    """What tasks hold while they wait is counted, so that memory is off for the reason for which waits are."""
    return why if float(table.wait_s[0]) > 0 else ""


def _assumptions(workload: Workload, row: Row, table: Table) -> Iterator[str]:
    if not bool(table.feasible[0]):
        yield "a resource is overloaded, so that there is no steady state to agree on"
    if workload.arrivals.pattern is Pattern.POISSON:
        yield "all rounds of a task meet the same crowd, as they do near full load"
        yield "memory is never short: the formula sizes it for 99.9 % of the time and lets no task wait for it"
    if workload.arrivals.pattern is Pattern.BURST and float(table.wait_s[0]) > 0:
        yield "each round of a burst collides like the first"
    if row.prepare_cores:
        yield "making environments takes its share of the cores evenly, and never stands in a tool's way"
