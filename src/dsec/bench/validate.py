"""`dsec sim validate`: one small scenario, live on this host and in the simulator, side by side.

Tasks come at random and in bursts to one pool, keep a sandbox for a drawn time, and give it back. Live it is a node
with real sandboxes; simulated it is `dsec.sim.levels` around the same policy. Both get the same arrivals and the same
holding times. What creating, recycling and destroying take is measured beforehand, in a run of its own with another
node, so that nothing of the compared run is put into the simulation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import msgspec

from dsec.base.errors import DsecError, NodeUnavailableError
from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import Distribution as Measured
from dsec.bench.distribution import distribution, percentile
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import timed
from dsec.model.pool import PoolChange, PoolPolicy
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node
from dsec.sdk.pools import pools_of
from dsec.sim.arrivals import Arrivals, plan_arrivals
from dsec.sim.distributions import Distribution, Streams, constant, exponential
from dsec.sim.figures import Figure
from dsec.sim.levels import LevelsScenario
from dsec.sim.running import run as simulate

_CREATIONS_AT_ONCE = 2
_CALIBRATIONS = 16
_CALIBRATION_TIMEOUT_S = 60.0
_DURATION_S = 30.0
_SEED = 20
_NOTICED_S = 0.02
"""A wait above this is counted as one; a hand-out of a ready sandbox takes a few milliseconds of its own."""
_CHANGE = PoolChange(floor=4, fixed_level=None, maximum=64, creations_at_once=_CREATIONS_AT_ONCE, recycles_at_once=4)
"""All that the calibration set is set anew: a pool keeps its settings across nodes of one state directory."""
_ARRIVALS = Arrivals(
    kind="poisson",
    rate_per_s=1.5,
    group=Distribution(kind="lognormal", median=2, p99=16, high=24),
    profile=(1, 3, 0.5, 2),
)
_HOLD = exponential(0.8)


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What operations take on this host, in seconds."""

    create_s: list[float]
    recycle_s: list[float]
    destroy_s: list[float]


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """What the live run gave."""

    policy: PoolPolicy
    waits_s: list[float]
    failures: list[str]
    totals: list[int]
    creations: int
    recycles: int


async def bench_validate(context: BenchContext) -> Report:
    """Calibrate, run live, simulate, compare."""
    context.progress.say("calibrating: creations, recycles, destructions")
    async with context.workplace.embedded() as node:
        costs = await _calibrate(node, context.workplace.image)
    context.progress.say(f"running live for {_DURATION_S:g} s")
    async with context.workplace.embedded() as node:
        live = await _run_live(node, context.workplace.image)
    scenario = LevelsScenario(
        seed=_SEED,
        arrivals=_ARRIVALS,
        duration_s=_DURATION_S,
        pool=live.policy,
        hold_s=_HOLD,
        create_s=_fitted(costs.create_s),
        recycle_s=_fitted(costs.recycle_s),
        destroy_s=_fitted(costs.destroy_s),
        sandbox_bytes=MIB,
        sample_every_s=0.1,
    )
    return _compare(context, costs, live, scenario)


def _fitted(seconds: list[float]) -> Distribution:
    """Return a lognormal with the median and the 99th percentile that were measured."""
    ordered = sorted(seconds)
    median, p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
    return Distribution(kind="lognormal", median=median, p99=p99) if p99 > median else constant(median)


async def _calibrate(node: Node, image: str) -> Costs:
    """Measure each operation with as many at once as the pool will have."""
    spec = SandboxSpec(image=image)
    create_s: list[float] = []
    destroy_s: list[float] = []

    async def lane() -> None:
        for _ in range(_CALIBRATIONS // _CREATIONS_AT_ONCE):
            with timed() as creating:
                info = await node.create(spec)
            create_s.append(creating.seconds)
            with timed() as destroying:
                await node.remove(info.sandbox_id)
            destroy_s.append(destroying.seconds)

    async with anyio.create_task_group() as lanes:
        for _ in range(_CREATIONS_AT_ONCE):
            lanes.start_soon(lane)
    recycle_s = await _recycles(node, spec)
    return Costs(create_s=create_s, recycle_s=recycle_s, destroy_s=destroy_s)


async def _recycles(node: Node, spec: SandboxSpec) -> list[float]:
    """Measure recycles of the one sandbox that a pool may have: from giving it back to its standing ready again."""
    pools = pools_of(node)
    await pools.set_pool(spec, PoolChange(fixed_level=1, maximum=1))

    async def wait_ready() -> None:
        # The pool tells nobody that one is ready; a look costs microseconds.
        while (await pools.list_pools())[0].statistics.ready < 1:  # noqa: ASYNC110
            await anyio.sleep(0.001)

    seconds: list[float] = []
    with anyio.fail_after(_CALIBRATION_TIMEOUT_S):
        await wait_ready()
        for _ in range(_CALIBRATIONS):
            info = await node.create(spec)
            with timed() as recycling:
                await node.remove(info.sandbox_id)
                await wait_ready()
            seconds.append(recycling.seconds)
    return seconds


async def _run_live(node: Node, image: str) -> Live:
    streams = Streams(_SEED)
    times_s = plan_arrivals(_ARRIVALS, _DURATION_S, streams.generator("arrivals")).times_s.tolist()
    hold_s = streams.draws("hold", _HOLD)
    spec, pools = SandboxSpec(image=image), pools_of(node)
    info = await pools.set_pool(spec, _CHANGE)
    begin = time.perf_counter()
    waits_s: list[float] = []
    totals: list[int] = []
    failures: list[str] = []

    async def task(at_s: float) -> None:
        await anyio.sleep(begin + at_s - time.perf_counter())
        try:
            with timed() as waiting:
                box = await node.create(spec)
        except DsecError as error:
            failures.append(error.brief)
            return
        waits_s.append(waiting.seconds)
        await anyio.sleep(hold_s())
        await node.remove(box.sandbox_id)

    async def watch() -> None:
        while True:
            totals.append((await pools.list_pools())[0].statistics.total)
            await anyio.sleep(0.1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await _all(task, times_s)
        tasks.cancel_scope.cancel()
    statistics = (await pools.list_pools())[0].statistics
    return Live(
        policy=info.policy,
        waits_s=waits_s,
        failures=failures,
        totals=totals,
        creations=statistics.creations,
        recycles=statistics.recycles,
    )


async def _all(task: Callable[[float], Coroutine[Any, Any, None]], times_s: list[float]) -> None:
    async with anyio.create_task_group() as tasks:
        for at_s in times_s:
            tasks.start_soon(task, at_s)


def _compare(context: BenchContext, costs: Costs, live: Live, scenario: LevelsScenario) -> Report:
    result = simulate(scenario)
    wait = result.figures["wait_s"]
    simulated = {
        "hand_outs": result.counts["handed_out"],
        "failures": result.counts["refused"],
        "mean_wait_ms": wait.mean * 1e3,
        "p99_wait_ms": wait.p99 * 1e3,
        "waited_share": result.counts["waited_share"],
        "creations": result.counts["creations"],
        "recycles": result.counts["recycles"],
        "mean_sandboxes": result.levels["sandboxes"].mean,
    }
    ordered = sorted(live.waits_s)
    if not ordered:
        raise NodeUnavailableError(
            "the live run handed out no sandbox",
            detail=live.failures[0],
            resolution="see `dsec doctor`, and the load of the host",
        )
    seen = {
        "hand_outs": float(len(ordered)),
        "failures": float(len(live.failures)),
        "mean_wait_ms": sum(ordered) / len(ordered) * 1e3,
        "p99_wait_ms": percentile(ordered, 0.99) * 1e3,
        "waited_share": sum(wait_s > _NOTICED_S for wait_s in ordered) / len(ordered),
        "creations": float(live.creations),
        "recycles": float(live.recycles),
        "mean_sandboxes": sum(live.totals) / len(live.totals),
    }
    for text in (*_EXPLANATIONS, *live.failures[:1]):
        context.note(text)
    return make_report(
        "validate",
        "ms",
        "lower",
        ours=distribution(ordered, scale=1e3),
        references={"simulated": _as_measured(wait)},
        series=[
            *(_row(name, value, simulated[name]) for name, value in seen.items()),
            {"what": "calibration: create", "ms": distribution(costs.create_s, scale=1e3)},
            {"what": "calibration: recycle", "ms": distribution(costs.recycle_s, scale=1e3)},
            {"what": "calibration: destroy", "ms": distribution(costs.destroy_s, scale=1e3)},
        ],
        host=context.host,
    )


def _as_measured(wait: Figure) -> Measured:
    p50, p95, p99 = (round(value * 1e3, 3) for value in (wait.p50, wait.p95, wait.p99))
    return Measured(p50=p50, p95=p95, p99=p99, n=wait.count)


def _row(name: str, live: float, simulated: float) -> dict[str, Any]:
    row = {"what": name, "live": round(live, 3), "simulated": round(simulated, 3)}
    return {**row, "live_to_simulated": round(live / simulated, 3)} if simulated else row


_EXPLANATIONS = (
    f"waited_share counts waits above {_NOTICED_S * 1e3:g} ms: live, a hand-out takes time too, which is not simulated",
    "simulated creations cost what they cost alone; live ones slow each other, and other work slows them",
    "the live run ends with its last task, the simulated one with the last arrival",
)
