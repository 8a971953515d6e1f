"""Sums over results: what a rollout came to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

from dsec.model.value import Value
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.verification.stages import Stage


class TaskSummary(Value, frozen=True):
    """One task: its attempts' outcomes in order, and the mean of their rewards."""

    task: str
    outcomes: tuple[Outcome, ...]
    mean_reward: float | None
    mean_duration_s: float


class ModelSums(Value, frozen=True, omit_defaults=True):
    """What the models of all attempts used, whatever became of the attempts.

    Attributes:
        rounds: that were committed.
        calls: that came to nothing included.
        input_tokens, cached_tokens, output_tokens: of them.
        cost_usd: as far as prices are known; None: none is.
        is_whole: whether every attempt that asked a model has a known cost.
        passed_usd: of it for each attempt that passed; None: none passed, or not all prices are known.
    """

    rounds: int = 0
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    is_whole: bool = True
    passed_usd: float | None = None


class Summary(Value, frozen=True, kw_only=True):
    """A whole rollout.

    Attributes:
        rollout_id: which.
        policy: as named.
        attempts_planned: tasks times attempts.
        outcomes: number of attempts by outcome.
        pass_rate: passed attempts among those with a verdict; None without any.
        pass_at: chance that at least one of k attempts at a task passes, by k (unbiased estimate, Chen et al. 2021,
            over tasks with at least k verdicts).
        mean_reward: over attempts with a verdict; one without a reward counts as 0.
        wall_s: seconds in which at least one attempt was running.
        attempt_s: seconds of all attempts together.
        guest_s: of these, seconds in which commands ran in sandboxes.
        overhead_s: mean seconds per attempt that were neither commands, nor the policy's thinking, nor waiting.
        stages_s: seconds by stage, all attempts together.
        retried: attempts that needed more than one sandbox.
        skipped: tasks that were left out, with the reason.
        tasks: each task.
        models: what they used; None: no attempt was an episode.
    """

    rollout_id: str
    policy: str
    attempts_planned: int
    outcomes: dict[str, int]
    pass_rate: float | None
    pass_at: dict[str, float]
    mean_reward: float | None
    wall_s: float
    attempt_s: float
    guest_s: float
    overhead_s: float | None
    stages_s: dict[str, float]
    retried: int
    skipped: dict[str, str]
    tasks: tuple[TaskSummary, ...]
    models: ModelSums | None = None


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None


def _pass_at(k: int, groups: Sequence[Sequence[AttemptResult]]) -> float | None:
    chances = []
    for group in groups:
        verdicts = [result for result in group if result.outcome.is_verdict]
        failed = sum(result.outcome is not Outcome.PASSED for result in verdicts)
        if len(verdicts) >= k:
            chances.append(1.0 - comb(failed, k) / comb(len(verdicts), k))
    return _mean(chances)


def _busy_s(results: Sequence[AttemptResult]) -> float:
    """Return the length of the union of the attempts' times."""
    busy_s, end_s = 0.0, float("-inf")
    for result in sorted(results, key=lambda item: item.started_at_s):
        stop_s = result.started_at_s + result.duration_s
        busy_s += max(0.0, stop_s - max(end_s, result.started_at_s))
        end_s = max(end_s, stop_s)
    return busy_s


def _overhead_s(results: Sequence[AttemptResult]) -> float | None:
    aside = (Stage.DECIDE.value, Stage.WAIT.value)
    return _mean(
        [
            max(0.0, result.duration_s - result.guest_s - sum(result.totals_s.get(name, 0.0) for name in aside))
            for result in results
        ]
    )


def _task(name: str, group: Sequence[AttemptResult]) -> TaskSummary:
    scores = [result.score for result in group if result.score is not None]
    return TaskSummary(
        task=name,
        outcomes=tuple(result.outcome for result in group),
        mean_reward=_mean(scores),
        mean_duration_s=_mean([result.duration_s for result in group]) or 0.0,
    )


def summarise(
    results: Sequence[AttemptResult],
    *,
    rollout_id: str,
    policy: str,
    planned: int,
    skipped: dict[str, str],
) -> Summary:
    """Return the sums over `results`."""
    groups: dict[str, list[AttemptResult]] = {}
    stages: Counter[str] = Counter()
    for result in sorted(results, key=lambda item: item.key):
        groups.setdefault(result.task, []).append(result)
        stages.update(result.totals_s)
    counts = Counter(result.outcome for result in results)
    verdicts = sum(counts[outcome] for outcome in Outcome if outcome.is_verdict)
    most = max((len(group) for group in groups.values()), default=0)
    chances = {k: _pass_at(k, list(groups.values())) for k in sorted({1, most}) if k}
    return Summary(
        rollout_id=rollout_id,
        policy=policy,
        attempts_planned=planned,
        outcomes={outcome.value: counts[outcome] for outcome in Outcome},
        pass_rate=counts[Outcome.PASSED] / verdicts if verdicts else None,
        pass_at={str(k): chance for k, chance in chances.items() if chance is not None},
        mean_reward=_mean([result.score for result in results if result.score is not None]),
        wall_s=round(_busy_s(results), 3),
        attempt_s=round(sum(result.duration_s for result in results), 3),
        guest_s=round(sum(result.guest_s for result in results), 3),
        overhead_s=_overhead_s(results),
        stages_s={stage.value: round(stages[stage.value], 3) for stage in Stage},
        retried=sum(result.tries > 1 for result in results),
        skipped=skipped,
        tasks=tuple(_task(name, group) for name, group in groups.items()),
        models=_models(results),
    )


def _models(results: Sequence[AttemptResult]) -> ModelSums | None:
    episodes = [result.episode for result in results if result.episode is not None]
    if not episodes:
        return None
    costs = [each.cost_usd for each in episodes if each.cost_usd is not None]
    is_whole = all(each.cost_usd is not None or not each.calls for each in episodes)
    passed = sum(result.outcome is Outcome.PASSED for result in results)
    cost_usd = round(sum(costs), 9) if costs else None
    return ModelSums(
        rounds=sum(result.rounds for result in results if result.episode is not None),
        calls=sum(each.calls for each in episodes),
        input_tokens=sum(each.input_tokens for each in episodes),
        cached_tokens=sum(each.cached_tokens for each in episodes),
        output_tokens=sum(each.output_tokens for each in episodes),
        cost_usd=cost_usd,
        is_whole=is_whole,
        passed_usd=cost_usd / passed if cost_usd is not None and passed and is_whole else None,
    )


def exit_code(summary: Summary, *, expect: Outcome | None = None) -> int:
    """Return 0 when every planned attempt has a verdict (and, with `expect`, that one), else 1."""
    return 1 if shortfall(summary, expect=expect) else 0


def shortfall(summary: Summary, *, expect: Outcome | None = None) -> str:
    """Say what keeps a rollout from having come to what was expected; empty: nothing does."""
    planned = summary.attempts_planned
    finished = sum(count for name, count in summary.outcomes.items() if Outcome(name).is_verdict)
    if expect is not None and summary.outcomes[expect.value] != planned:
        count = summary.outcomes[expect.value]
        return f"not as expected: {count} of {planned} attempts {expect.value}, all were expected to (--expect)"
    if finished != planned:
        return f"{planned - finished} of {planned} attempts have no verdict"
    return ""
