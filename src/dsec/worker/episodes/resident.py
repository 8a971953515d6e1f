"""The environment that stays: one sandbox from the first life of an episode to its end.

A sandbox carries the episode and its job in its metadata. Each life looks for it by these before it makes one, so that
one that was made in the moment before a death is found; the end of the episode takes away whatever carries its name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from hashlib import blake2b

from msgspec.structs import replace

from dsec.base.errors import DsecError, NotFoundError, SandboxNotFoundError
from dsec.episode.log_events import EnvironmentUsed
from dsec.episode.operations import ModelDecision, RoundRecord
from dsec.episode.totals import EnvironmentKind
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxFilter, SandboxInfo, SandboxSpec, SandboxState
from dsec.worker.episodes.hands import SandboxHands
from dsec.worker.episodes.ports import Hands, LifeContext, Workspace, first_version, hear_nothing
from dsec.worker.episodes.workspace import SandboxWorkspace

EPISODE_KEY, JOB_KEY = "episode", "job"
_GONE = (SandboxState.FAILED, SandboxState.STOPPING, SandboxState.STOPPED)
_BODY = 40


def episode_sandbox_id(episode_id: str, number: int) -> str:
    """Return the id of the `number`-th sandbox of an episode."""
    body = episode_id.removeprefix("ep-")
    if len(body) > _BODY:
        digest = blake2b(episode_id.encode(), digest_size=4).hexdigest()
        body = f"{body[:_BODY].rstrip('-')}-{digest}"
    return f"sbx-{body}-e{number}"


def episode_sandbox_spec(context: LifeContext) -> SandboxSpec:
    """Return what is made for an episode: what its spec says, with the episode and its job in the metadata."""
    spec = context.spec
    metadata = {**spec.environment.sandbox.metadata, EPISODE_KEY: context.episode_id}
    if spec.job:
        metadata[JOB_KEY] = spec.job
    return replace(spec.environment.sandbox, metadata=metadata)


async def episode_sandboxes(context: LifeContext) -> list[SandboxInfo]:
    """Return the sandboxes that carry the episode's name and can be gone on with."""
    found = await context.service.list(SandboxFilter(metadata={EPISODE_KEY: context.episode_id}))
    return [info for info in found if info.state not in _GONE]


async def remove_episode_sandboxes(context: LifeContext) -> None:
    """Take away every sandbox that carries the episode's name; what is gone meanwhile is gone.

    Raises:
        DsecError: one could not be taken away.
    """
    for info in await context.service.list(SandboxFilter(metadata={EPISODE_KEY: context.episode_id})):
        try:
            await context.service.remove(info.sandbox_id)
        except SandboxNotFoundError:
            continue


class ResidentEnvironment:
    """Implements `dsec.worker.episodes.ports.Environment`.

    Args:
        context: of the life.
    """

    def __init__(self, context: LifeContext) -> None:
        self._context = context
        self._environment = context.spec.environment
        self._sandbox_id = ""
        self._hands: Hands | None = None
        self._workspace: SandboxWorkspace | None = None
        self._since_s = 0.0
        self._cpu_s = 0.0

    @property
    def sandbox_id(self) -> str:
        """The present sandbox."""
        return self._sandbox_id

    @property
    def hands(self) -> Hands:
        """What acts there."""
        assert self._hands is not None
        return self._hands

    @property
    def workspace(self) -> Workspace:
        """Its files."""
        assert self._workspace is not None
        return self._workspace

    async def __aenter__(self) -> ResidentEnvironment:
        context = self._context
        info = await self._find() or await self._create()
        self._sandbox_id = info.sandbox_id
        self._workspace = SandboxWorkspace(context.service, context.state, info.sandbox_id, context.episode_id)
        self._hands = SandboxHands(context.service, info.sandbox_id, cwd=await self._cwd(info))
        if not context.progress.last_round and context.progress.workspace == first_version(context.episode_id):
            # No operation has begun before the first version was saved, so that it can be saved still.
            await self._workspace.save_first(context.progress.workspace)
        self._since_s = context.clock.wall_s()
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    def deciding(self, number: int) -> AbstractAsyncContextManager[Callable[[str], None]]:
        """Take no notice: it stays."""
        del number
        return nullcontext(hear_nothing)

    async def before_tools(self, decision: ModelDecision) -> None:
        """It is there."""

    async def after_round(self, record: RoundRecord) -> None:
        """Write down what it used."""
        del record
        await self._account(EnvironmentKind.RESIDENT)

    async def pause(self, *, keep_memory: bool = False) -> None:
        """Pause the sandbox."""
        if self._sandbox_id:
            await self._account(EnvironmentKind.RESIDENT)
            await self._context.service.pause(self._sandbox_id, keep_memory=keep_memory)

    async def resume(self) -> None:
        """Let the sandbox go on."""
        if self._sandbox_id:
            await self._context.service.resume(self._sandbox_id)
            await self._account(EnvironmentKind.PAUSED)

    async def remove(self) -> None:
        """Take every sandbox of the episode away, unless it is to stay."""
        if not self._environment.keep and not self._environment.sandbox_id:
            await remove_episode_sandboxes(self._context)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _find(self) -> SandboxInfo | None:
        if self._environment.sandbox_id:
            return await self._context.service.inspect(self._environment.sandbox_id)
        found = await episode_sandboxes(self._context)
        for info in found:
            if len(found) == 1 or await self._holds_version(info):
                return info
        return None

    async def _holds_version(self, info: SandboxInfo) -> bool:
        wanted = self._context.progress.workspace
        try:
            return any(each.name == wanted for each in await self._context.state.list_checkpoints(info.sandbox_id))
        except NotFoundError:
            return False

    async def _create(self) -> SandboxInfo:
        context = self._context
        began_s = context.clock.wall_s()
        sandbox_id = episode_sandbox_id(context.episode_id, context.progress.totals.lives)
        info = await context.service.create(episode_sandbox_spec(context), sandbox_id=sandbox_id)
        ended_s = context.clock.wall_s()
        used = EnvironmentUsed(
            sandbox_id=info.sandbox_id, kind=EnvironmentKind.CREATED, began_s=began_s, ended_s=ended_s
        )
        await context.note(used)
        return info

    async def _cwd(self, info: SandboxInfo) -> str:
        if self._environment.cwd or info.spec.workdir:
            return self._environment.cwd or info.spec.workdir or "/"
        command = CommandRequest(argv=("/bin/sh", "-c", "pwd"), timeout_s=10.0)
        result = await self._context.service.run(info.sandbox_id, command)
        found = result.stdout.decode(errors="replace").strip()
        return found if result.status.exit_code == 0 and found.startswith("/") else "/"

    async def _account(self, kind: EnvironmentKind) -> None:
        """Write down how it was kept since the last time. A reading that cannot be had is left out."""
        context, began_s = self._context, self._since_s
        ended_s = self._since_s = context.clock.wall_s()
        memory_bytes, cpu_s = 0, self._cpu_s
        try:
            read = await context.service.statistics(self._sandbox_id)
            memory_bytes, cpu_s = read.memory_bytes or 0, read.cpu_s or 0.0
        except DsecError:
            pass  # The next operation says what is wrong with the sandbox.
        # The account begins anew with each rollback.
        spent_s = cpu_s - self._cpu_s if cpu_s >= self._cpu_s else cpu_s
        self._cpu_s = cpu_s
        await context.note(
            EnvironmentUsed(
                sandbox_id=self._sandbox_id,
                kind=kind,
                began_s=began_s,
                ended_s=ended_s,
                memory_byte_s=memory_bytes * max(0.0, ended_s - began_s),
                cpu_s=round(spent_s, 6),
            )
        )
