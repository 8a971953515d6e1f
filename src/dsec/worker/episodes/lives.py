"""One life of an episode's loop: put together from the parts of a worker, run, and let go of.

A life ends with the episode, with a verdict that is waited for, with an error, or by being cut short: by whoever
cancels it, by a deadline that is enforced, or by what goes on beside it (another worker has the episode). It is kept
when it has to stand still: see `dsec.worker.episodes.gate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import anyio
from anyio.abc import TaskGroup

from dsec.base.errors import DsecError
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.episode_progress import EpisodeProgress
from dsec.episode.failure_kinds import DEADLINE_PASSED
from dsec.episode.identity import ModelIdentity
from dsec.episode.log_events import EpisodeEnded, LifeBegan, LogEvent, ModelChanged, StateSaved
from dsec.episode.spec import AgentPolicy, EpisodeSpec, ReplayPolicy, ScriptPolicy
from dsec.worker.episodes.deciding import Around
from dsec.worker.episodes.gate import Gate
from dsec.worker.episodes.holding import Holding
from dsec.worker.episodes.loop import EpisodeLoop, LoopLimits, Waiting
from dsec.worker.episodes.parts import WorkerParts
from dsec.worker.episodes.ports import Environment, LifeContext, LoopPolicy
from dsec.worker.episodes.recovery.checking import checked_hands, declared_checked
from dsec.worker.episodes.recovery.enduring import EnduringHands
from dsec.worker.episodes.recovery.strategies import enforced_deadline_s
from dsec.worker.episodes.stopwatch import Stopwatch
from dsec.worker.episodes.window import DEFAULT_WINDOW_BYTES, RoundWindow

_STATE_TRIES_BYTES = 1 << 20
"""A state that could not be saved because the copy was behind is tried again when the log has grown by so much."""


_LOOKS_S = (0.3, 2.0, 10.0)
"""How long after a pause it is looked whether the sandbox still is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutShort:
    """A deadline ended the life, and the episode with it."""

    ended: EpisodeEnded


def make_context(parts: WorkerParts, episode_id: str, spec: EpisodeSpec, holding: Holding) -> LifeContext:
    """Return what the parts of a loop are built from."""

    async def note(event: LogEvent) -> None:
        # What is used after the end, such as until a sandbox is gone, finds no place in the log.
        if holding.log.log.progress.ended is None:
            await holding.log.note(event)

    return LifeContext(
        episode_id=episode_id,
        spec=spec,
        service=parts.service,
        state=parts.state,
        progress=holding.log.log.progress,
        epoch=holding.fencing_epoch,
        note=note,
        clock=parts.clock,
        recorded=parts.recorded,
    )


class Life:
    """See the module. `run` is called once.

    Args:
        parts: of the worker.
        episode_id, spec: of the episode.
        holding: its log.
        rounds: the newest committed rounds.
        sandboxes_ended: how often the sandbox ended under an operation, by its id, in all lives so far.
        trouble: hears why a decision failed that is asked for again, and None once one did not.
    """

    def __init__(
        self,
        parts: WorkerParts,
        episode_id: str,
        spec: EpisodeSpec,
        holding: Holding,
        rounds: RoundWindow,
        sandboxes_ended: Counter[str],
        trouble: Callable[[DsecError | None], None],
    ) -> None:
        self._parts = parts
        self._spec = spec
        self._holding = holding
        self._rounds = rounds
        self._sandboxes_ended = sandboxes_ended
        self._trouble = trouble
        self._context = make_context(parts, episode_id, spec, holding)
        self._gate = Gate()
        totals = self._progress.totals
        self._stopwatch = Stopwatch(parts.clock, totals.elapsed_s(parts.clock.wall_s()))
        self._environment: Environment | None = None
        self._loop: EpisodeLoop | None = None
        self._state_bytes = parts.settings.state_bytes
        self._cut: CutShort | None = None
        self._pauses = 0
        self._pausing = anyio.Lock()

    @property
    def _progress(self) -> EpisodeProgress:
        return self._holding.log.log.progress

    @property
    def sandbox_id(self) -> str:
        """The present sandbox; empty: there is none now."""
        return self._environment.sandbox_id if self._environment is not None else ""

    async def run(self) -> EpisodeEnded | Waiting | CutShort:
        """Go on until the episode ends, waits for a verdict, or is out of time.

        Raises:
            DsecError: it has to stop.
        """
        model = first_model(self._spec, self._progress.totals.endpoint)
        began = LifeBegan(worker=self._parts.worker_id, at_s=self._parts.clock.wall_s(), model=model)
        await self._holding.log.note(began)
        environment = self._parts.environments(self._context)
        async with AsyncExitStack() as stack:
            async with self._parts.sandboxes:
                await stack.enter_async_context(environment)
            self._environment = environment
            self._loop = self._make_loop(environment, await self._current_policy())
            return await self._run_in_time(self._loop)

    def _make_loop(self, environment: Environment, policy: LoopPolicy) -> EpisodeLoop:
        limits, dear_s = self._spec.limits, self._parts.settings.dear_s
        hands = EnduringHands(self._parts.hands(self._context, environment.hands), self._sandboxes_ended)
        return EpisodeLoop(
            self._holding.log,
            policy=policy.policy,
            declare=declared_checked(policy.declare, self._spec.check),
            hands=checked_hands(hands, self._spec.check),
            workspace=environment.workspace,
            rounds=self._rounds,
            limits=LoopLimits(
                rounds=limits.rounds, useless_rounds=limits.useless_rounds, calls=limits.calls, dear_s=dear_s
            ),
            around=Around(
                spec=self._spec,
                environment=environment,
                gate=self._gate,
                strategy=self._parts.strategy(self._spec),
                make_policy=self._make_policy,
                window_bytes=window_bytes(self._spec),
                elapsed_s=self._stopwatch.elapsed_s,
                announced=self._holding.publish,
                after_commit=self._after_commit,
                trouble=self._trouble,
            ),
            clock=self._parts.clock,
        )

    async def _current_policy(self) -> LoopPolicy:
        """Make who decides now; another model may take over while it is made."""
        while True:
            endpoint = self._progress.totals.endpoint
            policy = await self._make_policy(endpoint)
            if self._progress.totals.endpoint == endpoint:
                return policy

    async def _make_policy(self, endpoint: ModelEndpoint | None) -> LoopPolicy:
        return await self._parts.policies(self._context, endpoint)

    async def _run_in_time(self, loop: EpisodeLoop) -> EpisodeEnded | Waiting | CutShort:
        """Run the loop until it ends or the deadline has passed. What it raises is carried out of the task group."""
        ended: list[EpisodeEnded | Waiting | DsecError] = []

        async def run(tasks: TaskGroup) -> None:
            try:
                ended.append(await loop.run())
            except DsecError as error:
                ended.append(error)
            finally:
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, tasks)
            await self._watch_deadline()
            tasks.cancel_scope.cancel()
        outcome = ended[0] if ended else self._cut
        assert outcome is not None
        if isinstance(outcome, DsecError):
            raise outcome
        return outcome

    async def _watch_deadline(self) -> None:
        deadline_s = enforced_deadline_s(self._spec.limits)
        if deadline_s is None:
            await anyio.sleep_forever()
            return
        while (left_s := deadline_s - self._stopwatch.elapsed_s()) > 0:  # noqa: ASYNC110 - time stands still at times.
            await anyio.sleep(left_s)
        self._cut = CutShort(ended=EpisodeEnded(reason=f"its {deadline_s:g} s are over", error_code=DEADLINE_PASSED))

    # -- what others do to it ------------------------------------------------------------------------------------------

    async def pause(self, *, keep_memory: bool) -> None:
        """Stand still. After an error, it goes on as before.

        Raises:
            DsecError: the sandbox cannot be paused.
        """
        self._stopwatch.hold()
        self._pauses += 1
        try:
            await self._gate.hold()
            if self._environment is not None:
                async with self._parts.sandboxes:
                    await self._environment.pause(keep_memory=keep_memory)
                again = partial(self._stay_paused, self._environment, keep_memory, self._pauses)
                # It is gone, or the node is: whoever resumes it finds out.
                self._parts.tasks.start_soon(self._parts.beside, again, lambda error: None)
        except BaseException:
            self._gate.release()
            self._stopwatch.release()
            raise

    async def _stay_paused(self, environment: Environment, keep_memory: bool, turn: int) -> None:
        """Pause again what a command has resumed that was sent before the pause, and came to the node after it."""
        for delay_s in _LOOKS_S:
            await anyio.sleep(delay_s)
            async with self._pausing:
                if not self._gate.is_held or self._pauses != turn:
                    return
                await environment.pause(keep_memory=keep_memory)

    async def resume(self) -> None:
        """Go on.

        Raises:
            DsecError: the sandbox cannot be resumed; it stands still.
        """
        async with self._pausing:
            if self._environment is not None:
                async with self._parts.sandboxes:
                    await self._environment.resume()
            self._stopwatch.release()
            self._gate.release()

    async def change_model(self, endpoint: ModelEndpoint, *, reason: str) -> None:
        """Let another model decide from now on.

        Raises:
            DsecError: there can be no such model, or it could not be saved.
        """
        policy = await self._make_policy(endpoint)
        await change_model(self._holding, endpoint, reason=reason)
        if self._loop is not None:  # Otherwise it is about to be made, with this one.
            self._loop.use(policy.policy)

    # -- whole states --------------------------------------------------------------------------------------------------

    async def _after_commit(self, rounds: RoundWindow) -> None:
        """Give a long log a whole state, once all in front of it is uploaded: only then nothing is lost by dropping it.

        Without a store nothing is dropped: the rounds are what the episode is for.
        """
        log = self._holding.log
        size_bytes = sum(max(segment.bytes, 0) for segment in log.log.saved_segments()) + sum(
            self._parts.settings.segment_bytes for segment in log.log.saved_segments() if segment.bytes < 0
        )
        if self._holding.uploader is None or size_bytes < self._state_bytes or self._progress.open is not None:
            return
        await log.flush()  # Only what is saved is uploaded, and other modes than each round save later.
        if not await self._holding.wait_uploaded(1.0):
            self._state_bytes = size_bytes + _STATE_TRIES_BYTES
            return
        identity = self._progress.identity
        assert identity is not None
        await log.save_state(
            StateSaved(
                number=self._progress.last_round,
                identity=identity,
                workspace=self._progress.workspace,
                totals=self._progress.totals,
                recent=tuple(rounds),
            )
        )
        self._state_bytes = log.log.saved_segments()[-1].bytes + self._parts.settings.state_bytes


async def change_model(holding: Holding, endpoint: ModelEndpoint, *, reason: str) -> None:
    """Write down that another model decides; saved when this returns."""
    model = ModelIdentity(name=endpoint.name)
    await holding.log.announce(ModelChanged(model=model, reason=reason, endpoint=endpoint))


def first_model(spec: EpisodeSpec, endpoint: ModelEndpoint | None) -> ModelIdentity:
    """Return who decides; empty: no model does."""
    if endpoint is None and isinstance(spec.policy, AgentPolicy):
        endpoint = spec.policy.model
    return ModelIdentity() if endpoint is None else ModelIdentity(name=endpoint.name)


def window_bytes(spec: EpisodeSpec) -> int:
    """Return how much of the newest rounds is kept in memory: what an agent is shown, and its words."""
    if isinstance(spec.policy, ScriptPolicy | ReplayPolicy):
        return 0
    if not isinstance(spec.policy, AgentPolicy):
        return DEFAULT_WINDOW_BYTES
    return spec.policy.history_bytes * 5 // 4
