"""Tasks of model and tool phases on hosts with places for environments, cores and model calls.

A task waits for a model slot, is served, runs a tool on a core, and so on for its rounds. Its environment takes memory
either from beginning to end (*resident*) or, made anew for each round, from the start of its preparation to the end of
the tool (*per round*); the preparation begins so that it would end with the model call. An environment that is saved or
written out after each tool, as a snapshot or a pause does, goes on taking memory for as long as that takes. This is the
workload of the chapter's examples 11-1 and 11-9, and what a planner's formulas are checked against: the formulas give
means, the simulation also what queues do to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from dsec.sim.arrivals import Arrivals, plan_arrivals
from dsec.sim.calendar import Calendar, without_garbage_collection
from dsec.sim.distributions import Distribution, Streams, constant
from dsec.sim.figures import Figure, Level, Samples
from dsec.sim.result import LevelFigure, Result
from dsec.sim.stations import Station
from dsec.sim.timed import TimedScenario

_UNLIMITED = float("inf")
_ROUNDING_S = 1e-9
"""A task that is due at 21 s and ends at 21.000000000000004 s is on time."""


class RoundsScenario(TimedScenario, frozen=True, kw_only=True, tag_field="model", tag="rounds"):
    """A stream of tasks and what serves them. Zero for a capacity means that there is no limit.

    Attributes:
        arrivals: of tasks.
        duration_s: how long tasks arrive; the run then goes on until the last is done.
        warmup_s: what is measured before this is forgotten; tasks that arrive before it are not counted.
        rounds: model and tool phases of each task.
        model_call_s: duration of a model call.
        tool_s: duration of a tool phase.
        tool_cores: cores that a tool phase occupies.
        commit_s: what a task takes after its last round, environment kept.
        model_slots: model calls served at once.
        cores: of all hosts.
        environments: environments that fit into the memory of all hosts.
        environment_bytes: memory of each; for the figure only.
        environment: `resident` or `per_round`.
        prepare_s: what making an environment takes. Resident: once, before the first round.
        release_s: per round: how long an environment takes memory after its tool, because it is saved or written out.
        prepare_cpu_s: processor time of that, spread evenly; it is added to the mean and occupies no core.
        deadline_s: tasks done within it are counted; 0: none is set.
    """

    arrivals: Arrivals
    rounds: Annotated[int, Meta(ge=1, le=10_000)] = 1
    model_call_s: Distribution = constant(0.0)
    tool_s: Distribution = constant(0.0)
    tool_cores: Annotated[float, Meta(ge=0)] = 1.0
    commit_s: Annotated[float, Meta(ge=0)] = 0.0
    model_slots: Annotated[int, Meta(ge=0)] = 0
    cores: Annotated[float, Meta(ge=0)] = 0.0
    environments: Annotated[int, Meta(ge=0)] = 0
    environment_bytes: Annotated[int, Meta(ge=0)] = 2 << 30
    environment: Literal["resident", "per_round"] = "resident"
    prepare_s: Annotated[float, Meta(ge=0)] = 0.0
    release_s: Annotated[float, Meta(ge=0)] = 0.0
    prepare_cpu_s: Annotated[float, Meta(ge=0)] = 0.0
    deadline_s: Annotated[float, Meta(ge=0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cores and self.tool_cores > self.cores:
            raise ValueError(
                f"`tool_cores` {self.tool_cores:g} is more than `cores` {self.cores:g}: no tool could ever run"
            )


class _Task:
    """One task. Its tool runs when the model has decided and the environment is ready."""

    __slots__ = ("arrived_s", "decided", "decided_s", "ready", "rounds_left")

    def __init__(self, arrived_s: float, rounds: int) -> None:
        self.arrived_s = arrived_s
        self.rounds_left = rounds
        self.decided = self.ready = False
        self.decided_s = 0.0


class RoundsModel:
    """The state of one run. Each method whose first argument is the time is an event."""

    def __init__(self, scenario: RoundsScenario, seed: int, *, directory: Path = Path()) -> None:
        self._scenario = scenario
        self._seed = seed
        streams = Streams(seed)
        self._times_s = plan_arrivals(
            scenario.arrivals, scenario.duration_s, streams.generator("arrivals"), directory=directory
        ).times_s.tolist()
        self._model_call_s = streams.draws("model", scenario.model_call_s)
        self._tool_s = streams.draws("tool", scenario.tool_s)
        self._closed = scenario.arrivals.kind == "closed"
        self._resident = scenario.environment == "resident"
        self.calendar = Calendar(self._events_per_s())
        self._measure()
        self.models = Station(scenario.model_slots or _UNLIMITED)
        self.cores = Station(scenario.cores or _UNLIMITED)
        self.environments = Station(scenario.environments or _UNLIMITED)
        self.in_system = Level()

    def _events_per_s(self) -> float:
        scenario = self._scenario
        round_s = scenario.model_call_s.expected() + scenario.tool_s.expected()
        span_s = max(1e-3, scenario.rounds * round_s) if self._closed else scenario.duration_s
        return max(1.0, len(self._times_s) / span_s * (2 + 4 * scenario.rounds))

    def _measure(self) -> None:
        """Begin to measure anew."""
        self.task_s = Samples()
        self.late_environment_s = Samples()
        self.arrived = self.done = self.on_time = self.preparations = 0

    def run(self, case: str = "") -> Result:
        """Run until the last task is done, and sum up what was between the warm-up and the last arrival."""
        calendar, scenario = self.calendar, self._scenario
        if self._times_s:
            calendar.at(self._times_s[0], self._arrive, 0)
        if scenario.warmup_s:
            calendar.at(scenario.warmup_s, self._restart)
        with without_garbage_collection():
            calendar.run(scenario.duration_s)
            levels = self._levels(calendar.now_s)
            preparations = self.preparations
            calendar.run()
        span_s = scenario.duration_s - scenario.warmup_s
        return Result(
            scenario=scenario.title,
            case=case,
            seed=self._seed,
            simulated_s=calendar.now_s,
            events=calendar.events,
            counts={
                "arrived": self.arrived,
                "completed": self.done,
                "on_time": self.on_time,
                "preparations_per_s": preparations / span_s,
                "prepare_cores": preparations * scenario.prepare_cpu_s / span_s,
            },
            figures=self._figures(),
            levels=levels,
        )

    def _restart(self, now_s: float, _: None) -> None:
        self._measure()
        self.in_system.restart(now_s)
        for station in (self.models, self.cores, self.environments):
            station.restart(now_s)

    def _levels(self, now_s: float) -> dict[str, LevelFigure]:
        """Sum up what stood until the last arrival: how a run empties is no steady state."""
        environments = LevelFigure.of(self.environments.busy, now_s)
        size = self._scenario.environment_bytes
        return {
            "tasks": LevelFigure.of(self.in_system, now_s),
            "model_calls": LevelFigure.of(self.models.busy, now_s),
            "model_queue": LevelFigure.of(self.models.queued, now_s),
            "tool_cores": LevelFigure.of(self.cores.busy, now_s),
            "tool_queue": LevelFigure.of(self.cores.queued, now_s),
            "environments": environments,
            "environment_queue": LevelFigure.of(self.environments.queued, now_s),
            "memory_bytes": LevelFigure(mean=environments.mean * size, maximum=environments.maximum * size),
        }

    def _figures(self) -> dict[str, Figure]:
        return {
            "task_s": self.task_s.figure(),
            "model_wait_s": self.models.waits_s.figure(),
            "tool_wait_s": self.cores.waits_s.figure(),
            "environment_wait_s": self.environments.waits_s.figure(),
            "late_environment_s": self.late_environment_s.figure(),
        }

    def _arrive(self, now_s: float, index: int) -> None:
        if index + 1 < len(self._times_s):
            self.calendar.at(self._times_s[index + 1], self._arrive, index + 1)
        self._enter(now_s)

    def _enter(self, now_s: float) -> None:
        task = _Task(now_s, self._scenario.rounds)
        self.arrived += 1
        self.in_system.add(now_s, 1)
        if self._resident:
            self.environments.acquire(now_s, 1, self._granted, task)
        else:
            self._begin_round(now_s, task)

    def _begin_round(self, now_s: float, task: _Task) -> None:
        self.models.acquire(now_s, 1, self._call_model, task)

    def _call_model(self, now_s: float, task: _Task) -> None:
        done_s = now_s + self._model_call_s()
        self.calendar.at(done_s, self._decide, task)
        if not self._resident:
            self.calendar.at(max(now_s, done_s - self._scenario.prepare_s), self._prepare, task)

    def _prepare(self, now_s: float, task: _Task) -> None:
        self.environments.acquire(now_s, 1, self._granted, task)

    def _granted(self, now_s: float, task: _Task) -> None:
        self.preparations += 1
        self.calendar.at(now_s + self._scenario.prepare_s, self._be_ready, task)

    def _be_ready(self, now_s: float, task: _Task) -> None:
        task.ready = True
        if self._resident:
            self._begin_round(now_s, task)
        elif task.decided:
            self.late_environment_s.add(now_s - task.decided_s)
            self._want_core(now_s, task)

    def _decide(self, now_s: float, task: _Task) -> None:
        self.models.release(now_s, 1)
        task.decided, task.decided_s = True, now_s
        if task.ready:
            self._want_core(now_s, task)

    def _want_core(self, now_s: float, task: _Task) -> None:
        self.cores.acquire(now_s, self._scenario.tool_cores, self._run_tool, task)

    def _run_tool(self, now_s: float, task: _Task) -> None:
        self.calendar.at(now_s + self._tool_s(), self._end_round, task)

    def _end_round(self, now_s: float, task: _Task) -> None:
        self.cores.release(now_s, self._scenario.tool_cores)
        task.decided = False
        task.rounds_left -= 1
        if not self._resident:
            task.ready = False
            self.calendar.at(now_s + self._scenario.release_s, self._release, task)
        if task.rounds_left:
            self._begin_round(now_s, task)
        else:
            self.calendar.at(now_s + self._scenario.commit_s, self._leave, task)

    def _release(self, now_s: float, _: _Task) -> None:
        self.environments.release(now_s, 1)

    def _leave(self, now_s: float, task: _Task) -> None:
        if self._resident:
            self.environments.release(now_s, 1)
        self.in_system.add(now_s, -1)
        self.done += 1
        if task.arrived_s >= self._scenario.warmup_s:
            self._count(now_s - task.arrived_s)
        if self._closed and now_s < self._scenario.duration_s:
            self._enter(now_s)

    def _count(self, took_s: float) -> None:
        self.task_s.add(took_s)
        if self._scenario.deadline_s and took_s <= self._scenario.deadline_s + _ROUNDING_S:
            self.on_time += 1
