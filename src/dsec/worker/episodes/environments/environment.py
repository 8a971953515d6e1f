"""The environment of an episode: where its sandbox is while the model thinks, and that it is there when tools come.

After each round, what was measured decides where the sandbox is in the gap that follows, if the episode leaves that
open (`dsec.episode.environment_choice`). In the gap it is let go, and made ready again as late as the times of thinking
so far allow, or as soon as the model has begun to call a tool (`environment_lead`, `tool_prediction`). All of that
happens beside the model's thinking (`Gap`); a call that comes meanwhile waits only for what is of use to it.

What goes wrong in a gap costs time and not the episode: letting go that fails leaves the sandbox where it is, with a
word in the log, and making ready that fails is tried once more when the call is there. Whatever is cut short by a death
is found again by the sandbox's metadata (`EnvironmentSandbox`).

Source: the chapter, sections 11.2.3, 11.2.4 and 11.5.3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress

import anyio
from anyio.abc import TaskGroup

from dsec.base.errors import DsecError, HookFailedError, InvalidStateError, NotFoundError
from dsec.base.units import GIB
from dsec.episode.environment_choice import EnvironmentChoice, EnvironmentPrices, choose_environment
from dsec.episode.environment_lead import lead, wait_after_hearing_s
from dsec.episode.operations import ModelDecision, RoundRecord
from dsec.episode.spec import EnvironmentMode
from dsec.episode.tool_prediction import ToolTransitions, tools_of
from dsec.episode.totals import EnvironmentKind
from dsec.model.process import CommandRequest
from dsec.worker.episodes.environments.ahead import Gap, GapPlan
from dsec.worker.episodes.environments.files import EnvironmentWorkspace
from dsec.worker.episodes.environments.habits import EnvironmentHabits
from dsec.worker.episodes.environments.keeping import CLEAN_UP_S, Keepings
from dsec.worker.episodes.environments.meter import EnvironmentMeter
from dsec.worker.episodes.environments.sandbox import EnvironmentSandbox, is_untouched, lost_is_platform
from dsec.worker.episodes.environments.sandboxes import remove_episode_sandboxes
from dsec.worker.episodes.ports import Environment, Hands, LifeContext, Workspace, hear_nothing

PREPARATION_S = 600.0
HELD = "the episode was made to stand still"
_SHOWN_BYTES = 2000


class KeptEnvironment:
    """Implements `dsec.worker.episodes.ports.Environment` in all modes.

    Args:
        context: of the life.
        habits: what the worker has seen in other episodes.
        prices: by which modes are compared.

    Attributes:
        mode: where the sandbox is in gaps; never AUTOMATIC.
        choice: why, where that is left open; None: it is not, or nothing was decided yet.
        times: what was measured.
        waits_s: how long the newest calls waited for their sandbox.
    """

    def __init__(
        self,
        context: LifeContext,
        habits: EnvironmentHabits | None = None,
        *,
        prices: EnvironmentPrices = EnvironmentPrices(),
    ) -> None:
        self._context = context
        self._spec = context.spec.environment
        self._prices = prices
        self._meter = EnvironmentMeter(context)
        self._sandbox = EnvironmentSandbox(context, self._meter)
        self._workspace = EnvironmentWorkspace(context, self._sandbox, self._meter)
        self._keepings = Keepings(context, self._sandbox)
        self._transitions = ToolTransitions(self._spec.preparations)
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._gap: Gap | None = None
        self._gap_began_s: float | None = None
        self._called_s = 0.0
        self._heard_s: float | None = None
        self._is_away = self._is_used = self._is_saving = False
        asked = self._spec.mode
        self.mode: EnvironmentMode = EnvironmentMode.RESIDENT if asked is EnvironmentMode.AUTOMATIC else asked
        self.choice: EnvironmentChoice | None = None
        self._habits = habits or EnvironmentHabits()
        self.times = self._habits.expected(context.spec)
        self.waits_s: list[float] = []

    @property
    def sandbox_id(self) -> str:
        """The present sandbox; empty: there is none now."""
        return self._sandbox.sandbox_id

    @property
    def hands(self) -> Hands:
        """What acts there."""
        return self._sandbox

    @property
    def workspace(self) -> Workspace:
        """Its files."""
        return self._workspace

    @property
    def _is_plain(self) -> bool:
        """Whether nothing ever happens in a gap."""
        return self.mode is EnvironmentMode.RESIDENT and not self._spec.preparations

    async def __aenter__(self) -> KeptEnvironment:
        found = await self._sandbox.find()
        if is_untouched(self._context.progress):
            if not found:
                await self._sandbox.create()
            # No operation has begun before the first version was saved, so that it can be saved still.
            await self._sandbox.save_first()
        await self._learn()
        await self._meter.turn(self._sandbox.sandbox_id, EnvironmentKind.RESIDENT)
        # Last: what fails or is cancelled before is left without an exit that could close it.
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        try:
            # Without the exception: a task group would wrap what has to come out as itself.
            await self._stack.aclose()
        finally:
            with anyio.move_on_after(CLEAN_UP_S, shield=True), suppress(DsecError):  # A log that failed takes no more.
                await self._meter.end()
                await self._meter.flush()

    async def _learn(self) -> None:
        """Take in what earlier lives saw, where it decides anything."""
        if self._spec.mode is EnvironmentMode.RESIDENT or not self._context.progress.last_round:
            return
        with suppress(DsecError):
            for record in await self._context.recorded(self._context.episode_id):
                self._transitions.add(record.decision)
                if record.decide_s > 0:
                    self.times = self.times.seen(thinking_s=record.decide_s)

    # -- around decisions ----------------------------------------------------------------------------------------------

    def deciding(self, number: int) -> AbstractAsyncContextManager[Callable[[str], None]]:
        """Hear what the model writes."""
        del number
        return self._deciding()

    @asynccontextmanager
    async def _deciding(self) -> AsyncIterator[Callable[[str], None]]:
        if self._gap_began_s is None:
            self._gap_began_s = self._now_s()
        if self._gap is None and not self._is_plain and self._context.progress.workspace:
            self._begin_gap(self._context.progress.workspace)
        self._heard_s = None
        yield self._hear if self._gap is not None else hear_nothing

    def _hear(self, tool: str) -> None:
        if self._heard_s is None and self._transitions.heard(tool) is not None:
            self._heard_s = self._now_s()
        if self._gap is not None:
            self._gap.hear(tool)

    async def before_tools(self, decision: ModelDecision) -> None:
        """Return once hands can act.

        Raises:
            DsecError: the sandbox could not be brought back, or not be made ready for a tool.
        """
        tools, self._called_s = tools_of(decision), self._now_s()
        await self._meter.flush()
        if self._gap_began_s is not None:
            self.times = self.times.seen(thinking_s=self._called_s - self._gap_began_s)
            self._gap_began_s = None
        if not tools:
            if self._gap is not None:
                self._gap.not_called()
            return
        if self._heard_s is not None:
            self.times = self.times.with_writing(self._called_s - self._heard_s)
        needed = self._transitions.preparations_for(tools)
        gap, self._gap = self._gap, None
        if gap is not None:
            await gap.called(needed)
        if self._is_wrong_for(needed):
            await self._give_up()
        self._is_used = True
        if self._is_plain and not self._is_away:
            return
        with lost_is_platform():
            await self._stand(needed)
        wait_s = self._now_s() - self._called_s
        self.waits_s = [*self.waits_s[-31:], wait_s]
        await self._meter.turn(self.sandbox_id, EnvironmentKind.RESIDENT, detail=f"tools waited {wait_s:.3g} s for it")

    async def after_round(self, record: RoundRecord) -> None:
        """Decide where the sandbox is until the next tools, and begin to let go of it."""
        self._transitions.add(record.decision)
        if self._is_used:
            await self._measure()
            self._habits.learn(self._context.spec, self.times)
            await self._choose()
            self._save_now_and_then(record)
            if not self._is_plain and record.workspace_after:
                self._begin_gap(record.workspace_after)
        await self._meter.flush()
        self._gap_began_s = self._now_s()

    async def _measure(self) -> None:
        now_s = self._now_s()
        read = await self._meter.turn(self.sandbox_id, EnvironmentKind.RESIDENT)
        self.times = self.times.seen(tools_s=now_s - self._called_s)
        if read.memory_bytes is not None:
            self.times = self.times.seen(memory_gib=read.memory_bytes / GIB)
        if read.processes is not None:
            self.times = self.times.with_processes(left=read.processes > self._sandbox.processes)

    async def _choose(self) -> None:
        if self._spec.mode is not EnvironmentMode.AUTOMATIC:
            return
        self.choice = choose_environment(
            self.times, current=self.mode, prices=self._prices, impossible=self._keepings.impossible
        )
        if self.choice.mode is not self.mode:
            self.mode = self.choice.mode
            await self._say(self.choice.reason)

    def _save_now_and_then(self, record: RoundRecord) -> None:
        """Save the files of a round in the store, beside everything else, if it is time to."""
        every = self._spec.snapshot_rounds
        is_stored = every == 1 and self.mode is EnvironmentMode.REBUILT and not self._sandbox.is_given
        if not every or record.number % every or not record.workspace_after or self._is_saving or is_stored:
            return
        assert self._tasks is not None
        self._is_saving = True
        self._tasks.start_soon(self._save, record.workspace_after)

    async def _save(self, version: str) -> None:
        try:
            await self._sandbox.save(version)
        except DsecError as error:
            # The next time tries again; until then the log and an older snapshot are what a loss would leave.
            await self._say(f"{version} was not saved in the store: {error.code}: {error.brief}")
        finally:
            self._is_saving = False

    # -- the gap -------------------------------------------------------------------------------------------------------

    def _begin_gap(self, version: str) -> None:
        assert self._tasks is not None
        guess, memory_gib = self._transitions.guess(), max(self.times.memory_gib.value, 1e-6)
        is_paused, began_s = self.mode is EnvironmentMode.PAUSED, self._now_s()
        prepare_s = (self.times.resume_s if is_paused else self.times.prepare_s).value
        begin = lead(self.times.thinking_window_s, prepare_s=prepare_s, memory_gib=memory_gib, needed=guess.probability)
        lets_go = self._is_used and self.mode is not EnvironmentMode.RESIDENT
        self._is_used = False
        plan = GapPlan(
            let_go=(lambda: self._let_go(version)) if lets_go else None,
            begin_s=None if begin is None else begin.begin_s,
            guess=guess,
            hear=self._transitions.heard,
            wait_s=lambda: wait_after_hearing_s(
                self.times.writing_window_s,
                prepare_s=prepare_s,
                left_s=0.0 if begin is None else began_s + begin.begin_s - self._now_s(),
            ),
            make=self._make_ahead,
            give_up=self._give_up,
        )
        self._gap = Gap(self._tasks, plan)

    async def _stop_gap(self) -> None:
        gap, self._gap = self._gap, None
        if gap is not None:
            await gap.stop()

    async def _let_go(self, version: str) -> None:
        mode, began_s = self.mode, self._now_s()
        self._is_away = True
        try:
            await self._keepings.way(mode).let_go(version)
        except DsecError as error:
            self._is_away = False
            self._keepings.failed(mode, error)
            await self._say(f"it stays: {error.code}: {error.brief}")
            return
        took_s = self._now_s() - began_s
        if mode is EnvironmentMode.PAUSED:
            self.times = self.times.seen(pause_s_per_gib=took_s / max(self.times.memory_gib.value, 1e-3))
            await self._meter.turn(self.sandbox_id, EnvironmentKind.PAUSED)
        else:
            self.times = self.times.seen(save_s=took_s)
            detail = f"bare, with the files of {version}"
            await self._meter.turn(self.sandbox_id, EnvironmentKind.RESIDENT, detail=detail, held=True)

    async def _make_ahead(self, preparation: str) -> None:
        with suppress(DsecError):  # The call that comes tries again, and then it is an error.
            await self._stand((preparation,) if preparation else (), kind=EnvironmentKind.PREPARED)

    async def _give_up(self) -> None:
        """Undo what was made ready ahead, whole or in part, and turned out not to be wanted."""
        if not self.sandbox_id:
            return
        version = self._context.progress.workspace
        await self._meter.turn(self.sandbox_id, EnvironmentKind.RESIDENT, closing=EnvironmentKind.WASTED)
        if self.mode is not EnvironmentMode.RESIDENT:
            await self._let_go(version)

    def _is_wrong_for(self, needed: Collection[str]) -> bool:
        """Whether the sandbox was made ready for other tools than those that come, and they need something else."""
        prepared = self._sandbox.prepared
        return (
            self.mode is EnvironmentMode.REBUILT
            and bool(prepared - set(needed))
            and bool(set(needed) - prepared)
            and not self._is_away
        )

    async def _stand(self, preparations: Collection[str], *, kind: EnvironmentKind | None = None) -> None:
        """Let the sandbox be there, ready for what needs these preparations."""
        began_s, was_away = self._now_s(), self._is_away
        if was_away:
            await self._keepings.way(self.mode).bring_back(self._context.progress.workspace)
            self._is_away = False
        missing = [each for each in preparations if each not in self._sandbox.prepared]
        if not was_away and not missing:
            return
        read = await self._meter.turn(self.sandbox_id, kind or EnvironmentKind.PREPARED)
        for preparation in missing:
            await self._prepare(preparation)
        took_s = self._now_s() - began_s
        if self.mode is EnvironmentMode.PAUSED and not missing:
            self.times = self.times.seen(resume_s=took_s)
        elif self.mode is EnvironmentMode.REBUILT or missing:
            self.times = self.times.seen(prepare_s=took_s)
            await self._count_work(read.cpu_s or 0.0)

    async def _prepare(self, preparation: str) -> None:
        command = CommandRequest(
            argv=("/bin/sh", "-c", preparation), timeout_s=PREPARATION_S, cwd=self._spec.cwd or None
        )
        result = await self._context.service.run(self.sandbox_id, command)
        if result.status.exit_code:
            raise HookFailedError(
                f"a sandbox of {self._context.episode_id} could not be made ready: {preparation[:200]!r}"
                f" exited with {result.status.exit_code}",
                detail=result.stderr[-_SHOWN_BYTES:].decode(errors="replace"),
                resolution="mend the command in the episode's preparations",
            )
        self._sandbox.prepared |= {preparation}

    async def _count_work(self, cpu_before_s: float) -> None:
        """Take what runs now for what the sandbox runs without tools, and see what preparing cost."""
        with suppress(DsecError):
            read = await self._context.service.statistics(self.sandbox_id)
            self._sandbox.processes = max(read.processes or 1, 1)
            if read.cpu_s is not None:
                self.times = self.times.seen(prepare_cpu_s=max(0.0, read.cpu_s - cpu_before_s))

    # -- standing still, and the end -----------------------------------------------------------------------------------

    async def pause(self, *, keep_memory: bool = False) -> None:
        """Stand still.

        Raises:
            DsecError: the sandbox cannot be paused, and runs on.
        """
        await self._stop_gap()
        self._gap_began_s = None  # What is measured now is not the model's thinking.
        if self.sandbox_id:
            await self._context.service.pause(self.sandbox_id, keep_memory=keep_memory)
            await self._meter.turn(self.sandbox_id, EnvironmentKind.PAUSED, detail=HELD)

    async def resume(self) -> None:
        """Go on."""
        if self.sandbox_id:
            await self._context.service.resume(self.sandbox_id)
            await self._meter.turn(self.sandbox_id, EnvironmentKind.RESIDENT)
            await self._meter.flush()

    async def remove(self) -> None:
        """Take every sandbox and snapshot of the episode away; what is to stay is there when this returns."""
        await self._stop_gap()
        if self._spec.keep or self._spec.sandbox_id:
            if not self._spec.sandbox_id and not await self._sandbox.find():
                await self._bring_back_to_stay(self._context.progress.workspace)
            return
        await remove_episode_sandboxes(self._context)
        if self._spec.snapshot_rounds:
            with suppress(DsecError):  # The store may be away; what is in it costs room and nothing else.
                await self._sandbox.forget_snapshots((), newest=False)

    async def _bring_back_to_stay(self, version: str) -> None:
        """Make the sandbox that is to outlive the episode from its files, if they can be had. The episode is over."""
        if version in await self._workspace.versions():
            with suppress(InvalidStateError, NotFoundError):
                await self._workspace.restore(version)

    async def _say(self, detail: str) -> None:
        """Begin a new stretch that says what went otherwise than it should."""
        await self._meter.turn(self.sandbox_id, EnvironmentKind.RESIDENT, detail=detail)

    def _now_s(self) -> float:
        return self._context.clock.boot_s()


class StandardEnvironments:
    """The environments of one worker, which learn from each other; an `EnvironmentFactory`.

    Args:
        prices: by which modes are compared.
    """

    def __init__(self, *, prices: EnvironmentPrices = EnvironmentPrices()) -> None:
        self._habits = EnvironmentHabits()
        self._prices = prices

    def __call__(self, context: LifeContext) -> Environment:
        return KeptEnvironment(context, self._habits, prices=self._prices)
