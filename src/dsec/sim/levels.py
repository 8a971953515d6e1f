"""One pool under arrivals that change: what tasks wait, and how many sandboxes stand for it.

The pool is `dsec.pools.pool.Pool` itself. This module is its shell, as a node is in the live system: it answers
creations, recycles and
destructions after the time they take.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from dsec.model.pool import PoolPolicy
from dsec.pools.actions import Create, Destroy, HandOut, PoolAction, Recycle, Refuse
from dsec.pools.events import Created, CreationFailed, Gone, PoolEvent, Recycled, Returned, TaskArrived, Ticked
from dsec.pools.pool import Pool
from dsec.sim.arrivals import Arrivals, plan_arrivals
from dsec.sim.calendar import Calendar, without_garbage_collection
from dsec.sim.distributions import Distribution, Streams, constant
from dsec.sim.figures import Level, Samples, thinned
from dsec.sim.result import LevelFigure, Result
from dsec.sim.timed import TimedScenario

_TICK_S = 1.0


class LevelsScenario(TimedScenario, frozen=True, kw_only=True, tag_field="model", tag="levels"):
    """One pool and the tasks that ask it for sandboxes.

    Attributes:
        arrivals: of tasks.
        duration_s: how long tasks arrive.
        pool: the policy, as a live pool takes it.
        hold_s: how long a task keeps a sandbox, unless a trace says it.
        create_s: duration of a creation.
        recycle_s: duration of a rollback and its clean check.
        destroy_s: duration of a destruction.
        creation_failure_share: creations that fail.
        unclean_share: recycles whose clean check fails.
        sandbox_bytes: memory of each sandbox, whatever it does.
        sample_every_s: distance of the points of the series.
    """

    arrivals: Arrivals
    pool: PoolPolicy = PoolPolicy()
    hold_s: Distribution = constant(30.0)
    create_s: Distribution = constant(1.0)
    recycle_s: Distribution = constant(0.1)
    destroy_s: Distribution = constant(0.1)
    creation_failure_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    unclean_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    sandbox_bytes: Annotated[int, Meta(ge=0)] = 2 << 30
    sample_every_s: Annotated[float, Meta(gt=0)] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arrivals.kind == "closed":
            raise ValueError("a pool takes open arrivals: uniform, poisson, bursts or trace")


class LevelsModel:
    """The state of one run. Each method whose first argument is the time is an event."""

    def __init__(self, scenario: LevelsScenario, seed: int, *, directory: Path = Path()) -> None:
        self._scenario = scenario
        self._seed = seed
        streams = Streams(seed)
        plan = plan_arrivals(scenario.arrivals, scenario.duration_s, streams.generator("arrivals"), directory=directory)
        self._times_s: list[float] = plan.times_s.tolist()
        self._traced_s: list[float] | None = None if plan.durations_s is None else plan.durations_s.tolist()
        self._hold_s = streams.draws("hold", scenario.hold_s)
        self._create_s = streams.draws("create", scenario.create_s)
        self._recycle_s = streams.draws("recycle", scenario.recycle_s)
        self._destroy_s = streams.draws("destroy", scenario.destroy_s)
        self._chance = streams.draws("chance", Distribution(kind="uniform", high=1.0))
        self._names = count()
        self.pool = Pool(scenario.pool)
        self.calendar = Calendar(max(1.0, 4 * len(self._times_s) / scenario.duration_s + 2))
        self.total = Level()
        self.in_use = Level()
        self.wait_s = Samples()
        self.handed_out = self.refused = self.creations = self.recycles = self.destroyed = 0
        self._samples: list[tuple[float, ...]] = []

    def run(self, case: str = "") -> Result:
        """Run until every task has had its sandbox, and sum up what was between the warm-up and the last arrival."""
        calendar, scenario = self.calendar, self._scenario
        calendar.at(0.0, self._tick)
        calendar.at(0.0, self._sample)
        if scenario.warmup_s:
            calendar.at(scenario.warmup_s, self._restart)
        if self._times_s:
            calendar.at(self._times_s[0], self._arrive, 0)
        with without_garbage_collection():
            calendar.run(scenario.duration_s)
        now_s = calendar.now_s
        return Result(
            scenario=scenario.title,
            case=case,
            seed=self._seed,
            simulated_s=now_s,
            events=calendar.events,
            counts={
                "handed_out": self.handed_out,
                "refused": self.refused,
                "waiting_at_end": self.pool.statistics(now_s).waiting,
                "creations": self.creations,
                "recycles": self.recycles,
                "destroyed": self.destroyed,
                "waited_share": sum(wait_s > 0 for wait_s in self.wait_s.values) / max(1, len(self.wait_s.values)),
            },
            figures={"wait_s": self.wait_s.figure()},
            levels={
                "sandboxes": LevelFigure.of(self.total, now_s),
                "in_use": LevelFigure.of(self.in_use, now_s),
                "idle": LevelFigure(mean=self.total.mean(now_s) - self.in_use.mean(now_s), maximum=self.total.maximum),
                "memory_bytes": LevelFigure(
                    mean=self.total.mean(now_s) * scenario.sandbox_bytes,
                    maximum=self.total.maximum * scenario.sandbox_bytes,
                ),
            },
            series={
                name: thinned(unit, [row[0] for row in self._samples], [row[column] for row in self._samples])
                for column, (name, unit) in enumerate(
                    (("level", "sandboxes"), ("ready", "sandboxes"), ("waiting", "tasks"), ("in_use", "sandboxes"),
                     ("arrival_rate", "/s")), start=1,
                )
            },
        )  # fmt: skip

    def _restart(self, now_s: float, _: None) -> None:
        self.total.restart(now_s)
        self.in_use.restart(now_s)
        self.wait_s = Samples()
        self.handed_out = self.refused = self.creations = self.recycles = self.destroyed = 0

    def _sample(self, now_s: float, _: None) -> None:
        seen = self.pool.statistics(now_s)
        self._samples.append((now_s, seen.level, seen.ready, seen.waiting, seen.in_use, seen.arrival_rate_per_s))
        self.calendar.at(now_s + self._scenario.sample_every_s, self._sample)

    def _tick(self, now_s: float, _: None) -> None:
        self._handle(now_s, Ticked())
        self.calendar.at(now_s + _TICK_S, self._tick)

    def _arrive(self, now_s: float, index: int) -> None:
        if index + 1 < len(self._times_s):
            self.calendar.at(self._times_s[index + 1], self._arrive, index + 1)
        self._handle(now_s, TaskArrived(f"t{index}"))

    def _handle(self, now_s: float, event: PoolEvent) -> None:
        """Tell the pool, and begin what it wants."""
        for action in self.pool.handle(event, now_s):
            self._act(now_s, action)

    def _act(self, now_s: float, action: PoolAction) -> None:
        calendar = self.calendar
        match action:
            case HandOut(task=task, sandbox=sandbox, waited_s=waited_s):
                self.handed_out += 1
                self.wait_s.add(waited_s)
                self.in_use.add(now_s, 1)
                calendar.at(now_s + self._kept_s(task), self._give_back, sandbox)
            case Create(count=wanted):
                self.total.add(now_s, wanted)
                for _ in range(wanted):
                    calendar.at(now_s + self._create_s(), self._created)
            case Recycle(sandbox=sandbox):
                calendar.at(now_s + self._recycle_s(), self._recycled, sandbox)
            case Destroy(sandbox=sandbox):
                self.destroyed += 1
                calendar.at(now_s + self._destroy_s(), self._gone, sandbox)
            case Refuse():
                self.refused += 1

    def _kept_s(self, task: str) -> float:
        """Return how long a task keeps its sandbox: as long as its trace says, else a drawn time."""
        return self._hold_s() if self._traced_s is None else self._traced_s[int(task[1:])]

    def _created(self, now_s: float, _: None) -> None:
        if self._scenario.creation_failure_share and self._chance() < self._scenario.creation_failure_share:
            self.total.add(now_s, -1)
            self._handle(now_s, CreationFailed("the simulated creation failed"))
            return
        self.creations += 1
        self._handle(now_s, Created(f"s{next(self._names)}"))

    def _give_back(self, now_s: float, sandbox: str) -> None:
        self.in_use.add(now_s, -1)
        self._handle(now_s, Returned(sandbox))

    def _recycled(self, now_s: float, sandbox: str) -> None:
        self.recycles += 1
        clean = not self._scenario.unclean_share or self._chance() >= self._scenario.unclean_share
        self._handle(now_s, Recycled(sandbox, clean, "" if clean else "the simulated check failed"))

    def _gone(self, now_s: float, sandbox: str) -> None:
        self.total.add(now_s, -1)
        self._handle(now_s, Gone(sandbox))
