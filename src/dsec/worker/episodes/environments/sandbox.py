"""The sandbox of an episode as its environment holds it: found or made, put back, brought from the store, let go.

Every sandbox that is made for an episode carries its name in the metadata from its first moment on. Whoever takes an
episode up looks for them by it: the one that holds the version that the log asks for is gone on with, all others are
what a life left behind that died (made ahead, half brought back) and are taken away. So nothing has to be written down
between making a sandbox and knowing it, and nothing is leaked by a death at any moment.

A snapshot bears the name of the version that it is, and the episode in its metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import anyio

from dsec.base.errors import (
    AlreadyExistsError,
    DsecError,
    InvalidStateError,
    NotFoundError,
    PlatformError,
    SandboxExitedError,
    SandboxMovedError,
    SandboxNotFoundError,
    SnapshotNotFoundError,
)
from dsec.episode.episode_progress import EpisodeProgress
from dsec.episode.operations import Operation
from dsec.episode.tools import ToolResult
from dsec.episode.totals import EnvironmentKind
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxInfo, SandboxState
from dsec.model.state import CheckpointRequest, RestoreRequest, SnapshotRequest
from dsec.worker.episodes.environments.meter import EnvironmentMeter
from dsec.worker.episodes.environments.sandboxes import (
    EPISODE_KEY,
    JOB_KEY,
    episode_sandbox_id,
    episode_sandbox_spec,
    episode_sandboxes,
)
from dsec.worker.episodes.environments.workspace import SandboxWorkspace
from dsec.worker.episodes.hands import SandboxHands
from dsec.worker.episodes.ports import LifeContext, first_version

_BARE_PROCESSES = 1
"""The init program. What a sandbox runs beyond it before any tool, such as an image's entrypoint, is counted."""


class EnvironmentSandbox:
    """One sandbox after another; at most one at a time is the episode's.

    Args:
        context: of the life.
        meter: hears what making one took.

    Attributes:
        sandbox_id: the present one; empty: there is none.
        prepared: preparations that were run in it.
        processes: that run in it without any tool.
    """

    def __init__(self, context: LifeContext, meter: EnvironmentMeter) -> None:
        self._context = context
        self._meter = meter
        self._cwd = ""
        self._hands: SandboxHands | None = None
        self._snapshots: dict[str, str] | None = None
        self._brought_back = 0
        self.sandbox_id = ""
        self.prepared: frozenset[str] = frozenset()
        self.processes = _BARE_PROCESSES

    @property
    def is_given(self) -> bool:
        """Whether somebody else made the sandbox: then it is never taken away."""
        return bool(self._context.spec.environment.sandbox_id)

    def workspace(self) -> SandboxWorkspace:
        """Return the files of the present sandbox."""
        context = self._context
        return SandboxWorkspace(context.service, context.state, self.sandbox_id, context.episode_id)

    # -- hands ---------------------------------------------------------------------------------------------------------

    async def run(self, operation: Operation) -> ToolResult:
        """Carry an operation out. Implements, with the two below, `dsec.worker.episodes.ports.Hands`."""
        with lost_is_platform():
            return await self._present_hands().run(operation)

    async def ask(self, operation: Operation) -> ToolResult | None:
        """Return what became of an operation; None: it never began, or what it began in is gone."""
        return await self._present_hands().ask(operation) if self.sandbox_id else None

    async def compensate(self, operation: Operation) -> None:
        """See `SandboxHands`."""
        await self._present_hands().compensate(operation)

    def _present_hands(self) -> SandboxHands:
        if self._hands is None:
            # Calls that need no sandbox are carried out without one, by the same hands.
            self._hands = SandboxHands(self._context.service, self.sandbox_id, cwd=self._cwd or "/")
        return self._hands

    # -- finding and making --------------------------------------------------------------------------------------------

    async def find(self) -> bool:
        """Look for the sandbox that the log asks for, and take away what lives that died left beside it."""
        chosen = await self._given() if self.is_given else await self._own()
        if chosen is not None:
            await self._take(chosen)
        return chosen is not None

    async def _given(self) -> SandboxInfo | None:
        try:
            return await self._context.service.inspect(self._context.spec.environment.sandbox_id)
        except SandboxNotFoundError:
            if is_untouched(self._context.progress):
                raise
            return next(iter(await episode_sandboxes(self._context)), None)  # It was brought back from the store.

    async def _own(self) -> SandboxInfo | None:
        found = await episode_sandboxes(self._context)
        wanted = wanted_versions(self._context.progress)
        chosen = None
        for info in found:
            if chosen is None and (is_untouched(self._context.progress) or await self._holds_any(info, wanted)):
                chosen = info
            else:
                await self._remove(info.sandbox_id)
        return chosen

    async def _holds_any(self, info: SandboxInfo, wanted: Collection[str]) -> bool:
        try:
            listed = await self._context.state.list_checkpoints(info.sandbox_id)
        except NotFoundError:
            return False
        return any(each.name in wanted for each in listed)

    async def create(self) -> None:
        """Make the episode's first sandbox, with its first version.

        Raises:
            DsecError: it could not be made.
        """
        context, began_s = self._context, self._context.clock.boot_s()
        sandbox_id = episode_sandbox_id(context.episode_id, context.progress.totals.lives)
        info = await context.service.create(episode_sandbox_spec(context), sandbox_id=sandbox_id)
        await self._take(info)
        await self._meter.note_once(info.sandbox_id, EnvironmentKind.CREATED, took_s=context.clock.boot_s() - began_s)

    async def save_first(self) -> None:
        """Save what the episode found as its first version, unless that was done before."""
        await self.workspace().save_first(first_version(self._context.episode_id))

    async def _take(self, info: SandboxInfo) -> None:
        self.sandbox_id, self._hands = info.sandbox_id, None
        self.prepared = frozenset()
        if info.state is not SandboxState.PAUSED:  # To look would resume it.
            self._cwd = self._cwd or await self._directory(info)
            await self.count_processes()

    async def _directory(self, info: SandboxInfo) -> str:
        """Return where commands run: as the spec or the image says, and otherwise where a shell finds itself."""
        named = self._context.spec.environment.cwd or info.spec.workdir
        if named:
            return named
        result = await self._context.service.run(
            info.sandbox_id, CommandRequest(argv=("/bin/sh", "-c", "pwd"), timeout_s=10.0)
        )
        found = result.stdout.decode(errors="replace").strip()
        return found if result.status.exit_code == 0 and found.startswith("/") else "/"

    async def count_processes(self) -> int:
        """Take what runs now for what the sandbox runs without any tool; return how many processes that are."""
        try:
            read = await self._context.service.statistics(self.sandbox_id)
            self.processes = max(read.processes or 0, _BARE_PROCESSES)
        except DsecError:
            self.processes = _BARE_PROCESSES
        return self.processes

    # -- versions ------------------------------------------------------------------------------------------------------

    async def checkpoints(self) -> Collection[str]:
        """Return the versions that the present sandbox holds."""
        return await self.workspace().versions() if self.sandbox_id else ()

    async def put_back(self, version: str) -> None:
        """Put a version back that the present sandbox holds; every process of it ends, and its memory goes."""
        await self.workspace().restore(version)
        self.prepared = frozenset()

    async def save(self, version: str) -> None:
        """Make a version durable in the store under its own name, unless it is.

        Raises:
            CapabilityMissingError, StoreUnavailableError: it cannot be.
        """
        known = await self.snapshots()
        if version not in known:
            request = SnapshotRequest(checkpoint=version, name=version, metadata=self._metadata())
            known[version] = (await self._context.state.snapshot(self.sandbox_id, request)).snapshot_id

    async def snapshots(self) -> dict[str, str]:
        """Return the ids of the episode's snapshots by their versions, the oldest first. The store is asked once.

        Raises:
            CapabilityMissingError, StoreUnavailableError: there is no store, or it does not answer.
        """
        if self._snapshots is None:
            listed = await self._context.state.list_snapshots()
            own = [each for each in listed if each.metadata.get(EPISODE_KEY) == self._context.episode_id]
            self._snapshots = {each.name: each.snapshot_id for each in own}
        return self._snapshots

    async def forget_snapshots(self, kept: Collection[str], *, newest: bool = True) -> None:
        """Remove the episode's snapshots but those of some versions, and the newest, unless that is to go too."""
        known = await self.snapshots()
        last = next(reversed(known), "") if newest else ""
        for version in [each for each in known if each not in kept and each != last]:
            await self._context.state.remove_snapshot(known[version])
            del known[version]

    async def bring_back(self, version: str) -> None:
        """Make a sandbox from the snapshot of a version, in which that version is a checkpoint.

        Raises:
            SnapshotNotFoundError: there is none.
            DsecError: it could not be made; nothing is left of it.
        """
        context, began_s = self._context, self._context.clock.boot_s()
        snapshot_id = (await self.snapshots()).get(version)
        if snapshot_id is None:
            raise SnapshotNotFoundError(f"the store holds no snapshot of {version}")
        info = await self._restore(snapshot_id)
        try:
            await context.state.checkpoint(info.sandbox_id, CheckpointRequest(name=version, hooks=False))
        except AlreadyExistsError:
            pass
        except BaseException:
            self._brought_back += 1
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 30.0):
                await self._remove(info.sandbox_id)
            raise
        self._brought_back += 1
        await self._take(info)
        took_s = context.clock.boot_s() - began_s
        await self._meter.note_once(
            info.sandbox_id, EnvironmentKind.RESTORED, took_s=took_s, detail=f"{version} from {snapshot_id}"
        )

    async def _restore(self, snapshot_id: str) -> SandboxInfo:
        """Restore under an id that is the same when it is asked again after an answer that was lost, and another one
        when that sandbox has ended since."""
        context = self._context
        for last in (False, False, True):
            name = f"{episode_sandbox_id(context.episode_id, context.progress.totals.lives)}-{self._brought_back}"
            try:
                return await context.state.restore(
                    snapshot_id, RestoreRequest(sandbox_id=name, metadata=self._metadata())
                )
            except (AlreadyExistsError, InvalidStateError):
                self._brought_back += 1
                if last:
                    raise
        raise AssertionError("the last try returns or raises")

    def _metadata(self) -> dict[str, str]:
        metadata = {EPISODE_KEY: self._context.episode_id}
        if self._context.spec.job:
            metadata[JOB_KEY] = self._context.spec.job
        return metadata

    # -- letting go ----------------------------------------------------------------------------------------------------

    async def let_go(self) -> None:
        """Take the present sandbox away; one that was given is only let go of."""
        sandbox_id, self.sandbox_id = self.sandbox_id, ""
        self._hands, self.prepared = None, frozenset()
        if sandbox_id and sandbox_id != self._context.spec.environment.sandbox_id:
            await self._remove(sandbox_id)

    async def _remove(self, sandbox_id: str) -> None:
        try:
            await self._context.service.remove(sandbox_id)
        except SandboxNotFoundError:
            return
        except InvalidStateError:
            if any(info.sandbox_id == sandbox_id for info in await episode_sandboxes(self._context)):
                raise


@contextmanager
def lost_is_platform() -> Iterator[None]:
    """Turn the loss of the sandbox into what is tried again: the next life brings its files back.

    Raises:
        PlatformError: it is gone.
    """
    try:
        yield
    except SandboxMovedError:
        raise
    except (SandboxNotFoundError, SandboxExitedError) as error:
        raise PlatformError(
            f"the episode has lost its sandbox: {error.brief}",
            detail=error.detail,
            resolution="the worker brings its files back by itself and goes on, a few times; then resume the episode",
        ) from error


def is_untouched(progress: EpisodeProgress) -> bool:
    """Say whether no operation of an episode can have begun."""
    return not progress.last_round and progress.open is None


def wanted_versions(progress: EpisodeProgress) -> frozenset[str]:
    """Return the versions that recovery may ask for."""
    wanted = {progress.workspace}
    if progress.open is not None:
        wanted.add(progress.open.decided.workspace)
        wanted.update(finished.workspace for finished in progress.open.finished.values())
    return frozenset(wanted - {""})
