"""A foreground command: `crun exec` as our child, its pipes in our event loop.

Theory of a start. The runtime's process must be in the command's control group before it makes the guest's process, or
a descendant could stand outside what we kill. So the process document is not a file but a pipe: the runtime blocks on
reading it until we, having moved its pid, write it. What the runtime itself has to say arrives on a log pipe that
only it holds.
"""

from __future__ import annotations

import asyncio
import os
import signal

from dsec.base.errors import DsecError, InvalidRequestError, PathNotFoundError, RuntimeFailedError
from dsec.model.process import ExitStatus, TerminalSize
from dsec.runtimes.container.child import HostChild, bounded_read
from dsec.runtimes.container.failures import classify, logged_errors, process_limit_error
from dsec.runtimes.container.group import CommandGroup
from dsec.runtimes.container.output import OutputReader
from dsec.runtimes.container.process_base import ProcessBase
from dsec.runtimes.container.terminal import resize_terminal
from dsec.runtimes.container.waiting import wait_readable

KILLED_EXIT_CODE = 128 + signal.SIGKILL


class ContainerProcess(ProcessBase):
    """See `dsec.runtimes.port.Process`.

    Args:
        process_id: its id.
        child: the runtime's process.
        group: the control group of the command and of all it starts.
        output: its streams.
        log: read end of the runtime's log pipe, owned from here on.
        stdin: write end of the input, or a descriptor of the terminal, owned; None when there is none.
        has_terminal: whether it is a terminal.
        control: read end of descriptor 3; None without one.
        program, cwd: named in errors.
    """

    def __init__(
        self,
        process_id: str,
        child: HostChild,
        group: CommandGroup,
        output: OutputReader,
        *,
        log: int,
        stdin: int | None,
        has_terminal: bool = False,
        control: int | None = None,
        program: str = "",
        cwd: str = "",
    ) -> None:
        super().__init__(process_id, group, output, stdin)
        self._child = child
        self._log = log
        self._has_terminal = has_terminal
        self._control = control
        self._program = program
        self._cwd = cwd
        child.ended.add_done_callback(self._conclude)

    # -- the end --------------------------------------------------------------------------------------------------

    def _conclude(self, ended: asyncio.Future[int]) -> None:
        """The runtime's process has ended: fix the outcome, then let readers see the last bytes."""
        if self._outcome.done():
            return
        message = logged_errors(bounded_read(self._log))
        os.close(self._log)
        self._close_input()
        oom_killed = self._was_oom_killed()
        if ended.result() < 0:
            # The runtime was killed, and nobody would wait for the command any more.
            self._group.kill_nowait()
        self._outcome.set_result(self._judge(ended.result(), message, oom_killed))
        self._output.finish()
        self._group.release()

    def _judge(self, code: int, message: str, oom_killed: bool) -> ExitStatus | DsecError:
        if message and not self._killed:
            if oom_killed:
                message = f"out of memory: {message}"
            error = classify(message, program=self._program, cwd=self._cwd)
            misleading = isinstance(error, RuntimeFailedError | PathNotFoundError)
            # When crun cannot fork it says no more than "fail startup"; crun 1.8 even goes on by itself, looks for the
            # directory on the host, and dies before it would execute anything.
            return process_limit_error() if misleading and self._group.met_process_limit() else error
        if code == -signal.SIGPIPE and not self._killed:
            # crun dies so when the process that it prepares could not fork (it writes to a pipe that nobody reads).
            if self._group.met_process_limit():
                return process_limit_error()
            return RuntimeFailedError(f"the OCI runtime died while it started {self._program!r}")
        if code < 0:
            code = 128 - code
        return self._exit_status(code, oom_killed=oom_killed)

    # -- streams --------------------------------------------------------------------------------------------------

    async def read_control(self) -> bytes:
        while self._control is not None:
            try:
                data = os.read(self._control, 65_536)
            except BlockingIOError:
                if self._outcome.done():
                    break
                await wait_readable(self._control, self._outcome)
                continue
            if not data:
                break
            return data
        self._close_control()
        return b""

    async def close_stdin(self) -> None:
        if self._has_terminal and self._stdin is not None:
            await self.write(b"\x04")  # A terminal has no end of file but the one that is typed.
            return
        self._close_input()

    def _close_control(self) -> None:
        if self._control is not None:
            descriptor, self._control = self._control, None
            os.close(descriptor)

    # -- control --------------------------------------------------------------------------------------------------

    async def signal(self, number: int) -> None:
        if not self._child.has_ended:
            await self._group.signal_command(lambda: self._child.pid, number, self._child.ended)

    async def resize(self, size: TerminalSize) -> None:
        if not self._has_terminal:
            raise InvalidRequestError(f"{self.process_id} has no terminal", resolution="start it with one")
        if self._stdin is not None:
            resize_terminal(self._stdin, size)
            if not self._child.has_ended:
                # A runtime that copies between two terminals passes the size on when it hears of it; others ignore it.
                os.kill(self._child.pid, signal.SIGWINCH)

    async def kill(self) -> None:
        self._killed = True
        await self._group.kill()
        await self._child.wait()

    async def close(self, *, forget: bool = True) -> None:
        self._output.close()
        self._close_input()
        self._close_control()
        if self._outcome.done():
            self._group.release()
