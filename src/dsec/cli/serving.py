"""A server that runs in the foreground until it is told to end, or nobody needs it; and how another command ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio

from dsec.base.errors import DeadlineExceededError, InvalidStateError
from dsec.base.units import format_duration
from dsec.sdk.background import NODE, Server

_STOP_TIMEOUT_S = 60.0
"""A graceful shutdown lets requests finish; see `dsec.api.application.Limits.grace_s`."""


async def wait_end(
    signals: AsyncIterator[signal.Signals], idle_s: float | None, wait_idle: Callable[[float], Awaitable[None]]
) -> str:
    """Wait for a signal, or for idleness where a time for that is given; return which."""
    reasons: list[str] = []
    async with anyio.create_task_group() as group:

        async def await_signal() -> None:
            async for number in signals:
                reasons.append(number.name)
                group.cancel_scope.cancel()
                return

        async def await_idleness(limit_s: float) -> None:
            await wait_idle(limit_s)
            reasons.append(f"idle for {format_duration(limit_s)}")
            group.cancel_scope.cancel()

        group.start_soon(await_signal)
        if idle_s is not None:
            group.start_soon(await_idleness, idle_s)
    return reasons[0]


def holder(state_dir: Path, server: Server = NODE) -> int:
    """Return the process id of the server that holds the state directory.

    Raises:
        InvalidStateError: a program that embeds it holds it; ending that is not ours to do.
    """
    try:
        pid = int((state_dir / server.lock).read_text())
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError) as error:
        raise InvalidStateError(f"who holds {state_dir} cannot be told", detail=str(error)) from error
    if b"up" not in argv:
        command = b" ".join(argv).decode(errors="replace").strip()
        raise InvalidStateError(
            f"process {pid} has the {server.name} of {state_dir} inside it",
            detail=command,
            resolution="end that program instead",
        )
    return pid


async def end_process(pid: int) -> None:
    """Ask a server to end and wait until its process has.

    Raises:
        DeadlineExceededError: it has not ended in a minute.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        with anyio.fail_after(_STOP_TIMEOUT_S):
            await anyio.wait_readable(process)  # A process descriptor is readable once the process has ended.
    except ProcessLookupError:
        return
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"process {pid} has not ended after {_STOP_TIMEOUT_S:g} s", resolution=f"kill -9 {pid}: nothing is lost"
        ) from error
    finally:
        os.close(process)
