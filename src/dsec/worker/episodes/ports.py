"""What the loop of an episode needs: somebody who decides, hands that act, and a workspace that can be put back.

All three are asked by one task at a time, except that hands may be given several operations at once that are declared
to run side by side. What they raise as `DsecError` stops the loop and not the episode: it is resumed from its log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from dsec.episode.agent_calls import AgentCall
from dsec.episode.content import Content
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.operations import Effect, Operation, RoundRecord, TokenUsage
from dsec.episode.tools import ToolResult
from dsec.episode.totals import Steering
from dsec.model.value import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a policy decides upon.

    Attributes:
        identity: of the episode.
        number: of the round to decide, from 1.
        decision: which decision of that round this is, from 1.
        seed: for this decision: the same each time it is asked for.
        rounds: the committed rounds, or of a long episode the newest of them.
        steered: what the episode was told, the newest last, each with the round after which it came.
    """

    identity: EpisodeIdentity
    number: int
    decision: int
    seed: int
    rounds: Sequence[RoundRecord]
    steered: Sequence[Steering] = ()


class Proposal(Value, frozen=True, omit_defaults=True):
    """What a policy wants done; the fields are those of `ModelDecision`, with calls that have no ids yet."""

    calls: tuple[AgentCall, ...] = ()
    message: str = ""
    answer: Content = Content()
    model: ModelIdentity = ModelIdentity()
    usage: TokenUsage = TokenUsage(calls=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The policy has nothing more to do. `error_code` says why, if it is not because all is done."""

    reason: str = ""
    error_code: str = ""


class EpisodePolicy(Protocol):
    """Decides rounds. It keeps nothing between two calls that the committed rounds do not say."""

    async def decide(self, turn: Turn) -> Proposal | Finished:
        """Return what is to be done next."""


class Hands(Protocol):
    """Carry operations out, by their ids."""

    async def run(self, operation: Operation) -> ToolResult:
        """Carry one out. What it could not do, through no fault of the platform, is a result."""

    async def ask(self, operation: Operation) -> ToolResult | None:
        """Return what became of an operation outside that was sent before; None: it never arrived."""

    async def compensate(self, operation: Operation) -> None:
        """Undo an operation outside, if it happened. Idempotent."""


class Workspace(Protocol):
    """The files that operations change, in versions that can be put back."""

    async def version(self) -> str | None:
        """Return the version that it is now; None: nobody can tell; empty: there is no workspace."""

    async def versions(self) -> Collection[str]:
        """Return the versions that it can be put back to."""

    async def save(self, number: int) -> str:
        """Save what is there after round `number` as a version of its own, and return that."""

    async def restore(self, version: str) -> None:
        """Put a version back; whatever still ran in the workspace has ended then."""

    async def keep_only(self, versions: Collection[str]) -> None:
        """Forget all other versions that this episode saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a tool declares: its kind of effect, and whether its calls may run beside neighbours that may too."""

    effect: Effect
    parallel: bool = False


Declare = Callable[[AgentCall], Declared]
