"""A command that outlives the node.

A small `sh` on the host stands between us and the runtime. It holds both ends of the two pipes that carry the output,
so that the command neither blocks on a missing reader's death nor dies of SIGPIPE, only waits while nobody reads; when
the command ends it writes the exit code to a file and stays until the last output was fetched. A later node opens the
read ends again through the shell's ``/proc/<pid>/fd``: anonymous pipes show the guest no path of the host, as FIFOs
would. An input that is to stay open is held the same way, by a second shell of its own: the one that waits for the
command could not let go of it meanwhile, and the command would never see the end of its input.
Everything else that a later node needs is in the command's directory::

    pid      the shell's pid
    started  the shell was let go and starts the runtime
    status   FIFO that announces the exit code to a node that is there
    exit     the exit code, written by rename
    release  FIFO: a line here lets the shell go
    input    FIFO, for an input that stays open: a line here ends it
    input.pid  pid of the shell that holds the input; removed before that is told to end it
    stdout, stderr  output on its way (dsec.runtimes.container.kept_output)
    log      the runtime's own errors
    process.json

The shell begins at a gate, a pipe on which it waits for a line until it is in the command's control group. When the
node dies before that, the gate is at its end and so is the shell.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dsec.base.errors import DsecError, InvalidRequestError, RuntimeFailedError
from dsec.linux.processes import shares_our_pids, start_boot_s
from dsec.model.process import ExitStatus, Stream, TerminalSize
from dsec.runtimes.container.child import GATE_DESCRIPTOR, HostChild
from dsec.runtimes.container.command import Pipes, RuntimeProgram
from dsec.runtimes.container.failures import classify, logged_errors
from dsec.runtimes.container.group import CommandGroup
from dsec.runtimes.container.kept_output import KeptOutput
from dsec.runtimes.container.output import OutputReader
from dsec.runtimes.container.paths import InstancePaths
from dsec.runtimes.container.process_base import ProcessBase
from dsec.runtimes.port import SpawnRequest

SHELL = "/bin/sh"
SCRIPT = f"""cd "$1" || exit 1
shift
read -r _ <&{GATE_DESCRIPTOR} || exit 1
if [ -p input ]; then
    (exec 3>&- 4>&- 7<&- 8<&- {GATE_DESCRIPTOR}<&- 6<>input; read -r _ <&6) &
    echo "$!" >input.new && mv input.new input.pid
fi
exec {GATE_DESCRIPTOR}<&- 5<>status 6<>release
: >started
(exec "$@" >&3 2>&4 3>&- 4>&- 5>&- 6>&- 7<&- 8<&-)
code=$?
echo "$code" >exit.new && mv exit.new exit
if [ -p input ]; then
    echo 1<>input
    wait
fi
echo "$code" >&5
read -r _ <&6
"""
"""The runtime is executed in a subshell: without one, shells redirect themselves for the time of a command, and the
descriptors would not be where a later node looks for them."""

_FIFOS = ("status", "release")
_WRITE_ENDS = {Stream.STDOUT: 3, Stream.STDERR: 4}
_READ_ENDS = {Stream.STDOUT: 7, Stream.STDERR: 8}
_INPUT_END = 5
"""Where the shell gets the write end of an input that stays open, and its holder keeps it."""
_KILLED_EXIT_CODE = 128 + signal.SIGKILL
_MAXIMUM_LOG_BYTES = 65_536
_EXECVE_ROUNDS = 1000
_EXECVE_PAUSE_MS = 1


class _Names(msgspec.Struct):
    """The part of a process document that errors name."""

    args: tuple[str, ...] = ("",)
    cwd: str = ""


class DurableProcess(ProcessBase):
    """See `dsec.runtimes.port.Process`.

    Args:
        process_id: its id.
        directory: its directory on the host.
        group: its control group.
        pidfd: of the shell; None when the shell is gone.
        sources: read ends of the output, owned from here on.
        stdin: write end of the input, owned; None without one.
        kept: how many bytes of each stream an earlier caller has put away; None: what it had when it let go.
        age_s: for how long it had run already.
    """

    def __init__(
        self,
        process_id: str,
        directory: Path,
        group: CommandGroup,
        *,
        pidfd: int | None,
        sources: Mapping[Stream, int],
        stdin: int | None = None,
        kept: Mapping[Stream, int] | None = None,
        age_s: float = 0.0,
    ) -> None:
        self._directory = directory
        self._closed = False
        self._pidfd = pidfd
        self._status = self._open_fifo("status")
        self._release_fifo = self._open_fifo("release")  # Held open: a line nobody has read yet must not vanish.
        self._input_fifo = self._open_fifo("input") if (directory / "input").exists() else -1
        self._kept = KeptOutput(directory)
        backlog = self._kept.backlog(kept)
        output = OutputReader(
            sources, os.close, receive=self._kept.receive, returned=self._kept.returned, backlog=backlog
        )
        super().__init__(process_id, group, output, stdin)
        self._started -= age_s
        if (directory / "exit").exists() or self._pidfd is None:
            self._conclude()
            return
        self._loop.add_reader(self._status, self._conclude)
        self._loop.add_reader(self._pidfd, self._conclude)

    def _open_fifo(self, name: str) -> int:
        # Opened for both directions, so that opening does not wait for the shell.
        return os.open(self._directory / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    @classmethod
    def start(
        cls,
        request: SpawnRequest,
        document: bytes,
        program: RuntimeProgram,
        paths: InstancePaths,
        instance_id: str,
        group: CommandGroup,
        owner: int,
    ) -> DurableProcess:
        """Start the shell, move it into the command's group, and let it start the runtime.

        `owner` is the host id of the command's user.
        """
        if request.terminal is not None or request.control_fd:
            raise InvalidRequestError(
                "a background process has no terminal", resolution="start it without one, or run it in the foreground"
            )
        directory = paths.process(request.process_id)
        directory.mkdir(parents=True, mode=0o700)  # It tells the environment of the command.
        for name in (*_FIFOS, "input") if request.hold_stdin else _FIFOS:
            os.mkfifo(directory / name, 0o600)
        (directory / "process.json").write_bytes(document)
        arguments = program.exec_arguments(
            paths.runtime_state, instance_id, document=str(directory / "process.json"), log=str(directory / "log")
        )
        pipes = _pipes(request, owner)
        try:
            child = HostChild.start(
                SHELL,
                ["-c", SCRIPT, "sh", str(directory), program.path, *arguments],
                pipes.child,
                scratch=paths.directory,
            )
            pipes.close_child()
            (directory / "pid").write_text(str(child.pid), encoding="ascii")
            group.attach(child.pid)
            pidfd = os.pidfd_open(child.pid)
            sources = {stream: pipes.take(stream.value) for stream in _READ_ENDS}
            stdin = pipes.ours.pop("stdin", None)
            process = cls(request.process_id, directory, group, pidfd=pidfd, sources=sources, stdin=stdin)
            os.write(pipes.ours["gate"], b"\n")
            return process
        finally:
            pipes.close()

    @classmethod
    def find(
        cls, process_id: str, paths: InstancePaths, group: CommandGroup, kept: Mapping[Stream, int] | None
    ) -> DurableProcess | None:
        """Take over what an earlier node started; None when there is nothing of it."""
        directory = paths.process(process_id)
        pidfd = _open_pidfd(directory)
        if pidfd is None and not (directory / "started").exists():
            # Its start was never acknowledged. (A shell that lives may have been frozen on its way to say so.)
            return None
        sources = {} if pidfd is None else _reopen(directory)
        stdin = _reopen_input(directory)
        age_s = _age_s(directory)
        process = cls(process_id, directory, group, pidfd=pidfd, sources=sources, stdin=stdin, kept=kept, age_s=age_s)
        if stdin is None and process._input_fifo >= 0:
            # Its end was asked for, and whoever did so may have died before it could say it to the holder.
            _end_input(directory, process._input_fifo)
        return process

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
        """The shell is gone: nothing of the command is left on the host but its directory."""
        self._let_go()
        self._group.release()

    def _let_go(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._status >= 0:
            self._loop.remove_reader(self._status)
            os.close(self._status)
            os.close(self._release_fifo)
            self._status = self._release_fifo = -1
        if self._input_fifo >= 0:
            os.close(self._input_fifo)
            self._input_fifo = -1

    def _judge(self) -> ExitStatus | DsecError:
        message = logged_errors(_read_bounded(self._directory / "log"))
        code = self._exit_code()
        oom_killed = self._was_oom_killed()
        if code is None:
            # Whoever killed the shell, nobody waits for the command any more.
            self._group.kill_nowait()
        elif message and not self._killed:
            names = self._names()
            return classify(message, program=names.args[0], cwd=names.cwd)
        return self._exit_status(_KILLED_EXIT_CODE if code is None else code, oom_killed=oom_killed)

    def _names(self) -> _Names:
        try:
            return msgspec.json.decode((self._directory / "process.json").read_bytes(), type=_Names)
        except (FileNotFoundError, msgspec.DecodeError):
            return _Names()

    def _exit_code(self) -> int | None:
        try:
            return int((self._directory / "exit").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None

    async def read_control(self) -> bytes:
        return b""

    async def signal(self, number: int) -> None:
        if self._outcome.done():
            return
        # The runtime is the shell's child, and the command is the runtime's.
        shell = int((self._directory / "pid").read_text(encoding="ascii"))
        holder = _read_pid(self._directory / "input.pid")
        await self._group.signal_command(lambda: self._group.child_of(shell, but=holder), number, self._outcome)

    async def close_stdin(self) -> None:
        self._close_input()
        if self._input_fifo >= 0:
            _end_input(self._directory, self._input_fifo)

    async def resize(self, size: TerminalSize) -> None:
        raise InvalidRequestError(f"{self.process_id} has no terminal")

    async def kill(self) -> None:
        self._killed = True
        await self._group.kill()
        if not self._closed:
            await asyncio.shield(self._outcome)

    async def close(self, *, forget: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        self._close_input()
        self._output.close()
        self._kept.close()
        if self._outcome.done() and not forget:
            return
        if self._outcome.done():
            shutil.rmtree(self._directory, ignore_errors=True)
        else:
            self._let_go()
            self._outcome.set_result(RuntimeFailedError(f"{self.process_id} was let go while it ran"))


def _pipes(request: SpawnRequest, owner: int) -> Pipes:
    """Make the descriptors of the shell. It also gets the read ends, to hold them for the next node."""
    pipes = Pipes()
    try:
        if request.stdin:
            pipes.input("stdin", 0, owner)
            if request.hold_stdin:
                pipes.child[_INPUT_END] = os.dup(pipes.ours["stdin"])
        else:
            pipes.empty(0, owner)
        pipes.sink(1)
        pipes.sink(2)
        pipes.input("gate", GATE_DESCRIPTOR)
        for stream, target in _WRITE_ENDS.items():
            pipes.output(stream.value, target, owner)
            pipes.child[_READ_ENDS[stream]] = os.dup(pipes.ours[stream.value])
    except OSError:
        pipes.close()
        raise
    return pipes


def _reopen(directory: Path) -> dict[Stream, int]:
    """Open the output that a shell holds; empty when it ends just now."""
    sources: dict[Stream, int] = {}
    try:
        pid = _read_pid(directory / "pid")
        for stream, number in _READ_ENDS.items():
            sources[stream] = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        pass  # What was opened before the shell ended is still good.
    return sources


def _reopen_input(directory: Path) -> int | None:
    """Open the input that is held open; None when there is none any more."""
    pidfd = _open_pidfd(directory, "input.pid")
    if pidfd is None:
        return None
    try:
        holder = _read_pid(directory / "input.pid")
        return os.open(f"/proc/{holder}/fd/{_INPUT_END}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # It ends just now.
    finally:
        os.close(pidfd)


def _end_input(directory: Path, fifo: int) -> None:
    """Have the holder let go. First nobody may take the input over any more: they would keep it open in its place."""
    (directory / "input.pid").unlink(missing_ok=True)
    os.write(fifo, b"\n")


def _read_pid(path: Path) -> int:
    """Return the pid that a file holds; 0 when there is no such file."""
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def _open_pidfd(directory: Path, name: str = "pid") -> int | None:
    """Open the pidfd of a shell; None when the process of that pid is gone or is somebody else.

    A guest can take the pid of a shell that has ended and call itself as that did. It must not be believed: what it
    holds as a descriptor would be opened with our rights.
    """
    try:
        pid = _read_pid(directory / name)
        descriptor = os.pidfd_open(pid)
    except (ValueError, OSError):
        return None
    if os.fsencode(directory) in _command_line(pid, descriptor).split(b"\0") and _is_outside(pid):
        return descriptor
    os.close(descriptor)
    return None


def _is_outside(pid: int) -> bool:
    try:
        return shares_our_pids(pid)
    except OSError:
        return False  # It has ended.


def _command_line(pid: int, pidfd: int) -> bytes:
    """Return the command line of a process; empty when it has ended.

    It is empty, too, in the middle of execve(2), and just there a parent that started it by vfork(2) goes on: such a
    parent may have acknowledged the start and died before the process ran again. So look until it has one.
    """
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    for _ in range(_EXECVE_ROUNDS):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                said = file.read(65_536)
        except OSError:
            return b""
        if said or poller.poll(_EXECVE_PAUSE_MS):
            return said
    return b""


def _age_s(directory: Path) -> float:
    """Return how long ago a command started; of one that has ended, how long it ran.

    By the kernel's own record of the shell's start where there is one (it does not follow the wall clock), else by the
    times of the files that the shell wrote.
    """
    started_s = _modified_s(directory / "started")
    ended_s = _modified_s(directory / "exit")
    if ended_s is not None and started_s is not None:
        return max(0.0, ended_s - started_s)
    started_boot_s = start_boot_s(_read_pid(directory / "pid"))
    if started_boot_s is not None:
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_boot_s)
    return 0.0 if started_s is None else max(0.0, time.time() - started_s)


def _modified_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _read_bounded(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAXIMUM_LOG_BYTES)
    except FileNotFoundError:
        return b""
