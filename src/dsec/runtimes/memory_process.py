"""One process tree of an in-memory instance.

Every program is a task on the event loop: the main one, and a further one per daemon. They end when the instance
says so, never because whoever started them went away.
"""

from __future__ import annotations

import asyncio
import signal as signals
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dsec.base.errors import InvalidRequestError, SandboxExitedError
from dsec.model.process import ExitStatus, Stream, TerminalSize
from dsec.runtimes.memory_shell import Job, Program
from dsec.runtimes.memory_tree import Identity, Tree
from dsec.runtimes.port import SpawnRequest

PIPE_BYTES = 65_536
_IGNORED_BY_DEFAULT = frozenset({signals.SIGCHLD, signals.SIGCONT, signals.SIGURG, signals.SIGWINCH})


class Condition:
    """Wakes everyone who waits, each time something changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self._event.wait()


class Kernel(Protocol):
    """What a process needs of its instance."""

    tree: Tree

    async def gate(self) -> None: ...

    def check_alive(self) -> None: ...

    def account(self, change: int) -> None: ...


class MemoryProcess:
    """A `Process` whose programs are coroutines."""

    def __init__(self, kernel: Kernel, request: SpawnRequest, identity: Identity) -> None:
        self.process_id = request.process_id
        self.durable = request.durable
        self.tree = kernel.tree
        self._kernel, self._request, self._identity = kernel, request, identity
        self._changed = Condition()
        self._output: deque[tuple[Stream, bytes]] = deque()
        self._buffered = 0
        self._discarding = False
        self._input = bytearray()
        self._input_open = request.stdin
        self._control = bytearray()
        self._control_open = request.control_fd
        self._status: ExitStatus | None = None
        self._ended_by: int | None = None
        self._ignored: set[int] = set()
        self._tasks: set[asyncio.Task[int]] = set()
        self._main: asyncio.Task[int] | None = None
        self._started = time.monotonic()
        self.size = request.terminal

    # -- the kernel's side ------------------------------------------------------------------------------------------

    def start(self, program: Program) -> None:
        request = self._request
        job = Job(
            machine=self,
            argv=request.argv,
            env=dict(request.env),
            cwd=request.cwd,
            identity=self._identity,
            channels={0: _Input(self), 1: _Output(self, Stream.STDOUT), 2: _Output(self, Stream.STDERR)},
        )
        if request.terminal is not None:
            job.channels[2] = job.channels[1]
        if request.control_fd:
            job.channels[3] = _Control(self)
        self._main = self._task(self._run(program, job))
        self._main.add_done_callback(self._main_ended)

    async def _run(self, program: Program, job: Job) -> int:
        await self._kernel.gate()
        return await program(job)

    def _task(self, work: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._kernel.account(1)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        self._kernel.account(-1)
        self._changed.notify()

    def _main_ended(self, task: asyncio.Task[int]) -> None:
        number = None
        if task.cancelled():
            number = self._ended_by or signals.SIGKILL.value
        code = 128 + number if number is not None else task.result()
        self._status = ExitStatus(exit_code=code, signal=number, duration_s=time.monotonic() - self._started)
        self._input_open = self._control_open = False
        self._changed.notify()

    @property
    def running(self) -> bool:
        return bool(self._tasks)

    async def gate(self) -> None:
        await self._kernel.gate()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._kernel.gate()

    def daemon(self, work: Coroutine[Any, Any, int]) -> None:
        self._task(work)

    def ignore_signal(self, number: int) -> None:
        self._ignored.add(number)

    async def emit(self, stream: Stream, data: bytes) -> None:
        """Write as the program does: in pieces, waiting while the pipe is full."""
        for start in range(0, len(data), PIPE_BYTES):
            await self._changed.wait_for(lambda: self._buffered < PIPE_BYTES or self._discarding)
            await self._kernel.gate()
            piece = data[start : start + PIPE_BYTES]
            if self._discarding or self._status is not None:
                continue
            self._output.append((stream, piece))
            self._buffered += len(piece)
            self._changed.notify()

    async def take_input(self, limit: int) -> bytes:
        await self._changed.wait_for(lambda: bool(self._input) or not self._input_open)
        data = bytes(self._input[:limit])
        del self._input[:limit]
        self._changed.notify()
        return data

    def emit_control(self, data: bytes) -> None:
        self._control += data
        self._changed.notify()

    # -- the caller's side ------------------------------------------------------------------------------------------

    async def read(self) -> tuple[Stream, bytes] | None:
        self._kernel.check_alive()
        await self._changed.wait_for(lambda: bool(self._output) or self._status is not None)
        if not self._output:
            return None
        stream, data = self._output.popleft()
        self._buffered -= len(data)
        self._changed.notify()
        return stream, data

    async def read_control(self) -> bytes:
        self._kernel.check_alive()
        await self._changed.wait_for(lambda: bool(self._control) or not self._control_open)
        data = bytes(self._control)
        self._control.clear()
        return data

    async def write(self, data: bytes) -> None:
        self._kernel.check_alive()
        await self._changed.wait_for(lambda: len(self._input) < PIPE_BYTES or not self._input_open)
        if not self._input_open:
            raise SandboxExitedError(f"the input of {self.process_id} is closed")
        self._input += data
        self._changed.notify()

    async def close_stdin(self) -> None:
        self._input_open = False
        self._changed.notify()

    async def wait(self) -> ExitStatus:
        await self._changed.wait_for(lambda: self._status is not None)
        assert self._status is not None
        return self._status

    async def signal(self, number: int) -> None:
        self._kernel.check_alive()
        if number <= 0 or self._main is None or self._main.done():
            return
        if number in _IGNORED_BY_DEFAULT or (number in self._ignored and number != signals.SIGKILL):
            return
        self._ended_by = number
        self._main.cancel()

    async def resize(self, size: TerminalSize) -> None:
        if self.size is None:
            raise InvalidRequestError(f"{self.process_id} has no terminal")
        self.size = size

    async def kill(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._changed.wait_for(lambda: not self._tasks)

    async def close(self, *, forget: bool = True) -> None:
        if not self._request.hold_stdin:
            self._input_open = False
            self._changed.notify()
        if self.durable:
            return
        self._discarding = True
        self._output.clear()
        self._buffered = 0
        self._changed.notify()


class _Input:
    def __init__(self, process: MemoryProcess) -> None:
        self._process = process

    async def read(self, limit: int) -> bytes:
        return await self._process.take_input(limit)

    async def write(self, data: bytes) -> None:
        """Writing to the input is no use to anyone."""


class _Output:
    def __init__(self, process: MemoryProcess, stream: Stream) -> None:
        self._process, self._stream = process, stream

    async def read(self, limit: int) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        await self._process.emit(self._stream, data)


class _Control:
    def __init__(self, process: MemoryProcess) -> None:
        self._process = process

    async def read(self, limit: int) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        self._process.emit_control(data)
