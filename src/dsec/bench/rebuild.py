"""`rebuild`: memory over time of an agent's environment: rebuilt for each round, kept, or paused.

The chapter's task, three rounds of 9 s of thinking and 1 s of tools in 2 GiB, takes 60 GiB·s when its environment is
kept and 18 when each round makes it anew in 2 s. It is run live, scaled to seconds and tens of MiB, in each way in
turn, beside what the formulas say for the same scale; and simulated at full scale, ten tasks arriving in a second.

Beside that, the ways to make a version of the files again are measured one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from dsec.base.errors import CapabilityMissingError
from dsec.base.units import GIB, MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.rebuild_task import (
    HELD_BYTES,
    MEMORY_GIB,
    MEMORY_SCALE,
    PREPARE_S,
    REBUILT,
    RESIDENT,
    ROUNDS,
    THINKING_S,
    TIME_SCALE,
    TOOL_S,
    WAYS,
    Course,
    Task,
    task_in,
)
from dsec.bench.rebuild_ways import measure_ways
from dsec.bench.report import Report, make_report
from dsec.costs.pause import pause
from dsec.costs.rebuild import by_rebuilding

if TYPE_CHECKING:
    from dsec.bench.rebuild_task import Way

_SWAP_BYTES = 16 * HELD_BYTES


async def bench_rebuild(context: BenchContext) -> Report:
    """Run the task in each way, simulate it, and measure the ways alone."""
    series: list[dict[str, Any]] = [await anyio.to_thread.run_sync(_simulated)]
    async with context.workplace.embedded(swap_bytes=str(_SWAP_BYTES)) as node:
        directory = context.workplace.directory / "rebuild"
        directory.mkdir()
        async with task_in(directory, node, context.workplace.image) as task:
            courses = await _run(context, task)
        series += [_row(way, courses[way.name]) for way in WAYS]
        series += await measure_ways(node, context.workplace.image, rounds=max(3, context.options.samples))
    context.note(
        f"live: times of the chapter x {TIME_SCALE:g}, memory x {MEMORY_SCALE:g} ({HELD_BYTES // MIB} MiB held)"
    )
    taken = {name: distribution([each.byte_s / MIB for each in every]) for name, every in courses.items()}
    return make_report(
        "rebuild",
        "MiB·s",
        "lower",
        ours=taken[REBUILT.name],
        references={name: value for name, value in taken.items() if name != REBUILT.name},
        series=series,
        host=context.host,
    )


async def _run(context: BenchContext, task: Task) -> Mapping[str, list[Course]]:
    """Run each way once to learn how long its model thinks, which the chapter takes as known, and then in turn."""
    courses: dict[str, list[Course]] = {way.name: [] for way in WAYS}
    with context.progress.counting("tasks", (1 + context.options.samples) * len(WAYS)) as advance:
        for turn in range(1 + context.options.samples):
            for way in WAYS if turn % 2 else reversed(WAYS):
                course = await task.run(way)
                if turn:
                    courses[way.name].append(course)
                advance()
    return courses


def _row(way: Way, courses: list[Course]) -> dict[str, Any]:
    """Return what a way took, and its middle course for a picture."""
    middle = sorted(courses, key=lambda course: course.byte_s)[len(courses) // 2]
    waits_s = [wait for course in courses for wait in course.waits_s]
    row: dict[str, Any] = {
        "way": way.name,
        "live_mib_s": distribution([course.byte_s / MIB for course in courses]),
        "accounted_mib_s": round(median(course.accounted_byte_s for course in courses) / MIB, 1),
        "task_s": distribution([course.duration_s for course in courses]),
        "tools_waited_ms": distribution([1e3 * wait for wait in waits_s]) if waits_s else None,
        "course": [[round(at_s, 3), round(size / MIB, 2)] for at_s, size in middle.points],
    }
    if way.mode in (RESIDENT.mode, REBUILT.mode):
        formula_gib_s = _formula_gib_s()[way.mode is REBUILT.mode]
        row["formula_mib_s"] = round(formula_gib_s * TIME_SCALE * MEMORY_SCALE * GIB / MIB, 1)
    return row


def _formula_gib_s() -> tuple[float, float]:
    """Return the memory over time of the chapter's task, kept and rebuilt."""
    kept = pause(memory_gib=MEMORY_GIB, gap_s=THINKING_S, save_s_per_gib=0.0, resume_s=0.0).kept_gib_s
    rebuilt = by_rebuilding(model_s=THINKING_S, tool_s=TOOL_S, prepare_s=PREPARE_S, memory_gib=MEMORY_GIB)
    return ROUNDS * (kept + MEMORY_GIB * TOOL_S), ROUNDS * rebuilt.memory_gib_s


def _simulated() -> dict[str, Any]:
    """Return the memory over time of a task among ten that arrive in a second."""
    try:
        from dsec.sim import Arrivals, RoundsScenario, constant, run
    except ModuleNotFoundError as error:
        raise CapabilityMissingError(
            f"the simulator needs {error.name}", resolution="pip install 'dsec[planning]'"
        ) from error

    def gib_s(**way: Any) -> float:
        rate = 10.0
        scenario = RoundsScenario(
            arrivals=Arrivals(kind="uniform", rate_per_s=rate),
            duration_s=200.0,
            warmup_s=60.0,
            rounds=ROUNDS,
            model_call_s=constant(THINKING_S),
            tool_s=constant(TOOL_S),
            cores=48,
            environment_bytes=round(MEMORY_GIB * GIB),
            **way,
        )
        return round(run(scenario).levels["memory_bytes"].mean / GIB / rate, 2)

    kept, rebuilt = _formula_gib_s()
    return {
        "name": "simulated at full scale",
        "resident_gib_s": gib_s(),
        "resident_formula_gib_s": kept,
        "rebuilt_gib_s": gib_s(environment="per_round", prepare_s=PREPARE_S),
        "rebuilt_formula_gib_s": rebuilt,
    }


def draw(report: Report, directory: Path) -> list[Path]:
    """Draw the memory of each way over the time of one task.

    Raises:
        CapabilityMissingError: matplotlib is not installed.
    """
    from dsec.planner.picture import Caption, Curve, Curves
    from dsec.planner.pictures.drawing import write_pictures

    rows = [row for row in report.series if "course" in row]
    text = f"{report.host.get('cores', '?')} cores, n={report.ours.n} of each; dsec bench rebuild"
    picture = Curves(
        caption=Caption(name="environment-memory", title="Memory of an agent's environment", text=text),
        x_label="time",
        x_unit="s",
        y_label="memory",
        y_unit="MiB",
        curves=tuple(
            Curve(label=row["way"], role="fixed", points=tuple((at_s, size) for at_s, size in row["course"]))
            for row in rows
        ),
    )
    return write_pictures([picture], directory)
