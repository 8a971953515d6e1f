"""One episode of a worker, from its beginning to its end: a task that takes one step after another.

::

    queued ── running ── ended
      │ ▲       │ │ ▲
      │ │       │ └─┴── paused (its loop is kept)
      │ ├───────┼────── waiting (for a verdict)
      │ └───────┴────── stopped (by an error; tried again first, if the platform failed)
      └── paused, waiting, stopped, ended: also from here

The task decides what the next step is; others say what they want (`pause`, `resume`, `cancel`, `settle`) and wake it.
What is wanted is saved in the log before it is acknowledged, except an end, which is the log's last event anyway. Those
who want something take turns; the task waits for none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread
from msgspec.structs import replace

from dsec.base.errors import (
    BackendFailedError,
    DsecError,
    InvalidStateError,
    LimitExceededError,
    WriterFencedError,
)
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_events import (
    EpisodeEnded,
    EpisodeHeld,
    EpisodeReleased,
    EpisodeSteered,
    Verdict,
)
from dsec.episode.recovery import AwaitVerdict, plan_recovery
from dsec.episode.retry import next_delay_s
from dsec.episode.spec import EpisodeInfo, EpisodeSpec, EpisodeState
from dsec.episode.spec_check import MAXIMUM_REASON_BYTES
from dsec.episode.tools import ToolResult
from dsec.worker.episodes.describing import describe, describe_unopened, policy_name, unknown_operations
from dsec.worker.episodes.holding import Holding, hold
from dsec.worker.episodes.lives import CutShort, Life, change_model, first_model, make_context, window_bytes
from dsec.worker.episodes.loop import Waiting, settle
from dsec.worker.episodes.parts import WorkerParts, unthought_of
from dsec.worker.episodes.ports import first_version
from dsec.worker.episodes.results import shortened
from dsec.worker.episodes.shelf import KeptSpec
from dsec.worker.episodes.spill import Spill
from dsec.worker.episodes.trying import is_tried_again, is_worth_a_try
from dsec.worker.episodes.window import RoundWindow

CANCELLED = "cancelled"
_CLEANING_S = (1.0, 5.0, 30.0)


class EpisodeDrive:
    """See the module.

    Args:
        episode_id: of the episode.
        kept: what it was asked to be.
        parts: of the worker.
        on_ended: hears once everything of it is done: its end saved, its sandboxes gone.

    Attributes:
        state: where it is.
        saved_sequence: the last event that is known to be saved.
    """

    def __init__(
        self, episode_id: str, kept: KeptSpec, parts: WorkerParts, *, on_ended: Callable[[EpisodeInfo], None]
    ) -> None:
        self.episode_id = episode_id
        self.kept = kept
        self.state = EpisodeState.QUEUED
        self.saved_sequence = 0
        self._parts = parts
        self._on_ended = on_ended
        self._reason = ""
        self._error: DsecError | None = None
        self._trouble: DsecError | None = None
        self._holding: Holding | None = None
        self._rounds: RoundWindow | None = None
        self._life: Life | None = None
        self._waiting: tuple[AwaitVerdict, ...] = ()
        self._cancelled: EpisodeEnded | None = None
        self._failed_beside: DsecError | None = None
        self._tries = 0
        self._tried_round = 0
        self._is_asked_anew = False
        self._sandboxes_ended: Counter[str] = Counter()
        self._scope: anyio.CancelScope | None = None
        self._changed = anyio.Event()
        self._wake = anyio.Event()
        self._control = anyio.Lock()
        self._opening = anyio.Lock()
        self._known = anyio.Event()
        self._last = describe_unopened(episode_id, kept)

    @property
    def spec(self) -> EpisodeSpec:
        """What it was asked to be."""
        return self.kept.spec

    @property
    def has_ended(self) -> bool:
        """Whether its end is saved."""
        return self.state is EpisodeState.ENDED

    # -- what is known -------------------------------------------------------------------------------------------------

    def info(self) -> EpisodeInfo:
        """Return what is known of it now."""
        if self._holding is not None:
            self._last = describe(self.episode_id, self.kept, self._holding, self._waiting)
        reason, error = self._reason, self._error
        if error is None and self._trouble is not None and self.state in (EpisodeState.QUEUED, EpisodeState.RUNNING):
            error, reason = self._trouble, reason or is_tried_again(self._trouble)
        return replace(
            self._last,
            state=self.state,
            reason=reason,
            error_code=error.code if error is not None else self._last.error_code,
            sandbox_id=self._life.sandbox_id if self._life is not None else "",
        )

    async def wait_known(self) -> None:
        """Wait until its log was opened, or could not be."""
        await self._known.wait()

    @property
    def change(self) -> anyio.Event:
        """Set at the next change."""
        return self._changed

    def _set(self, state: EpisodeState, reason: str = "", error: DsecError | None = None) -> None:
        # The log has all of it; this is told with each listing.
        self.state, self._reason, self._error = state, shortened(reason, MAXIMUM_REASON_BYTES), error
        self._tell()

    def _hear_trouble(self, error: DsecError | None) -> None:
        """What is wrong while the loop runs and asks again: somebody may be waiting for it."""
        if error is None:
            self._is_asked_anew = False
        if error is not self._trouble:
            self._trouble = error
            self._tell()

    def _tell(self) -> None:
        if self._holding is not None and self._holding.log.log.is_usable:
            self.saved_sequence = self._holding.log.log.saved_sequence
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    # -- its log -------------------------------------------------------------------------------------------------------

    async def open(self) -> Holding:
        """Return its log, taken into our hands if it is not.

        Raises:
            DsecError: another worker has it, or disk or store failed.
        """
        async with self._opening:
            holding = self._holding
            if holding is not None and holding.log.failure is None and self._failed_beside is None:
                return holding
            try:
                return await self._open()
            finally:
                self._known.set()
                self._tell()

    async def _open(self) -> Holding:
        await self._let_go()
        spec = self.spec
        identity = EpisodeIdentity(
            episode_id=self.episode_id,
            task=spec.task,
            attempt=spec.attempt,
            seed=spec.seed,
            policy=policy_name(spec),
            model=first_model(spec, None),
            workspace=first_version(self.episode_id),
        )
        self._failed_beside = None
        self._holding = await hold(
            self._parts,
            self.episode_id,
            spec.durability,
            identity=identity,
            on_saved=self._tell,
            on_failure=self._fail_beside,
        )
        self._rounds = RoundWindow(
            self._holding.rounds,
            limit_bytes=window_bytes(spec),
            spill=Spill(self._parts.shelf.directory),
        )
        self._holding.rounds = ()
        if (ended := self._holding.log.log.progress.ended) is not None:
            self._set(EpisodeState.ENDED, ended.reason)
            self._wake_up()
        return self._holding

    async def _let_go(self) -> None:
        if self._holding is not None:
            self._last = describe(self.episode_id, self.kept, self._holding, self._waiting)
            await self._holding.aclose()
            self._holding = None
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = None

    def _fail_beside(self, error: DsecError) -> None:
        """The lease or the copy says that this worker must not go on."""
        self._failed_beside = error
        if self._scope is not None:
            self._scope.cancel()

    # -- the task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take steps until the episode has ended and everything of it is done."""
        while not self.has_ended:
            try:
                await self._step_or_after()
            except Exception as error:  # noqa: BLE001 - a supervisor: one episode must not end the worker's others.
                problem = unthought_of(self.run, error)
                await self._stop(problem)
        try:
            await self._finish()
        except Exception as error:  # noqa: BLE001 - a supervisor, as above; the next worker cleans up.
            self._reason = f"{self._reason} (cleaning up failed: {type(error).__name__}: {error})"
            self._tell()

    async def _step_or_after(self) -> None:
        try:
            await self._step()
        except DsecError as error:
            await self._after(error)

    async def _step(self) -> None:
        holding = await self.open()
        progress = holding.log.log.progress
        if progress.ended is not None:
            self._set(EpisodeState.ENDED, progress.ended.reason)
        elif self._cancelled is not None:
            await self._end(holding, self._cancelled)
        elif progress.totals.held_since_s:
            self._set(EpisodeState.PAUSED)
            await self._wait_wake()
        elif unknown := plan_recovery(progress, workspace=None).unknown:
            await self._wait_verdict(unknown)
        else:
            await self._live(holding)

    async def _wait_wake(self) -> None:
        wake = self._wake = anyio.Event()
        if self._cancelled is None:
            await wake.wait()

    async def _wait_verdict(self, unknown: Sequence[AwaitVerdict]) -> None:
        self._waiting = tuple(unknown)
        self._set(EpisodeState.WAITING, f"nobody knows what became of {unknown[0].operation_id}")
        await self._wait_wake()

    async def _end(self, holding: Holding, ended: EpisodeEnded) -> None:
        at_s = self._parts.clock.wall_s()
        await holding.log.announce(EpisodeEnded(reason=ended.reason, error_code=ended.error_code, at_s=at_s))
        self._set(EpisodeState.ENDED, ended.reason)

    async def _live(self, holding: Holding) -> None:
        assert self._rounds is not None
        self._set(EpisodeState.QUEUED)
        outcome: EpisodeEnded | Waiting | CutShort | None = None
        with anyio.CancelScope() as self._scope:
            async with self._parts.loops:
                life = self._life = Life(
                    self._parts,
                    self.episode_id,
                    self.spec,
                    holding,
                    self._rounds,
                    self._sandboxes_ended,
                    self._hear_trouble,
                )
                self._set(EpisodeState.RUNNING)
                try:
                    outcome = await life.run()
                finally:
                    self._life = None
        self._scope = None
        if self._failed_beside is not None:
            raise self._failed_beside
        match outcome:
            case EpisodeEnded():
                self._set(EpisodeState.ENDED, outcome.reason)
            case Waiting():
                await self._wait_verdict(outcome.operations)
            case CutShort():
                self._cancelled = outcome.ended
            case None:
                pass  # Somebody wants something else first.

    async def _after(self, error: DsecError) -> None:
        """Try again a few times what the platform failed in; stop at anything else."""
        self._scope = None
        holding = self._holding
        last_round = holding.log.log.progress.last_round if holding is not None else 0
        if last_round > self._tried_round:
            self._tries, self._tried_round = 0, last_round
        self._tries += 1
        delay_s = next_delay_s(self._tries, backoff_s=self._parts.settings.backoff_s)
        if delay_s is None or self._cancelled is not None or not self._may_try_again(error):
            await self._stop(error)
            return
        await self._drop_broken()
        self._set(EpisodeState.QUEUED, is_tried_again(error), error)
        wake = self._wake = anyio.Event()
        with anyio.move_on_after(delay_s):
            await wake.wait()

    def _may_try_again(self, error: DsecError) -> bool:
        """A lease that ran out because the store was away is asked for anew: that finds out whether another has it."""
        if isinstance(error, WriterFencedError) and self._failed_beside is None:
            return self._holding is not None and self._holding.is_lease_over
        if isinstance(error, BackendFailedError) and self._is_asked_anew:
            # The call that failed may have been the last of the model before.
            self._is_asked_anew = False
            return True
        return is_worth_a_try(error, self.spec)

    async def _drop_broken(self) -> None:
        """Let go of a log that takes nothing any more, or whose lease or copy is not kept; going on opens it anew."""
        holding = self._holding
        if holding is not None and (holding.log.failure is not None or self._failed_beside is not None):
            await self.aclose()

    async def _stop(self, error: DsecError) -> None:
        self._scope, self._life, self._trouble = None, None, None
        await self._drop_broken()
        self._cancelled = None
        self._set(EpisodeState.STOPPED, error.brief, error)
        await self._wait_wake()
        self._tries = 0

    async def _finish(self) -> None:
        """Take the sandboxes away, wait a little for the copy, and let go."""
        holding, tries = self._holding, 0
        assert holding is not None
        environment = self._parts.environments(make_context(self._parts, self.episode_id, self.spec, holding))
        reason = self._reason
        while True:
            try:
                await environment.remove()
                break
            except DsecError as error:
                self._set(EpisodeState.ENDED, f"{reason} (its sandbox is still there: {error.brief})")
            await anyio.sleep(_CLEANING_S[min(tries, len(_CLEANING_S) - 1)])
            tries += 1
        ended = holding.log.log.progress.ended
        self._set(EpisodeState.ENDED, ended.reason if ended is not None else "")
        while not await holding.wait_uploaded(self._parts.settings.upload_wait_s) and self._failed_beside is None:
            self._tell()
        info = self.info()
        await self._let_go()
        await anyio.to_thread.run_sync(self._parts.shelf.end, info)
        self._on_ended(info)
        self._tell()

    async def aclose(self) -> None:
        """Let go of it, as it is; another worker may go on. Never fails."""
        async with self._opening:
            await self._let_go()

    def explain(self, error: DsecError) -> None:
        """Say in its reason why what was wanted of it cannot be had; its state stays."""
        if not self.has_ended:
            self._reason = error.brief
            self._tell()

    # -- what others want ----------------------------------------------------------------------------------------------

    def _check_goes_on(self) -> None:
        if self.has_ended or self._cancelled is not None:
            raise InvalidStateError(f"{self.episode_id} has ended", resolution="start another attempt")

    def _wake_up(self) -> None:
        self._wake.set()

    async def steer(self, message: str, by: str) -> None:
        """Tell it something.

        Raises:
            InvalidStateError: it has ended.
            LimitExceededError: that is too long.
        """
        self._check_goes_on()
        limit = self._parts.settings.steering_bytes
        if len(message.encode(errors="replace")) > limit:
            raise LimitExceededError(f"an episode is told at most {limit} bytes at once", resolution="say less")
        await (await self.open()).log.announce(EpisodeSteered(message=message, by=by))

    async def pause(self, *, keep_memory: bool) -> None:
        """Let it stand still. Idempotent.

        Raises:
            InvalidStateError: it has ended.
            DsecError: the sandbox cannot be paused; it goes on.
        """
        async with self._control:
            self._check_goes_on()
            holding = await self.open()
            log, life = holding.log, self._life
            if not log.log.progress.totals.held_since_s:
                await log.announce(EpisodeHeld(at_s=self._parts.clock.wall_s(), keep_memory=keep_memory))
            if life is None:
                if self._scope is not None:
                    self._scope.cancel()
                self._set(EpisodeState.PAUSED)
                self._wake_up()
                return
            try:
                await life.pause(keep_memory=keep_memory)
            except DsecError:
                if log.failure is None and log.log.progress.ended is None:
                    await log.announce(EpisodeReleased(at_s=self._parts.clock.wall_s()))
                raise
            if self._life is life:
                self._set(EpisodeState.PAUSED)

    async def resume(self, model: ModelEndpoint | None) -> None:
        """Let it go on.

        Raises:
            InvalidStateError: it has ended, or waits for a verdict.
        """
        async with self._control:
            self._check_goes_on()
            if self.state is EpisodeState.WAITING:
                raise InvalidStateError(
                    f"{self.episode_id} waits for a verdict: {self._reason}", resolution="settle it, then it goes on"
                )
            holding, life = await self.open(), self._life
            self._is_asked_anew = life is not None
            if model is not None:
                if life is not None:
                    await life.change_model(model, reason="it was resumed with this one")
                else:
                    await change_model(holding, model, reason="it was resumed with this one")
            if holding.log.log.progress.totals.held_since_s:
                if life is not None:
                    await life.resume()
                await holding.log.announce(EpisodeReleased(at_s=self._parts.clock.wall_s()))
                if life is not None and self._life is life:
                    self._set(EpisodeState.RUNNING)
            if life is None and self.state in (EpisodeState.PAUSED, EpisodeState.STOPPED):
                self._set(EpisodeState.QUEUED)
            self._wake_up()

    async def cancel(self, reason: str) -> None:
        """End it; return once its end is saved and its sandbox gone, or that cannot be had soon. Idempotent.

        Raises:
            DsecError: its end could not be saved.
        """
        async with self._control:
            if not self.has_ended:
                self._cancelled = EpisodeEnded(reason=reason or "it was cancelled", error_code=CANCELLED)
                if self._scope is not None:
                    self._scope.cancel()
                self._wake_up()
                while not self.has_ended:
                    change = self._changed
                    if self._cancelled is None and self._error is not None:
                        raise self._error
                    await change.wait()
        with anyio.move_on_after(self._parts.settings.upload_wait_s):
            while self._holding is not None:
                change = self._changed
                if self._holding is not None:
                    await change.wait()

    async def settle(self, operation_id: str, verdict: Verdict, result: ToolResult | None, by: str) -> None:
        """Say what became of an operation.

        Raises:
            InvalidStateError: it waits for no verdict.
        """
        async with self._control:
            holding = await self.open()
            waits = {unknown.operation_id for unknown in unknown_operations(holding.log.log.progress, self._waiting)}
            if self.has_ended or self._life is not None or operation_id not in waits:
                raise InvalidStateError(
                    f"{operation_id[:80]} of {self.episode_id} waits for no verdict",
                    resolution="look at what is unknown of the episode",
                )
            try:
                await settle(holding.log, operation_id, verdict, result=result, by=by)
            except DsecError:
                # Whether the verdict is in the log is found out when that is opened anew.
                self._wake_up()
                raise
            if len(waits) == 1:
                if self.state is EpisodeState.WAITING:
                    self._set(EpisodeState.QUEUED)  # Whoever said it is answered with what holds now.
                self._wake_up()
            self._tell()
