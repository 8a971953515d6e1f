"""When an episode ends by its own limits."""

from __future__ import annotations

from dsec.episode.failure_kinds import COST_REACHED, DEADLINE_PASSED
from dsec.episode.spec import DeadlineMode, EpisodeLimits
from dsec.worker.episodes.ports import Finished, Situation


def enforced_deadline_s(limits: EpisodeLimits) -> float | None:
    """Return the deadline at which an episode ends; None: it has none."""
    return limits.deadline_s if limits.deadline_mode is DeadlineMode.ENFORCE else None


def limit_reached(situation: Situation) -> Finished | None:
    """Return the end, if a deadline that is enforced has passed, or the models have cost what they may."""
    limits = situation.spec.limits
    deadline_s = enforced_deadline_s(limits)
    if deadline_s is not None and situation.elapsed_s >= deadline_s:
        return Finished(reason=f"its {deadline_s:g} s are over", error_code=DEADLINE_PASSED)
    cost_usd = situation.totals.usage.cost_usd
    if limits.cost_usd is not None and cost_usd is not None and cost_usd >= limits.cost_usd:
        return Finished(
            reason=f"its models have cost {cost_usd:.4f} USD, and may cost {limits.cost_usd:g}", error_code=COST_REACHED
        )
    return None
