"""One sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Unpack

from dsec.model.process import SessionRequest, Stream, TerminalSize
from dsec.model.sandbox import Lifetime, SandboxInfo, SandboxSpec, SandboxStats
from dsec.sdk._async.commands import AsyncCommand, AsyncProcess, AsyncProcesses, AsyncSession
from dsec.sdk._async.files import AsyncFiles
from dsec.sdk.keeping import shared_service
from dsec.sdk.values import (
    SHELL,
    Collector,
    CommandLine,
    CommandOptions,
    RunResult,
    SpecFields,
    command_request,
    sandbox_spec,
    shell_explained,
)
from dsec.service.port import DEFAULT_CREATE_TIMEOUT_S, SandboxService

Heard = Callable[[bytes], None]
"""What is called with output as it comes."""


class AsyncSandbox:
    """An isolated, stateful environment. Make one with `create`, find one with `connect`.

    As a context manager it removes the sandbox at the end if `create` made it, and leaves it alone if `connect`
    found it.

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

    async def rollback(self, snapshot: str | None = None) -> SandboxInfo:
        """Return to the clean state (or a checkpoint): files are as at creation, all processes end."""
        return await self._service.rollback(self.sandbox_id, snapshot=snapshot)

    async def pause(self) -> SandboxInfo:
        """Freeze every process; the next operation that needs them thaws them."""
        return await self._service.pause(self.sandbox_id)

    async def resume(self) -> SandboxInfo:
        """Thaw."""
        return await self._service.resume(self.sandbox_id)

    async def extend(self, lifetime: Lifetime) -> SandboxInfo:
        """Replace the lifetime; its clocks start again from now."""
        return await self._service.extend(self.sandbox_id, lifetime)

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
