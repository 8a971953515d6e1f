"""Ask for the next round, and what to do when that comes to nothing.

Before each decision a strategy says whether to go on, with whom, or to end; after one that failed, whether to ask
again, to let another model go on, or to stop the loop. What a failed call used is in the
log before anything else happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import assert_never

import anyio

from dsec.base.clock import Clock
from dsec.base.errors import BackendFailedError, CallerError, DsecError
from dsec.episode.content import recordable
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.log_events import EpisodeSteered, ModelChanged, ModelFailed
from dsec.episode.spec import EpisodeSpec, ScriptPolicy
from dsec.stores.episode_log_group import DurableLog
from dsec.worker.chat.port import used_in_vain
from dsec.worker.episodes.gate import Gate
from dsec.worker.episodes.policies.foreign import contained
from dsec.worker.episodes.ports import (
    Course,
    Environment,
    EpisodePolicy,
    Escalate,
    Finished,
    GoOn,
    LoopPolicy,
    Proposal,
    RecoveryStrategy,
    Situation,
    Turn,
    hear_nothing,
)
from dsec.worker.episodes.window import DEFAULT_WINDOW_BYTES, RoundWindow

_BRIEF_CHARACTERS = 300
"""Of what is written down of a failure (docs/formats/episode-log.md)."""

MakePolicy = Callable[[ModelEndpoint | None], Awaitable[LoopPolicy]]


class NoStrategy:
    """Goes on until something fails, and stops there. Implements `dsec.worker.episodes.ports.RecoveryStrategy`."""

    def before_round(self, situation: Situation) -> Course:
        """Go on."""
        del situation
        return GoOn()

    def after_failure(self, situation: Situation, error: DsecError) -> Course | None:
        """Stop the loop."""
        del situation, error
        return None


def _tell_nobody(error: DsecError | None) -> None:
    del error


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What stands around a loop; the defaults are a loop by itself.

    Attributes:
        spec: of the episode, for the strategy.
        environment: that may be away while the model thinks; None: hands can always act.
        gate: through which the loop is made to stand still.
        strategy: says what to do when it does not go well.
        make_policy: makes who decides when another model takes over; None: none can.
        window_bytes: of rounds that are kept in memory.
        elapsed_s: how long the episode has gone on; None: what its log says.
        announced: called behind an announcement and in front of its effect; what it raises as `OutsideUnavailableError`
            keeps the effect from happening.
        after_commit: called between rounds, once one is committed.
        trouble: hears why a decision failed, and None once one did not.
    """

    spec: EpisodeSpec = field(default_factory=lambda: EpisodeSpec(task="", policy=ScriptPolicy(rounds=())))
    environment: Environment | None = None
    gate: Gate = field(default_factory=Gate)
    strategy: RecoveryStrategy = field(default_factory=NoStrategy)
    make_policy: MakePolicy | None = None
    window_bytes: int = DEFAULT_WINDOW_BYTES
    elapsed_s: Callable[[], float] | None = None
    announced: Callable[[], Awaitable[None]] | None = None
    after_commit: Callable[[RoundWindow], Awaitable[None]] | None = None
    trouble: Callable[[DsecError | None], None] = field(default=_tell_nobody)


def no_environment(number: int) -> AbstractAsyncContextManager[Callable[[str], None]]:
    """Surround a decision with nothing."""
    del number
    return nullcontext(hear_nothing)


class Decider:
    """Asks for rounds, in one life of a loop.

    Args:
        log: of the episode.
        policy: who decides at first.
        rounds: the newest rounds; the loop appends to them.
        around: what stands around the loop.
        clock: tells times.
        seed: returns the seed of a decision of a round, by both numbers.
    """

    def __init__(
        self,
        log: DurableLog,
        policy: EpisodePolicy,
        rounds: RoundWindow,
        around: Around,
        clock: Clock,
        *,
        seed: Callable[[int, int], int],
    ) -> None:
        self._log = log
        self._progress = log.log.progress
        self._policy = policy
        self._rounds = rounds
        self._around = around
        self._clock = clock
        self._seed = seed
        self._failures = 0

    def use(self, policy: EpisodePolicy) -> None:
        """Let another policy decide from the next decision on."""
        self._policy = policy

    async def decide(self) -> Proposal | Finished:
        """Return what is to be done next.

        Raises:
            DsecError: a decision failed, and the strategy stops the loop.
        """
        self._failures = 0
        course: Course = self._around.strategy.before_round(self._situation())
        while True:
            match course:
                case Finished():
                    return course
                case Escalate():
                    await self._change_model(course)
                    course = self._around.strategy.before_round(self._situation())
                case GoOn():
                    decided = await self._go_on(course)
                    if isinstance(decided, Proposal | Finished):
                        return decided
                    course = self._after(decided)
                case _:
                    assert_never(course)

    def _after(self, error: DsecError) -> Course:
        self._failures += 1
        course = self._around.strategy.after_failure(self._situation(), error)
        if course is None:
            raise error
        return course

    async def _go_on(self, course: GoOn) -> Proposal | Finished | DsecError:
        if course.after_s > 0:
            await anyio.sleep(course.after_s)
        if course.steer:
            await self._log.announce(EpisodeSteered(message=course.steer, by=course.by))
        return await self._try()

    async def _try(self) -> Proposal | Finished | DsecError:
        await self._around.gate.passed()
        number, began_s = self._progress.last_round + 1, anyio.current_time()
        environment = self._around.environment
        surround = environment.deciding if environment is not None else no_environment
        async with surround(number) as hear:
            try:
                decided = await self._ask(self._turn(hear))
            except DsecError as error:
                failed = error
            else:
                self._around.trouble(None)
                return decided
        if isinstance(failed, BackendFailedError):
            await self._log.note(
                ModelFailed(
                    number=number,
                    model=self._model(),
                    usage=used_in_vain(failed),
                    error_code=failed.code,
                    duration_s=round(anyio.current_time() - began_s, 6),
                    brief=_in_short(failed),
                )
            )
            await self._log.flush()  # Saved at once, or nobody who follows would see why nothing happens.
            self._around.trouble(failed)
        return failed

    async def _ask(self, turn: Turn) -> Proposal | Finished:
        where = f"in round {turn.number} of {turn.identity.episode_id}"
        policy = f"the policy {turn.identity.policy!r}"
        decided: object = await contained(lambda: self._policy.decide(turn), f"{policy} failed {where}")
        if not isinstance(decided, Proposal | Finished):
            raise CallerError(
                f"{policy} returned {type(decided).__name__} {where}",
                resolution="return a Proposal or Finished, and resume the episode",
            )
        return decided

    def _turn(self, hear: Callable[[str], None]) -> Turn:
        number, decision = self._progress.last_round + 1, self._progress.decisions + 1
        return Turn(
            identity=self._identity(),
            number=number,
            decision=decision,
            seed=self._seed(number, decision),
            rounds=self._rounds,
            steered=self._progress.totals.steered,
            hear=hear,
        )

    async def _change_model(self, course: Escalate) -> None:
        make = self._around.make_policy
        if make is None:
            raise CallerError("this loop can let no other model go on", resolution="drive it in a worker")
        self._policy = (await make(course.endpoint)).policy
        model = ModelIdentity(name=course.endpoint.name)
        await self._log.announce(ModelChanged(model=model, reason=course.reason, endpoint=course.endpoint))
        self._failures = 0

    def _situation(self) -> Situation:
        totals, elapsed_s = self._progress.totals, self._around.elapsed_s
        return Situation(
            spec=self._around.spec,
            number=self._progress.last_round + 1,
            elapsed_s=totals.elapsed_s(self._clock.wall_s()) if elapsed_s is None else elapsed_s(),
            totals=totals,
            rounds=self._rounds,
            endpoint=totals.endpoint,
            failures=self._failures,
        )

    def _model(self) -> ModelIdentity:
        endpoint = self._progress.totals.endpoint
        return self._identity().model if endpoint is None else ModelIdentity(name=endpoint.name)

    def _identity(self) -> EpisodeIdentity:
        identity = self._progress.identity
        assert identity is not None
        return identity


def _in_short(error: DsecError) -> str:
    """Return what was wrong and what was seen, in a line; the service may have said any of it."""
    words = " ".join(f"{error.brief}: {error.detail}".split()) if error.detail else error.brief
    words = recordable(words)
    return words if len(words) <= _BRIEF_CHARACTERS else f"{words[: _BRIEF_CHARACTERS - 3]}..."
