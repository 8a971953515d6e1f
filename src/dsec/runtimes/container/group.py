"""The control group of one command: everything it started is in it, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from dsec.base.errors import AlreadyExistsError, CapabilityMissingError, SandboxExitedError
from dsec.runtimes.container.groups import Groups
from dsec.runtimes.container.waiting import wait_empty, wait_reaped


class CommandGroup:
    """The child group of a command.

    Args:
        cgroups: the node's groups.
        instance_id: name of the instance's group.
        process_id: name of the child.
        linger: told when the command has ended but something it started has not; the group then stays.
        signals: whether the command can be signalled from outside.
    """

    def __init__(
        self,
        cgroups: Groups,
        instance_id: str,
        process_id: str,
        linger: Callable[[str], None],
        *,
        signals: bool = True,
    ) -> None:
        self._cgroups = cgroups
        self._instance_id = instance_id
        self.process_id = process_id
        self._linger = linger
        self._limit_hits = 0
        self._signals = signals

    def create(self) -> None:
        """Make the group.

        Raises:
            AlreadyExistsError: the instance has a command of this id.
            SandboxExitedError: the instance's own group is gone.
        """
        try:
            self._limit_hits = self._cgroups.process_limit_hits(self._instance_id)
            self._cgroups.create_child(self._instance_id, self.process_id)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{self.process_id} is a process of {self._instance_id} already") from error
        except FileNotFoundError as error:
            raise SandboxExitedError(f"{self._instance_id}: its control group is gone") from error

    def kill_nowait(self) -> None:
        """Kill everything in the group without waiting for its end."""
        self._cgroups.kill(self._instance_id, self.process_id)

    def attach(self, pid: int) -> None:
        """Move the runtime's process in, and with it all that it will start."""
        self._cgroups.attach(pid, self._instance_id, self.process_id)

    def oom_kills(self) -> int:
        return self._cgroups.oom_kills(self._instance_id)

    def met_process_limit(self) -> bool:
        """Whether anything of the instance could not fork since the group was made."""
        return self._cgroups.process_limit_hits(self._instance_id) > self._limit_hits

    async def kill(self) -> None:
        """Kill everything in the group and return when it is seen to be gone."""
        self._cgroups.kill(self._instance_id, self.process_id)
        await wait_empty(self._cgroups, self._instance_id, self.process_id)
        await wait_reaped(self._cgroups, self._instance_id)
        self._cgroups.remove_child(self._instance_id, self.process_id)

    def release(self) -> None:
        """Remove the group; while something is in it, leave it to the instance to remove later."""
        if not self._cgroups.remove_child(self._instance_id, self.process_id):
            self._linger(self.process_id)

    async def signal_command(self, runtime_pid: Callable[[], int], number: int, ended: asyncio.Future[Any]) -> None:
        """Signal the command itself: the runtime's one child, once it runs the guest's program.

        A signal that is sent while the runtime still prepares the process would end the runtime's work instead of
        reaching the command. The kernel announces no execve(2), so that this looks again until it has happened.

        Raises:
            CapabilityMissingError: the command runs on another kernel than this host's.
        """
        if not self._signals:
            raise CapabilityMissingError(
                "this runtime cannot signal one command", resolution="kill it, or use crun or runc"
            )
        pause_s, waited_s = 0.001, 0.0
        while not ended.done():
            if _signal_child(runtime_pid(), number, started=waited_s > _START_LIMIT_S):
                return
            waited_s += pause_s
            await asyncio.wait([ended], timeout=pause_s)
            pause_s = min(2 * pause_s, 0.05)

    def child_of(self, pid: int, *, but: int = 0) -> int:
        """Return the first child of a process, other than `but`; 0 (nobody) when it has none."""
        return next((child for child in _children(pid) if child != but), 0)


_START_LIMIT_S = 1.0
"""After this a filtered child is the guest's, whatever it calls itself."""


def _signal_child(parent: int, number: int, *, started: bool) -> bool:
    """Signal the child of a runtime; return whether there was one that runs a program of the guest."""
    for pid in _children(parent):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # Looked at again: the pid could have passed to somebody else before the descriptor was opened.
            if pid in _children(parent) and (started or _is_guest(pid, parent)):
                signal.pidfd_send_signal(pidfd, number)
                return True
        except ProcessLookupError:
            continue
        finally:
            os.close(pidfd)
    return False


def _is_guest(pid: int, runtime: int) -> bool:
    """Whether a runtime's child runs the guest's program: it has its filter (loaded last of all before execve), and its
    program is not the runtime itself."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            is_filtered = "\nSeccomp:\t2\n" in file.read()
        with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as file:
            is_filtered = is_filtered and not file.read().startswith("runc:[")
        return is_filtered and not os.path.samefile(f"/proc/{pid}/exe", f"/proc/{runtime}/exe")
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process (proc_pid_task_tid_children(5)); empty when it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        return found
    return found
