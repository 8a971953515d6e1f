"""Repair, escalate or stop: the recovery tree of one episode, looked through before each step.

A plan is a row of steps: repair with the same model, let the next stronger one go on, and so on, until nothing more is
tried. What a step comes to depends on how it had failed before, so a plan is a tree: each way to fail is a node of its
own, with probabilities that hold given that the task came there (`recovery_experience`). `costs.retry_tree` gives its
success, cost and timeliness; what is left of time and money are its limits:

- with an enforced deadline, a step that could not be over in time is not begun, its time being the quantile that was
  measured, and not the mean: half of all steps take longer than that;
- a plan whose dearest path costs more than is left is no plan.

Of the plans that may be tried, the one that is worth most is begun. With a price for success (`worth_usd`) that is the
largest  p V - E[C];  without one success goes before money: the largest p. Among those that are about as good
(`AS_GOOD`) it is the cheapest, and then the fastest. Only its first step is taken; after the next failure, when that
one's kind is known, all plans are looked through anew. Until enough was tried to know probabilities, the usual order
is taken: repair, escalate, stop.
Sources: the chapter, section 11.5.2, example 11-8 and exercise 11-9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dsec.base.errors import InvalidRequestError
from dsec.costs.retry_tree import Branch, Deadline, Node, RetryOutcome, evaluate_retries
from dsec.episode.failure_kinds import FailureKind
from dsec.episode.recovery_experience import Experience, Step

AS_GOOD = 0.005
"""Plans whose success differs by less are told apart by their cost."""
MAXIMUM_STEPS = 3
"""Of a plan: what comes after is decided when it is there."""
_LATEST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRules:
    """What may be tried, and when it is worth it.

    Attributes:
        models: names of those that may decide, the first one first, each stronger than the one before.
        repairs: of one model, after failures of one episode.
        deadline_s: until when an episode has to pass; None: any time.
        enforce: nothing is begun that could not be over by then; otherwise what is late is only counted.
        cost_usd: what an episode may cost; None: no limit.
        worth_usd: what success is worth; None: success goes before money.
        least_success: a plan with less probability of success is not begun.
        quantile: share of measured tries that were over within the time that a step is given.
        enough: tries of a step after a failure, from which on its probability is believed.
    """

    models: tuple[str, ...] = ("",)
    repairs: int = 2
    deadline_s: float | None = None
    enforce: bool = True
    cost_usd: float | None = None
    worth_usd: float | None = None
    least_success: float = 0.02
    quantile: float = 0.9
    enough: int = 20

    def __post_init__(self) -> None:
        if not self.models or self.repairs < 0 or not 0 < self.quantile <= 1 or self.enough < 0:
            raise InvalidRequestError(
                "these rules of recovery cannot be",
                resolution="name a model; repairs and enough are 0 or more, quantile is above 0 and at most 1",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryState:
    """How an episode stands after a failure.

    Attributes:
        after: how it failed.
        model: who decided, by its place among the rules' models.
        repairs: how often this model has repaired after such failures.
        elapsed_s: since the episode began, without the time in which it was held.
        spent_usd: what it has cost; None: nobody knows.
    """

    after: FailureKind
    model: int = 0
    repairs: int = 0
    elapsed_s: float = 0.0
    spent_usd: float | None = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step with its model, by its place."""

    step: Step
    model: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A row of steps, and what comes of it.

    Attributes:
        steps: in order; none: to stop.
        outcome: None for stopping.
    """

    steps: tuple[PlannedStep, ...]
    outcome: RetryOutcome | None = None

    @property
    def success(self) -> float:
        """Probability of passing, in time where a deadline is enforced."""
        return self.outcome.timely_share if self.outcome is not None else 0.0

    @property
    def cost_usd(self) -> float:
        """What it costs on average."""
        return self.outcome.cost_usd if self.outcome is not None else 0.0

    @property
    def time_s(self) -> float:
        """What it takes on average."""
        return self.outcome.time_s if self.outcome is not None else 0.0

    def words(self) -> str:
        """Return the plan for people."""
        return ", then ".join(step.step.value for step in self.steps) or "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryDecision:
    """What to do.

    Attributes:
        step: now.
        model: who decides from now on, by its place.
        reason: in words.
        success: probability that the task passes by the plan; None: nothing is known of it.
        plans: what was looked through, the best first.
    """

    step: Step
    model: int
    reason: str
    success: float | None = None
    plans: tuple[Plan, ...] = ()


def decide_recovery(state: RecoveryState, rules: RecoveryRules, experience: Experience) -> RecoveryDecision:
    """Return what to do after a failure."""
    if state.after.is_final:
        return _stop(state, f"no step helps after {_words(state.after)}")
    candidates = list(_plans(state, rules))
    if not candidates:
        return _stop(state, "every model has repaired as often as it may, and there is no stronger one")
    fitting = [plan for plan in candidates if _fits(plan, state, rules, experience)]
    if not fitting:
        return _stop(state, _too_little(state, rules))
    known = min(experience.tries(plan.steps[0].step, state.after) for plan in fitting)
    if known < rules.enough:
        return _usual(state, fitting, known, rules)
    weighed = [replace(plan, outcome=evaluate_plan(plan.steps, state, rules, experience)) for plan in fitting]
    weighed = [plan for plan in weighed if _can_be_paid(plan, state, rules)]
    if not weighed:
        return _stop(state, _too_little(state, rules))
    return _best(state, weighed, rules)


def evaluate_plan(
    steps: Sequence[PlannedStep], state: RecoveryState, rules: RecoveryRules, experience: Experience
) -> RetryOutcome:
    """Return success, cost and timeliness of a plan from now on.

    Each node is a step after one way to have failed. Costs that nobody knows count as nothing.

    Raises:
        InvalidRequestError: the first step could not be over in time.
    """
    nodes: dict[str, Node] = {}
    start = _add_nodes(nodes, steps, 0, state.after, rules, experience)
    deadline_s = left_s(state, rules) if rules.enforce else None
    mode = Deadline.ENFORCE if rules.enforce else Deadline.EVALUATE
    return evaluate_retries(nodes=nodes, start=start, deadline_s=deadline_s, mode=mode)


def expected_recovery(rules: RecoveryRules, experience: Experience) -> RetryOutcome:
    """Return what the rules make of a submitted task, from its beginning: what is decided at each node is decided here
    as it will be then, with the times and costs that were measured.

    Raises:
        InvalidRequestError: the deadline is shorter than the first attempt.
    """
    nodes: dict[str, Node] = {}
    origin = RecoveryState(after=FailureKind.CHECK_FAILED, repairs=0)
    start = _follow(nodes, PlannedStep(step=Step.FIRST, model=0), None, origin, rules, experience)
    mode = Deadline.ENFORCE if rules.enforce else Deadline.EVALUATE
    return evaluate_retries(nodes=nodes, start=start, deadline_s=rules.deadline_s, mode=mode)


def _follow(
    nodes: dict[str, Node],
    planned: PlannedStep,
    after: FailureKind | None,
    state: RecoveryState,
    rules: RecoveryRules,
    experience: Experience,
    path: str = "",
) -> str:
    """Add the node of a step, and those of what is decided after each of its failures; names are whole paths."""
    found = experience.estimate(planned.step, after, rules.models[planned.model], quantile=rules.quantile)
    name = f"{path}/{planned.step.value}" + (f" after {after.value}" if after is not None else "")
    branches = [Branch(probability=found.passes, passes=True)] if found.passes else []
    for kind, share in found.fails.items():
        then = RecoveryState(
            after=kind,
            model=planned.model,
            repairs=state.repairs + 1 if planned.step is Step.REPAIR else 0,
            elapsed_s=state.elapsed_s + (found.time_s or 0.0),
            spent_usd=None if state.spent_usd is None else state.spent_usd + (found.cost_usd or 0.0),
        )
        next_one = decide_recovery(then, rules, experience)
        to = ""
        if next_one.step is not Step.STOP:
            to = _follow(
                nodes, PlannedStep(step=next_one.step, model=next_one.model), kind, then, rules, experience, name
            )
        branches.append(Branch(probability=share, to=to))
    nodes[name] = Node(cost_usd=found.cost_usd or 0.0, time_s=found.time_s or 0.0, branches=tuple(branches))
    return name


def left_s(state: RecoveryState, rules: RecoveryRules) -> float | None:
    """Return the time that is left; None: there is no deadline."""
    return None if rules.deadline_s is None else max(0.0, rules.deadline_s - state.elapsed_s)


def _add_nodes(
    nodes: dict[str, Node],
    steps: Sequence[PlannedStep],
    place: int,
    after: FailureKind,
    rules: RecoveryRules,
    experience: Experience,
) -> str:
    planned = steps[place]
    name = f"{place + 1}. {planned.step.value} ({rules.models[planned.model]}) after {after.value}"
    if name in nodes:
        return name
    found = experience.estimate(planned.step, after, rules.models[planned.model], quantile=rules.quantile)
    branches = [Branch(probability=found.passes, passes=True)] if found.passes else []
    for kind, share in found.fails.items():
        goes_on = place + 1 < len(steps) and not kind.is_final
        to = _add_nodes(nodes, steps, place + 1, kind, rules, experience) if goes_on else ""
        branches.append(Branch(probability=share, to=to))
    nodes[name] = Node(cost_usd=found.cost_usd or 0.0, time_s=found.time_s or 0.0, branches=tuple(branches))
    return name


def _plans(state: RecoveryState, rules: RecoveryRules) -> Iterator[Plan]:
    """Return every row of at least one step, the shorter ones first."""
    rows: list[tuple[tuple[PlannedStep, ...], int, int]] = [((), state.model, state.repairs)]
    for _ in range(MAXIMUM_STEPS):
        longer: list[tuple[tuple[PlannedStep, ...], int, int]] = []
        for steps, model, repairs in rows:
            if repairs < rules.repairs:
                longer.append(((*steps, PlannedStep(step=Step.REPAIR, model=model)), model, repairs + 1))
            if model + 1 < len(rules.models):
                longer.append(((*steps, PlannedStep(step=Step.ESCALATE, model=model + 1)), model + 1, 0))
        yield from (Plan(steps=steps) for steps, _, _ in longer)
        rows = longer


def _fits(plan: Plan, state: RecoveryState, rules: RecoveryRules, experience: Experience) -> bool:
    """Say whether the first step of a plan can be over in time and be paid for, as far as anybody knows."""
    first = plan.steps[0]
    found = experience.estimate(first.step, state.after, rules.models[first.model], quantile=rules.quantile)
    left = left_s(state, rules)
    if rules.enforce and left is not None and (left <= 0 or (found.time_s or 0.0) > left + _LATEST):
        return False
    return _is_affordable(found.cost_usd or 0.0, state, rules)


def _can_be_paid(plan: Plan, state: RecoveryState, rules: RecoveryRules) -> bool:
    assert plan.outcome is not None
    return _is_affordable(max(path.cost_usd for path in plan.outcome.paths), state, rules)


def _is_affordable(cost_usd: float, state: RecoveryState, rules: RecoveryRules) -> bool:
    if rules.cost_usd is None:
        return True
    return state.spent_usd is not None and state.spent_usd + cost_usd <= rules.cost_usd + _LATEST


def _best(state: RecoveryState, weighed: Sequence[Plan], rules: RecoveryRules) -> RecoveryDecision:
    worth = rules.worth_usd
    ranked = sorted(weighed, key=_rank(weighed, worth))
    if worth is not None and ranked[0].success * worth <= ranked[0].cost_usd:
        return _stop(state, f"what is left to try costs more than it is worth: {_told(ranked[0])}", ranked)
    best = ranked[0]
    if best.success < rules.least_success:
        return _stop(state, f"nothing that is left to try is likely to help: {_told(best)}", ranked)
    first = best.steps[0]
    return RecoveryDecision(
        step=first.step, model=first.model, reason=_told(best), success=best.success, plans=tuple(ranked)
    )


def _rank(weighed: Sequence[Plan], worth_usd: float | None) -> Callable[[Plan], tuple[float, ...]]:
    """Return the order of plans: those that are about as good as the best, of them the cheapest, then the fastest."""

    def value(plan: Plan) -> float:
        return plan.success if worth_usd is None else plan.success * worth_usd - plan.cost_usd

    least = max(map(value, weighed)) - AS_GOOD * (1.0 if worth_usd is None else worth_usd)

    def key(plan: Plan) -> tuple[float, ...]:
        behind = max(0.0, least - value(plan))
        return behind, plan.cost_usd, plan.time_s, -plan.success, len(plan.steps)

    return key


def _usual(state: RecoveryState, fitting: Sequence[Plan], known: int, rules: RecoveryRules) -> RecoveryDecision:
    """Return the first step of the usual order: to repair once where that is possible, then a stronger model."""
    firsts = {plan.steps[0].step: plan.steps[0] for plan in fitting}
    wants_repair = state.repairs == 0 or Step.ESCALATE not in firsts
    first = firsts[Step.REPAIR] if Step.REPAIR in firsts and wants_repair else firsts.get(Step.ESCALATE)
    assert first is not None
    reason = f"{known} tries after {_words(state.after)} are known, fewer than {rules.enough}: the usual order"
    return RecoveryDecision(step=first.step, model=first.model, reason=reason)


def _stop(state: RecoveryState, reason: str, plans: Sequence[Plan] = ()) -> RecoveryDecision:
    return RecoveryDecision(step=Step.STOP, model=state.model, reason=reason, success=0.0, plans=tuple(plans))


def _too_little(state: RecoveryState, rules: RecoveryRules) -> str:
    left = left_s(state, rules)
    parts = []
    if rules.enforce and left is not None and math.isfinite(left):
        parts.append(f"{left:.3g} s")
    if rules.cost_usd is not None:
        spent = state.spent_usd
        parts.append("nobody knows how much money" if spent is None else f"{max(0.0, rules.cost_usd - spent):.4g} USD")
    return f"what is left ({', '.join(parts)}) is not enough for another step"


def _told(plan: Plan) -> str:
    return f"{plan.words()}: passes with {plan.success:.3g} for {plan.cost_usd:.4g} USD on average"


def _words(kind: FailureKind) -> str:
    return kind.value.replace("_", " ")
