r"""Shell sessions: a shell that keeps its directory and variables between commands.

A shell of the sandbox reads lines from a pipe. For every command it gets one line that evaluates the script, then
reports status and directory on descriptor 3, which the script itself does not have, and writes a marker to the real
stdout and stderr, so that we know where the command's output ends::

    command eval 'SCRIPT' </dev/null 3>&- 8>&- 9>&-; command printf '%s\0%s\0' "$?" "$PWD" >&3; ...

- Output cannot forge a status: it comes over a pipe of its own, which `3>&-` closes for the script and its children.
- Descriptors 8 and 9 are the real stdout and stderr, so that a script that redirects its own (``exec >file``) still
  ends.
- The marker is random, new for every command, and split in two arguments, so that neither ``set -v`` nor ``set -x``
  can echo it.
- ``command`` keeps a syntax error in a POSIX shell from ending it (POSIX 2.8.1), and passes by functions named printf.

A script can end its own shell (``exit``); its status is then the result, and the session is over. At a timeout the
whole tree is killed and the session is over too.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from dsec.base.errors import (
    CommandNotFoundError,
    DsecError,
    InvalidRequestError,
    LimitExceededError,
    ProcessNotFoundError,
    SandboxExitedError,
)
from dsec.base.ids import new_id
from dsec.base.units import MIB
from dsec.model.process import (
    CommandRequest,
    CommandResult,
    ExitStatus,
    SessionCommand,
    SessionInfo,
    SessionRequest,
    Stream,
)
from dsec.node.commands import end_process, spawn_request
from dsec.node.core import Core, shielded
from dsec.node.output import Collector, result
from dsec.node.sandbox import Generation, Operation, Sandbox
from dsec.node.validation import check_command, check_timeout
from dsec.runtimes.port import Process

MAXIMUM_SCRIPT_BYTES = 1 * MIB
_MAXIMUM_REPORT_BYTES = 16_384
_SHELLS = (("bash", "--noprofile", "--norc"), ("sh",))
_PREPARE = b"exec 8>&1 9>&2\n"


def _line(script: str, marker: tuple[str, str]) -> bytes:
    first, second = marker
    quoted = shlex.quote(script).encode("utf-8", "surrogateescape")
    end = (
        " </dev/null 3>&- 8>&- 9>&-"
        """; command printf '%s\\0%s\\0' "$?" "$PWD" >&3"""
        f"; command printf %s%s {first} {second} >&8"
        f"; command printf %s%s {first} {second} >&9\n"
    )
    return b"command eval " + quoted + end.encode()


class _Until:
    """Passes a stream's bytes on to a collector until the marker; what follows belongs to the next command."""

    __slots__ = ("_collector", "_held", "_marker", "found", "rest")

    def __init__(self, marker: bytes, collector: Collector) -> None:
        self._marker, self._collector = marker, collector
        self._held = b""
        self.rest = b""
        self.found = False

    def add(self, data: bytes) -> None:
        if self.found:
            self.rest += data
            return
        data = self._held + data
        at = data.find(self._marker)
        if at >= 0:
            self.found = True
            self.rest = data[at + len(self._marker) :]
            self._held = b""
            self._collector.add(data[:at])
            return
        keep = len(self._marker) - 1
        self._held = data[-keep:]
        self._collector.add(data[:-keep])

    def finish(self) -> None:
        """The stream ended: what was held back was output after all."""
        self._collector.add(self._held)
        self._held = b""


class Session:
    """One shell."""

    def __init__(self, core: Core, generation: Generation, process: Process, shell: str, cwd: str) -> None:
        self.session_id = new_id("ses", core.parts.random_bytes)
        self.shell = shell
        self.cwd = cwd
        self.over = False
        self._core, self._generation, self._process = core, generation, process
        self._turn = anyio.Lock()
        self._pending = dict.fromkeys(Stream, b"")
        self._prepared = False

    def info(self) -> SessionInfo:
        return SessionInfo(session_id=self.session_id, shell=self.shell, cwd=self.cwd)

    async def release(self) -> None:
        """Let go of a shell whose generation ends; its processes are somebody else's to end."""
        await self._process.close()

    async def close(self) -> None:
        """Kill what it runs and let go."""
        self.over = True
        await end_process(self._core, self._process)

    async def run(self, command: SessionCommand) -> CommandResult:
        """Run a script; scripts of one session run one after another."""
        async with self._turn:
            if self.over:
                raise ProcessNotFoundError(f"session {self.session_id} is over", resolution="open another")
            turn = _Turn(self._core, self._process, command, self._pending)
            try:
                time = self._generation.time
                with time.limit(command.timeout_s) as scope, self._generation.operation(scope) as operation:
                    await turn.run(prepare=not self._prepared)
                self._prepared = True
                return await self._outcome(turn, operation)
            finally:
                if not turn.complete and not self.over:
                    await self.close()

    async def _outcome(self, turn: _Turn, operation: Operation) -> CommandResult:
        if operation.error is not None:
            raise operation.error
        if turn.status is None:
            await self.close()
            return turn.result(timed_out=True)
        if turn.cwd:
            self.cwd = turn.cwd
        if turn.shell_ended:
            await self._generation.check_killed(turn.status.signal)
            await self.close()
        return turn.result()


class _Turn:
    """One script in a session."""

    def __init__(self, core: Core, process: Process, command: SessionCommand, pending: dict[Stream, bytes]) -> None:
        body = new_id("m", core.parts.random_bytes, length=20)
        self._marker = (body[:11], body[11:])
        self._process, self._command, self._pending = process, command, pending
        self._collectors = {stream: Collector(command.output_limit_bytes) for stream in Stream}
        self._until = {stream: _Until(body.encode(), self._collectors[stream]) for stream in Stream}
        for stream, data in pending.items():
            self._until[stream].add(data)
        self._report = b""
        self._started = anyio.current_time()
        self.status: ExitStatus | None = None
        self.cwd = ""
        self.shell_ended = False

    @property
    def complete(self) -> bool:
        """Whether the shell is ready for the next script."""
        return self.status is not None and not self.shell_ended

    async def run(self, *, prepare: bool) -> None:
        line = (_PREPARE if prepare else b"") + _line(self._command.script, self._marker)
        failures: list[DsecError] = []

        async def guarded(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except DsecError as error:
                # Kept, not raised: a task group would wrap it.
                failures.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(guarded, self._read_output)
            group.start_soon(guarded, self._read_report)
            try:
                await self._process.write(line)
            except DsecError as error:
                # The shell is gone; the readers see its end.
                if not isinstance(error, SandboxExitedError):
                    failures.append(error)
        if failures:
            raise failures[0]
        await self._conclude()

    async def _read_output(self) -> None:
        while not all(until.found for until in self._until.values()):
            chunk = await self._process.read()
            if chunk is None:
                self.shell_ended = True
                return
            self._until[chunk[0]].add(chunk[1])

    async def _read_report(self) -> None:
        while self._report.count(b"\0") < 2 and len(self._report) < _MAXIMUM_REPORT_BYTES:
            data = await self._process.read_control()
            if not data:
                return
            self._report += data

    async def _conclude(self) -> None:
        for stream, until in self._until.items():
            until.finish()
            self._pending[stream] = until.rest
        fields = self._report.split(b"\0")
        duration_s = anyio.current_time() - self._started
        if self.shell_ended:
            status = await self._process.wait()
            self.status = msgspec.structs.replace(status, duration_s=duration_s)
            return
        code = int(fields[0]) if fields[0].isdigit() else 255
        signal = code - 128 if 128 < code <= 128 + 64 else None
        self.status = ExitStatus(exit_code=code, signal=signal, duration_s=duration_s)
        self.cwd = fields[1].decode("utf-8", "replace") if len(fields) > 1 else ""

    def result(self, *, timed_out: bool = False) -> CommandResult:
        status = self.status
        if timed_out:
            for until in self._until.values():
                until.finish()
            duration_s = anyio.current_time() - self._started
            status = ExitStatus(exit_code=137, signal=9, timed_out=True, duration_s=duration_s)
        assert status is not None
        return result(status, self._collectors[Stream.STDOUT], self._collectors[Stream.STDERR])


def check_session_command(core: Core, command: SessionCommand) -> None:
    if "\0" in command.script:
        raise InvalidRequestError("script holds a NUL byte")
    try:
        size = len(command.script.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise InvalidRequestError("script holds text that is not valid Unicode") from error
    if size > MAXIMUM_SCRIPT_BYTES:
        raise InvalidRequestError(f"script has {size} bytes; at most {MAXIMUM_SCRIPT_BYTES} are allowed")
    check_timeout(command.timeout_s, core.settings)
    if not 0 <= command.output_limit_bytes <= core.settings.maximum_output_limit_bytes:
        raise InvalidRequestError(
            f"output_limit_bytes is {command.output_limit_bytes}; "
            f"it must be 0 to {core.settings.maximum_output_limit_bytes}"
        )


def find_session(sandbox: Sandbox, session_id: str) -> Session:
    session = sandbox.sessions.get(session_id)
    if session is None:
        raise ProcessNotFoundError(
            f"{sandbox.sandbox_id} has no session {session_id[:80]!r}",
            resolution="open one; a rollback and a stop end them all, and so does a restart of the node",
        )
    return session


async def open_session(core: Core, sandbox: Sandbox, generation: Generation, request: SessionRequest) -> SessionInfo:
    """Open a session in the first shell that the image has."""
    for session_id in [key for key, session in sandbox.sessions.items() if session.over]:
        del sandbox.sessions[session_id]
    if len(sandbox.sessions) >= core.settings.maximum_sessions:
        raise LimitExceededError(
            f"{sandbox.sandbox_id} has {len(sandbox.sessions)} sessions, as many as it may",
            resolution="close some of them",
        )
    for argv in _SHELLS:
        try:
            session = await _try_shell(core, generation, request, argv)
        except CommandNotFoundError:
            continue
        if sandbox.generation is not generation:
            await session.close()
            raise generation.error or SandboxExitedError(f"{sandbox.sandbox_id} has ended")
        sandbox.sessions[session.session_id] = session
        return session.info()
    raise CommandNotFoundError(
        f"the image of {sandbox.sandbox_id} has no shell",
        detail="neither bash nor sh could be started",
        resolution="run commands without a session, or use an image with a shell",
    )


async def _try_shell(core: Core, generation: Generation, request: SessionRequest, argv: tuple[str, ...]) -> Session:
    """Start a shell and run an empty script, since a missing program may be known only after the start."""
    asked = CommandRequest(argv=argv, cwd=request.cwd, env=request.env, user=request.user, keep_stdin_open=True)
    check_command(asked, core.settings)
    cwd = posixpath.join(generation.workdir, request.cwd) if request.cwd is not None else generation.workdir
    process: Process | None = None
    with anyio.CancelScope() as scope, generation.operation(scope) as operation:
        process = await generation.instance.spawn(spawn_request(core, generation, asked, control_fd=True))
    if process is None:
        raise operation.error or SandboxExitedError("the sandbox has ended")
    session = Session(core, generation, process, argv[0], cwd)
    first = await session.run(SessionCommand(script=":", timeout_s=core.settings.end_timeout_s))
    if session.over:
        raise SandboxExitedError(
            f"{argv[0]} ended at once with status {first.status.exit_code}",
            detail=first.stderr.decode("utf-8", "replace")[-2000:],
        )
    return session


async def close_all(core: Core, sandbox: Sandbox) -> None:
    """Close every session of a sandbox."""
    sessions, sandbox.sessions = sandbox.sessions, {}
    for session in sessions.values():
        with shielded(core.settings.end_timeout_s, f"closing {session.session_id}"):
            await session.close()
