"""`levels`: what tasks wait when the ready level follows the arrivals, beside a fixed level that costs the same memory.

The policy is the live one; its shell is the simulator, since no test machine has 800 tasks at once. The arrivals
are those of the shipped scenario ``ready-level``: jobs that ask for groups of sandboxes, busy and quiet by turns.
For every seed the fixed level is the largest whose mean number of sandboxes (in use, ready and in flight) is not
above that of the followed level by more than `_EQUAL`: the fixed one is given the benefit of the doubt.
"""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import msgspec

from dsec.base.errors import CapabilityMissingError
from dsec.bench.context import PureContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.model.value import Value

_SCENARIO = "ready-level"
_PARTS_OF_A_SWING = 24
_DURATION_S = 2400.0
_WARMUP_S = 600.0
_EQUAL = 0.01
_MOST = 600


class Run(Value, frozen=True):
    """One simulated pool.

    Attributes:
        wait_s: mean wait of a task.
        wait_p99_s: the 99th percentile.
        waited_share: tasks that waited at all.
        sandboxes: sandboxes over time, their mean.
        creations: how many were made.
    """

    wait_s: float
    wait_p99_s: float
    waited_share: float
    sandboxes: float
    creations: int


async def bench_levels(context: PureContext) -> Report:
    """Measure both on the same arrivals, seed after seed."""
    rows: list[dict[str, Any]] = []
    with context.progress.counting("seeds", context.options.samples) as advance:
        for seed in range(1, context.options.samples + 1):
            rows.append(await anyio.to_thread.run_sync(_compare, seed))
            advance()
    context.note("simulated; the policy is the live one, and time is the simulator's")
    return make_report(
        "levels",
        "s",
        "lower",
        ours=distribution([row["follows"]["wait_s"] for row in rows]),
        references={"fixed level at equal memory": distribution([row["fixed"]["wait_s"] for row in rows])},
        series=[{"what": "mean wait of a task, by seed", **row} for row in rows],
        host=context.host,
    )


def _compare(seed: int) -> dict[str, Any]:
    follows = _run(seed, None)
    level, fixed = _equal_memory(seed, follows.sandboxes)
    return {
        "seed": seed,
        "follows": msgspec.to_builtins(follows),
        "fixed": msgspec.to_builtins(fixed),
        "fixed_level": level,
        "sandboxes_ratio": round(fixed.sandboxes / follows.sandboxes, 4),
        "waiting_less": round(1 - follows.wait_s / fixed.wait_s, 4) if fixed.wait_s else 0.0,
    }


def _equal_memory(seed: int, sandboxes: float) -> tuple[int, Run]:
    """Return the largest fixed level that holds as many sandboxes on average, and its run. More ready ones hold
    more."""
    low, high = 0, _MOST
    best = _run(seed, low)
    while high - low > 1:
        middle = (low + high) // 2
        tried = _run(seed, middle)
        if tried.sandboxes <= sandboxes * (1 + _EQUAL):
            low, best = middle, tried
        else:
            high = middle
        if abs(tried.sandboxes / sandboxes - 1) <= _EQUAL / 2:
            return middle, tried
    return low, best


def _run(seed: int, fixed_level: int | None) -> Run:
    try:
        from dsec.sim.levels import LevelsScenario
        from dsec.sim.running import run
        from dsec.sim.shipped import find_scenario
    except ModuleNotFoundError as error:
        raise CapabilityMissingError(
            f"the simulator needs {error.name}", resolution="pip install 'dsec[planning]'"
        ) from error
    scenario = find_scenario(_SCENARIO).cases[0][1]
    assert isinstance(scenario, LevelsScenario)
    arrivals = msgspec.structs.replace(scenario.arrivals, profile=_one_swing(scenario.arrivals.profile))
    result = run(
        msgspec.structs.replace(
            scenario,
            arrivals=arrivals,
            duration_s=_DURATION_S,
            warmup_s=_WARMUP_S,
            pool=msgspec.structs.replace(scenario.pool, fixed_level=fixed_level),
        ),
        seed=seed,
    )
    wait = result.figures["wait_s"]
    return Run(
        wait_s=wait.mean,
        wait_p99_s=wait.p99,
        waited_share=float(result.counts["waited_share"]),
        sandboxes=result.levels["sandboxes"].mean,
        creations=int(result.counts["creations"]),
    )


def _one_swing(profile: tuple[float, ...]) -> tuple[float, ...]:
    """The first minutes again, as warm-up, and one swing between busy and quiet."""
    swing = profile[:_PARTS_OF_A_SWING]
    parts = round(_PARTS_OF_A_SWING * _WARMUP_S / (_DURATION_S - _WARMUP_S))
    return (*swing[-parts:], *swing)
