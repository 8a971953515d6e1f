"""A command that outlives the node.

A small `sh` on the host stands between us and the runtime. It holds both ends of two FIFOs that carry the output, so
that the command neither blocks on a missing reader's death nor dies of SIGPIPE, only waits while nobody reads; when
the command ends it writes the exit code to a file and stays until the last output was fetched. Everything that a
later node needs is in the command's directory::

    pid      the shell's pid
    started  the shell was let go and has started the runtime
    out err  FIFOs of the output
    status   FIFO that announces the exit code to a node that is there
    exit     the exit code, written by rename
    release  FIFO: a line here lets the shell go
    log      the runtime's own errors
    process.json
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import msgspec

from dsec.base.errors import DsecError, InvalidRequestError, RuntimeFailedError, SandboxExitedError
from dsec.model.process import ExitStatus, Stream, TerminalSize
from dsec.runtimes.container.child import HostChild
from dsec.runtimes.container.command import Pipes, RuntimeProgram
from dsec.runtimes.container.failures import classify, logged_errors
from dsec.runtimes.container.group import CommandGroup
from dsec.runtimes.container.output import OutputReader
from dsec.runtimes.container.paths import InstancePaths
from dsec.runtimes.container.waiting import wait_writable
from dsec.runtimes.port import SpawnRequest

SHELL = "/bin/sh"
SCRIPT = """cd "$1" || exit 1
shift
exec 3<>out 4<>err 5<>status 6<>release
read -r _ <&6
: >started
"$@" >&3 2>&4 3>&- 4>&- 5>&- 6>&-
code=$?
echo "$code" >exit.new && mv exit.new exit
echo "$code" >&5
read -r _ <&6
"""
"""Waits for a first line on `release` before it starts the runtime: by then it is in its control group."""

_FIFOS = ("out", "err", "status", "release")
_MAXIMUM_LOG_BYTES = 65_536


class DurableProcess:
    """See `dsec.runtimes.port.Process`."""

    def __init__(
        self, process_id: str, directory: Path, group: CommandGroup, *, pidfd: int | None, stdin: int | None = None
    ) -> None:
        self.process_id = process_id
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._group = group
        self._stdin = stdin
        self._started = time.monotonic()
        self._oom_kills = group.oom_kills()
        self._killed = False
        self._outcome: asyncio.Future[ExitStatus | DsecError] = self._loop.create_future()
        self._pidfd = pidfd
        self._status = self._open_fifo("status")
        self._release_fifo = self._open_fifo("release")  # Held open: a line nobody has read yet must not vanish.
        self._output = OutputReader(
            {Stream.STDOUT: self._open_fifo("out"), Stream.STDERR: self._open_fifo("err")}, os.close
        )
        if (directory / "exit").exists() or self._pidfd is None:
            self._conclude()
            return
        self._loop.add_reader(self._status, self._conclude)
        self._loop.add_reader(self._pidfd, self._conclude)

    def _open_fifo(self, name: str) -> int:
        # Opened for both directions, so that the reader never sees an end: the exit code is what ends it.
        return os.open(self._directory / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    @classmethod
    async def start(
        cls,
        request: SpawnRequest,
        document: object,
        program: RuntimeProgram,
        paths: InstancePaths,
        instance_id: str,
        group: CommandGroup,
    ) -> DurableProcess:
        """Start the shell, move it into the command's group, and let it start the runtime."""
        if request.terminal is not None or request.control_fd:
            raise InvalidRequestError(
                "a background process has no terminal", resolution="start it without one, or run it in the foreground"
            )
        directory = paths.process(request.process_id)
        directory.mkdir(parents=True)
        for name in _FIFOS:
            os.mkfifo(directory / name, 0o600)
        (directory / "process.json").write_bytes(msgspec.json.encode(document))
        arguments = program.exec_arguments(
            paths.runtime_state, instance_id, document=str(directory / "process.json"), log=str(directory / "log")
        )
        pipes = Pipes()
        try:
            if request.stdin:
                pipes.input("stdin", 0)
            else:
                pipes.null(0, os.O_RDONLY)
            pipes.null(1, os.O_WRONLY)
            pipes.null(2, os.O_WRONLY)
            child = HostChild.start(SHELL, ["-c", SCRIPT, "sh", str(directory), program.path, *arguments], pipes.child)
            pipes.close_child()
            (directory / "pid").write_text(str(child.pid), encoding="ascii")
            group.attach(child.pid)
            pidfd = os.pidfd_open(child.pid)
            process = cls(request.process_id, directory, group, pidfd=pidfd, stdin=pipes.ours.pop("stdin", None))
            process._release()
            return process
        finally:
            pipes.close()

    @classmethod
    async def find(cls, process_id: str, paths: InstancePaths, group: CommandGroup) -> DurableProcess | None:
        """Take over what an earlier node started; None when there is nothing of it."""
        directory = paths.process(process_id)
        if not (directory / "started").exists():
            end_shell(directory)  # Its start was never acknowledged.
            return None
        return cls(process_id, directory, group, pidfd=_open_pidfd(directory))

    def _release(self) -> None:
        os.write(self._release_fifo, b"\n")

    def _conclude(self) -> None:
        if self._outcome.done():
            return
        self._loop.remove_reader(self._status)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        self._outcome.set_result(self._judge())
        self._output.finish()
        if self._pidfd is not None:
            self._release()  # The output is fetched: the shell may go.
            self._loop.add_reader(self._pidfd, self._clean_up)
        else:
            self._clean_up()

    def _clean_up(self) -> None:
        """The shell is gone: nothing of the command is left on the host."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        os.close(self._status)
        os.close(self._release_fifo)
        self._group.release()

    def _judge(self) -> ExitStatus | DsecError:
        message = logged_errors(_read_bounded(self._directory / "log"))
        code = self._exit_code()
        oom_killed = self._group.oom_kills() > self._oom_kills
        if message and not self._killed:
            return classify(message, program="the program")
        if code is None and not self._killed and not oom_killed:
            return RuntimeFailedError(f"{self.process_id} ended and left no exit code")
        code = 137 if code is None else code
        return ExitStatus(
            exit_code=code,
            signal=code - 128 if 128 < code < 193 else None,
            oom_killed=oom_killed,
            duration_s=time.monotonic() - self._started,
        )

    def _exit_code(self) -> int | None:
        try:
            return int((self._directory / "exit").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None

    async def read(self) -> tuple[Stream, bytes] | None:
        chunk = await self._output.read()
        if chunk is None and self._outcome.done():
            outcome = self._outcome.result()
            if isinstance(outcome, DsecError):
                raise outcome
        return chunk

    async def read_control(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._stdin is None:
                raise SandboxExitedError(f"{self.process_id}: its input is closed")
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await wait_writable(self._stdin, self._outcome)
            except OSError as error:
                await self.close_stdin()
                raise SandboxExitedError(f"{self.process_id}: its input is closed", detail=str(error)) from error

    async def close_stdin(self) -> None:
        if self._stdin is not None:
            descriptor, self._stdin = self._stdin, None
            os.close(descriptor)

    async def wait(self) -> ExitStatus:
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, DsecError):
            raise outcome
        return outcome

    async def signal(self, number: int) -> None:
        if not self._outcome.done():
            self._group.signal_command(self._runtime_pid(), number)

    def _runtime_pid(self) -> int:
        """The runtime is the shell's child; the command is the runtime's."""
        return self._group.child_of(int((self._directory / "pid").read_text(encoding="ascii")))

    async def resize(self, size: TerminalSize) -> None:
        raise InvalidRequestError(f"{self.process_id} has no terminal")

    async def kill(self) -> None:
        self._killed = True
        await self._group.kill()
        await asyncio.shield(self._outcome)

    async def close(self) -> None:
        await self.close_stdin()
        self._output.close()


def _open_pidfd(directory: Path) -> int | None:
    """Open the shell's pidfd; None when the process of that pid is gone or is somebody else."""
    try:
        pid = int((directory / "pid").read_text(encoding="ascii"))
        descriptor = os.pidfd_open(pid)
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return None
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            ours = os.fsencode(directory) in file.read(65_536).split(b"\0")
    except OSError:
        ours = False
    if ours:
        return descriptor
    os.close(descriptor)
    return None


def end_shell(directory: Path) -> None:
    """Kill the shell of a command, if it runs: it may not have reached the command's control group yet."""
    descriptor = _open_pidfd(directory)
    if descriptor is not None:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


def _read_bounded(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAXIMUM_LOG_BYTES)
    except FileNotFoundError:
        return b""
