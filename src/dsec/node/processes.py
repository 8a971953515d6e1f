"""Background processes: commands that outlive their request, and the node.

One task for each reads its output into a bounded log (and the spool), so that it never waits for a reader. Any number
of attachers read the log side by side, each with a cursor of its own; one that is slow sees a gap in the offsets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec

from dsec.base.errors import (
    DeadlineExceededError,
    DsecError,
    InvalidRequestError,
    LimitExceededError,
    ProcessNotFoundError,
    SandboxExitedError,
    UnknownOutcomeError,
)
from dsec.model.process import (
    CommandRequest,
    CommandResult,
    ErrorEvent,
    ExitEvent,
    ExitStatus,
    ProcessEvent,
    ProcessInfo,
    ProcessState,
    Stream,
    TerminalSize,
)
from dsec.node.commands import end_process, feed, spawn_request
from dsec.node.core import Core, shielded
from dsec.node.output import Cursor, OutputLog
from dsec.node.sandbox import Generation, Sandbox, instance_name
from dsec.node.spool import Spool
from dsec.node.validation import check_terminal, check_timeout
from dsec.runtimes.port import Process
from dsec.stores.port import ProcessRecord

MAXIMUM_SIGNAL = 64


class BackgroundProcess:
    """One background process and what is known of it."""

    def __init__(
        self,
        core: Core,
        sandbox: Sandbox,
        record: ProcessRecord,
        process: Process | None,
        spool: Spool | None,
        log: OutputLog | None = None,
    ) -> None:
        self.record = record
        self.log = log or OutputLog(record.output_limit_bytes)
        self.error: DsecError | None = None
        self.ended = record.status is not None or process is None
        self._core = core
        self._sandbox = sandbox
        self._time = sandbox.running().time
        self._process = process
        self._spool = spool
        self._changed = anyio.Event()
        self._pump: anyio.CancelScope | None = None
        self._timed_out = False

    # -- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._pump = self._core.supervisor.start(f"follow {self.record.process_id}", self._follow)

    async def _follow(self) -> None:
        process = self._process
        assert process is not None
        noted = False
        try:
            status = await self._within_deadline(process)
            self.record = msgspec.structs.replace(self.record, status=status)
            await self._core.parts.journal.put_process(self.record)
            noted = True
        except DsecError as error:
            self.error = error
        finally:
            # A node that is being closed leaves the process, or how it ended, to the next one.
            if self._spool is not None:
                self._spool.close()
            await process.close(forget=noted)
        self._finish()

    async def _within_deadline(self, process: Process) -> ExitStatus:
        deadline = self.record.deadline_boot_s
        now = self._sandbox.running_s(self._core.now_boot_s())
        with self._time.limit(float("inf") if deadline is None else max(0.0, deadline - now)):
            await self._read(process)
            return await process.wait()
        with shielded(self._core.settings.end_timeout_s, f"killing {process.process_id}"):
            await process.kill()
            await self._read(process)
            return msgspec.structs.replace(await process.wait(), timed_out=True)

    async def _read(self, process: Process) -> None:
        while (chunk := await process.read()) is not None:
            stream, data = chunk
            if self._spool is not None:
                self._spool.append(stream, self.log.total(stream), data)
            self.log.add(stream, data)
            self._notify()

    def _finish(self) -> None:
        self.ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def end(self, error: DsecError) -> None:
        """Stop following: its generation ends. Who waits or listens hears `error`."""
        if self._pump is not None:
            self._pump.cancel()
        if self.record.status is None:
            self.error = error
        self._finish()

    # -- what is known of it ----------------------------------------------------------------------------------------

    def info(self) -> ProcessInfo:
        status = self.record.status
        state = ProcessState.RUNNING
        if self.ended:
            state = ProcessState.EXITED if status is not None else ProcessState.UNKNOWN
        return ProcessInfo(
            process_id=self.record.process_id,
            argv=self.record.argv,
            state=state,
            status=status,
            started_at_s=self.record.started_wall_s,
            stdout_bytes=self.log.total(Stream.STDOUT),
            stderr_bytes=self.log.total(Stream.STDERR),
        )

    async def wait(self, timeout_s: float | None) -> CommandResult:
        with anyio.move_on_after(timeout_s if timeout_s is not None else float("inf")):
            while not self.ended:
                await self._changed.wait()
        if not self.ended:
            raise DeadlineExceededError(
                f"{self.record.process_id} still runs after {timeout_s:g} s", resolution="wait again, or signal it"
            )
        if self.record.status is None:
            raise self.error or _outcome_unknown(self.record.process_id)
        return self.log.result(self.record.status)

    async def next_event(self, cursor: Cursor) -> ProcessEvent:
        """Return what comes after `cursor`; the last event is an exit or an error."""
        while True:
            event = self.log.read(cursor)
            if event is not None:
                return event
            if self.ended:
                break
            await self._changed.wait()
        if self.record.status is not None:
            return ExitEvent(status=self.record.status)
        error = self.error or _outcome_unknown(self.record.process_id)
        return ErrorEvent(code=error.code, brief=error.brief, detail=error.detail, resolution=error.resolution)

    def running(self) -> Process:
        if self.ended or self._process is None:
            raise SandboxExitedError(f"{self.record.process_id} has ended")
        return self._process

    async def signal(self, number: int) -> None:
        """Signal it; 9 kills its whole tree."""
        if not 0 < number <= MAXIMUM_SIGNAL:
            raise InvalidRequestError(f"{number} is not a signal; 1 to {MAXIMUM_SIGNAL} are")
        if self._process is None:
            return
        if number != 9:
            if not self.ended:
                await self._process.signal(number)
            return
        # The command may have ended and left daemons behind: its tree is killed all the same.
        with shielded(self._core.settings.end_timeout_s, f"killing {self.record.process_id}"):
            await self._process.kill()
            while not self.ended:
                await self._changed.wait()


def _outcome_unknown(process_id: str) -> DsecError:
    return UnknownOutcomeError(f"{process_id} is gone, and nobody saw how it ended")


class AttachedStream:
    """A `CommandStream` over a background process."""

    def __init__(self, background: BackgroundProcess) -> None:
        self.process_id = background.record.process_id
        self._background = background
        self._cursor = Cursor()
        self._over = False

    def __aiter__(self) -> AsyncIterator[ProcessEvent]:
        return self

    async def __anext__(self) -> ProcessEvent:
        if self._over:
            raise StopAsyncIteration
        event = await self._background.next_event(self._cursor)
        self._over = isinstance(event, ExitEvent | ErrorEvent)
        return event

    async def write(self, data: bytes) -> None:
        await self._background.running().write(data)

    async def close_stdin(self) -> None:
        await self._background.running().close_stdin()

    async def signal(self, number: int) -> None:
        await self._background.signal(number)

    async def resize(self, size: TerminalSize) -> None:
        check_terminal(size)
        await self._background.running().resize(size)


def find(sandbox: Sandbox, process_id: str) -> BackgroundProcess:
    process = sandbox.processes.get(process_id)
    if process is None:
        raise ProcessNotFoundError(
            f"{sandbox.sandbox_id} has no background process {process_id[:80]!r}",
            resolution="list its processes; a rollback and a stop end them all",
        )
    return process


@asynccontextmanager
async def attach(sandbox: Sandbox, process_id: str) -> AsyncIterator[AttachedStream]:
    yield AttachedStream(find(sandbox, process_id))


async def start(core: Core, sandbox: Sandbox, generation: Generation, request: CommandRequest) -> ProcessInfo:
    """Start a background process: journal, spawn, follow."""
    _make_room(core, sandbox)
    spawn = spawn_request(core, generation, request, durable=True)
    now = core.now_boot_s()
    record = ProcessRecord(
        sandbox_id=sandbox.sandbox_id,
        process_id=spawn.process_id,
        generation=generation.number,
        argv=tuple(map(_shown, request.argv)),
        started_wall_s=core.parts.clock.wall_s(),
        deadline_boot_s=None if request.timeout_s is None else sandbox.running_s(now) + request.timeout_s,
        output_limit_bytes=request.output_limit_bytes,
    )
    process: Process | None = None
    with anyio.CancelScope() as scope, generation.operation(scope) as operation:
        await core.parts.journal.put_process(record)
        process = await generation.instance.spawn(spawn)
    if process is None or operation.error is not None:
        raise operation.error or SandboxExitedError(f"{sandbox.sandbox_id} has ended")
    if sandbox.generation is not generation:
        await end_process(core, process)
        raise generation.error or SandboxExitedError(f"{sandbox.sandbox_id} has ended")
    background = BackgroundProcess(core, sandbox, record, process, _spool(core, record))
    sandbox.processes[record.process_id] = background
    background.start()
    _feed(core, process, request)
    return background.info()


def _feed(core: Core, process: Process, request: CommandRequest) -> None:
    if not request.stdin:
        return

    async def work() -> None:
        if not request.keep_stdin_open:
            await feed(process, request.stdin)
            return
        try:
            await process.write(request.stdin)
        except SandboxExitedError:
            return

    core.supervisor.start(f"feed {process.process_id}", work)


def _make_room(core: Core, sandbox: Sandbox) -> None:
    """Forget the oldest process that has ended when as many as allowed are remembered."""
    if len(sandbox.processes) < core.settings.maximum_processes_kept:
        return
    for process_id, process in sandbox.processes.items():
        if process.ended:
            del sandbox.processes[process_id]
            return
    raise LimitExceededError(
        f"{sandbox.sandbox_id} runs {len(sandbox.processes)} background processes, as many as it may",
        resolution="end some of them",
    )


def _spool(core: Core, record: ProcessRecord) -> Spool | None:
    if core.parts.spool_dir is None:
        return None
    directory = core.parts.spool_dir / instance_name(record.sandbox_id, record.generation) / record.process_id
    spool = Spool(directory, record.output_limit_bytes)
    spool.open()
    return spool


async def take_over(core: Core, sandbox: Sandbox, record: ProcessRecord) -> None:
    """Remember a process of an earlier node: go on following it, or know that it is gone."""
    spool = _spool(core, record)
    log, kept = OutputLog(record.output_limit_bytes), None
    if spool is not None:
        spool.replay(log)
        kept = {stream: log.total(stream) for stream in Stream}
    process: Process | None = None
    if record.status is None:
        process = await sandbox.running().instance.reattach(record.process_id, kept=kept)
    background = BackgroundProcess(core, sandbox, record, process, spool, log)
    sandbox.processes[record.process_id] = background
    if not background.ended:
        background.start()
    elif spool is not None:
        spool.close()


async def wait(core: Core, sandbox: Sandbox, process_id: str, timeout_s: float | None) -> CommandResult:
    if timeout_s is not None and timeout_s != 0:
        check_timeout(timeout_s, core.settings)
    return await find(sandbox, process_id).wait(timeout_s)


def _shown(argument: str) -> str:
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
