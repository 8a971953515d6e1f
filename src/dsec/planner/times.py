"""How long tasks wait in each combination, and which share of them passes in time.

Arrays have one element for each combination; where a task's time varies, a second axis has its possible times. The
formulas are in `waits`; here they meet arrivals, classes and capacities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dsec.planner.outer import Outer, numeric
from dsec.planner.waits import burst_share_within, burst_waits_s, mean_wait_s, share_within
from dsec.planner.workload import Pattern, TaskClass, Workload

if TYPE_CHECKING:
    from dsec.planner.choice import Choice
    from dsec.planner.waits import Floats

SLACK = 1e-9
"""Relative rest below which a demand counts as equal to a capacity, and a time as equal to a deadline."""
_MOST_CELLS = 1_000_000
"""Combinations times possible times that are looked at together; more would not stay in the caches."""


@dataclass(frozen=True, slots=True)
class Times:
    """What waiting does to a task.

    Attributes:
        wait_s: mean over all rounds and classes.
        held_byte_s: memory over time that is held while waiting.
        share: of the submitted tasks that pass in time.
        usable: for each resource with a queue that grows, which part of the demand its servers get through; infinite
            where the queue does not grow.
    """

    wait_s: Floats
    held_byte_s: Floats
    share: Floats
    usable: dict[str, Floats] = field(default_factory=dict)


def task_times(workload: Workload, outer: Outer, choice: Choice, capacities: dict[str, Floats]) -> Times:
    """Return waits and shares in time of combinations.

    Where a queue grows there is no mean wait: it counts as none, and the combination is not feasible for another
    reason.

    Args:
        workload: arrivals and classes.
        outer: rows.
        choice: which combinations.
        capacities: `model slots` and `cores` of each.
    """
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


def _random_times(workload: Workload, outer: Outer, choice: Choice, servers: tuple[Floats, Floats]) -> Times:
    numpy = numeric()
    column = {name: values[choice.row] for name, values in outer.columns.items()}
    gaps = dispersion(workload) if workload.arrivals.pattern is Pattern.POISSON else 0.0
    waits, each_s, usable = [], [], dict[str, Any]()
    for count, kind, resource in zip(servers, ("call", "tool"), ("model slots", "cores"), strict=True):
        variation = (gaps + column[f"{kind}_variation"]) / 2
        offered = column["calls_per_s"] * column[f"{kind}_s"]
        chance, each = mean_wait_s(offered, count, column[f"{kind}_s"], variation)
        grows = ~numpy.isfinite(each)
        usable[resource] = numpy.where(grows, count / numpy.where(grows, offered, 1.0), numpy.inf)
        waits.append(numpy.where(grows, 0.0, chance))
        each_s.append(numpy.where(grows, 0.0, each))

    def within(item: TaskClass) -> Callable[[Any, Floats], Floats]:
        def of(part: Any, slack_s: Floats) -> Floats:
            chances = (waits[0][part, None], waits[1][part, None])
            whole = (item.rounds * each_s[0][part, None], item.rounds * each_s[1][part, None])
            return share_within(slack_s, chances, whole)

        return of

    means = (waits[0] * each_s[0], waits[1] * each_s[1])
    return replace(_summed(workload, outer, choice, means, within), usable=usable)


def _burst_times(workload: Workload, outer: Outer, choice: Choice, servers: tuple[Floats, Floats]) -> Times:
    """Return the times of bursts; servers that other bursts hold are not there."""
    numpy = numeric()
    column = {name: values[choice.row] for name, values in outer.columns.items()}
    pieces = workload.arrivals.burst
    cores = numpy.maximum(column["tool_cores"], 1e-12)
    peaks = (column["slots_peak"], column["cores_peak"] / cores)
    means = (column["slots"], (column["cores"] - column["prepare_cores"]) / cores)
    free = []
    for count, peak, mean in zip(servers, peaks, means, strict=True):
        left = numpy.clip(count - (peak - pieces), 1.0, pieces)
        alone = (peak <= count * (1 + SLACK)) | (mean > count * (1 + SLACK))
        free.append(numpy.where(alone, float(pieces), left))
    times = (column["call_s"], column["tool_s"])

    def within(item: TaskClass) -> Callable[[Any, Floats], Floats]:
        def of(part: Any, slack_s: Floats) -> Floats:
            waves = (item.rounds * times[0][part, None], item.rounds * times[1][part, None])
            return burst_share_within(slack_s, pieces, (free[0][part, None], free[1][part, None]), waves)

        return of

    waits = (burst_waits_s(pieces, free[0], times[0]), burst_waits_s(pieces, free[1], times[1]))
    return _summed(workload, outer, choice, waits, within)


def _summed(
    workload: Workload,
    outer: Outer,
    choice: Choice,
    means: tuple[Floats, Floats],
    within: Callable[[TaskClass], Callable[[Any, Floats], Floats]],
) -> Times:
    """Sum up over the classes; `means` are those of one wait for the model and for a core.

    A kept environment stands through every wait, any other only while its tool waits for a core.
    """
    numpy = numeric()
    kept = outer.is_kept[choice.row]
    wait_s, held, share = (numpy.zeros(len(choice)) for _ in range(3))
    for index, item in enumerate(workload.classes.values()):
        often = item.share.value * item.rounds
        wait_s += often * (means[0] + means[1])
        held += often * item.memory.value * (numpy.where(kept, means[0], 0.0) + means[1])
        passed = item.share.value * outer.quality[choice.row, index]
        share += passed * _in_time(outer, choice, index, item, within(item))
    return Times(wait_s, held, share)


def _in_time(
    outer: Outer, choice: Choice, index: int, item: TaskClass, within: Callable[[Any, Floats], Floats]
) -> Floats:
    """Return the probability that a task of a class ends before its deadline."""
    numpy = numeric()
    share: Floats = numpy.ones(len(choice))
    if item.deadline is None:
        return share
    paths, chances = outer.path_s[:, index], outer.chance[:, index]
    step = max(1, _MOST_CELLS // paths.shape[1])
    for begin in range(0, len(choice), step):
        part = slice(begin, begin + step)
        row = choice.row[part]
        slack_s = _slack_s(item.deadline.value, paths[row])
        share[part] = (chances[row] * within(part, slack_s)).sum(axis=1)
    return share


def _slack_s(deadline_s: float, path_s: Floats) -> Floats:
    """Return what a deadline leaves; a rest of rounding counts as in time."""
    numpy = numeric()
    slack = deadline_s - path_s
    slack_s: Floats = numpy.where(numpy.abs(slack) <= SLACK * numpy.maximum(path_s, 1.0), 0.0, slack)
    return slack_s


def dispersion(workload: Workload) -> float:
    """Return the index of dispersion of calls when tasks of several rounds arrive independently; see `waits`."""
    shares = [(item.share.value, item.rounds) for item in workload.classes.values()]
    mean = sum(share * rounds for share, rounds in shares)
    return sum(share * rounds**2 for share, rounds in shares) / mean
