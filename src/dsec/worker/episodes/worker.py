"""The worker of episodes: keeps the promise of `dsec.service.episodes.EpisodeService`, for one directory.

At its start it takes up every episode that had not ended, and goes on with it. Its loops run here, outside the pool of
accelerators; who starts episodes may come and go. One worker holds a directory (`worker.lock`), one writer each log
(`dsec.stores.episode_log_tenure`), and among workers with a common store one holds an episode (`episode_log_lease`).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec.structs import replace

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import (
    AlreadyExistsError,
    DsecError,
    InvalidRequestError,
    InvalidStateError,
    LimitExceededError,
    NotFoundError,
)
from dsec.base.ids import random_body
from dsec.episode.identity import check_episode_id
from dsec.episode.log_events import Verdict
from dsec.episode.operations import RoundRecord
from dsec.episode.spec import (
    AgentPolicy,
    EpisodeEvent,
    EpisodeFilter,
    EpisodeGrade,
    EpisodeInfo,
    EpisodeSpec,
    EpisodeState,
    ModelEndpoint,
    PluginPolicy,
)
from dsec.episode.spec_check import MAXIMUM_REASON_BYTES, check_length, check_spec_values
from dsec.episode.tools import ToolResult
from dsec.service.port import SandboxService
from dsec.service.state import StateService
from dsec.stores.episode_log_disk import Disk, HostDisk
from dsec.stores.episode_log_group import GroupCommit
from dsec.stores.episode_log_reading import read_episode_log
from dsec.stores.episode_log_remote import read_stored_log
from dsec.stores.objects import ObjectStore
from dsec.worker.episodes.drive import EpisodeDrive
from dsec.worker.episodes.environments.environment import StandardEnvironments
from dsec.worker.episodes.known_images import KnownImages
from dsec.worker.episodes.parts import WorkerParts, WorkerSettings
from dsec.worker.episodes.policies.registry import Policies
from dsec.worker.episodes.ports import (
    EnvironmentFactory,
    Hands,
    HandsFactory,
    LifeContext,
    PolicyFactory,
    RecoveryStrategy,
)
from dsec.worker.episodes.process_limits import fit_process, trim_now_and_then
from dsec.worker.episodes.recovery.escalation import check_recovery
from dsec.worker.episodes.recovery.recoveries import Recoveries
from dsec.worker.episodes.results import bounded_result
from dsec.worker.episodes.shelf import SPEC_VERSION, KeptSpec, Shelf
from dsec.worker.episodes.watching import watch
from dsec.worker.grades import GradeBook

_KNOWN_S = 5.0
"""How long is waited, after the start, until the log of an episode is read, instead of saying that nothing is known."""
_HOST_CLOCK = SystemClock()


def only_sandbox(context: LifeContext, sandbox: Hands) -> Hands:
    """Return hands that reach nothing outside."""
    del context
    return sandbox


class EpisodeWorker:
    """Implements `dsec.service.episodes.EpisodeService`; an async context manager.

    Entering raises the process's limit of open files, and tells its allocator to give memory back.

    Args:
        directory: of the worker (docs/formats/worker.md).
        service, state: where sandboxes are.
        store: where logs are copied, and among whose workers one holds an episode; None: nowhere.
        settings: how it works.
        environments, policies, hands: what loops are built from; see `dsec.worker.episodes.ports`.
        strategy: makes who decides what to do when an episode does not go well; None: the recovery tree, which learns
            from the episodes of this worker.
        clock: tells times.
        disk: where the logs are.

    Raises (on entering):
        StateLockedError: another worker holds the directory.
    """

    def __init__(
        self,
        directory: Path,
        service: SandboxService,
        state: StateService,
        store: ObjectStore | None = None,
        settings: WorkerSettings | None = None,
        *,
        environments: EnvironmentFactory | None = None,
        policies: PolicyFactory | None = None,
        hands: HandsFactory = only_sandbox,
        strategy: Callable[[EpisodeSpec], RecoveryStrategy] | None = None,
        clock: Clock = _HOST_CLOCK,
        disk: Disk | None = None,
    ) -> None:
        self._directory = directory
        self._service, self._state, self._store = service, state, store
        self._images = KnownImages(service)
        self._settings = settings or WorkerSettings()
        self._environments, self._hands = environments or StandardEnvironments(), hands
        self._recoveries = Recoveries(directory, disk=disk) if strategy is None else None
        self._strategy = strategy or self._recovery
        self._policies = policies or Policies()
        self._clock = clock
        self._disk = disk or HostDisk()
        self._shelf = Shelf(directory)
        self._stack = AsyncExitStack()
        self._drives: dict[str, EpisodeDrive] = {}
        self._ended: dict[str, EpisodeInfo] = {}
        self._begun: dict[str, anyio.Event] = {}
        self._unreadable: dict[str, DsecError] = {}
        self._parts: WorkerParts | None = None
        self._book: GradeBook | None = None
        self._learning = anyio.Lock()

    async def __aenter__(self) -> EpisodeWorker:
        async with AsyncExitStack() as stack:
            await self._enter(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()
        self._parts = None

    async def _enter(self, stack: AsyncExitStack) -> None:
        stack.enter_context(self._shelf.hold())
        fit_process()
        self._book = stack.enter_context(GradeBook(self._directory))
        if self._recoveries is not None:
            stack.enter_context(self._recoveries)
        group = await stack.enter_async_context(GroupCommit(threads=self._settings.threads))
        stack.push_async_callback(self._let_go)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        # Loops are cut off where they are, and only then let go of: the next worker goes on from their logs.
        stack.callback(tasks.cancel_scope.cancel)
        self._parts = WorkerParts(
            shelf=self._shelf,
            worker_id=await anyio.to_thread.run_sync(self._shelf.worker_id),
            service=self._service,
            state=self._state,
            store=self._store,
            group=group,
            tasks=tasks,
            loops=anyio.CapacityLimiter(self._settings.at_once),
            openings=anyio.CapacityLimiter(self._settings.openings_at_once),
            sandboxes=anyio.CapacityLimiter(self._settings.sandboxes_at_once),
            uploads=anyio.CapacityLimiter(self._settings.uploads_at_once),
            settings=self._settings,
            clock=self._clock,
            disk=self._disk,
            environments=self._environments,
            policies=self._policies,
            hands=self._hands,
            strategy=self._strategy,
            recorded=self._recorded,
        )
        tasks.start_soon(trim_now_and_then)
        for episode_id, kept, ended in await anyio.to_thread.run_sync(self._read_shelf):
            if isinstance(kept, DsecError):
                self._unreadable[episode_id] = kept
            elif ended is not None:
                self._ended[episode_id] = ended
            else:
                drive = self._drives[episode_id] = self._drive(episode_id, kept)
                tasks.start_soon(drive.run)

    def _read_shelf(self) -> list[tuple[str, KeptSpec | DsecError, EpisodeInfo | None]]:
        """Read all specs. One that cannot be read is told to whoever asks for its episode, and holds no other up."""
        found: list[tuple[str, KeptSpec | DsecError, EpisodeInfo | None]] = []
        for name in self._shelf.episode_ids():
            try:
                found.append((name, self._shelf.spec(name), self._shelf.ended(name)))
            except DsecError as error:
                found.append((name, error, None))
        return found

    async def _let_go(self) -> None:
        """Let go of all logs and leases."""
        async with anyio.create_task_group() as tasks:
            for drive in self._drives.values():
                tasks.start_soon(drive.aclose)

    def _drive(self, episode_id: str, kept: KeptSpec) -> EpisodeDrive:
        assert self._parts is not None
        return EpisodeDrive(episode_id, kept, self._parts, on_ended=self._note_end)

    def _note_end(self, info: EpisodeInfo) -> None:
        self._ended[info.episode_id] = info
        drive = self._drives.pop(info.episode_id, None)
        if drive is not None and self._recoveries is not None:
            self._running().tasks.start_soon(self._learn, info.episode_id, drive.spec)

    async def _learn(self, episode_id: str, spec: EpisodeSpec) -> None:
        """Learn from an episode that has ended, by the grade that it has now."""
        if self._recoveries is None or self._book is None:
            return
        grade = self._book.get(episode_id)
        passed = grade.passed if grade is not None else None
        async with self._learning:
            # Knowledge is worth less than the episodes that go on.
            learn = partial(self._recoveries.learn, episode_id, spec, passed)
            await self._running().beside(learn, lambda error: None)

    async def _recorded(self, episode_id: str) -> Sequence[RoundRecord]:
        """Return the rounds of an episode; what was dropped here behind a whole state is read from the copy."""
        read = partial(read_episode_log, self._shelf.log_directory(episode_id), disk=self._disk)
        content = await anyio.to_thread.run_sync(read)
        if content.first == 1 or self._store is None:
            return content.rounds
        kept = content.rounds
        first = kept[0].number if kept else content.progress.last_round + 1
        with suppress(DsecError):  # Without it there is what there is here.
            older = (await read_stored_log(self._store, episode_id)).rounds
            return [*(record for record in older if record.number < first), *kept]
        return kept

    def _running(self) -> WorkerParts:
        if self._parts is None:
            raise InvalidStateError("this worker is not open", resolution="use it inside `async with`")
        return self._parts

    def _recovery(self, spec: EpisodeSpec) -> RecoveryStrategy:
        assert self._recoveries is not None
        return self._recoveries.strategy(spec)

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def start(self, spec: EpisodeSpec, *, episode_id: str | None = None) -> EpisodeInfo:
        """See the port."""
        parts = self._running()
        episode_id = check_episode_id(episode_id or f"ep-{random_body(12, secrets.token_bytes)}")
        check_spec(spec, self._policies)
        if episode_id not in self._drives and episode_id not in self._ended:
            await self._images.check(spec)
        if episode_id in self._unreadable:
            raise self._missing(episode_id)
        if episode_id in self._drives or episode_id in self._ended:
            return await self._same(episode_id, spec)
        if len(self._drives) >= self._settings.episodes:
            raise LimitExceededError(
                f"this worker has {len(self._drives)} episodes that have not ended, and takes no more",
                resolution="wait until some have ended, or start another worker",
            )
        kept = KeptSpec(version=SPEC_VERSION, created_at_s=self._clock.wall_s(), spec=spec)
        drive = self._drives[episode_id] = self._drive(episode_id, kept)
        begun = self._begun[episode_id] = anyio.Event()
        try:
            await anyio.to_thread.run_sync(self._shelf.add, episode_id, kept)
            await drive.open()
        except BaseException:
            del self._drives[episode_id]
            with anyio.CancelScope(shield=True):
                await drive.aclose()
                await anyio.to_thread.run_sync(self._shelf.forget, episode_id)
            raise
        finally:
            del self._begun[episode_id]
            begun.set()
        parts.tasks.start_soon(drive.run)
        return drive.info()

    async def _same(self, episode_id: str, spec: EpisodeSpec) -> EpisodeInfo:
        """Return an episode that was asked for before, if it was asked to be the same."""
        if episode_id in self._begun:
            await self._begun[episode_id].wait()
            if episode_id not in self._drives and episode_id not in self._ended:
                return await self.start(spec, episode_id=episode_id)
        if await self.spec(episode_id) != spec:
            raise AlreadyExistsError(
                f"{episode_id} is there, and was asked to be something else",
                resolution="ask with the same spec, or choose another id",
            )
        return await self.get(episode_id)

    # -- what is known -------------------------------------------------------------------------------------------------

    async def get(self, episode_id: str) -> EpisodeInfo:
        """See the port."""
        if (drive := self._drives.get(episode_id)) is not None:
            with anyio.move_on_after(_KNOWN_S):
                await drive.wait_known()
        return self._info(episode_id)

    def _info(self, episode_id: str) -> EpisodeInfo:
        assert self._book is not None
        drive = self._drives.get(episode_id)
        info = drive.info() if drive is not None else self._ended.get(episode_id)
        if info is None:
            raise self._missing(episode_id)
        grade = self._book.get(episode_id)
        return info if grade is None else with_grade(info, grade)

    def _missing(self, episode_id: str) -> DsecError:
        if (error := self._unreadable.get(episode_id)) is not None:
            return type(error)(error.brief, detail=error.detail, resolution=error.resolution)
        return NotFoundError(f"there is no episode {episode_id[:80]!r} here", resolution="`dsec episode ls` lists them")

    async def list(self, query: EpisodeFilter = EpisodeFilter()) -> Sequence[EpisodeInfo]:
        """See the port."""
        with anyio.move_on_after(_KNOWN_S):
            for drive in list(self._drives.values()):
                await drive.wait_known()
        found = [self._info(name) for name in (*self._drives, *self._ended)]
        found = [info for info in found if matches(info, query)]
        if query.metadata:
            found = [info for info in found if await self._has_metadata(info.episode_id, query.metadata)]
        return sorted(found, key=lambda info: (info.created_at_s, info.episode_id), reverse=True)

    async def _has_metadata(self, episode_id: str, wanted: dict[str, str]) -> bool:
        metadata = (await self.spec(episode_id)).metadata
        return wanted.items() <= metadata.items()

    async def spec(self, episode_id: str) -> EpisodeSpec:
        """See the port."""
        if (drive := self._drives.get(episode_id)) is not None:
            return drive.spec
        if episode_id not in self._ended:
            raise self._missing(episode_id)
        return (await anyio.to_thread.run_sync(self._shelf.spec, episode_id)).spec

    def events(
        self, episode_id: str, from_sequence: int = 1, *, follow: bool = True
    ) -> AbstractAsyncContextManager[AsyncIterator[EpisodeEvent]]:
        """See the port."""
        return self._events(episode_id, from_sequence, follow=follow)

    @asynccontextmanager
    async def _events(
        self, episode_id: str, from_sequence: int, *, follow: bool
    ) -> AsyncIterator[AsyncIterator[EpisodeEvent]]:
        if from_sequence < 1:
            raise InvalidRequestError("events are counted from 1", resolution="ask from 1 on")
        self._info(episode_id)
        drive = self._drives.get(episode_id)
        if drive is not None and not drive.saved_sequence:
            await drive.open()
        stream = watch(self._shelf.log_directory(episode_id), self._disk, drive, from_sequence, follow=follow)
        try:
            yield stream
        finally:
            await stream.aclose()

    # -- what is done to them ------------------------------------------------------------------------------------------

    def _live(self, episode_id: str) -> EpisodeDrive:
        drive = self._drives.get(episode_id)
        if drive is None:
            self._info(episode_id)
            raise InvalidStateError(f"{episode_id} has ended", resolution="start another attempt")
        return drive

    async def steer(self, episode_id: str, message: str, *, by: str = "") -> EpisodeInfo:
        """See the port."""
        check_length("the name of who says it", by)
        await self._live(episode_id).steer(message, by)
        return self._info(episode_id)

    async def pause(self, episode_id: str, *, keep_memory: bool = False) -> EpisodeInfo:
        """See the port."""
        await self._live(episode_id).pause(keep_memory=keep_memory)
        return self._info(episode_id)

    async def resume(self, episode_id: str, *, model: ModelEndpoint | None = None) -> EpisodeInfo:
        """See the port."""
        drive = self._live(episode_id)
        if model is not None:
            check_spec(with_model(drive.spec, model), self._policies)
        await drive.resume(model)
        return self._info(episode_id)

    async def cancel(self, episode_id: str, *, reason: str = "") -> EpisodeInfo:
        """See the port."""
        check_length("the reason", reason, MAXIMUM_REASON_BYTES)
        self._info(episode_id)
        if (drive := self._drives.get(episode_id)) is not None:
            await drive.cancel(reason)
        return self._info(episode_id)

    async def settle(
        self, episode_id: str, operation_id: str, verdict: Verdict, *, result: ToolResult | None = None, by: str = ""
    ) -> EpisodeInfo:
        """See the port."""
        check_length("the name of who says it", by)
        result = bounded_result(result) if result is not None else None
        await self._live(episode_id).settle(operation_id, verdict, result, by)
        return self._info(episode_id)

    async def grade(self, episode_id: str, grade: EpisodeGrade) -> EpisodeInfo:
        """See the port."""
        assert self._book is not None
        check_length("the name of who says it", grade.by)
        if self._info(episode_id).state is not EpisodeState.ENDED:
            raise InvalidStateError(f"{episode_id} has not ended", resolution="grade it when it has")
        await self._book.grade(episode_id, grade, at_s=self._clock.wall_s())
        await self._learn(episode_id, await self.spec(episode_id))
        return self._info(episode_id)

    async def pause_job(self, job: str, *, keep_memory: bool = False) -> Sequence[EpisodeInfo]:
        """See the port. An episode that cannot be paused goes on, and its `reason` says why."""
        return await self._each_of(job, lambda drive: drive.pause(keep_memory=keep_memory))

    async def resume_job(self, job: str) -> Sequence[EpisodeInfo]:
        """See the port."""

        async def go_on(drive: EpisodeDrive) -> None:
            if drive.state is EpisodeState.PAUSED:
                await drive.resume(None)

        return await self._each_of(job, go_on)

    async def _each_of(self, job: str, act: Callable[[EpisodeDrive], Awaitable[None]]) -> Sequence[EpisodeInfo]:
        if not job:
            raise InvalidRequestError("a job has a name", resolution="episodes without one are paused by their ids")
        drives = [drive for drive in self._drives.values() if drive.spec.job == job]

        async def act_on(drive: EpisodeDrive) -> None:
            try:
                await act(drive)
            except DsecError as error:
                drive.explain(error)

        async with anyio.create_task_group() as tasks:
            for drive in drives:
                tasks.start_soon(act_on, drive)
        return [self._info(drive.episode_id) for drive in drives]


def check_spec(spec: EpisodeSpec, policies: PolicyFactory) -> None:
    """Refuse a spec that no episode could be.

    Raises:
        InvalidRequestError: it asks for what cannot be.
    """
    check_spec_values(spec)
    limits = spec.limits
    if min(limits.rounds, limits.useless_rounds, limits.calls) < 1 or (limits.deadline_s or 1.0) <= 0:
        raise InvalidRequestError("a limit of an episode is below 1", resolution="raise it, or leave it out")
    if spec.environment.snapshot_rounds < 0 or spec.attempt < 1:
        raise InvalidRequestError("a number in the spec is too low", resolution="attempts are counted from 1")
    check_recovery(spec)
    check = getattr(policies, "check", None)
    if check is not None:
        check(spec)


def with_model(spec: EpisodeSpec, model: ModelEndpoint) -> EpisodeSpec:
    """Return what an episode would be asked to be, did another model decide.

    Raises:
        InvalidRequestError: no model decides it.
    """
    match spec.policy:
        case AgentPolicy():
            return replace(spec, policy=replace(spec.policy, model=model))
        case PluginPolicy():  # May ask whom it is told.
            return spec
        case _:
            raise InvalidRequestError("no model decides this episode", resolution="resume it without one")


def matches(info: EpisodeInfo, query: EpisodeFilter) -> bool:
    """Say whether an episode is asked for, its metadata aside."""
    return (
        (not query.job or info.job == query.job)
        and (not query.task or info.task == query.task)
        and (not query.states or info.state in query.states)
    )


def with_grade(info: EpisodeInfo, grade: EpisodeGrade) -> EpisodeInfo:
    """Return what is known of an episode with its grade."""
    return replace(info, grade=grade)
