"""`sim`: events per second of the simulator's engine, and how long a simulated day of one scale unit takes.

Ours and the reference do the same: as many events pending as a full scale unit has, each of which schedules its
successor after a random time (the hold model, by which event queues are compared: R. Brown, CACM 31 (10), 1988). The
reference is the plainest loop there is, `heapq` of tuples. What a model with policies makes of it is in the series.
"""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import perf_counter
from typing import Any

import anyio.to_thread

from dsec.base.errors import CapabilityMissingError
from dsec.base.units import KIB, MIB
from dsec.bench.context import PureContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report

_PENDING = 380_000
_EVENTS = 400_000
_REFERENCE = "heapq of tuples"
_DRAWS = 1 << 16


async def bench_sim(context: PureContext) -> Report:
    """Measure a day first, while the process is small, then engine and reference in turn."""
    context.progress.say("simulating a day of one scale unit")
    series = await anyio.to_thread.run_sync(_day)
    series += [await anyio.to_thread.run_sync(_queue)]
    ours: list[float] = []
    reference: list[float] = []
    with context.progress.counting("samples", context.options.samples) as advance:
        for turn in range(context.options.samples):
            pairs: list[tuple[list[float], Callable[[], float]]] = [(ours, _calendar), (reference, _heap)]
            for rates, measure in pairs if turn % 2 else reversed(pairs):
                rates.append(await anyio.to_thread.run_sync(measure))
            advance()
    context.note(f"{_PENDING} events pending, {_EVENTS} run in each sample; unit_day_s includes reading the scenario")
    return make_report(
        "sim",
        "events/s",
        "higher",
        ours=distribution(ours),
        references={_REFERENCE: distribution(reference)},
        series=series,
        host=context.host,
    )


def _needed(error: ModuleNotFoundError) -> CapabilityMissingError:
    return CapabilityMissingError(f"the simulator needs {error.name}", resolution="pip install 'dsec[planning]'")


def _day() -> list[dict[str, Any]]:
    try:
        from dsec.sim.running import run
        from dsec.sim.shipped import find_scenario
    except ModuleNotFoundError as error:
        raise _needed(error) from error
    begin = perf_counter()
    result = run(find_scenario("unit-day").base)
    took_s = perf_counter() - begin
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    return [
        {"name": "unit_day_s", "value": round(took_s, 1)},
        {"name": "unit_day_peak_memory_mib", "value": round(peak_bytes / MIB)},
        {"name": "unit_day_sandboxes", "value": int(result.counts["created"])},
        {"name": "unit_day_events_per_s", "value": round(result.events / took_s)},
    ]


def _queue() -> dict[str, Any]:
    """A model without policies: a queue with 48 servers, all statistics kept."""
    from dsec.sim import Arrivals, RoundsScenario, exponential, run

    arrivals = Arrivals(kind="poisson", rate_per_s=40)
    scenario = RoundsScenario(arrivals=arrivals, duration_s=2000.0, tool_s=exponential(1.0), cores=48)
    begin = perf_counter()
    result = run(scenario)
    return {"name": "queue_events_per_s", "value": round(result.events / (perf_counter() - begin))}


def _draws() -> list[float]:
    draw = random.Random(1).expovariate
    return [draw(1.0) for _ in range(_DRAWS)]


def _calendar() -> float:
    from dsec.sim.calendar import Calendar, without_garbage_collection

    calendar, draws, turn = Calendar(_PENDING), _draws(), count()

    def hold(now_s: float, _: object) -> None:
        at = next(turn)
        calendar.at(now_s + draws[at & (_DRAWS - 1)], hold)
        if at == _EVENTS:
            calendar.stop()

    for at in range(_PENDING):
        calendar.at(draws[at & (_DRAWS - 1)], hold)
    with without_garbage_collection():
        begin = perf_counter()
        calendar.run()
        return _EVENTS / (perf_counter() - begin)


def _heap() -> float:
    from dsec.sim.calendar import without_garbage_collection

    queue: list[tuple[float, int, Callable[..., None], object]] = []
    draws, turn, numbers = _draws(), count(), count()

    def hold(now_s: float, _: object) -> None:
        heappush(queue, (now_s + draws[next(turn) & (_DRAWS - 1)], next(numbers), hold, None))

    for at in range(_PENDING):
        heappush(queue, (draws[at & (_DRAWS - 1)], next(numbers), hold, None))
    with without_garbage_collection():
        begin = perf_counter()
        for _ in range(_EVENTS):
            now_s, _number, handler, argument = heappop(queue)
            handler(now_s, argument)
        return _EVENTS / (perf_counter() - begin)
