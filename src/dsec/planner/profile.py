"""What one task of a class does and holds, under one policy, with one service at one number of sessions.

Everything is composed of the formulas of `dsec.costs`; here they are only put together.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import pairwise

from dsec.base.units import GIB
from dsec.costs.model_service import call_gpu_s, call_time_s, call_usd
from dsec.costs.pause import pause
from dsec.costs.prediction import prediction
from dsec.costs.timeline import Residency, uniform_task_timeline
from dsec.costs.token_prices import TokenPrices, call_cost
from dsec.planner.folding import Hold
from dsec.planner.scatter import gamma_atoms, larger
from dsec.planner.workload import Billing, Policy, PolicyKind, Service, TaskClass

_S_PER_H = 3600.0
_TOKENS_PER_MTOKEN = 1e6
_RESIDENCIES = {
    PolicyKind.KEPT: Residency.KEPT,
    PolicyKind.REBUILT: Residency.REBUILT,
    PolicyKind.ON_DEMAND: Residency.ON_DEMAND,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """When a task does what; seconds since its arrival, nothing waited for.

    Attributes:
        models, tools, environments: from when until when; environments take memory in these.
        preparations: from when until when environments are made.
        paths: how long the task takes, with probabilities; one, unless times vary or a guess decides.
        made: how many environments are made, on average.
    """

    models: tuple[tuple[float, float], ...]
    tools: tuple[tuple[float, float], ...]
    environments: tuple[tuple[float, float], ...]
    preparations: tuple[tuple[float, float], ...]
    paths: tuple[tuple[float, float], ...]
    made: float

    @property
    def path_s(self) -> float:
        """Mean time of the task."""
        return sum(probability * path_s for probability, path_s in self.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one task needs and costs by use.

    Attributes:
        phases: when it does what.
        model_s: time of one model call.
        rounds: model calls, and tools.
        cpu_s: processor time, preparations included.
        memory_byte_s: memory over time.
        slot_s: time in which model calls are served.
        tokens: through the service, all kinds.
        model_usd: what its model calls cost by use.
    """

    phases: Phases
    model_s: float
    rounds: int
    cpu_s: float
    memory_byte_s: float
    slot_s: float
    tokens: float
    model_usd: float
    task_class: TaskClass
    policy: Policy

    @property
    def is_random(self) -> bool:
        """Whether its times vary from task to task."""
        return len(self.phases.paths) > 1

    def memory_holds(self) -> list[Hold]:
        """Return the memory that it holds when."""
        held = self.task_class.memory.value
        return [Hold(start, end, held) for start, end in self.phases.environments]

    def cpu_holds(self) -> list[Hold]:
        """Return the cores that it keeps busy when."""
        cores = self.task_class.tool_cores.value
        holds = [Hold(start, end, cores) for start, end in self.phases.tools]
        work = self.policy.prepare_cpu.value
        return holds + [Hold(a, b, work / (b - a)) for a, b in self.phases.preparations if work and b > a]

    def slot_holds(self) -> list[Hold]:
        """Return the model slots that it holds when."""
        return [Hold(start, end, 1.0) for start, end in self.phases.models]


def model_time_s(task_class: TaskClass, service: Service, sessions: int) -> float:
    """Return the time of one model call."""
    given = task_class.model.get(service.name) or task_class.model.get("")
    if given is not None:
        return given.value
    assert task_class.output is not None  # The reader asked for one or the other.
    pace = pace_s_per_token(service, sessions)
    return service.first_token.value + call_time_s(output_tokens=task_class.output.value, pace_s_per_token=pace)


def pace_s_per_token(service: Service, sessions: int) -> float:
    """Return the time of one token, by straight lines between the given points; beyond them the nearest counts."""
    points = [(at, figure.value) for at, figure in service.pace]
    if sessions <= points[0][0] or len(points) == 1:
        return points[0][1]
    for (low, slow), (high, fast) in pairwise(points):
        if sessions <= high:
            return slow + (fast - slow) * (sessions - low) / (high - low)
    return points[-1][1]


def make_profile(task_class: TaskClass, service: Service, sessions: int, policy: Policy) -> Profile:
    """Return what one task needs and costs.

    Raises:
        InvalidRequestError: a formula refuses an input.
    """
    model_s = model_time_s(task_class, service, sessions)
    phases = scattered(_phases(task_class, policy, model_s), task_class, policy, model_s)
    resident_s = sum(end - start for start, end in phases.environments)
    tool_work = task_class.rounds * task_class.tool.value * task_class.tool_cores.value
    return Profile(
        phases=phases,
        model_s=model_s,
        rounds=task_class.rounds,
        cpu_s=tool_work + phases.made * policy.prepare_cpu.value,
        memory_byte_s=resident_s * task_class.memory.value,
        slot_s=task_class.rounds * model_s,
        tokens=task_class.rounds * _tokens(task_class),
        model_usd=task_class.rounds * _call_usd(task_class, service, sessions, model_s),
        task_class=task_class,
        policy=policy,
    )


def _tokens(task_class: TaskClass) -> float:
    output = task_class.output.value if task_class.output is not None else 0.0
    return task_class.input.value + task_class.cached.value + output


def _call_usd(task_class: TaskClass, service: Service, sessions: int, model_s: float) -> float:
    if service.billing is Billing.USED:
        assert service.gpus is not None  # The reader asked for both.
        assert service.price is not None
        occupied = call_gpu_s(call_s=model_s, gpus_per_replica=service.gpus.value, sessions=sessions)
        return call_usd(call_gpu_s=occupied, price_usd_per_gpu_h=service.price.value * _S_PER_H)
    if service.billing is not Billing.TOKENS:
        return 0.0
    prices = {kind: figure.value * _TOKENS_PER_MTOKEN for kind, figure in service.prices.items()}
    cost = call_cost(
        prices=TokenPrices(
            input_usd_per_mtoken=prices.get("input"),
            output_usd_per_mtoken=prices.get("output"),
            cache_read_usd_per_mtoken=prices.get("cached"),
        ),
        input_tokens=task_class.input.value,
        cache_read_tokens=task_class.cached.value,
        visible_tokens=task_class.output.value if task_class.output is not None else 0.0,
    )
    return cost.total_usd


def _phases(task_class: TaskClass, policy: Policy, model_s: float) -> Phases:
    if policy.kind is PolicyKind.PAUSED:
        return _paused(task_class, policy, model_s)
    if policy.kind is PolicyKind.PREDICTED:
        return _predicted(task_class, policy, model_s)
    timeline = uniform_task_timeline(
        rounds=task_class.rounds,
        model_s=model_s,
        tool_s=task_class.tool.value,
        residency=_RESIDENCIES[policy.kind],
        prepare_s=policy.prepare.value,
        commit_s=task_class.commit.value,
        overlapped=False,
    )
    starts = timeline.prepare_starts_s or (0.0,) * timeline.preparations
    return Phases(
        models=tuple((start, start + model_s) for start in timeline.model_starts_s),
        tools=tuple(zip(timeline.tool_starts_s, timeline.tool_ends_s, strict=True)),
        environments=tuple(zip(timeline.resident_from_s, timeline.resident_until_s, strict=True)),
        preparations=tuple((start, start + policy.prepare.value) for start in starts),
        paths=((1.0, timeline.completion_s),),
        made=float(timeline.preparations),
    )


def scattered(phases: Phases, task_class: TaskClass, policy: Policy, model_s: float) -> Phases:
    """Return phases whose task takes now longer, now shorter, as its model calls and tools vary."""
    calls, tools, tool_s = task_class.model_variation.value, task_class.tool_variation.value, task_class.tool.value
    if not (calls and model_s) and not (tools and tool_s):
        return phases
    call_s, variance = model_s, model_s**2 * calls
    path_s = phases.path_s
    if policy.kind is PolicyKind.REBUILT and calls:
        call_s, variance = larger(model_s, calls, policy.prepare.value)
        path_s += task_class.rounds * (call_s - max(model_s, policy.prepare.value))
    varying_s = task_class.rounds * ((call_s if calls else 0.0) + (tool_s if tools else 0.0))
    guessed = math.fsum(chance * (each_s - phases.path_s) ** 2 for chance, each_s in phases.paths)
    variance = task_class.rounds * (variance + tool_s**2 * tools) + guessed
    return dataclasses.replace(phases, paths=gamma_atoms(varying_s, variance, path_s - varying_s))


def _paused(task_class: TaskClass, policy: Policy, model_s: float) -> Phases:
    """Lay out a task whose environment is saved after each tool; the first is prepared beside the first call."""
    prepare_s, tool_s = policy.prepare.value, task_class.tool.value
    memory_gib = task_class.memory.value / GIB
    gap = pause(
        memory_gib=memory_gib,
        gap_s=model_s,
        save_s_per_gib=policy.save.value * GIB,
        resume_s=policy.restore.value,
    )
    begin_s = max(0.0, model_s - prepare_s)
    models, tools, environments = [(0.0, model_s)], [], []
    held_from_s, now_s = begin_s, begin_s + prepare_s
    for number in range(task_class.rounds):
        end_s = now_s + tool_s
        tools.append((now_s, end_s))
        if number == task_class.rounds - 1:
            environments.append((held_from_s, end_s + task_class.commit.value))
            break
        models.append((end_s, end_s + model_s))
        environments.append((held_from_s, end_s + gap.save_s))
        held_from_s, now_s = end_s + gap.resume_from_s, end_s + gap.tool_start_s
    path_s = tools[-1][1] + task_class.commit.value
    return Phases(
        models=tuple(models),
        tools=tuple(tools),
        environments=tuple(environments),
        preparations=((begin_s, begin_s + prepare_s),),
        paths=((1.0, path_s),),
        made=1.0,
    )


def _predicted(task_class: TaskClass, policy: Policy, model_s: float) -> Phases:
    """Lay out a task with the mean wait in each round; how many guesses are right decides how long it really takes."""
    rounds, tool_s, lead_s = task_class.rounds, task_class.tool.value, min(policy.lead.value, model_s)
    hit, prepare_s = policy.hit.value, policy.prepare.value
    seen = prediction(prepare_s=prepare_s, lead_s=lead_s, hit_probability=hit, memory_gib=task_class.memory.value / GIB)
    models, tools, environments, preparations = [], [], [], []
    now_s = 0.0
    for _ in range(rounds):
        call_s = now_s + model_s
        start_s = call_s + seen.expected_wait_s
        models.append((now_s, call_s))
        now_s = start_s + tool_s
        tools.append((start_s, now_s))
        environments.append((call_s - lead_s, now_s))
        preparations += [(call_s - lead_s, call_s - lead_s + prepare_s)] + [(call_s, call_s + prepare_s)] * (hit < 1)
    best_s = rounds * (model_s + seen.right_wait_s + tool_s) + task_class.commit.value
    late_s = seen.wrong_wait_s - seen.right_wait_s
    return Phases(
        models=tuple(models),
        tools=tuple(tools),
        environments=tuple(environments),
        preparations=tuple(preparations),
        paths=tuple((chance, best_s + wrong * late_s) for wrong, chance in enumerate(binomial(rounds, 1 - hit))),
        made=rounds * (2 - hit),
    )


def binomial(tries: int, chance: float) -> list[float]:
    """Return the probability of 0, 1, ... successes."""
    found = [1.0]
    for _ in range(tries):
        found = [a * (1 - chance) + b * chance for a, b in zip([*found, 0.0], [0.0, *found], strict=True)]
    return found
