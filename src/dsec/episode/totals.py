"""What an episode has used so far, and what it was told: what stays known when the beginning of its log is dropped.

A whole state carries these sums, so that who adds up a log that begins with one comes to the same as who read all of
it. They are small whatever the episode's length: one entry for each model and for each way of keeping an environment,
and the newest things that it was told.
"""

from __future__ import annotations

import enum

from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.identity import ModelIdentity
from dsec.episode.operations import TokenUsage
from dsec.model.value import Value

MAXIMUM_STEERINGS = 64
"""Of the newest that are kept; each is bounded when it is taken."""
MAXIMUM_VERSIONS = 64
"""Of models that are told apart; a service may say with each answer that it is another. Further ones count by name."""


class EnvironmentKind(enum.Enum):
    """How an episode's sandbox was kept for a while.

    RESIDENT: it stood, in use or not.
    PAUSED: it was paused.
    PREPARED: it was made ahead of its use, and waited for it.
    WASTED: it was made ahead, and given up unused.
    CREATED: it was being created.
    RESTORED: it was being made from a snapshot or checkpoint.
    """

    RESIDENT = "resident"
    PAUSED = "paused"
    PREPARED = "prepared"
    WASTED = "wasted"
    CREATED = "created"
    RESTORED = "restored"


class ModelTotal(Value, frozen=True, omit_defaults=True):
    """What one model was used for.

    Attributes:
        model: as it named itself.
        usage: of all its calls, those of given-up decisions and failed ones included.
        decisions: that it made.
        failed: calls that came to nothing.
    """

    model: ModelIdentity
    usage: TokenUsage = TokenUsage(calls=0)
    decisions: int = 0
    failed: int = 0


class EnvironmentTotal(Value, frozen=True, omit_defaults=True):
    """What keeping the environment in one way came to.

    Attributes:
        kind: the way.
        seconds: how long.
        memory_byte_s: integral of resident memory.
        cpu_s: of processors.
        count: stretches of time.
    """

    kind: EnvironmentKind
    seconds: float = 0.0
    memory_byte_s: float = 0.0
    cpu_s: float = 0.0
    count: int = 0


class Steering(Value, frozen=True, omit_defaults=True):
    """Something that an episode was told.

    Attributes:
        message: what.
        by: whom from.
        after_round: the last round that was committed when it came.
    """

    message: str
    by: str = ""
    after_round: int = 0


class EpisodeTotals(Value, frozen=True, omit_defaults=True):
    """The sums.

    Attributes:
        lives: how often its loop was begun.
        began_at_s: when it was first, in wall-clock seconds since the epoch; 0: never.
        held_s: how long it stood still because it, or its job, was paused.
        held_since_s: since when it does; 0: it does not.
        operations: of committed rounds.
        models: one entry for each model, in the order of their first use.
        environment: one entry for each kind, in the order of their first use.
        steered: the newest things it was told, the oldest of them first.
        endpoint: who decides now, if that was changed; None: as the spec says.
        changed_after: the last round that was committed when that was changed; 0: it was not, or before any.
    """

    lives: int = 0
    began_at_s: float = 0.0
    held_s: float = 0.0
    held_since_s: float = 0.0
    operations: int = 0
    models: tuple[ModelTotal, ...] = ()
    environment: tuple[EnvironmentTotal, ...] = ()
    steered: tuple[Steering, ...] = ()
    endpoint: ModelEndpoint | None = None
    changed_after: int = 0

    def elapsed_s(self, now_s: float) -> float:
        """Return how long the episode has gone on by the wall clock, without the times in which it was held."""
        if not self.began_at_s:
            return 0.0
        until_s = self.held_since_s or now_s
        return max(0.0, until_s - self.began_at_s - self.held_s)

    @property
    def usage(self) -> TokenUsage:
        """What all models used."""
        total = TokenUsage(calls=0)
        for one in self.models:
            total = add_usage(total, one.usage)
        return total


def add_usage(first: TokenUsage, second: TokenUsage) -> TokenUsage:
    """Return the sum; its cost is what is known of it, and None only if nothing is."""
    known = [cost for cost in (first.cost_usd, second.cost_usd) if cost is not None]
    return TokenUsage(
        input_tokens=first.input_tokens + second.input_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
        output_tokens=first.output_tokens + second.output_tokens,
        thinking_tokens=first.thinking_tokens + second.thinking_tokens,
        cost_usd=sum(known) if known else None,
        calls=first.calls + second.calls,
    )
