"""What is known of an episode, from its spec and its log."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dsec.episode.durability import Unsaved
from dsec.episode.episode_progress import EpisodeProgress
from dsec.episode.identity import ModelIdentity
from dsec.episode.recovery import AwaitVerdict
from dsec.episode.spec import EpisodeInfo, EpisodeSpec, EpisodeState, UnknownOperation
from dsec.worker.episodes.holding import Holding
from dsec.worker.episodes.lives import first_model
from dsec.worker.episodes.recovery.escalation import spent_usd
from dsec.worker.episodes.shelf import KeptSpec


def policy_name(spec: EpisodeSpec) -> str:
    """Return the kind of policy that a spec asks for."""
    return str(spec.policy.__struct_config__.tag)


def describe_unopened(episode_id: str, kept: KeptSpec) -> EpisodeInfo:
    """Return what is known of an episode whose log was not read."""
    return EpisodeInfo(
        episode_id=episode_id,
        task=kept.spec.task,
        state=EpisodeState.QUEUED,
        attempt=kept.spec.attempt,
        job=kept.spec.job,
        policy=policy_name(kept.spec),
        created_at_s=kept.created_at_s,
    )


def describe(episode_id: str, kept: KeptSpec, holding: Holding, waiting: Sequence[AwaitVerdict]) -> EpisodeInfo:
    """Return what is known of an episode; where it is, and why, is for the caller to say.

    Args:
        episode_id, kept: of it.
        holding: its log.
        waiting: what waited for a verdict when that was looked at last.
    """
    log, spec = holding.log.log, kept.spec
    progress, totals = log.progress, log.progress.totals
    unsaved, rounds = log.unsaved, progress.last_round
    if not spec.durability.lost_rounds:
        # What is being saved at this moment was not answered: in this mode a round counts when it is saved.
        unsaved, rounds = Unsaved(rounds=0, operations=0), rounds - unsaved.rounds
    return EpisodeInfo(
        episode_id=episode_id,
        task=spec.task,
        state=EpisodeState.QUEUED,
        attempt=spec.attempt,
        job=spec.job,
        policy=policy_name(spec),
        error_code=progress.ended.error_code if progress.ended is not None else "",
        rounds=rounds,
        next_sequence=log.saved_sequence + 1,
        uploaded_sequence=holding.uploaded_sequence,
        unsaved=unsaved,
        unknown=unknown_operations(progress, waiting),
        model=_model(spec, progress),
        usage=replace(totals.usage, cost_usd=spent_usd(totals, spec, totals.endpoint) if totals.models else None),
        created_at_s=kept.created_at_s,
        ended_at_s=progress.ended.at_s if progress.ended is not None else 0.0,
        lives=totals.lives,
    )


def unknown_operations(progress: EpisodeProgress, waiting: Sequence[AwaitVerdict]) -> tuple[UnknownOperation, ...]:
    """Return the operations that still wait for a verdict, of those that did."""
    opened = progress.open
    if opened is None or progress.ended is not None:
        return ()
    undecided = set(opened.undecided())
    found = []
    for each in waiting:
        operation = opened.operation(each.operation_id)
        if operation is not None and each.operation_id in undecided:
            found.append(
                UnknownOperation(
                    operation_id=each.operation_id,
                    call=operation.call,
                    reason=each.reason,
                    number=opened.decided.number,
                )
            )
    return tuple(found)


def _model(spec: EpisodeSpec, progress: EpisodeProgress) -> ModelIdentity:
    """Return who decides, with the version that it last named itself by."""
    asked = first_model(spec, progress.totals.endpoint)
    used = progress.totals.models
    return used[-1].model if used and used[-1].model.name == asked.name else asked
