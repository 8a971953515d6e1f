"""Foreground commands: run to the end, or stream.

A foreground command belongs to its request. Whatever ends the request early (cancellation, a client that vanished, a
timeout, a rollback, a stop) ends the command's whole process tree, and the request is answered only when the tree is
seen to be gone.

`run` is the hot path: it makes no task and no thread hop of its own unless there is input to feed.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec

from dsec.base.errors import DsecError, SandboxExitedError
from dsec.base.ids import new_id
from dsec.model.process import (
    CommandRequest,
    CommandResult,
    ExitEvent,
    ExitStatus,
    OutputEvent,
    ProcessEvent,
    Stream,
    TerminalSize,
)
from dsec.node.core import Core, shielded
from dsec.node.output import Collector, result
from dsec.node.sandbox import Generation, Operation
from dsec.node.validation import check_terminal
from dsec.runtimes.port import Process, SpawnRequest

_RUNTIME_LINE_BYTES = 512
"""How far into a command's first words we look for what a runtime names: itself, the program, its directory."""
_RUNTIME_ENDS_S = 0.2
"""Longest wait for a runtime that has given up. A command that says its own name itself is delayed by as much, once."""
_KILLED = ExitStatus(exit_code=137, signal=9)


def spawn_request(
    core: Core, generation: Generation, request: CommandRequest, *, durable: bool = False, control_fd: bool = False
) -> SpawnRequest:
    """Fill in the sandbox's defaults."""
    workdir = generation.workdir
    return SpawnRequest(
        process_id=new_id("prc", core.parts.random_bytes),
        argv=request.argv,
        env={**generation.env, **request.env} if request.env else generation.env,
        cwd=posixpath.join(workdir, request.cwd) if request.cwd is not None else workdir,
        user=request.user if request.user is not None else generation.user,
        terminal=request.terminal,
        stdin=request.keep_stdin_open or bool(request.stdin),
        durable=durable,
        hold_stdin=durable and request.keep_stdin_open,
        control_fd=control_fd,
    )


async def run(core: Core, generation: Generation, request: CommandRequest) -> CommandResult:
    """Run a command to its end."""
    command = _Run(core, request)
    try:
        with generation.time.limit(timeout_of(core, request)) as scope, generation.operation(scope) as operation:
            await command.follow(generation)
        if operation.error is not None:
            raise operation.error
        if command.status is None:
            await command.end_at_timeout()
        elif command.status.signal is not None:
            await generation.check_killed(command.status.signal)
        return command.result()
    finally:
        await command.release()


def timeout_of(core: Core, request: CommandRequest) -> float:
    return request.timeout_s if request.timeout_s is not None else core.settings.maximum_command_timeout_s


class _Run:
    """One command being run to its end."""

    __slots__ = ("_core", "_process", "_request", "_started", "_stderr", "_stdout", "status")

    def __init__(self, core: Core, request: CommandRequest) -> None:
        self._core = core
        self._request = request
        self._process: Process | None = None
        self._started = anyio.current_time()
        self._stdout = Collector(request.output_limit_bytes)
        self._stderr = Collector(request.output_limit_bytes)
        self.status: ExitStatus | None = None

    async def follow(self, generation: Generation) -> None:
        self._process = process = await generation.instance.spawn(spawn_request(self._core, generation, self._request))
        if not process_input(self._request):
            await self._collect(process)
        else:
            feeder = self._core.supervisor.start(
                f"feed {process.process_id}", lambda: feed(process, self._request.stdin)
            )
            try:
                await self._collect(process)
            finally:
                feeder.cancel()
        self.status = await process.wait()

    async def _collect(self, process: Process) -> None:
        read, stdout, stderr = process.read, self._stdout.add, self._stderr.add
        while (chunk := await read()) is not None:
            if chunk[0] is Stream.STDOUT:
                stdout(chunk[1])
            else:
                stderr(chunk[1])

    async def end_at_timeout(self) -> None:
        """Kill the tree, take what was written before that, and only then report the timeout."""
        status = _KILLED
        if self._process is not None:
            with shielded(self._core.settings.end_timeout_s, f"killing {self._process.process_id}"):
                await self._process.kill()
                await self._collect(self._process)
                status = await self._process.wait()
        duration_s = anyio.current_time() - self._started
        self.status = msgspec.structs.replace(status, timed_out=True, duration_s=duration_s)

    def result(self) -> CommandResult:
        assert self.status is not None
        return result(self.status, self._stdout, self._stderr)

    async def release(self) -> None:
        """Let go; a command that was not seen to end is killed first."""
        process = self._process
        if process is None:
            return
        if self.status is not None:
            await process.close()
            return
        await end_process(self._core, process)


def process_input(request: CommandRequest) -> bool:
    """Whether a command that nobody writes to later still has an input to feed and close."""
    return bool(request.stdin) or request.keep_stdin_open


async def feed(process: Process, data: bytes) -> None:
    """Write the input and close it. A command that does not read it all is no error."""
    try:
        await process.write(data)
        await process.close_stdin()
    except SandboxExitedError:
        return


async def end_process(core: Core, process: Process) -> None:
    """Kill a process tree and let go of it, although the caller is cancelled."""
    with shielded(core.settings.end_timeout_s, f"killing {process.process_id}"):
        try:
            await process.kill()
        except SandboxExitedError:
            # The instance ended, and with it every process.
            pass
        finally:
            await process.close()


class ForegroundStream:
    """A `CommandStream` over a foreground command."""

    def __init__(
        self, core: Core, generation: Generation, process: Process, request: CommandRequest, operation: Operation
    ) -> None:
        self.process_id = process.process_id
        self.ended = False
        self._core, self._generation, self._process, self._operation = core, generation, process, operation
        self._offsets = {Stream.STDOUT: 0, Stream.STDERR: 0}
        self._timeout_s = timeout_of(core, request)
        named = (core.parts.runtime.name, request.argv[0], request.cwd)
        self._names = [name.encode("utf-8", "surrogateescape") for name in named if name]
        self._killed: anyio.Event | None = None
        self._started = anyio.current_time()

    def __aiter__(self) -> AsyncIterator[ProcessEvent]:
        return self

    async def __anext__(self) -> ProcessEvent:
        if self.ended:
            raise StopAsyncIteration
        event: ProcessEvent | None = None
        with anyio.CancelScope() as scope:
            self._operation.scope = scope
            if self._operation.error is None:
                event = await self._next()
        if self._operation.error is not None:
            raise self._operation.error
        assert event is not None
        return event

    async def _next(self) -> ProcessEvent:
        chunk = await self._process.read()
        if chunk is not None:
            stream, data = chunk
            if stream is Stream.STDERR and not any(self._offsets.values()):
                await self._check_started(data)
            offset = self._offsets[stream]
            self._offsets[stream] = offset + len(data)
            return OutputEvent(stream=stream, data=data, offset=offset)
        status = await self._process.wait()
        if self._killed is not None:
            await self._killed.wait()
            status = msgspec.structs.replace(status, timed_out=True, duration_s=anyio.current_time() - self._started)
        elif status.signal is not None:
            await self._generation.check_killed(status.signal)
        self.ended = True
        return ExitEvent(status=status)

    async def _check_started(self, said: bytes) -> None:
        """Raise what kept the command from starting, rather than pass on what the runtime said of it as the command's
        own words: the runtime writes where the command would have written. It ends at once after that."""
        if any(name in said[:_RUNTIME_LINE_BYTES] for name in self._names):
            with anyio.move_on_after(_RUNTIME_ENDS_S):
                await self._process.wait()

    async def enforce_timeout(self) -> None:
        """Kill the tree when the time is over, whether or not anybody reads."""
        await self._generation.time.sleep(self._timeout_s)
        self._killed = anyio.Event()
        try:
            with shielded(self._core.settings.end_timeout_s, f"killing {self.process_id}"):
                await self._process.kill()
        finally:
            self._killed.set()

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def signal(self, number: int) -> None:
        await self._process.signal(number)

    async def resize(self, size: TerminalSize) -> None:
        check_terminal(size)
        await self._process.resize(size)


@asynccontextmanager
async def stream(core: Core, generation: Generation, request: CommandRequest) -> AsyncIterator[ForegroundStream]:
    """Run a command and hear it as it goes; leaving early kills its tree."""
    process = await _spawn(core, generation, request)
    ended = False
    try:
        with generation.operation(anyio.CancelScope()) as operation:
            following = ForegroundStream(core, generation, process, request, operation)
            helpers = [core.supervisor.start(f"timeout of {process.process_id}", following.enforce_timeout)]
            if request.stdin or not request.keep_stdin_open:
                helpers.append(core.supervisor.start(f"feed {process.process_id}", lambda: _feed(process, request)))
            try:
                yield following
            finally:
                ended = following.ended
                for helper in helpers:
                    helper.cancel()
    finally:
        if ended:
            await process.close()
        else:
            await end_process(core, process)


async def _spawn(core: Core, generation: Generation, request: CommandRequest) -> Process:
    """Start a command within its timeout; the end of the generation ends the attempt."""
    process: Process | None = None
    with anyio.CancelScope() as scope, generation.operation(scope) as operation:
        process = await generation.instance.spawn(spawn_request(core, generation, request))
    if process is None:
        raise operation.error or _unexpected(generation)
    return process


def _unexpected(generation: Generation) -> DsecError:
    return generation.error or SandboxExitedError("the sandbox's generation ended")


async def _feed(process: Process, request: CommandRequest) -> None:
    if not process_input(request):
        return
    if not request.keep_stdin_open:
        await feed(process, request.stdin)
        return
    try:
        await process.write(request.stdin)
    except SandboxExitedError:
        return
