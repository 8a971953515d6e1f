"""`plan`: compare ten thousand combinations; beside a loop that computes them one by one.

Ours is everything that `dsec plan` does with a workload that was read: rows, table, lines, options with what they lack,
the front, and what would change the answer. The reference is plain Python: for each combination the same scalar
formulas of `dsec.costs` (timeline, waits, costs), and the cheapest feasible one. Both have to find the same one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsec.bench.context import PureContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import timed
from dsec.costs.waiting import OverloadedError, waiting
from dsec.planner.document import parse_document
from dsec.planner.making import make_plan
from dsec.planner.outer import Key, Row, make_row, outer_keys
from dsec.planner.workload import Workload
from dsec.planner.workload_plan import decide
from dsec.planner.workload_reading import read_workload

_REFERENCE = "a plain loop over the same formulas"
_FEWEST = 3
_WORKLOAD = """
kind = "workload"
title = "Replicas, sessions, hosts and policies"
[arrivals]
rate = "10 /s"
pattern = "poisson"
[goal]
share_in_time = "90 %"
[class.repair]
rounds = 3
output = "355 token"
tool = "1 s"
memory = "2 GiB"
quality = "95 %"
deadline = "24 s"
[service.flash]
billing = "reserved"
replicas = "1..42"
sessions = "8..64 step 8"
gpus = "4 GPU"
price = "6.79 USD/GPU/h"
pace = [[8, "12 ms/token"], [16, "16.9 ms/token"], [32, "25.3 ms/token"], [64, "40 ms/token"]]
[host.metal]
count = "1..10"
cpus = "48 CPU"
memory = "384 GB"
price = "5 USD/h"
[policy.kept]
kind = "kept"
[policy.rebuilt]
kind = "rebuilt"
prepare = "2 s"
prepare_cpu = "0.1 CPU*s"
[policy.on_demand]
kind = "on_demand"
prepare = "2 s"
prepare_cpu = "0.1 CPU*s"
"""
_WIDE = (("1..42", "1..100000"), ("8..64 step 8", "8..64"), ("1..10", "1..1000"))


async def bench_plan(context: PureContext) -> Report:
    """Measure."""
    workload = read_workload(parse_document(_WORKLOAD, name="bench").root())
    combinations = sum(1 for _ in _everything(workload))
    ours, loops, whole = [], [], []
    for number in range(max(_FEWEST, context.options.samples) + 1):
        with timed() as our_watch:
            decision = decide(workload)
        with timed() as loop_watch:
            cheapest = plain_loop(workload)
        chosen = decision.chosen.best.name if decision.chosen is not None else ""
        if cheapest is None or cheapest.name != chosen:
            raise AssertionError(f"the loop found {cheapest}, the table {chosen!r}")
        with timed() as whole_watch:
            make_plan(_WORKLOAD, name="bench")
        if number:  # The first round warms up.
            ours.append(our_watch.seconds)
            loops.append(loop_watch.seconds)
            whole.append(whole_watch.seconds)
    return make_report(
        "plan",
        "ms",
        "lower",
        ours=distribution(ours, scale=1e3),
        references={_REFERENCE: distribution(loops, scale=1e3)},
        series=[
            {"combinations": combinations, "chosen": chosen},
            {"from the text of a file to pictures, ms": distribution(whole, scale=1e3)},
            _wide(),
        ],
        host=context.host,
    )


def _wide() -> dict[str, Any]:
    text = _WORKLOAD
    for narrow, wide in _WIDE:
        text = text.replace(f'"{narrow}"', f'"{wide}"')
    workload = read_workload(parse_document(text, name="bench").root())
    begin_s = time.perf_counter()
    decision = decide(workload, brief=True)
    return {"combinations searched": decision.size.combinations, "ms": round(1e3 * (time.perf_counter() - begin_s), 1)}


@dataclass(frozen=True, slots=True)
class Cheapest:
    """The best that the loop has seen."""

    name: str
    usd: float


def _everything(workload: Workload) -> Iterator[tuple[Key, int, int]]:
    hosts = workload.hosts["metal"].count.values
    for key in outer_keys(workload):
        for units in workload.services[key.service].replicas.values:
            for count in hosts:
                yield key, units, count


def plain_loop(workload: Workload) -> Cheapest | None:
    """Return the cheapest feasible combination, computed one by one."""
    best: Cheapest | None = None
    for key, units, count in _everything(workload):
        usd = _cost(workload, make_row(workload, key), units, count)
        if usd is not None and (best is None or usd < best.usd * (1 - 1e-12)):
            name = f"{key.service}.{key.policy}.sessions{key.sessions}.units{units}.hosts{count}"
            best = Cheapest(name, usd)
    return best


def _cost(workload: Workload, row: Row, units: int, count: int) -> float | None:
    """Return what a task costs; None: the combination is not feasible."""
    host, service = workload.hosts["metal"], workload.services[row.key.service]
    item, rate = workload.classes["repair"], workload.arrivals.rate.value
    cores = count * host.cpus.value
    tools = math.floor(cores - row.prepare_cores)
    try:
        model = waiting(
            arrivals_per_s=row.calls_per_s, servers=units * row.key.sessions, service_s=row.call_s,
            arrival_variation=item.rounds, service_variation=row.call_variation,
        )  # fmt: skip
        tool = waiting(
            arrivals_per_s=row.calls_per_s, servers=tools, service_s=row.tool_s, arrival_variation=item.rounds,
            service_variation=row.tool_variation,
        )  # fmt: skip
    except OverloadedError:
        return None
    kept = row.key.policy == "kept"
    held = item.rounds * item.memory.value * ((model.mean_wait_s if kept else 0.0) + tool.mean_wait_s)
    if row.memory_peak_bytes + rate * held > count * host.memory.value or row.cores >= cores:
        return None
    assert item.deadline is not None
    waits = [(seen.waits, item.rounds * seen.mean_wait_s / seen.waits if seen.waits else 0.0) for seen in (model, tool)]
    share = item.quality[""].value * _within(item.deadline.value - row.path_s, waits)
    if share < workload.goal.value:
        return None
    assert service.price is not None
    assert service.gpus is not None
    assert host.price is not None
    return (units * service.price.value * service.gpus.value + count * host.price.value) / rate


def _within(slack_s: float, waits: list[tuple[float, float]]) -> float:
    """Return the probability that both waits together stay within a slack; see `dsec.planner.waits`."""
    if slack_s < 0:
        return 0.0
    (first, first_s), (second, second_s) = waits
    slower_s = max(first_s, second_s)
    if slower_s == 0:
        return 1.0
    scaled = slack_s / slower_s
    late = math.exp(-scaled) * (first * (1 - second) + second * (1 - first) + first * second * (1 + scaled))
    return 1 - late
