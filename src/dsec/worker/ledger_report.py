"""What a run cost, ready to be shown: the same values for tables, JSON and the picture (docs/formats/cost.md)."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence

from dsec.base.units import GIB
from dsec.episode.prices import Cost, CostLine, sum_costs
from dsec.episode.spending import GradedUse, PricedAttempt, spending
from dsec.episode.use import AttemptUse, ModelUse, Purpose, sum_environment, sum_models
from dsec.model.value import Value

REPORT_VERSION = 1


class By(enum.Enum):
    """What rows are made for."""

    TASK = "task"
    ATTEMPT = "attempt"
    JOB = "job"
    MODEL = "model"


class CostRow(Value, frozen=True, omit_defaults=False):
    """What a group of attempts used and cost; of a row by model, what that model was used for in all attempts.

    Attributes:
        name: of the group.
        usd: what is known of its cost; None: nothing is.
        is_whole: whether everything in it has a known price; where not, every cost is at least so much.
        attempts, tasks, passed, timely, ungraded: counts; tasks but for `attempts` and `ungraded`.
        lost_usd: of attempts that did not pass.
        submitted_usd, passed_usd, timely_usd: for a task; None: there is none such, or no price is known.
        rounds, calls, failed_calls: committed rounds; calls of models, and those of them that came to nothing.
        useless_calls, abandoned_calls: calls for rounds that did nothing, and for decisions that were given up.
        input_tokens, cached_tokens, output_tokens, thinking_tokens: as in `ModelUse`.
        tool_calls, repeated, repeated_s: operations; executions beyond the first, and how long they took.
        thinking_s, tools_s, waiting_s, wall_s: seconds, summed over attempts.
        memory_gib_s, wasted_gib_s, cpu_s: of environments; wasted on tools that were not called.
        lines: where the money went.
    """

    name: str
    usd: float | None
    is_whole: bool
    attempts: int
    tasks: int
    passed: int
    timely: int
    ungraded: int
    lost_usd: float | None
    submitted_usd: float | None
    passed_usd: float | None
    timely_usd: float | None
    rounds: int
    calls: int
    failed_calls: int
    useless_calls: int
    abandoned_calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    thinking_tokens: int
    tool_calls: int
    repeated: int
    repeated_s: float
    thinking_s: float
    tools_s: float
    waiting_s: float
    wall_s: float
    memory_gib_s: float
    wasted_gib_s: float
    cpu_s: float
    lines: tuple[CostLine, ...]


class CostReport(Value, frozen=True, omit_defaults=False):
    """What a run cost.

    Attributes:
        run: what it is called.
        prices: where they come from.
        by: what rows are made for.
        total: all attempts.
        passed, lost: those of them that passed, and those that did not; None: there are none.
        rows: by `by`, the dearest first.
        missing: what logs do not say, with the number of attempts.
        problems: what could not be read.
    """

    run: str
    prices: str
    by: By
    total: CostRow
    passed: CostRow | None
    lost: CostRow | None
    rows: tuple[CostRow, ...]
    missing: tuple[tuple[str, int], ...]
    problems: tuple[str, ...] = ()
    version: int = REPORT_VERSION


def cost_report(
    attempts: Sequence[PricedAttempt], *, run: str, prices: str, by: By, problems: Sequence[str] = ()
) -> CostReport:
    """Return the report of a run with at least one attempt."""
    total = spending(attempts)
    passed = [one for one in attempts if one.graded.passed]
    lost = [one for one in attempts if not one.graded.passed]
    rows = _by_model(attempts) if by is By.MODEL else _groups(attempts, _NAMES[by])
    return CostReport(
        run=run,
        prices=prices,
        by=by,
        total=_row("all", attempts),
        passed=_row("passed", passed) if passed else None,
        lost=_row("not passed", lost) if lost else None,
        rows=tuple(sorted(rows, key=lambda row: (-(row.usd or 0.0), row.name))),
        missing=total.missing,
        problems=tuple(problems),
    )


_NAMES: dict[By, Callable[[PricedAttempt], str]] = {
    By.TASK: lambda one: one.use.task,
    By.JOB: lambda one: one.use.job or "(no job)",
    By.ATTEMPT: lambda one: one.use.episode_id or f"{one.use.task} #{one.use.attempt}",
}


def _groups(attempts: Sequence[PricedAttempt], name: Callable[[PricedAttempt], str]) -> list[CostRow]:
    groups: dict[str, list[PricedAttempt]] = {}
    for one in attempts:
        groups.setdefault(name(one), []).append(one)
    return [_row(key, group) for key, group in groups.items()]


def _by_model(attempts: Sequence[PricedAttempt]) -> list[CostRow]:
    names = sorted({line.model for one in attempts for line in one.use.models})
    return [_row(name or "(unnamed)", [_of_model(one, name) for one in attempts]) for name in names]


def _of_model(one: PricedAttempt, name: str) -> PricedAttempt:
    """Return an attempt with nothing in it but what one model was used for."""
    models = tuple(line for line in one.use.models if line.model == name)
    kinds = {line.purpose.value for line in models}
    lines = tuple(line for line in one.cost.lines if line.name == name and line.purpose in kinds)
    use = AttemptUse(
        task=one.use.task,
        attempt=one.use.attempt,
        episode_id=one.use.episode_id,
        job=one.use.job,
        models=models,
        thinking_s=math.fsum(line.time_s for line in models),
        wall_s=math.fsum(line.time_s for line in models),
    )
    graded = GradedUse(use=use, passed=one.graded.passed, deadline_s=one.graded.deadline_s)
    return PricedAttempt(graded=graded, cost=Cost(lines=lines))


def _row(name: str, attempts: Sequence[PricedAttempt]) -> CostRow:
    spent = spending(attempts, name=name)
    models = sum_models(line for one in attempts for line in one.use.models)
    environment = sum_environment(line for one in attempts for line in one.use.environment)
    return CostRow(
        name=name,
        usd=spent.cost.usd,
        is_whole=spent.cost.is_whole,
        attempts=spent.attempts,
        tasks=spent.tasks,
        passed=spent.passed,
        timely=spent.timely,
        ungraded=spent.ungraded,
        lost_usd=spent.lost.usd,
        submitted_usd=spent.submitted_usd,
        passed_usd=spent.passed_usd,
        timely_usd=spent.timely_usd,
        rounds=sum(one.use.rounds for one in attempts),
        calls=sum(line.calls for line in models),
        failed_calls=_calls(models, Purpose.FAILED),
        useless_calls=_calls(models, Purpose.USELESS),
        abandoned_calls=_calls(models, Purpose.ABANDONED),
        input_tokens=sum(line.input_tokens for line in models),
        cached_tokens=sum(line.cached_tokens for line in models),
        output_tokens=sum(line.output_tokens for line in models),
        thinking_tokens=sum(line.thinking_tokens for line in models),
        tool_calls=spent.tools.calls,
        repeated=spent.tools.repeated,
        repeated_s=spent.tools.repeated_s,
        thinking_s=spent.thinking_s,
        tools_s=spent.tools.time_s,
        waiting_s=spent.waiting_s,
        wall_s=spent.wall_s,
        memory_gib_s=math.fsum(line.memory_byte_s for line in environment) / GIB,
        wasted_gib_s=math.fsum(line.memory_byte_s for line in environment if line.kind.value == "wasted") / GIB,
        cpu_s=math.fsum(line.cpu_s for line in environment),
        lines=sum_costs([spent.cost]).lines,
    )


def _calls(models: Sequence[ModelUse], purpose: Purpose) -> int:
    return sum(line.calls for line in models if line.purpose is purpose)
