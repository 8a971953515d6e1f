"""What foreground and durable commands have in common: streams, an outcome that is fixed once, and how it is told."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from dsec.base.errors import DsecError, SandboxExitedError
from dsec.model.process import ExitStatus, Stream
from dsec.runtimes.container.group import CommandGroup
from dsec.runtimes.container.output import OutputReader
from dsec.runtimes.container.waiting import wait_writable


class ProcessBase:
    """The part of `dsec.runtimes.port.Process` that does not depend on who waits for the command.

    Args:
        process_id: its id.
        group: the control group of the command and of all it starts.
        output: its streams.
        stdin: write end of the input, or a descriptor of the terminal, owned; None when there is none.
    """

    def __init__(self, process_id: str, group: CommandGroup, output: OutputReader, stdin: int | None) -> None:
        self.process_id = process_id
        self._loop = asyncio.get_running_loop()
        self._group = group
        self._output = output
        self._stdin = stdin
        self._started = time.monotonic()
        self._oom_kills = group.oom_kills()
        self._killed = False
        self._outcome: asyncio.Future[ExitStatus | DsecError] = self._loop.create_future()

    # -- the end --------------------------------------------------------------------------------------------------

    def _was_oom_killed(self) -> bool:
        return self._group.oom_kills() > self._oom_kills

    def _exit_status(self, code: int, *, oom_killed: bool) -> ExitStatus:
        """Return the status for an exit code as shells give it: 128 and a signal's number for a death by signal."""
        return ExitStatus(
            exit_code=code,
            signal=code - 128 if 128 < code < 128 + signal.NSIG else None,
            oom_killed=oom_killed,
            duration_s=time.monotonic() - self._started,
        )

    async def wait(self) -> ExitStatus:
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, DsecError):
            raise outcome
        return outcome

    # -- streams --------------------------------------------------------------------------------------------------

    async def read(self) -> tuple[Stream, bytes] | None:
        chunk = await self._output.read()
        if chunk is None and self._outcome.done():
            outcome = self._outcome.result()
            if isinstance(outcome, DsecError):
                raise outcome
        return chunk

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
                self._close_input()
                raise SandboxExitedError(f"{self.process_id}: its input is closed", detail=str(error)) from error

    async def close_stdin(self) -> None:
        self._close_input()

    def _close_input(self) -> None:
        if self._stdin is not None:
            descriptor, self._stdin = self._stdin, None
            os.close(descriptor)
