"""The node: the service that owns all sandboxes of one host.

`Node` says who may do what when, and hands the work to the modules beside it: `creation`, `ending`, `rollback`,
`lifetimes`, `commands`, `processes`, `sessions`, `files`, `recovery`. It holds no durable state: that is the
journal's.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import msgspec
import structlog

from dsec import __version__
from dsec.base.errors import NodeUnavailableError, SandboxDiskFullError, SandboxExitedError, SandboxNotFoundError
from dsec.images.port import layer_digest
from dsec.linux.pipes import Pipe
from dsec.model.capability import CapabilityReport
from dsec.model.files import FileChange, FileInfo
from dsec.model.image import ImageInfo
from dsec.model.node import NodeInfo
from dsec.model.process import (
    CommandRequest,
    CommandResult,
    ProcessInfo,
    SessionCommand,
    SessionInfo,
    SessionRequest,
)
from dsec.model.sandbox import (
    Lifetime,
    SandboxFilter,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SandboxStats,
    WritableUsage,
)
from dsec.node import arrival, commands, creation, ending, lifetimes, processes, rollback, sessions
from dsec.node.core import Core, shielded
from dsec.node.files import FileAccess, GuardedReader
from dsec.node.fleet.fleet import Fleet
from dsec.node.host import capacity
from dsec.node.image_work import NodeImages
from dsec.node.layer_release import LayerRelease
from dsec.node.parts import NodeParts
from dsec.node.pools.pools import Pools
from dsec.node.recovery import Recovery
from dsec.node.sandbox import Generation, Sandbox
from dsec.node.state import migration_release, pausing
from dsec.node.state.base_room import BaseRoom
from dsec.node.state.disk_full import DiskFull
from dsec.node.state.durable import Durable
from dsec.node.state.migration_target import Migrations
from dsec.node.state.service import State
from dsec.node.supervisor import Supervisor
from dsec.node.tracking import NodeTracker, tracker_policy
from dsec.node.validation import check_command
from dsec.service.content import ByteStream, GeneratedStream
from dsec.service.port import DEFAULT_CREATE_TIMEOUT_S, CommandStream

_log = structlog.get_logger(__name__)
_REMOVAL_PATIENCE_S = 30.0
"""A disk that takes longer for what was discarded last is stuck; `dsec down` waits for twice as long."""
_STEADY = frozenset({SandboxState.READY, SandboxState.PAUSED, SandboxState.STOPPED, SandboxState.FAILED})


class Node:
    """Own and operate the sandboxes of one host. Implements `dsec.service.port.SandboxService`; use `Node.open`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lifetimes = lifetimes.Lifetimes(core)
        self.pools = Pools(core)
        """The pools of ready sandboxes; see `dsec.service.pools.PoolService`."""
        self._base_room = BaseRoom(core)
        self.state = State(core, self._lifetimes, self._base_room, self._ready)
        """Checkpoints, forks, snapshots and more; see `dsec.service.state.StateService`."""
        self.migrations = Migrations(core, self._lifetimes)
        """What peers may ask of this node; see `dsec.service.peers.Peer`."""
        self.fleet = Fleet(core, self.state.migrate)
        """This node among its peers; see `dsec.service.fleet.FleetService`."""
        self.image_work = NodeImages(core, core.parts.image_work)
        """Images brought here and there, and checked; see `dsec.service.images.ImageService`."""
        self.tracker = NodeTracker(core.parts.node_id, tracker_policy(core.parts.settings), core.parts.clock)
        """This node as a tracker of chunks; see `dsec.service.tracking.TrackerService`."""
        self.prefetch = core.prefetches
        """What is brought of images before it is read; see `dsec.service.prefetch.PrefetchService`."""
        self._disk_full = DiskFull(core, self._base_room)
        self._layer_release = LayerRelease(core)
        self._thread = threading.get_ident()
        self._token = anyio.lowlevel.current_token()
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(cls, parts: NodeParts) -> AsyncIterator[Node]:
        """Start a node: read the journal, adopt what lives, clear away what does not, and serve until the block ends.

        The caller holds the state directory's lock. Sandboxes live on when the block ends. Runtime, layers and journal
        are closed then. What sandboxes wrote that are gone is left to the next node, if it is not removed by then. But
        where none lives there may never be another: that waits for the removal, half a minute at most.

        Raises:
            CapabilityMissingError: the host can run nothing.
            StateCorruptedError: the journal cannot be read.
        """
        durable = Durable(parts)
        is_vacant = False
        try:
            async with anyio.create_task_group() as group:
                node = cls(Core(parts, Supervisor(group), durable))
                try:
                    await node._start()
                    yield node
                    is_vacant = node._is_vacant()
                finally:
                    await node.aclose()
                    group.cancel_scope.cancel()
        except BaseExceptionGroup as wrapped:
            # The supervisor lets no task of ours fail, so that this is the block's own error in a wrapper.
            raise wrapped.exceptions[0] from None
        finally:
            # The parts are let go only when no task uses them any more.
            await durable.aclose()
            await _close_parts(parts, is_vacant=is_vacant)

    async def _start(self) -> None:
        await self._core.parts.runtime.open()
        self._core.read_capabilities()
        self._core.clean_states.tidy()
        if self._core.parts.swap is not None:
            await anyio.to_thread.run_sync(self._core.parts.swap.tidy)
        recovery = Recovery(self._core, self._lifetimes)
        await recovery.run()
        self._core.pools = self.pools
        self.fleet.open()
        await self.pools.open(recovery.pools)
        self._core.supervisor.start("pools", self.pools.run)
        self._core.supervisor.start("lifetimes", self._lifetimes.run)
        self._core.supervisor.start("full disks", self._disk_full.run)
        self._core.supervisor.start("room of bases", self._base_room.run)
        self._core.supervisor.start("unused layers", self._layer_release.run)
        self._core.supervisor.start("balance", self.fleet.run)
        self._core.supervisor.start("tracker", self.tracker.run)
        migration_release.resume(self._core)
        self.migrations.resume()
        self._core.supervisor.start("migrations", self.migrations.run)

    @property
    def node_id(self) -> str:
        return self._core.parts.node_id

    def layers_in_use(self) -> frozenset[str]:
        """Digests of the image layers that sandboxes stand on.

        Asked from another thread it is answered by the node's own, where nobody is between a look at a mount and the
        registration of a sandbox that uses it.
        """
        if threading.get_ident() != self._thread:
            # By its token: the other thread may be of another event loop, such as those of work on images.
            return anyio.from_thread.run_sync(self.layers_in_use, token=self._token)
        held = (*self._core.registry, *self._core.vacant.values())
        living = (sandbox for sandbox in held if sandbox.state is not SandboxState.STOPPED)
        used = {path for sandbox in living for path in sandbox.record.layer_paths} | self.migrations.layer_paths()
        return frozenset(layer_digest(Path(path)) for path in used)

    async def aclose(self) -> None:
        """Take no more requests and end those under way with `NodeUnavailableError`. Sandboxes live on. Idempotent."""
        self._core.closing = True
        error = NodeUnavailableError("the node is shutting down")
        for sandbox in self._core.registry:
            if sandbox.generation is not None:
                sandbox.generation.interrupt(error)
            if sandbox.arrival is not None:
                sandbox.arrival.set()  # Nobody will hear of it any more.
            for process in sandbox.processes.values():
                process.end(error)

    def _is_vacant(self) -> bool:
        """Say whether nothing of a sandbox lives here."""
        over = (SandboxState.STOPPED, SandboxState.FAILED)
        living = (each for each in self._core.registry if each.state not in over and each.moved is None)
        return not self._core.vacant and next(living, None) is None

    async def shutdown(self, *, destroy: bool = False) -> None:
        """Close the node; with `destroy` stop every sandbox first."""
        if destroy:
            self.pools.end()
            for sandbox in self._core.registry:
                if sandbox.state is not SandboxState.STOPPED and sandbox.moved is None:
                    await ending.stop(self._core, sandbox, "the node was shut down")
            await self.pools.destroy_vacant()
            if self._core.parts.swap is not None:
                await anyio.to_thread.run_sync(self._core.parts.swap.remove)
        await self.aclose()

    async def expire_due(self) -> None:
        """Expire what is due by the node's clock now; the node does so itself, tests with their own clock call it."""
        await self._lifetimes.expire_due()

    # -- life -------------------------------------------------------------------------------------------------------

    async def create(
        self, spec: SandboxSpec, *, sandbox_id: str | None = None, timeout_s: float = DEFAULT_CREATE_TIMEOUT_S
    ) -> SandboxInfo:
        self._core.check_open()
        await creation.ensure_images(self._core, spec)
        return await creation.create(self._core, self._lifetimes, spec, sandbox_id, timeout_s)

    async def inspect(self, sandbox_id: str) -> SandboxInfo:
        return self._core.info(self._core.registry.find(sandbox_id))

    async def list(self, query: SandboxFilter = SandboxFilter()) -> Sequence[SandboxInfo]:
        return [self._core.info(sandbox) for sandbox in self._core.registry.select(query)]

    async def statistics(self, sandbox_id: str) -> SandboxStats:
        """Read usage; a paused sandbox stays paused."""
        sandbox = await arrival.find(self._core, sandbox_id)
        statistics = await sandbox.running().instance.statistics()
        return msgspec.structs.replace(statistics, writable=self._writable_usage(sandbox))

    def _writable_usage(self, sandbox: Sandbox) -> WritableUsage:
        layers = self._core.parts.layers
        return WritableUsage(
            used_bytes=layers.used_bytes(sandbox.record.layer),
            quota_bytes=sandbox.record.spec.resources.disk_bytes,
            driver=layers.driver,
        )

    async def extend(self, sandbox_id: str, lifetime: Lifetime) -> SandboxInfo:
        return await self._lifetimes.extend(await arrival.find(self._core, sandbox_id), lifetime)

    async def pause(self, sandbox_id: str, *, keep_memory: bool = False) -> SandboxInfo:
        sandbox = await arrival.find(self._core, sandbox_id)
        await pausing.pause(self._core, sandbox, keep_memory=keep_memory)
        return self._core.info(sandbox)

    async def resume(self, sandbox_id: str) -> SandboxInfo:
        sandbox = await arrival.find(self._core, sandbox_id)
        await pausing.resume(self._core, sandbox, self._lifetimes)
        return self._core.info(sandbox)

    async def rollback(self, sandbox_id: str, *, snapshot: str | None = None) -> SandboxInfo:
        """Roll back to the clean state, or to the checkpoint with this id or name."""
        sandbox = await arrival.find(self._core, sandbox_id)
        with self._core.activity(sandbox), sandbox.needed_running():
            info = await rollback.rollback(self._core, sandbox, snapshot)
        self._lifetimes.watch(sandbox)
        return info

    async def end_processes(self, sandbox_id: str) -> None:
        sandbox = await self._ready(sandbox_id)
        generation = sandbox.running()
        with (
            self._core.activity(sandbox),
            shielded(self._core.settings.end_timeout_s, f"ending what {sandbox_id} runs"),
        ):
            generation.interrupt(SandboxExitedError(f"the processes of {sandbox_id} were ended"))
            await generation.instance.kill_processes()
            await sessions.close_all(self._core, sandbox)

    async def stop(self, sandbox_id: str) -> SandboxInfo:
        self._core.check_open()
        return await ending.stop(self._core, self._core.registry.find(sandbox_id))

    async def remove(self, sandbox_id: str) -> None:
        self._core.check_open()
        await ending.remove(self._core, sandbox_id)

    # -- commands ---------------------------------------------------------------------------------------------------

    async def run(self, sandbox_id: str, request: CommandRequest) -> CommandResult:
        check_command(request, self._core.settings)
        sandbox = await self._ready(sandbox_id)
        self.prefetch.command(sandbox_id, request.argv)
        with self._core.activity(sandbox):
            return await commands.run(self._core, sandbox.running(), request)

    def stream(self, sandbox_id: str, request: CommandRequest) -> AbstractAsyncContextManager[CommandStream]:
        return self._stream(sandbox_id, request)

    @asynccontextmanager
    async def _stream(self, sandbox_id: str, request: CommandRequest) -> AsyncIterator[CommandStream]:
        check_command(request, self._core.settings)
        sandbox = await self._ready(sandbox_id)
        self.prefetch.command(sandbox_id, request.argv)
        with self._core.activity(sandbox):
            async with commands.stream(self._core, sandbox.running(), request) as stream:
                yield stream

    async def start_process(self, sandbox_id: str, request: CommandRequest) -> ProcessInfo:
        check_command(request, self._core.settings)
        sandbox = await self._ready(sandbox_id)
        self.prefetch.command(sandbox_id, request.argv)
        with self._core.activity(sandbox):
            return await processes.start(self._core, sandbox, sandbox.running(), request)

    async def list_processes(self, sandbox_id: str) -> Sequence[ProcessInfo]:
        """List background processes, the oldest first; a paused sandbox stays paused."""
        sandbox = self._core.registry.find(sandbox_id)
        return [process.info() for process in sandbox.processes.values()]

    def attach(self, sandbox_id: str, process_id: str) -> AbstractAsyncContextManager[CommandStream]:
        return self._attach(sandbox_id, process_id)

    @asynccontextmanager
    async def _attach(self, sandbox_id: str, process_id: str) -> AsyncIterator[CommandStream]:
        sandbox = await self._ready(sandbox_id)
        with self._core.activity(sandbox):
            async with processes.attach(sandbox, process_id) as stream:
                yield stream

    async def wait_process(self, sandbox_id: str, process_id: str, *, timeout_s: float | None = None) -> CommandResult:
        sandbox = await self._ready(sandbox_id)
        with self._core.activity(sandbox):
            return await processes.wait(self._core, sandbox, process_id, timeout_s)

    async def signal_process(self, sandbox_id: str, process_id: str, number: int) -> None:
        sandbox = await self._ready(sandbox_id)
        with self._core.activity(sandbox):
            await processes.find(sandbox, process_id).signal(number)

    async def open_session(self, sandbox_id: str, request: SessionRequest) -> SessionInfo:
        sandbox = await self._ready(sandbox_id)
        with self._core.activity(sandbox):
            return await sessions.open_session(self._core, sandbox, sandbox.running(), request)

    async def run_in_session(self, sandbox_id: str, session_id: str, command: SessionCommand) -> CommandResult:
        sessions.check_session_command(self._core, command)
        sandbox = await self._ready(sandbox_id)
        self.prefetch.command(sandbox_id, ("sh", "-c", command.script))
        with self._core.activity(sandbox):
            return await sessions.find_session(sandbox, session_id).run(command)

    async def close_session(self, sandbox_id: str, session_id: str) -> None:
        """Close a session and kill what it runs."""
        sandbox = await self._ready(sandbox_id)
        with self._core.activity(sandbox):
            session = sessions.find_session(sandbox, session_id)
            del sandbox.sessions[session_id]
            await session.close()

    # -- files ------------------------------------------------------------------------------------------------------

    def read_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> ByteStream:
        return GeneratedStream(self._content(sandbox_id, user, lambda files: files.reading(path)))

    async def write_file(
        self,
        sandbox_id: str,
        path: str,
        content: AsyncIterable[bytes] | bytes,
        *,
        append: bool = False,
        permissions: int = 0o644,
        user: str | None = None,
    ) -> FileInfo:
        async with self._written(sandbox_id, user) as files:
            return await files.write(path, content, append=append, permissions=permissions)

    async def stat_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> FileInfo:
        async with self._files(sandbox_id, user) as files:
            return await files.stat(path)

    async def list_files(
        self, sandbox_id: str, path: str, *, depth: int = 1, user: str | None = None
    ) -> Sequence[FileInfo]:
        async with self._files(sandbox_id, user) as files:
            return await files.list(path, depth=depth)

    async def make_directory(self, sandbox_id: str, path: str, *, user: str | None = None) -> bool:
        async with self._written(sandbox_id, user) as files:
            return await files.make_directory(path)

    async def move_file(self, sandbox_id: str, source: str, target: str, *, user: str | None = None) -> None:
        async with self._written(sandbox_id, user) as files:
            await files.move(source, target)

    async def remove_file(
        self, sandbox_id: str, path: str, *, recursive: bool = False, user: str | None = None
    ) -> None:
        async with self._written(sandbox_id, user) as files:
            await files.remove(path, recursive=recursive)

    def watch_files(
        self, sandbox_id: str, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        return self._watch_files(sandbox_id, path, recursive, user)

    @asynccontextmanager
    async def _watch_files(
        self, sandbox_id: str, path: str, recursive: bool, user: str | None
    ) -> AsyncIterator[AsyncIterator[FileChange]]:
        async with (
            self._files(sandbox_id, user) as files,
            files.watch(path, recursive=recursive) as changes,
        ):
            yield changes

    def download(self, sandbox_id: str, path: str, *, user: str | None = None) -> ByteStream:
        return GeneratedStream(self._content(sandbox_id, user, lambda files: files.downloading(path)))

    async def upload(
        self, sandbox_id: str, path: str, archive: AsyncIterable[bytes], *, user: str | None = None
    ) -> None:
        async with self._written(sandbox_id, user) as files:
            await files.upload(path, archive)

    # -- the node ---------------------------------------------------------------------------------------------------

    async def node(self) -> NodeInfo:
        cpu_millis, memory_bytes = capacity()
        parts = self._core.parts
        return NodeInfo(
            node=parts.node_id,
            version=__version__,
            runtime=parts.runtime.name,
            cpu_millis=cpu_millis,
            memory_bytes=memory_bytes,
        )

    async def images(self) -> Sequence[ImageInfo]:
        return self._core.parts.images.list()

    async def capabilities(self) -> Sequence[CapabilityReport]:
        return builtins.list(self._core.reports.values())

    # -- getting at a sandbox ---------------------------------------------------------------------------------------

    async def _ready(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox once it runs, resuming it when it is paused."""
        sandbox = await arrival.find(self._core, sandbox_id)
        while sandbox.state is not SandboxState.READY:
            if sandbox.state is SandboxState.PAUSED:
                await pausing.resume(self._core, sandbox, self._lifetimes)
            elif sandbox.state in (SandboxState.STOPPED, SandboxState.STOPPING, SandboxState.FAILED):
                raise sandbox.unusable()
            else:
                await self._settled(sandbox)
        return sandbox

    async def _settled(self, sandbox: Sandbox) -> None:
        """Wait for the change of state that is under way."""
        async with sandbox.transition:
            if sandbox.moved is not None:
                raise sandbox.moved
            if sandbox.forgotten:
                raise SandboxNotFoundError(f"the creation of {sandbox.sandbox_id} was undone")
            if sandbox.state not in _STEADY:
                # Nobody holds the transition, so that nobody will end it: it was left by an error, or it is on its
                # way here and has been waited for already.
                raise sandbox.unusable()

    @asynccontextmanager
    async def _files(self, sandbox_id: str, user: str | None) -> AsyncIterator[FileAccess]:
        sandbox = await self._ready(sandbox_id)
        with self._core.activity(sandbox):
            generation: Generation = sandbox.running()
            try:
                yield FileAccess(self._core, generation, user)
            except SandboxDiskFullError:
                self._disk_full.notice(sandbox)
                raise

    @asynccontextmanager
    async def _written(self, sandbox_id: str, user: str | None) -> AsyncIterator[FileAccess]:
        """As `_files`, for what changes files: who is about to move the sandbox waits for it."""
        async with self._files(sandbox_id, user) as files:
            with self._core.registry.find(sandbox_id).written_from_outside():
                yield files

    async def _content(
        self,
        sandbox_id: str,
        user: str | None,
        open_reader: Callable[[FileAccess], AbstractAsyncContextManager[GuardedReader]],
    ) -> AsyncGenerator[bytes | int, Pipe | None]:
        async with self._files(sandbox_id, user) as files, open_reader(files) as reader:
            pipe = yield 0
            while taken := await reader.take(pipe):
                pipe = yield taken


async def _close_parts(parts: NodeParts, *, is_vacant: bool) -> None:
    with shielded(parts.settings.end_timeout_s, "closing the node"):
        await parts.journal.close()
        # In a thread: both wait for the disk.
        if is_vacant and not await anyio.to_thread.run_sync(parts.layers.wait_removed, _REMOVAL_PATIENCE_S):
            _log.warning("discarded layers are not removed yet; the next node goes on")
        await anyio.to_thread.run_sync(parts.layers.close)
        await parts.runtime.close()
