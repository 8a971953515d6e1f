"""Running commands, background processes and shell sessions."""

from __future__ import annotations

import signal as signals
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from dsec.base.errors import ProcessNotFoundError, UnknownOutcomeError, error_from_code
from dsec.model.process import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    DEFAULT_TIMEOUT_S,
    ErrorEvent,
    ExitEvent,
    ExitStatus,
    OutputEvent,
    ProcessInfo,
    SessionCommand,
    SessionInfo,
    TerminalSize,
)
from dsec.sdk.values import Collector, Output, RunResult
from dsec.service.port import CommandStream, SandboxService


class AsyncCommand:
    """A running command: iterate its output, feed it, signal it.

    Attributes:
        status: how it ended, once it did.
    """

    def __init__(self, stream: CommandStream, *, output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES) -> None:
        self._stream = stream
        self._output_limit_bytes = output_limit_bytes
        self.status: ExitStatus | None = None

    @property
    def process_id(self) -> str:
        return self._stream.process_id

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        """Return the next output. Not asking for it stops the command once its pipe is full."""
        async for event in self._stream:
            if isinstance(event, OutputEvent):
                return Output(stream=event.stream, data=event.data)
            if isinstance(event, ErrorEvent):
                raise error_from_code(event.code, event.brief, detail=event.detail, resolution=event.resolution)
            if isinstance(event, ExitEvent):
                self.status = event.status
        raise StopAsyncIteration

    async def wait(self) -> RunResult:
        """Collect the output that is still to come, within the output limit, and return the result."""
        collector = Collector(self._output_limit_bytes)
        async for output in self:
            collector.add(output)
        if self.status is None:
            raise UnknownOutcomeError(f"nobody saw how {self.process_id} ended")
        return collector.result(self.status)

    async def write(self, data: bytes | str) -> None:
        """Feed the input; waits while the command does not read."""
        await self._stream.write(data.encode() if isinstance(data, str) else data)

    async def close_stdin(self) -> None:
        """End the input."""
        await self._stream.close_stdin()

    async def signal(self, number: int) -> None:
        """Send a signal to the command itself."""
        await self._stream.signal(number)

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal."""
        await self._stream.resize(TerminalSize(columns=columns, rows=rows))


class AsyncProcess:
    """A background process of a sandbox."""

    def __init__(self, service: SandboxService, sandbox_id: str, process_id: str) -> None:
        self._service = service
        self._sandbox_id = sandbox_id
        self.process_id = process_id

    async def info(self) -> ProcessInfo:
        """Describe it as it is now.

        Raises:
            ProcessNotFoundError: the sandbox no longer knows it.
        """
        for info in await self._service.list_processes(self._sandbox_id):
            if info.process_id == self.process_id:
                return info
        raise ProcessNotFoundError(f"{self._sandbox_id} has no process {self.process_id}")

    async def wait(self, *, timeout_s: float | None = None) -> RunResult:
        """Wait until it ends. Raises `DeadlineExceededError` when it still runs after `timeout_s`."""
        return RunResult.of(await self._service.wait_process(self._sandbox_id, self.process_id, timeout_s=timeout_s))

    @asynccontextmanager
    async def attach(self) -> AsyncIterator[AsyncCommand]:
        """Hear it: first what its buffer holds, then what comes. Leaving does not end it."""
        async with self._service.attach(self._sandbox_id, self.process_id) as stream:
            yield AsyncCommand(stream)

    async def read(self) -> AsyncIterator[Output]:
        """Iterate its output from the beginning of its buffer to its end."""
        async with self.attach() as command:
            async for output in command:
                yield output

    async def write(self, data: bytes | str) -> None:
        """Feed its input, if it was started with `keep_stdin_open`."""
        async with self.attach() as command:
            await command.write(data)

    async def signal(self, number: int) -> None:
        """Send it a signal."""
        await self._service.signal_process(self._sandbox_id, self.process_id, number)

    async def kill(self) -> None:
        """Kill its whole tree and return when all of it is gone."""
        await self.signal(signals.SIGKILL)


class AsyncProcesses:
    """The background processes of one sandbox."""

    def __init__(self, service: SandboxService, sandbox_id: str) -> None:
        self._service = service
        self._sandbox_id = sandbox_id

    async def list(self) -> list[ProcessInfo]:
        """List them, ended ones included."""
        return list(await self._service.list_processes(self._sandbox_id))

    def get(self, process_id: str) -> AsyncProcess:
        """Return a handle on one."""
        return AsyncProcess(self._service, self._sandbox_id, process_id)

    async def end_all(self) -> None:
        """Kill every command, session and daemon of the sandbox; files stay."""
        await self._service.end_processes(self._sandbox_id)


class AsyncSession:
    """A shell that keeps its directory and variables between commands."""

    def __init__(self, service: SandboxService, sandbox_id: str, info: SessionInfo) -> None:
        self._service = service
        self._sandbox_id = sandbox_id
        self.session_id = info.session_id
        self.shell = info.shell

    async def run(
        self,
        script: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> RunResult:
        """Run shell text. After a timeout everything that the session runs is killed and the session is closed."""
        command = SessionCommand(script=script, timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)
        return RunResult.of(await self._service.run_in_session(self._sandbox_id, self.session_id, command))

    async def aclose(self) -> None:
        """Close the session; what it started ends."""
        await self._service.close_session(self._sandbox_id, self.session_id)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
