"""One sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Unpack

from dsec.model.process import SessionRequest, Stream, TerminalSize
from dsec.model.sandbox import Lifetime, SandboxInfo, SandboxSpec, SandboxStats
from dsec.model.state import (
    CheckpointInfo,
    CheckpointRequest,
    FingerprintReport,
    ForkRequest,
    MigrationReport,
    MigrationRequest,
    PackReport,
    PackRequest,
    RestoreRequest,
    ScrubRules,
    SnapshotInfo,
    SnapshotRequest,
)
from dsec.sdk._async.commands import AsyncCommand, AsyncProcess, AsyncProcesses, AsyncSession
from dsec.sdk._async.files import AsyncFiles
from dsec.sdk.keeping import shared_service, state_of
from dsec.sdk.values import (
    SHELL,
    Collector,
    CommandLine,
    CommandOptions,
    Point,
    RunResult,
    SpecFields,
    command_request,
    point_id,
    sandbox_spec,
    shell_explained,
)
from dsec.service.port import DEFAULT_CREATE_TIMEOUT_S, SandboxService

Heard = Callable[[bytes], None]
"""What is called with output as it comes."""


class AsyncSandbox:
    """An isolated, stateful environment. Make one with `create`, find one with `connect`.

    As a context manager it removes the sandbox at the end if `create`, `fork` or `restore` made it, and leaves it
    alone if `connect` found it.

    Attributes:
        sandbox_id: its id, which `connect` takes.
        files: its files.
        processes: its background processes.
    """

    def __init__(self, service: SandboxService, sandbox_id: str, *, owned: bool) -> None:
        self._service = service
        self._owned = owned
        self.sandbox_id = sandbox_id
        self.files = AsyncFiles(service, sandbox_id)
        self.processes = AsyncProcesses(service, sandbox_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sandbox_id!r})"

    @classmethod
    async def create(
        cls,
        image: str = "python",
        *,
        spec: SandboxSpec | None = None,
        sandbox_id: str | None = None,
        timeout_s: float = DEFAULT_CREATE_TIMEOUT_S,
        service: SandboxService | None = None,
        **fields: Unpack[SpecFields],
    ) -> AsyncSandbox:
        """Create a sandbox and return when it is ready.

        Args:
            image: name of its image.
            spec: the whole description, instead of `image` and `fields`.
            sandbox_id: idempotency key: asking again with the same id and spec returns the same sandbox.
            timeout_s: seconds until it must be ready.
            service: what makes it; by default `DSEC_URL`'s server or the node of this host (dsec.sdk.connect).
            fields: fields of `SandboxSpec`, such as `resources`, `network`, `metadata`.
        """
        used = service or await shared_service()
        wanted = spec or sandbox_spec(image, fields)
        info = await used.create(wanted, sandbox_id=sandbox_id, timeout_s=timeout_s)
        return cls(used, info.sandbox_id, owned=True)

    @classmethod
    async def connect(cls, sandbox_id: str, *, service: SandboxService | None = None) -> AsyncSandbox:
        """Return the sandbox of this id. Raises `SandboxNotFoundError` when there is none."""
        used = service or await shared_service()
        await used.inspect(sandbox_id)
        return cls(used, sandbox_id, owned=False)

    @classmethod
    async def restore(
        cls,
        snapshot: SnapshotInfo | str,
        *,
        sandbox_id: str | None = None,
        seed: int | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout_s: float = RestoreRequest().timeout_s,
        service: SandboxService | None = None,
    ) -> AsyncSandbox:
        """Make a sandbox from a snapshot.

        Args:
            snapshot: what `snapshot` returned, its id, or its name (the newest of that name is meant).
            sandbox_id: idempotency key, as in `create`.
            seed, env, metadata: replace or join what was saved.
            timeout_s: seconds for the whole of it.
            service: what makes it, as in `create`.

        Raises:
            SnapshotNotFoundError: there is none.
            ImageNotFoundError: the node has not the layers that it stands on.
            CapabilityMissingError: the node keeps no snapshots.
        """
        used = service or await shared_service()
        wanted = snapshot.snapshot_id if isinstance(snapshot, SnapshotInfo) else snapshot
        request = RestoreRequest(
            sandbox_id=sandbox_id, seed=seed, env=dict(env or {}), metadata=dict(metadata or {}), timeout_s=timeout_s
        )
        info = await state_of(used).restore(wanted, request)
        return cls(used, info.sandbox_id, owned=True)

    # -- commands -----------------------------------------------------------------------------------------------

    async def run(
        self,
        command: CommandLine,
        *,
        on_stdout: Heard | None = None,
        on_stderr: Heard | None = None,
        **options: Unpack[CommandOptions],
    ) -> RunResult:
        """Run a command to its end.

        Args:
            command: shell text, or program and arguments (no shell).
            on_stdout, on_stderr: called with output as it comes, besides its being kept.
            options: `cwd`, `env`, `user`, `stdin`, `timeout_s`, `output_limit_bytes`.

        A command that fails or times out is a result, not an error. Cancelling kills its whole tree.
        """
        request = command_request(command, options)
        with shell_explained(command):
            if on_stdout is None and on_stderr is None:
                return RunResult.of(await self._service.run(self.sandbox_id, request))
            return await self._run_aloud(command, on_stdout, on_stderr, options)

    async def _run_aloud(
        self, command: CommandLine, on_stdout: Heard | None, on_stderr: Heard | None, options: CommandOptions
    ) -> RunResult:
        listeners = {Stream.STDOUT: on_stdout, Stream.STDERR: on_stderr}
        request = command_request(command, options)
        collector = Collector(request.output_limit_bytes)
        async with self._service.stream(self.sandbox_id, request) as stream:
            running = AsyncCommand(stream)
            async for output in running:
                collector.add(output)
                listener = listeners[output.stream]
                if listener is not None:
                    listener(output.data)
            status = running.status
        assert status is not None
        return collector.result(status)

    @asynccontextmanager
    async def stream(self, command: CommandLine, **options: Unpack[CommandOptions]) -> AsyncIterator[AsyncCommand]:
        """Run a command and hear it as it goes; leaving the context early kills its tree."""
        request = command_request(command, options)
        with shell_explained(command):
            async with self._service.stream(self.sandbox_id, request) as stream:
                yield AsyncCommand(stream, output_limit_bytes=request.output_limit_bytes)

    @asynccontextmanager
    async def terminal(
        self,
        command: CommandLine | None = None,
        *,
        columns: int = 80,
        rows: int = 24,
        **options: Unpack[CommandOptions],
    ) -> AsyncIterator[AsyncCommand]:
        """Run a command (by default a shell) on a terminal; leaving the context kills its tree."""
        chosen = [SHELL] if command is None else command
        given: CommandOptions = {"timeout_s": None, "keep_stdin_open": True, **options}
        request = command_request(chosen, given, terminal=TerminalSize(columns=columns, rows=rows))
        with shell_explained(SHELL if command is None else command):
            async with self._service.stream(self.sandbox_id, request) as stream:
                yield AsyncCommand(stream, output_limit_bytes=request.output_limit_bytes)

    async def start(self, command: CommandLine, **options: Unpack[CommandOptions]) -> AsyncProcess:
        """Start a background process. It has no timeout unless one is given."""
        given: CommandOptions = {"timeout_s": None, **options}
        with shell_explained(command):
            info = await self._service.start_process(self.sandbox_id, command_request(command, given))
        return AsyncProcess(self._service, self.sandbox_id, info.process_id)

    async def session(
        self, *, cwd: str | None = None, env: dict[str, str] | None = None, user: str | None = None
    ) -> AsyncSession:
        """Open a shell session, which keeps its directory and variables between commands."""
        request = SessionRequest(cwd=cwd, env=env or {}, user=user)
        info = await self._service.open_session(self.sandbox_id, request)
        return AsyncSession(self._service, self.sandbox_id, info)

    # -- life ---------------------------------------------------------------------------------------------------

    async def info(self) -> SandboxInfo:
        """Say what the sandbox is now."""
        return await self._service.inspect(self.sandbox_id)

    async def stats(self) -> SandboxStats:
        """Read what it uses."""
        return await self._service.statistics(self.sandbox_id)

    async def rollback(self, snapshot: Point | None = None) -> SandboxInfo:
        """Return to a checkpoint, or to the clean state: files are as they were then, all processes end.

        Args:
            snapshot: what `checkpoint` returned, its id or its name; None: the clean state.
        """
        return await self._service.rollback(self.sandbox_id, snapshot=point_id(snapshot))

    async def pause(self, *, keep_memory: bool = False) -> SandboxInfo:
        """Freeze every process and give the memory back; the next operation that needs them thaws them.

        Args:
            keep_memory: freeze only, for a short pause, or where there is no swap.

        Raises:
            SwapFullError: the memory does not fit into the node's swap; the sandbox runs on.
            CapabilityMissingError: the node has no swap; the sandbox runs on.
        """
        return await self._service.pause(self.sandbox_id, keep_memory=keep_memory)

    async def resume(self) -> SandboxInfo:
        """Thaw."""
        return await self._service.resume(self.sandbox_id)

    async def extend(self, lifetime: Lifetime) -> SandboxInfo:
        """Replace the lifetime; its clocks start again from now."""
        return await self._service.extend(self.sandbox_id, lifetime)

    # -- saved state --------------------------------------------------------------------------------------------

    async def checkpoint(self, *, name: str = "", hooks: bool = True) -> CheckpointInfo:
        """Save the present state on the node, while commands run on.

        Args:
            name: a name of your own within the sandbox; one that exists raises `AlreadyExistsError`.
            hooks: whether the image's export hook runs.
        """
        return await state_of(self._service).checkpoint(self.sandbox_id, CheckpointRequest(name=name, hooks=hooks))

    async def checkpoints(self) -> Sequence[CheckpointInfo]:
        """List the checkpoints, the oldest first; `parent` makes a tree of them."""
        return await state_of(self._service).list_checkpoints(self.sandbox_id)

    async def remove_checkpoint(self, checkpoint: Point) -> None:
        """Forget a checkpoint; what began from it stays."""
        await state_of(self._service).remove_checkpoint(self.sandbox_id, point_id(checkpoint) or "")

    async def fork(
        self,
        count: int = 1,
        *,
        checkpoint: Point | None = None,
        sandbox_ids: Sequence[str] = (),
        seeds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        spread: bool = False,
    ) -> list[AsyncSandbox]:
        """Make children with the same files, all or none, and return them ready; this sandbox does not notice.

        Args:
            count: how many.
            checkpoint: where they begin; None: the present state.
            sandbox_ids: their ids, as idempotency keys; none: chosen.
            seeds: theirs, one for each; none: derived from this sandbox's seed, if it has one.
            env, metadata: added to what this sandbox has.
            spread: over this node and its peers.
        """
        request = ForkRequest(
            count=count,
            checkpoint=point_id(checkpoint),
            sandbox_ids=tuple(sandbox_ids),
            seeds=tuple(seeds),
            env=dict(env or {}),
            metadata=dict(metadata or {}),
            spread=spread,
        )
        children = await state_of(self._service).fork(self.sandbox_id, request)
        return [AsyncSandbox(self._service, child.sandbox_id, owned=True) for child in children]

    async def snapshot(
        self, *, name: str = "", checkpoint: Point | None = None, metadata: Mapping[str, str] | None = None
    ) -> SnapshotInfo:
        """Make a state durable in the node's store: the present one, or a checkpoint.

        Raises:
            CapabilityMissingError: the node keeps no snapshots.
        """
        request = SnapshotRequest(checkpoint=point_id(checkpoint), name=name, metadata=dict(metadata or {}))
        return await state_of(self._service).snapshot(self.sandbox_id, request)

    async def pack(
        self,
        name: str,
        *,
        checkpoint: Point | None = None,
        scrub: ScrubRules = ScrubRules(),
        dry_run: bool = False,
    ) -> PackReport:
        """Make the image `name` of the sandbox's layers and what was changed in it, scrubbed of residue.

        Raises:
            CapabilityMissingError: the node cannot.
        """
        request = PackRequest(name=name, checkpoint=point_id(checkpoint), scrub=scrub, dry_run=dry_run)
        return await state_of(self._service).pack(self.sandbox_id, request)

    async def fingerprint(self) -> FingerprintReport:
        """Compare the sandbox with the clean state recorded at its beginning."""
        return await state_of(self._service).fingerprint(self.sandbox_id)

    async def migrate(self, node: str) -> MigrationReport:
        """Move the sandbox to another node, given by id or URL; on failure it goes on where it is.

        What is asked here afterwards raises `SandboxMovedError`, which names the URL to connect to.

        Raises:
            CapabilityMissingError: the node cannot.
        """
        return await state_of(self._service).migrate(self.sandbox_id, MigrationRequest(node=node))

    # -- end ----------------------------------------------------------------------------------------------------

    async def stop(self) -> SandboxInfo:
        """Destroy it; its record stays until it is removed."""
        return await self._service.stop(self.sandbox_id)

    async def aclose(self) -> None:
        """Stop it if needed and forget it. Idempotent."""
        await self._service.remove(self.sandbox_id)

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owned:
            await self.aclose()
