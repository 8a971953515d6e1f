"""The recovery tree, live: it looks at the newest rounds, and says whether to go on, with whom, or to end.

Nothing is kept here between two questions. What was tried already stands in the log: a repair is something that the
episode was told, by the recovery, after a round; another model is a change, after a round. So a death between a
decision and its round changes nothing: the same rounds and the same log give the same answer, and no step is taken
twice.

When rounds show a failure for the first time, and again each time they have gone on so for a while, the tree is asked
(`dsec.episode.recovery_tree`). The loop's own limits stay what they are. A model's service that fails is the
platform's failure: when waiting and other models are used up the loop stops, to be resumed, and nothing is ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import takewhile

from dsec.base.errors import BackendFailedError, DsecError, InvalidRequestError
from dsec.costs.token_prices import TokenPrices
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.failure_kinds import COST_REACHED, STUCK_ROUNDS, Failure, FailureKind, failure_in
from dsec.episode.ledger import model_use
from dsec.episode.prices import Prices, endpoint_prices, whole_cost_usd
from dsec.episode.recovery_experience import Experience, Step
from dsec.episode.recovery_learning import change_reason, repaired_after, steering_by
from dsec.episode.recovery_tree import RecoveryDecision, RecoveryRules, RecoveryState, decide_recovery
from dsec.episode.spec import AgentPolicy, EpisodeSpec, ScaffoldPolicy
from dsec.episode.totals import EpisodeTotals
from dsec.episode.use import ModelUse
from dsec.worker.episodes.ports import Course, Escalate, Finished, GoOn, Situation
from dsec.worker.episodes.recovery.strategies import enforced_deadline_s, limit_reached

TOOLS_FAILED_ROUNDS = 5
_WAITS_S = (10.0, 60.0, 120.0)
"""Before a service that failed, also when the driver asked again, is asked once more."""
_SHOWN = 2000


def _nothing_learned() -> Experience:
    return Experience()


class TreeRecovery:
    """Implements `dsec.worker.episodes.ports.RecoveryStrategy`.

    Args:
        spec: of the episode.
        experience: returns what was learned so far.
        waits_s: before a service that failed is asked again.
    """

    def __init__(
        self,
        spec: EpisodeSpec,
        experience: Callable[[], Experience] = _nothing_learned,
        *,
        waits_s: tuple[float, ...] = _WAITS_S,
    ) -> None:
        self._spec = spec
        self._experience = experience
        self._waits_s = waits_s
        self._ladder = models_of(spec)

    def before_round(self, situation: Situation) -> Course:
        """See the port."""
        ended = limit_reached(situation) or self._too_dear(situation)
        if ended is not None:
            return ended
        if not self._ladder:
            return GoOn()
        failure = self._new_failure(situation)
        if failure is None:
            return GoOn()
        decision = self._decide(situation, failure.kind, self._repairs(situation, failure.kind))
        match decision.step:
            case Step.REPAIR:
                return GoOn(steer=_word(failure, self._spec), by=steering_by(failure.kind))
            case Step.ESCALATE:
                return self._escalate(failure.kind, decision)
            case _:
                return self._stop(failure, decision)

    def after_failure(self, situation: Situation, error: DsecError) -> Course | None:
        """See the port."""
        ended = limit_reached(situation)
        if ended is not None:
            return ended
        if not self._ladder or not isinstance(error, BackendFailedError):
            return None
        kind = FailureKind.MODEL_FAILED
        # What was refused is refused again, whatever time passes; another model may take it.
        repairs = situation.failures - 1 if error.retryable else self._spec.recovery.repairs
        decision = self._decide(situation, kind, repairs)
        match decision.step:
            case Step.REPAIR:
                return GoOn(after_s=self._waits_s[min(situation.failures, len(self._waits_s)) - 1])
            case Step.ESCALATE:
                return self._escalate(kind, decision)
            case _:
                return None

    # -- what there is to know -----------------------------------------------------------------------------------------

    def _decide(self, situation: Situation, kind: FailureKind, repairs: int) -> RecoveryDecision:
        limits, recovery = self._spec.limits, self._spec.recovery
        rules = RecoveryRules(
            models=tuple(endpoint.name or endpoint.url for endpoint in self._ladder),
            repairs=recovery.repairs,
            deadline_s=limits.deadline_s,
            enforce=enforced_deadline_s(limits) is not None,
            cost_usd=limits.cost_usd,
            worth_usd=recovery.worth_usd,
            least_success=recovery.least_success,
            enough=recovery.enough,
        )
        state = RecoveryState(
            after=kind,
            model=self._place(situation.endpoint),
            repairs=repairs,
            elapsed_s=situation.elapsed_s,
            spent_usd=spent_usd(situation.totals, self._spec, situation.endpoint),
        )
        return decide_recovery(state, rules, self._experience())

    def _place(self, endpoint: ModelEndpoint | None) -> int:
        """Return where a model stands among those that may decide; one that a person chose stands above all."""
        if endpoint is None:
            return 0
        return self._ladder.index(endpoint) if endpoint in self._ladder else len(self._ladder) - 1

    def _new_failure(self, situation: Situation) -> Failure | None:
        """Return what the newest rounds show, if nothing was done about it yet, or did not help for a while."""
        since = situation.totals.changed_after
        failure = failure_in(takewhile(lambda record: record.number > since, reversed(situation.rounds)))
        if failure is None:
            return None
        told = [each.after_round for each in situation.totals.steered if repaired_after(each.by) is not None]
        patience = self._patience(failure.kind)
        gone_on = situation.number - 1 - max([since, *told])
        return failure if failure.count >= patience and gone_on >= patience else None

    def _patience(self, kind: FailureKind) -> int:
        """Return in how many rounds a failure has to show before something is done."""
        match kind:
            case FailureKind.USELESS:
                return max(1, self._spec.limits.useless_rounds // 2)
            case FailureKind.STUCK:
                return STUCK_ROUNDS
            case FailureKind.TOOLS_FAILED:
                return TOOLS_FAILED_ROUNDS
            case _:
                return 1

    def _repairs(self, situation: Situation, kind: FailureKind) -> int:
        """Return how often the model that decides now has been told that this is wrong."""
        since = situation.totals.changed_after
        return sum(
            repaired_after(each.by) is kind and (each.after_round > since or not since)
            for each in situation.totals.steered
        )

    # -- what to do ----------------------------------------------------------------------------------------------------

    def _escalate(self, kind: FailureKind, decision: RecoveryDecision) -> Escalate:
        return Escalate(endpoint=self._ladder[decision.model], reason=change_reason(kind, decision.reason))

    def _stop(self, failure: Failure, decision: RecoveryDecision) -> Course:
        """End what was checked and will not pass, or goes in circles. What only looks bad has the loop's own limit."""
        is_over = failure.kind is FailureKind.CHECK_FAILED or (
            failure.kind is FailureKind.STUCK and failure.count >= 2 * STUCK_ROUNDS
        )
        if not is_over:
            return GoOn()
        words = failure.kind.value.replace("_", " ")
        return Finished(reason=f"{words}, and {decision.reason}", error_code=failure.kind.value)

    def _too_dear(self, situation: Situation) -> Finished | None:
        """Return the end, if another round as dear as the last one would cost more than the episode may."""
        limit = self._spec.limits.cost_usd
        if limit is None or not self._ladder:
            return None
        spent = spent_usd(situation.totals, self._spec, situation.endpoint)
        if spent is None:
            return Finished(
                reason="its cost limit cannot be kept: of what it used something has no known price",
                error_code=COST_REACHED,
            )
        last = self._last_round_usd(situation)
        if spent + last <= limit and spent < limit:
            return None
        return Finished(
            reason=f"its models have cost {spent:.4f} USD and may cost {limit:g}; the last round cost {last:.4f}",
            error_code=COST_REACHED,
        )

    def _last_round_usd(self, situation: Situation) -> float:
        since = situation.totals.changed_after
        if not situation.rounds or situation.rounds[-1].number <= since:
            return 0.0
        decision = situation.rounds[-1].decision
        return _cost_usd(model_use(decision.model, decision.usage), self._spec, situation.endpoint) or 0.0


def models_of(spec: EpisodeSpec) -> tuple[ModelEndpoint, ...]:
    """Return the models that may decide, each stronger than the one before; none: no chat model decides."""
    if not isinstance(spec.policy, AgentPolicy):
        return ()
    return (spec.policy.model, *spec.policy.stronger)


def check_recovery(spec: EpisodeSpec) -> None:
    """Refuse what could not be kept.

    Raises:
        InvalidRequestError: it has a cost limit, and nobody knows what one of its models costs; or it wants submissions
            checked, and there can be none.
    """
    if spec.recovery.repairs < 0 or spec.recovery.enough < 0:
        raise InvalidRequestError("a number of the recovery is below 0", resolution="leave it out, or raise it")
    if spec.check is not None and (not spec.check.command.strip() or spec.check.timeout_s <= 0):
        raise InvalidRequestError("the check has no command, or no time", resolution="give both, or leave it out")
    if spec.check is not None and not _may_submit(spec):
        raise InvalidRequestError(
            "submissions are to be checked, and this policy makes none",
            resolution="offer an agent the tool submit; let the command of a scaffold check its work itself",
        )
    if spec.limits.cost_usd is None:
        return
    if isinstance(spec.policy, ScaffoldPolicy):
        raise InvalidRequestError(
            "the cost limit cannot be kept: a scaffold asks its models by itself",
            resolution="limit the key that it asks them with, such as a gateway's budget",
        )
    unpriced = [one for one in models_of(spec) if one.input_usd is None or one.output_usd is None]
    if unpriced:
        raise InvalidRequestError(
            f"the cost limit cannot be kept: nobody knows what {unpriced[0].name or unpriced[0].url} costs",
            resolution="give input_usd and output_usd of each model, or leave limits.cost_usd out",
        )


def _may_submit(spec: EpisodeSpec) -> bool:
    match spec.policy:
        case AgentPolicy():
            return not spec.policy.tools or "submit" in spec.policy.tools
        case ScaffoldPolicy():
            return False
        case _:
            return True


def prices_of(spec: EpisodeSpec, *others: ModelEndpoint | None) -> Prices:
    """Return what a spec, and models that took over, say of prices.

    The price under "" is that of every name that is not listed: such a name was answered by the endpoint that has none.
    Where several have none nobody can tell whose it was, and it has no price. What is named and has no price is listed
    with an unknown one, lest it be charged as another.
    """
    endpoints = (*models_of(spec), *(one for one in others if one is not None))
    known = {one.name: TokenPrices() for one in endpoints if one.name}
    known |= {one.name: found for one in endpoints if (found := endpoint_prices(one)) is not None}
    if len({one.url for one in endpoints if not one.name}) > 1:
        known.pop("", None)
    return Prices(models=known)


def spent_usd(totals: EpisodeTotals, spec: EpisodeSpec, endpoint: ModelEndpoint | None) -> float | None:
    """Return what the models of an episode have cost; None: something that was used has no known price."""
    costs = [_cost_usd(model_use(one.model, one.usage), spec, endpoint) for one in totals.models]
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) if len(known) == len(costs) else None


def _cost_usd(use: ModelUse, spec: EpisodeSpec, endpoint: ModelEndpoint | None) -> float | None:
    prices = prices_of(spec, endpoint).models
    return whole_cost_usd(use, prices.get(use.model, prices.get("")))


def _word(failure: Failure, spec: EpisodeSpec) -> str:
    """Return what the model is told about a failure."""
    said = failure.detail[-_SHOWN:]
    match failure.kind:
        case FailureKind.CHECK_FAILED:
            return (
                "Your submission was checked and is not accepted: see the result of your call. Find out why, mend it, "
                "make sure that it works, and submit again."
            )
        case FailureKind.USELESS:
            left = spec.limits.useless_rounds - failure.count
            return (
                f"Your last {failure.count} answers held no call that could be carried out ({said or 'no call'}). Call "
                f"one of the tools, with the arguments that its schema asks for. After {left} more such answers this "
                "ends."
            )
        case FailureKind.STUCK:
            return (
                f"You have made the same calls {failure.count} times with the same results. Doing it again will change "
                "nothing: look at what you have, and try something else."
            )
        case _:
            return (
                f"Every call of your last {failure.count} answers failed ({said}). Look at where you are and what is "
                "there before you go on."
            )
