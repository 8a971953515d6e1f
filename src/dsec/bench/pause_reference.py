"""The reference of the pause benchmark: a process outside of every sandbox whose memory went to swap the same way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

from dsec.base.errors import RuntimeFailedError
from dsec.bench.pause_guest import Held, command
from dsec.bench.sampling import timed
from dsec.linux.cgroups import CgroupLimits, CgroupMounts, Cgroups
from dsec.linux.kernel_write import KernelWrites
from dsec.linux.madvise import will_need

_GROUP = "reference"
_PATIENCE_S = 60.0
_STEP_S = 0.001


class BareProcess:
    """A process that holds memory, in a control group of its own."""

    def __init__(self, cgroups: Cgroups, directory: Path, pid: int) -> None:
        self._cgroups, self._directory, self._pid = cgroups, directory, pid

    async def sample(self) -> float:
        """Page its memory out, then let it touch all of it; return the seconds of that."""
        return await anyio.to_thread.run_sync(self._sample, False)

    async def sample_ahead(self) -> float:
        """The same, with the kernel told to read all of it meanwhile."""
        return await anyio.to_thread.run_sync(self._sample, True)

    def _sample(self, read_ahead: bool) -> float:
        self._cgroups.freeze(_GROUP, frozen=True)
        _wait(lambda: self._cgroups.is_frozen(_GROUP))
        self._cgroups.release_memory(_GROUP, KernelWrites())
        self._cgroups.freeze(_GROUP, frozen=False)
        _wait(lambda: not self._cgroups.is_frozen(_GROUP))
        reader = threading.Thread(target=will_need, args=(self._pid, lambda: read_ahead))
        with timed() as watch:
            reader.start()
            (self._directory / "ask").write_text("\n")
            (self._directory / "answer").read_text()
        reader.join()
        return watch.seconds


@asynccontextmanager
async def paged_out_process(parent: Path, size_bytes: int) -> AsyncIterator[BareProcess]:
    """Run a process that holds so much until the block ends."""
    mounts = CgroupMounts.find()
    if mounts is None:
        raise RuntimeFailedError("this host has no control groups")
    name, directory = f"dsec/bench-{os.getpid()}", parent / "reference"
    cgroups = Cgroups(mounts, name)
    cgroups.open()
    cgroups.create(_GROUP, CgroupLimits())
    argv = command(Held.ANONYMOUS, size_bytes, directory=str(directory), python=sys.executable)
    process = _start(argv)
    try:
        cgroups.attach(process.pid, _GROUP)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        await anyio.to_thread.run_sync(_wait, (directory / "ready").exists)
        yield BareProcess(cgroups, directory, process.pid)
    finally:
        process.kill()
        process.wait()
        with suppress(TimeoutError):
            _wait(lambda: cgroups.remove(_GROUP))
        for root in (mounts.unified, *mounts.v1.values()):
            with suppress(OSError):
                (root / name).rmdir()


def _start(argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start a process that waits for a line, so that it can join its group before it makes what it holds."""
    return subprocess.Popen(("sh", "-c", 'read _; exec "$@"', "sh", *argv), stdin=subprocess.PIPE)


def _wait(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() >= ends_at:
            raise TimeoutError
        time.sleep(_STEP_S)
