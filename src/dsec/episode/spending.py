"""What a task cost: everything that its attempts cost, by how many tasks were submitted, passed, and passed in time.

    per submitted = C_all / N,   per passed = C_all / N_q,   per passed in time = C_all / N_q,d

Attempts that failed are in C_all. A task is passed when one of its attempts is, and in time when one is that kept the
deadline. An attempt that nobody graded is not passed, and is counted (`Spending.ungraded`). Where something has no
known price every one of these costs is a lower bound (`Cost.is_whole`). Source: the chapter, section 11.5.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from dsec.costs.success_cost import success_cost
from dsec.episode.prices import Cost, Prices, cost_of, sum_costs
from dsec.episode.use import AttemptUse, ToolUse, sum_tools
from dsec.model.value import Value


class GradedUse(Value, frozen=True, omit_defaults=True):
    """What an attempt used, and what became of it.

    Attributes:
        use: what it used.
        passed: whether the task was done; None: nobody said.
        deadline_s: seconds in which it had to be; None: any.
    """

    use: AttemptUse
    passed: bool | None = None
    deadline_s: float | None = None

    @property
    def timely(self) -> bool:
        """Whether it passed within its deadline; the time in which it was held does not count."""
        return self.passed is True and (self.deadline_s is None or self.use.working_s <= self.deadline_s)


class PricedAttempt(Value, frozen=True, omit_defaults=True):
    """A graded attempt with its cost."""

    graded: GradedUse
    cost: Cost

    @property
    def use(self) -> AttemptUse:
        """What it used."""
        return self.graded.use


class Spending(Value, frozen=True, omit_defaults=True):
    """What a group of attempts cost.

    Attributes:
        name: of the group.
        attempts: how many there were.
        tasks, passed, timely: tasks submitted, passed, and passed in time.
        passed_attempts, timely_attempts: attempts that passed, and did in time.
        ungraded: attempts that nobody graded.
        cost: of all attempts.
        lost: of those among them that did not pass.
        tools: what tools did.
        thinking_s, waiting_s, wall_s: summed over attempts.
        submitted_usd, passed_usd, timely_usd: for a task; None: no such task, or no known price.
        missing: what the logs do not say, each once with the number of attempts.
    """

    name: str
    attempts: int
    tasks: int
    passed: int
    timely: int
    passed_attempts: int
    timely_attempts: int
    ungraded: int
    cost: Cost
    lost: Cost
    tools: ToolUse
    thinking_s: float
    waiting_s: float
    wall_s: float
    submitted_usd: float | None
    passed_usd: float | None
    timely_usd: float | None
    missing: tuple[tuple[str, int], ...] = ()


def priced(attempts: Iterable[GradedUse], prices: Prices) -> list[PricedAttempt]:
    """Return each attempt with its cost."""
    return [PricedAttempt(graded=one, cost=cost_of(one.use, prices)) for one in attempts]


def spending(attempts: Sequence[PricedAttempt], *, name: str = "all") -> Spending:
    """Return what a group of attempts cost.

    Raises:
        InvalidRequestError: the group is empty.
    """
    tasks = {one.use.task for one in attempts}
    passed = {one.use.task for one in attempts if one.graded.passed}
    timely = {one.use.task for one in attempts if one.graded.timely}
    cost = sum_costs(one.cost for one in attempts)
    unit = success_cost(
        spent_usd=cost.known_usd, submitted=len(tasks), successes=len(passed), timely_successes=len(timely)
    )
    return Spending(
        name=name,
        attempts=len(attempts),
        tasks=len(tasks),
        passed=len(passed),
        timely=len(timely),
        passed_attempts=sum(one.graded.passed is True for one in attempts),
        timely_attempts=sum(one.graded.timely for one in attempts),
        ungraded=sum(one.graded.passed is None for one in attempts),
        cost=cost,
        lost=sum_costs(one.cost for one in attempts if not one.graded.passed),
        tools=sum_tools(one.use.tools for one in attempts),
        thinking_s=math.fsum(one.use.thinking_s for one in attempts),
        waiting_s=math.fsum(one.use.waiting_s for one in attempts),
        wall_s=math.fsum(one.use.wall_s for one in attempts),
        submitted_usd=_finite(unit.submitted_usd, cost),
        passed_usd=_finite(unit.success_usd, cost),
        timely_usd=_finite(unit.timely_success_usd, cost),
        missing=_missing(attempts),
    )


def spending_by(attempts: Sequence[PricedAttempt], name: Callable[[PricedAttempt], str]) -> list[Spending]:
    """Return what each group cost, by name."""
    groups: dict[str, list[PricedAttempt]] = {}
    for one in attempts:
        groups.setdefault(name(one), []).append(one)
    return [spending(groups[key], name=key) for key in sorted(groups)]


def _finite(usd: float, cost: Cost) -> float | None:
    return usd if math.isfinite(usd) and cost.usd is not None else None


def _missing(attempts: Sequence[PricedAttempt]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for one in attempts:
        for text in one.use.missing:
            counts[text] = counts.get(text, 0) + 1
    return tuple(sorted(counts.items()))
