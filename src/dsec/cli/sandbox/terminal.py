"""The terminal and the standard streams of this process, as a command in a sandbox uses them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
import anyio.to_thread

from dsec.model.process import Stream, TerminalSize
from dsec.service.port import CommandStream

_CHUNK_BYTES = 65_536


def size() -> TerminalSize:
    """Return the size of this terminal, whatever variables say: `COLUMNS` may be of another one."""
    for stream in (sys.stdin, sys.stdout):
        try:
            columns, rows = os.get_terminal_size(stream.fileno())
        except (AttributeError, ValueError, OSError):
            continue  # It is closed, or none.
        if columns and rows:
            return TerminalSize(columns=columns, rows=rows)
    columns, rows = shutil.get_terminal_size()
    return TerminalSize(columns=columns, rows=rows)


def stdin_is_terminal() -> bool:
    """Tell whether somebody types."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def raw_mode() -> Iterator[None]:
    """Pass every key through as it is, and put the terminal back afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def stdin_chunks() -> AsyncIterator[bytes]:
    """Yield what arrives on the standard input until its end. Cancelling it leaves no thread waiting for a key."""
    descriptor = _stdin_descriptor()
    if descriptor is None:
        yield sys.stdin.buffer.read()  # Not a file of the system: an embedding program's own object.
        return
    waits = _can_be_waited_for(descriptor)
    while True:
        if waits:
            await anyio.wait_readable(descriptor)
            data = os.read(descriptor, _CHUNK_BYTES)
        else:
            data = await anyio.to_thread.run_sync(os.read, descriptor, _CHUNK_BYTES)
        if not data:
            return
        yield data


def _stdin_descriptor() -> int | None:
    try:
        return sys.stdin.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _can_be_waited_for(descriptor: int) -> bool:
    """Regular files and /dev/null cannot be polled, and never block."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    with select.epoll() as poll:
        try:
            poll.register(descriptor, select.EPOLLIN)
        except PermissionError:
            return False
    return True


async def forward_input(stream: CommandStream) -> None:
    """Feed the standard input to a command, then end the command's."""
    async for data in stdin_chunks():
        await stream.write(data)
    await stream.close_stdin()


async def forward_resizes(stream: CommandStream) -> None:
    """Tell a command's terminal whenever this one changes its size."""
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            await stream.resize(size())


def write_output(stream: Stream, data: bytes) -> None:
    """Write bytes of a command to the same stream of this process, at once. Blocks while the reader is slow: the
    command then waits too."""
    target = (sys.stdout if stream is Stream.STDOUT else sys.stderr).buffer
    target.write(data)
    target.flush()
