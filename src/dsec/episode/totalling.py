"""Add events of a log to the totals of its episode, one after another."""

from __future__ import annotations

from msgspec.structs import replace

from dsec.episode.identity import ModelIdentity
from dsec.episode.log_events import (
    EnvironmentUsed,
    EpisodeHeld,
    EpisodeReleased,
    EpisodeSteered,
    LifeBegan,
    ModelChanged,
    ModelFailed,
)
from dsec.episode.operations import ModelDecision, TokenUsage
from dsec.episode.totals import (
    MAXIMUM_STEERINGS,
    MAXIMUM_VERSIONS,
    EnvironmentTotal,
    EpisodeTotals,
    ModelTotal,
    Steering,
    add_usage,
)

BesideEvent = EpisodeSteered | LifeBegan | ModelFailed | EnvironmentUsed | ModelChanged | EpisodeHeld | EpisodeReleased
"""Events that may come at any time before the end, and change nothing of what is to be done."""


def with_event(totals: EpisodeTotals, event: BesideEvent, *, last_round: int) -> EpisodeTotals:
    """Return the totals with an event that stands beside the rounds."""
    match event:
        case LifeBegan():
            return replace(totals, lives=totals.lives + 1, began_at_s=totals.began_at_s or event.at_s)
        case EpisodeSteered():
            told = Steering(message=event.message, by=event.by, after_round=last_round)
            return replace(totals, steered=(*totals.steered, told)[-MAXIMUM_STEERINGS:])
        case ModelFailed():
            return _with_model(totals, event.model, event.usage, failed=1)
        case ModelChanged():
            return replace(totals, endpoint=event.endpoint, changed_after=last_round)
        case EpisodeHeld():
            return replace(totals, held_since_s=totals.held_since_s or event.at_s)
        case EpisodeReleased():
            held_s = max(0.0, event.at_s - totals.held_since_s) if totals.held_since_s else 0.0
            return replace(totals, held_s=totals.held_s + held_s, held_since_s=0.0)
        case EnvironmentUsed():
            return _with_environment(totals, event)


def with_decision(totals: EpisodeTotals, decision: ModelDecision) -> EpisodeTotals:
    """Return the totals with what a decision used; one of a script used nothing."""
    if not decision.usage.calls and not decision.model.name:
        return totals
    return _with_model(totals, decision.model, decision.usage, decisions=1)


def _with_model(
    totals: EpisodeTotals, model: ModelIdentity, usage: TokenUsage, *, decisions: int = 0, failed: int = 0
) -> EpisodeTotals:
    model = _distinguished(totals, model)
    found = next((one for one in totals.models if one.model == model), None) or ModelTotal(model=model)
    added = ModelTotal(
        model=model,
        usage=add_usage(found.usage, usage),
        decisions=found.decisions + decisions,
        failed=found.failed + failed,
    )
    if any(one.model == model for one in totals.models):
        models = tuple(added if one.model == model else one for one in totals.models)
    else:
        models = (*totals.models, added)
    return replace(totals, models=models)


def _distinguished(totals: EpisodeTotals, model: ModelIdentity) -> ModelIdentity:
    """Return the model without its version, which its service reports as it likes, where there are very many."""
    if len(totals.models) < MAXIMUM_VERSIONS or any(one.model == model for one in totals.models):
        return model
    return replace(model, version="")


def _with_environment(totals: EpisodeTotals, event: EnvironmentUsed) -> EpisodeTotals:
    kinds = {one.kind: one for one in totals.environment}
    found = kinds.get(event.kind, EnvironmentTotal(kind=event.kind))
    kinds[event.kind] = EnvironmentTotal(
        kind=event.kind,
        seconds=found.seconds + max(0.0, event.ended_s - event.began_s),
        memory_byte_s=found.memory_byte_s + event.memory_byte_s,
        cpu_s=found.cpu_s + event.cpu_s,
        count=found.count + 1,
    )
    return replace(totals, environment=tuple(kinds.values()))
