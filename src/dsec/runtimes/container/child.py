"""Host programs run from the event loop: started without copying this process, awaited through a pidfd.

`posix_spawn` uses vfork semantics, so that the cost does not grow with this process's memory, and a pidfd makes the end
of a child one readable descriptor. Children get a session of their own: an interrupt typed at a terminal is for us.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from dsec.linux.spawn import Program, spawn
from dsec.runtimes.container.bundle import OOM_SCORE_ADJUSTMENT
from dsec.runtimes.container.waiting import wait_readable

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_SCRATCH_VARIABLE = "_LIBCONTAINER_STATEDIR"

GATE_DESCRIPTOR = 9
_GATE = 'read -r _ <&9 && exec 9<&- && exec "$@"'
"""Runs a program once a line arrives on descriptor 9; when whoever would write it has died, not at all."""


def gated(program: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return program and arguments that wait at the gate before they become the given ones.

    Whoever starts a program in order to move it into a control group can be killed between the two; without the gate
    the program would then go on outside of every group that will ever be looked into.
    """
    return "/bin/sh", ["-c", _GATE, "sh", program, *arguments]


class HostChild:
    """A running host program.

    Attributes:
        pid: its process id.
        ended: done with the exit code, or minus the signal's number, once it has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = _pidfd_of_child(pid)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    def start(
        cls,
        program: str,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        *,
        scratch: Path | None = None,
    ) -> HostChild:
        """Start `program`.

        Args:
            program: absolute path.
            arguments: without the program's name.
            descriptors: number in the child → our descriptor, which stays open here. 0, 1 and 2 should be among them.
            scratch: where an OCI runtime may keep what it removes again. crun mounts its own program on a file for a
                moment, by default in /tmp; killed in that moment it leaves both, and only here will anybody look.
        """
        environment = _ENVIRONMENT if scratch is None else {**_ENVIRONMENT, _SCRATCH_VARIABLE: str(scratch)}
        pid = spawn(
            Program(path=program, arguments=[program, *arguments], environment=environment, descriptors=descriptors)
        )
        _make_expendable(pid)
        return cls(pid)

    @property
    def has_ended(self) -> bool:
        return self.ended.done()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.ended.set_result(os.waitstatus_to_exitcode(status))

    async def wait(self) -> int:
        """Wait for the end; return the exit code, or minus the signal's number."""
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        """Kill this one process. No error when it has ended."""
        if not self.has_ended:
            os.kill(self.pid, signal.SIGKILL)


def _make_expendable(pid: int) -> None:
    """Let a child and all that it starts go first when the host runs out of memory.

    Done by us, not left to the OCI runtime: what somebody with CAP_SYS_RESOURCE sets is also the lowest that the guest
    can set it to again (proc_pid_oom_score_adj(5)), where the runtime's own setting could be taken back to zero.
    """
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(OOM_SCORE_ADJUSTMENT))
    except OSError:
        return  # It has ended already, or this host's rules are stricter: then they hold.


def _pidfd_of_child(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # Out of descriptors: nobody would ever reap it.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def bounded_read(descriptor: int, limit: int = 65_536) -> bytes:
    """Read what a non-blocking pipe holds now, at most `limit` bytes."""
    try:
        return os.read(descriptor, limit)
    except BlockingIOError:
        return b""


async def read_to_end(descriptor: int) -> bytes:
    """Read a non-blocking pipe until nobody holds its other end; keep at most 64 KiB."""
    kept = b""
    while True:
        await wait_readable(descriptor)
        data = bounded_read(descriptor)
        if not data:
            return kept
        kept = (kept + data)[:65_536]
