"""Policies whose play is an episode: a durable loop with a log of its own, in a worker, in the place of `Play`.

``agent`` asks a chat model, ``scaffold:COMMAND`` runs a scaffold of one's own in the sandbox, ``episode:NAME`` and
``episode:module:attribute`` are plug-ins of episodes (`dsec.worker.episodes.policies.registry`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.episode.durability import EVERY_ROUND, Durability
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.operations import Effect
from dsec.episode.spec import (
    AgentPolicy,
    EnvironmentMode,
    PluginPolicy,
    PolicySpec,
    ScaffoldPolicy,
    ScriptPolicy,
    ScriptRound,
)
from dsec.worker.output import read_results, read_rounds
from dsec.worker.policies.port import Policy, PolicyContext, PolicySource

AGENT = "agent"
_SCAFFOLD, _PLUGIN = "scaffold", "episode"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOptions:
    """How attempts are played that are episodes.

    Attributes:
        model: asked first; None: the policy needs none.
        stronger: take over on failure, in this order.
        mode: where a sandbox is while the model thinks.
        durability: when a round is saved.
        cost_usd: what the models of one attempt may cost; None: no limit.
        seed: from which each attempt's own follows.
        commands: what commands may do, as a kind of effect (`dsec.episode.operations.Effect`); None: once, where a task
            is given a network, and else what can be undone with its files.
    """

    model: ModelEndpoint | None = None
    stronger: tuple[ModelEndpoint, ...] = ()
    mode: EnvironmentMode = EnvironmentMode.RESIDENT
    durability: Durability = EVERY_ROUND
    cost_usd: float | None = None
    seed: int = 0
    commands: Effect | None = None


def is_episode_policy(name: str) -> bool:
    """Say whether a policy of that name is played as an episode."""
    return name == AGENT or name.partition(":")[0] in (_SCAFFOLD, _PLUGIN)


def episode_source(name: str, options: EpisodeOptions) -> PolicySource:
    """Return the policy called `name`.

    Raises:
        InvalidRequestError: there is none, or it lacks its model.
    """
    make = _maker(name, options)
    return PolicySource(name=name, fingerprint=_fingerprint(name, options), make=_no_rounds, episode=make)


def _maker(name: str, options: EpisodeOptions) -> _SpecMaker:
    kind, _, rest = name.partition(":")
    if name == AGENT:
        if options.model is None:
            raise InvalidRequestError("an agent needs a model", resolution="give --model URL")
        return _SpecMaker(AgentPolicy(model=options.model, stronger=options.stronger))
    if not rest:
        raise InvalidRequestError(
            f"the policy {name!r} says not which", resolution="write scaffold:COMMAND, or episode:NAME"
        )
    return _SpecMaker(ScaffoldPolicy(command=rest) if kind == _SCAFFOLD else PluginPolicy(name=rest))


@dataclass(frozen=True, slots=True)
class _SpecMaker:
    policy: PolicySpec

    def __call__(self, context: PolicyContext) -> PolicySpec:
        if isinstance(self.policy, ScaffoldPolicy):
            return msgspec.structs.replace(self.policy, timeout_s=context.task.agent_timeout_s)
        return self.policy


def _fingerprint(name: str, options: EpisodeOptions) -> str:
    """Return what changes when the decisions may change: models and seed, not where models are and what they cost."""
    models = [
        (model.name, model.maximum_tokens, model.temperature)
        for model in ((options.model,) if options.model is not None else ()) + options.stronger
    ]
    said = msgspec.json.encode([name, models, options.seed])
    return f"{name.partition(':')[0]}:{hashlib.sha256(said).hexdigest()[:16]}"


def replay_source(name: str, out: Path) -> PolicySource:
    """Return the policy that does again, in episodes, what the episodes of an earlier rollout did.

    Args:
        name: as on the command line.
        out: of that rollout.
    """
    return PolicySource(
        name=name, fingerprint=f"replay:{out.resolve()}", make=_no_rounds, episode=partial(_recorded, out)
    )


def _recorded(out: Path, context: PolicyContext) -> PolicySpec:
    """Return the rounds of the recorded attempt; a rollout with fewer attempts is gone through again and again."""
    results = [result for result in read_results(out)[1] if result.task == context.task.name and result.episode]
    if not results:
        raise NotFoundError(
            f"{out} has no episode of task {context.task.name}", resolution="name the --out of a run that has"
        )
    results.sort(key=lambda result: result.attempt)
    rounds = read_rounds(out, results[(context.attempt - 1) % len(results)])
    return ScriptPolicy(
        rounds=tuple(
            ScriptRound(
                calls=tuple(operation.call for operation in record.decision.operations),
                message=record.decision.message,
            )
            for record in rounds
        )
    )


def _no_rounds(context: PolicyContext) -> Policy:
    raise InvalidRequestError(f"the policy of task {context.task.name} is played as an episode")
