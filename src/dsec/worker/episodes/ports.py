"""What the loop of an episode needs: somebody who decides, hands that act, a workspace that can be put back, and an
environment that holds hands and workspace and may be away while the model thinks.

All are asked by one task at a time, except that hands may be given several operations at once that are declared to run
side by side, and that an environment is paused and resumed by others. What they raise as `DsecError` stops the loop and
not the episode: it is resumed from its log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from dsec.base.clock import Clock
from dsec.base.errors import DsecError
from dsec.episode.agent_calls import AgentCall
from dsec.episode.content import Content
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.episode_progress import EpisodeProgress
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.log_events import LogEvent
from dsec.episode.operations import Effect, ModelDecision, Operation, RoundRecord, TokenUsage
from dsec.episode.spec import EpisodeSpec
from dsec.episode.tools import ToolResult
from dsec.episode.totals import EpisodeTotals, Steering
from dsec.model.value import Value
from dsec.service.port import SandboxService
from dsec.service.state import StateService


def hear_nothing(tool: str) -> None:
    """Take no notice of what a model is about to call."""


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
        hear: to be called with the name of a tool as soon as the model has written it, while its answer goes on.
    """

    identity: EpisodeIdentity
    number: int
    decision: int
    seed: int
    rounds: Sequence[RoundRecord]
    steered: Sequence[Steering] = ()
    hear: Callable[[str], None] = hear_nothing


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


def first_version(episode_id: str) -> str:
    """Return the version of the workspace before the first round: what the episode found."""
    return f"{episode_id}.r0"


class Workspace(Protocol):
    """The files that operations change, in versions that can be put back.

    A version is a name that the episode gave, not an id of a sandbox's: it stays what it is when the files are brought
    into another sandbox. The first one, before any round, is named when the episode begins (`first_version`).
    """

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


# -- around the loop: what a worker puts together for each life of one ------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeContext:
    """What there is to build the parts of a loop from.

    Attributes:
        episode_id: of the episode.
        spec: what was asked for.
        service, state: where sandboxes are.
        progress: of its log; read only.
        epoch: grows with each taking of the episode, on any host; systems outside are told.
        note: appends an event that stands beside the rounds; see `dsec.episode.log_events`.
        clock: tells times.
        recorded: reads the committed rounds of an episode of this worker, for replays.
    """

    episode_id: str
    spec: EpisodeSpec
    service: SandboxService
    state: StateService
    progress: EpisodeProgress
    epoch: int
    note: Callable[[LogEvent], Awaitable[None]]
    clock: Clock
    recorded: Callable[[str], Awaitable[Sequence[RoundRecord]]]


class Environment(Protocol):
    """The sandbox that an episode acts on, through one life of its loop; an async context manager.

    Entering finds the sandbox that is there or makes one. Leaving lets go and leaves the sandbox as it is: the episode
    may go on in another life. Sandboxes are found again by their metadata (``episode``), so that a death between making
    one and writing it down leaks nothing.
    """

    @property
    def sandbox_id(self) -> str:
        """The present sandbox; empty: there is none now."""

    @property
    def hands(self) -> Hands:
        """What acts there; the same object for the whole life, whatever happens to the sandbox."""

    @property
    def workspace(self) -> Workspace:
        """Its files; the same object for the whole life."""

    async def __aenter__(self) -> Environment: ...

    async def __aexit__(self, *exception: object) -> None: ...

    def deciding(self, number: int) -> AbstractAsyncContextManager[Callable[[str], None]]:
        """Surround a decision. What is yielded hears the names of tools as the model writes them (`Turn.hear`)."""

    async def before_tools(self, decision: ModelDecision) -> None:
        """Return once hands can act; called before the operations of each decision, those of a recovery too."""

    async def after_round(self, record: RoundRecord) -> None:
        """A round is committed, and its version saved."""

    async def pause(self, *, keep_memory: bool = False) -> None:
        """Stand still: freeze what runs in the sandbox. Idempotent. No hands act meanwhile but on frozen commands."""

    async def resume(self) -> None:
        """Go on. Idempotent."""

    async def remove(self) -> None:
        """The episode has ended: take away every sandbox of it, unless its spec says to keep it. Idempotent."""


class EnvironmentFactory(Protocol):
    """Chooses the environment of an episode by its spec."""

    def __call__(self, context: LifeContext) -> Environment: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPolicy:
    """Who decides, and what its calls mean.

    Attributes:
        policy: decides.
        declare: what the tools declare.
        model: who is asked; empty: no model.
    """

    policy: EpisodePolicy
    declare: Declare
    model: ModelIdentity = field(default_factory=ModelIdentity)


class PolicyFactory(Protocol):
    """Makes who decides, by the spec.

    Args:
        context: of the life.
        endpoint: the model that decides now; None: the spec's own, or none.

    Raises:
        InvalidRequestError: the spec asks for a policy that cannot be.
    """

    async def __call__(self, context: LifeContext, endpoint: ModelEndpoint | None) -> LoopPolicy: ...


class HandsFactory(Protocol):
    """Puts what acts outside beside what acts in the sandbox.

    Args:
        context: of the life.
        sandbox: carries out everything that is not outside.
    """

    def __call__(self, context: LifeContext, sandbox: Hands) -> Hands: ...


# -- what to do when it does not go well -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """How an episode stands before a round, or after a decision that failed.

    Attributes:
        spec: of the episode.
        number: of the round to come.
        elapsed_s: since the episode began, without the times in which it was held.
        totals: what it used.
        rounds: the newest committed rounds.
        endpoint: who decides now; None: as the spec says.
        failures: decisions of this round that failed one after another, in this life.
    """

    spec: EpisodeSpec
    number: int
    elapsed_s: float
    totals: EpisodeTotals
    rounds: Sequence[RoundRecord]
    endpoint: ModelEndpoint | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """Decide the next round.

    Attributes:
        after_s: after waiting for so many seconds.
        steer: what the episode is told first, in words for who decides; empty: nothing.
        by: who tells it.
    """

    after_s: float = 0.0
    steer: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalate:
    """Let another model go on from the last committed round."""

    endpoint: ModelEndpoint
    reason: str


Course = GoOn | Escalate | Finished


class RecoveryStrategy(Protocol):
    """Decides whether to go on, with whom, or to end. Pure: it is asked with all there is to know."""

    def before_round(self, situation: Situation) -> Course:
        """Say what to do next; called before each decision."""

    def after_failure(self, situation: Situation, error: DsecError) -> Course | None:
        """Say what to do about a decision that came to nothing; None: stop the loop, for somebody to resume."""
