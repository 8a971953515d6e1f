"""The choice of a backend in plain words: look at every one, and say of each why it was or was not taken.

A backend is open to a call unless it was tried already, failed, asked to be left alone, is too small for it, or has a
limit with no room. Of the open ones that is taken which begins first, ends first, or makes a success cheapest, as the
call asks. So of two that are equally loaded the one that holds the prefix is taken until its queue outweighs the hit,
whatever the two amount to. A fuller one counts as somewhat later (`RoutingPolicy.crowding_s`).
An episode stays where it was while nothing else is better by more than staying is worth.

Nothing is kept from one decision to the next: equal requests and views give equal decisions. More queue at a backend
never attracts a call to it. `dsec.routing.router` gives the same answers faster for the usual objective; a property
test holds the two together.

Source: the chapter, section 11.4.3 and example 11-7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.costs.rate_limits import rate_limits
from dsec.routing.choice import Candidate, Choice, Prediction, Reason, Refusal, Verdict, Why
from dsec.routing.policy import RoutingPolicy
from dsec.routing.predict import predict
from dsec.routing.request import Objective, RouteRequest
from dsec.routing.view import BackendView

Key = tuple[float, float, float, int]
"""In the order of what counts; the first element is what the objective asks for."""

_S_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class _Looked:
    """A backend that was looked at."""

    view: BackendView
    prediction: Prediction
    verdict: Verdict | None
    opens_at_s: float | None

    @property
    def name(self) -> str:
        return self.view.backend.name


def choose(
    request: RouteRequest,
    views: Sequence[BackendView],
    policy: RoutingPolicy,
    now_s: float,
    *,
    home: str = "",
    explained: bool = True,
) -> Choice | Refusal:
    """Choose a backend.

    Args:
        request: the call.
        views: the backends that serve the model.
        policy: how to choose.
        now_s: the present.
        home: where the episode's last call was; empty: nowhere.
        explained: say of every candidate why it was or was not taken.
    """
    looked = [_look(request, view, policy, now_s) for view in views]
    open_ones = [one for one in looked if one.verdict is None]
    if not open_ones:
        return _refusal(request, looked, now_s, explained)
    best = min(open_ones, key=lambda one: _key(request, one))
    taken = _stay(request, open_ones, best, policy, home) or best
    candidates = tuple(_candidate(request, one, taken, now_s) for one in looked) if explained else ()
    prediction = taken.prediction
    return Choice(
        backend=taken.name,
        group=taken.view.backend.group,
        reason=Reason.STICKY if taken is not best else _reason(request, prediction),
        queue_s=prediction.queue_s,
        hit_tokens=prediction.hit_tokens,
        first_token_s=prediction.first_token_s,
        candidates=candidates,
    )


def _look(request: RouteRequest, view: BackendView, policy: RoutingPolicy, now_s: float) -> _Looked:
    prediction = predict(request, view, policy)
    verdict, opens_at_s = refused_by(request, view, now_s)
    is_untimely = prediction.timely_success < request.required_success
    if verdict is None and request.objective is Objective.PRICE and is_untimely:
        verdict = Verdict.UNTIMELY
    return _Looked(view, prediction, verdict, opens_at_s)


def refused_by(request: RouteRequest, view: BackendView, now_s: float) -> tuple[Verdict | None, float | None]:
    """Return what keeps a call from a backend now, if anything, and when that should pass.

    What never passes comes first, so that a call that can never go there is not told to wait.
    """
    backend, limits = view.backend, view.backend.limits
    if backend.name in request.excluded:
        return Verdict.EXCLUDED, None
    if limits.context_tokens is not None and request.bound_tokens > limits.context_tokens:
        return Verdict.CONTEXT, None
    if view.tokens_open_at_s is None:
        return Verdict.TOKENS, None
    if view.suspended_until_s > now_s:
        return Verdict.UNHEALTHY, view.suspended_until_s if math.isfinite(view.suspended_until_s) else None
    if view.paused_until_s > now_s:
        return Verdict.PAUSED, view.paused_until_s
    if not view.has_room:
        assert limits.slots is not None
        return Verdict.FULL, now_s + view.hold_s / limits.slots
    if view.requests_open_at_s > now_s:
        return Verdict.REQUESTS, view.requests_open_at_s
    if view.tokens_open_at_s > now_s:
        return Verdict.TOKENS, view.tokens_open_at_s
    return None, None


def _key(request: RouteRequest, one: _Looked) -> Key:
    prediction, load, rank = one.prediction, one.view.load, one.view.rank
    if request.objective is Objective.FIRST_TOKEN:
        base_s = prediction.network_s + prediction.queue_s + prediction.crowding_s
        return prediction.counted_s, base_s, load, rank
    if request.objective is Objective.COMPLETION:
        return prediction.completion_s + prediction.crowding_s, prediction.first_token_s, load, rank
    price = prediction.success_usd
    return math.inf if price is None else price, prediction.completion_s, load, rank


def _stay(
    request: RouteRequest, open_ones: Sequence[_Looked], best: _Looked, policy: RoutingPolicy, home: str
) -> _Looked | None:
    """Return the episode's home if it is open and nothing is better by more than staying is worth."""
    at_home = next((one for one in open_ones if one.name == home), None)
    if at_home is None:
        return None
    value, best_value = _key(request, at_home)[0], _key(request, best)[0]
    if request.objective is Objective.PRICE:
        return at_home if value <= best_value * (1 + policy.sticky_share) else None
    return at_home if value <= best_value + policy.sticky_s else None


def _reason(request: RouteRequest, prediction: Prediction) -> Reason:
    if request.objective is Objective.PRICE:
        return Reason.CHEAPEST
    if request.objective is Objective.COMPLETION:
        return Reason.QUICKEST
    return Reason.CACHED if prediction.hit_tokens else Reason.SHORTEST


# Words.


def _candidate(request: RouteRequest, one: _Looked, taken: _Looked | None, now_s: float) -> Candidate:
    binding, share = binding_limit(request, one.view)
    verdict = _verdict(request, one, taken)
    return Candidate(
        backend=one.name,
        group=one.view.backend.group,
        verdict=verdict,
        why=_sentence(request, one, verdict, taken, now_s),
        prediction=one.prediction,
        binding=binding,
        binding_share=share,
        opens_at_s=one.opens_at_s,
    )


def _verdict(request: RouteRequest, one: _Looked, taken: _Looked | None) -> Verdict:
    if one.verdict is not None:
        return one.verdict
    if one is taken:
        return Verdict.TAKEN
    return Verdict.DEARER if request.objective is Objective.PRICE else Verdict.LATER


def binding_limit(request: RouteRequest, view: BackendView) -> tuple[str, float]:
    """Return which limit of a backend this call brings nearest to its end, and how far it is used with it."""
    limits = view.backend.limits
    requests = view.requests_used + 1
    per_s = requests / _S_PER_MINUTE
    shares = {}
    if not (limits.slots is None and limits.requests_per_minute is None and limits.tokens_per_minute is None):
        used = rate_limits(
            requests_per_s=per_s,
            tokens_per_request=(view.tokens_used + request.bound_tokens) / requests,
            request_s=(view.running + view.waiting + 1) / per_s,
            request_limit_per_minutes=limits.requests_per_minute,
            token_limit_tokens_per_minutes=limits.tokens_per_minute,
            concurrency_limit=limits.slots,
        )
        shares = {
            "requests": used.request_share,
            "tokens": used.token_share,
            "concurrency": used.concurrency_share,
        }
    if limits.context_tokens is not None:
        shares["context"] = request.bound_tokens / limits.context_tokens
    if not shares:
        return "", 0.0
    binding = max(shares, key=lambda name: shares[name])
    return binding, shares[binding]


def _sentence(request: RouteRequest, one: _Looked, verdict: Verdict, taken: _Looked | None, now_s: float) -> str:
    limits, prediction = one.view.backend.limits, one.prediction
    wait = "" if one.opens_at_s is None else f"; it should open in {one.opens_at_s - now_s:.1f} s"
    match verdict:
        case Verdict.TAKEN:
            return _figures(request, prediction)
        case Verdict.LATER | Verdict.DEARER:
            return f"{_figures(request, prediction)}; {_against(request, one, taken)}"
        case Verdict.UNTIMELY:
            within = "" if request.complete_within_s is None else f" within {request.complete_within_s:g} s"
            return (
                f"{prediction.timely_success:.1%} of its answers succeed{within};"
                f" {request.required_success:.1%} are required"
            )
        case Verdict.EXCLUDED:
            return "this call was there already"
        case Verdict.UNHEALTHY:
            return f"it failed too often lately{wait}" if wait else "another call tries whether it works again"
        case Verdict.PAUSED:
            return f"it asked to be left alone{wait}"
        case Verdict.CONTEXT:
            return f"the call may use {request.bound_tokens} tokens; its context holds {limits.context_tokens}"
        case Verdict.FULL:
            own = f", {one.view.own_waiting} of them of this project" if one.view.own_waiting else ""
            return f"{one.view.waiting} calls wait there already{own}{wait}"
        case Verdict.REQUESTS:
            return f"{one.view.requests_used} of {limits.requests_per_minute} requests of this minute are used{wait}"
        case Verdict.TOKENS:
            return (
                f"the call may use {request.bound_tokens} tokens;"
                f" {one.view.tokens_used} of {limits.tokens_per_minute} of this minute are used{wait}"
            )


def _figures(request: RouteRequest, prediction: Prediction) -> str:
    times = (
        f"begins in {_ms(prediction.first_token_s)} ({_ms(prediction.queue_s)} queue, {_ms(prediction.network_s)}"
        f" network, prefill {_ms(prediction.hit_prefill_s if prediction.hit_tokens else prediction.miss_prefill_s)}"
    )
    held = (
        f" with {prediction.hit_tokens} tokens cached at {prediction.hit_share:.0%})" if prediction.hit_tokens else ")"
    )
    if request.objective is Objective.FIRST_TOKEN:
        return times + held
    ends = f"ends in {_ms(prediction.completion_s)}, {times}{held}"
    if request.objective is Objective.COMPLETION:
        return ends
    price = "no known price" if prediction.success_usd is None else f"{prediction.success_usd:.6g} USD per success"
    return f"{price}; {prediction.timely_success:.1%} succeed in time; {ends}"


def _against(request: RouteRequest, one: _Looked, taken: _Looked | None) -> str:
    assert taken is not None
    value, other = _key(request, one)[0], _key(request, taken)[0]
    if request.objective is Objective.PRICE:
        if not math.isfinite(value):
            return f"{taken.name} has a known price"
        return (
            f"{value - other:.3g} USD more than {taken.name}" if value >= other else f"the episode is at {taken.name}"
        )
    if value < other:
        return f"counts {_ms(other - value)} sooner than {taken.name}, where the episode is"
    if value == other:
        return f"as early as {taken.name}, which is less loaded or stands before it"
    later = f"counts {_ms(value - other)} later than {taken.name}"
    fuller = one.prediction.crowding_s - taken.prediction.crowding_s
    if fuller <= 0:
        return later
    rest = value - other - fuller
    return f"{later} ({_ms(fuller)} for being fuller, {_ms(abs(rest))} {'later' if rest >= 0 else 'sooner'} otherwise)"


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.0f} ms"


# Refusals.


def _refusal(request: RouteRequest, looked: Sequence[_Looked], now_s: float, explained: bool) -> Refusal:
    verdicts = [(one.name, one.verdict, one.opens_at_s) for one in looked if one.verdict is not None]
    candidates = tuple(_candidate(request, one, None, now_s) for one in looked) if explained else ()
    return refusal(request, verdicts, now_s, candidates)


def refusal(
    request: RouteRequest,
    verdicts: Sequence[tuple[str, Verdict, float | None]],
    now_s: float,
    candidates: tuple[Candidate, ...] = (),
) -> Refusal:
    """Return the refusal that follows from what keeps the call from each backend.

    Waiting helps if it may open one of them. Otherwise the call is told what would help: less of it, or more time.
    """
    kinds = {verdict for _, verdict, opens in verdicts if not (verdict is Verdict.TOKENS and opens is None)}
    if any(kind.passes for kind in kinds):
        why, brief = Why.UNAVAILABLE, f"no backend of {request.model!r} is open now"
    elif Verdict.UNTIMELY in kinds:
        why, brief = Why.UNTIMELY, f"no backend of {request.model!r} succeeds often enough in time"
    elif Verdict.EXCLUDED in kinds:
        why, brief = Why.EXCLUDED, f"the call was at every backend of {request.model!r} that could take it"
    else:
        why = Why.TOO_LONG
        brief = f"{request.bound_tokens} tokens are more than any backend of {request.model!r} takes"
    opens = [at for _, verdict, at in verdicts if verdict.passes and at is not None]
    return Refusal(
        model=request.model,
        why=why,
        brief=brief,
        detail=_counted(verdicts),
        opens_at_s=min(opens) if why is Why.UNAVAILABLE and opens else None,
        candidates=candidates,
    )


def _counted(verdicts: Sequence[tuple[str, Verdict, float | None]]) -> str:
    counts: dict[Verdict, int] = {}
    for _, verdict, _ in verdicts:
        counts[verdict] = counts.get(verdict, 0) + 1
    return ", ".join(f"{number} {verdict.value}" for verdict, number in counts.items())
