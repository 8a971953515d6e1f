"""Writes to files of the kernel that do their work before they return, such as `memory.reclaim`, and can be ended.

Such a write(2) may take minutes, and nothing but a signal ends it before its time. A thread of ours cannot be given one
that Python does not answer by writing again (PEP 475), so a process of its own writes: that one is killed. It also ends
by itself after so much processor time, so that it does not work for ever when nobody is there to end it: reclaiming
from a group that runs again finds always more to do.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from dsec.linux.spawn import Program, spawn

_PROCESSOR_S = 120
"""Reclaiming a GiB takes about a second of it."""
_SCRIPT = f'ulimit -t {_PROCESSOR_S}; printf %s "$1"'


class KernelWrites:
    """Writes, one after another, that `end` ends from another thread: the one under way and all that follow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: int | None = None
        self._ended = False

    def write(self, path: Path | str, value: int | str) -> bool:
        """Write and wait for the end of the work; return whether all of it was done.

        The kernel's reasons for doing less (EAGAIN, EINTR) are not told apart.

        Raises:
            OSError: the file cannot be opened for writing.
        """
        target = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            pid = self._start(target, str(value))
            return pid is not None and self._wait(pid)
        finally:
            os.close(target)

    def end(self) -> None:
        """End the write under way, and let none begin any more. Any thread may call, any number of times."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _start(self, target: int, value: str) -> int | None:
        with self._lock, open(os.devnull, "r+b") as nothing:
            if self._ended:
                return None
            program = Program(
                path="/bin/sh",
                arguments=("sh", "-c", _SCRIPT, "sh", value),
                environment={},
                descriptors={0: nothing.fileno(), 1: target, 2: nothing.fileno()},
            )
            pid = spawn(program)
            self._process = os.pidfd_open(pid)
        return pid

    def _wait(self, pid: int) -> bool:
        _, status = os.waitpid(pid, 0)
        with self._lock:
            if self._process is not None:
                os.close(self._process)
                self._process = None
        return status == 0
