"""The control group of one command: everything it started is in it, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable

from dsec.linux.cgroups import Cgroups
from dsec.runtimes.container.waiting import wait_empty


class CommandGroup:
    """The child group of a command.

    Args:
        cgroups: the node's groups.
        instance_id: name of the instance's group.
        process_id: name of the child.
        linger: told when the command has ended but something it started has not; the group then stays.
    """

    def __init__(self, cgroups: Cgroups, instance_id: str, process_id: str, linger: Callable[[str], None]) -> None:
        self._cgroups = cgroups
        self._instance_id = instance_id
        self._process_id = process_id
        self._linger = linger

    def create(self) -> None:
        self._cgroups.create_child(self._instance_id, self._process_id)

    def attach(self, pid: int) -> None:
        """Move the runtime's process in, and with it all that it will start."""
        self._cgroups.attach(pid, self._instance_id, self._process_id)

    def oom_kills(self) -> int:
        return self._cgroups.oom_kills(self._instance_id)

    async def kill(self) -> None:
        """Kill everything in the group and return when it is seen to be gone."""
        self._cgroups.kill(self._instance_id, self._process_id)
        await wait_empty(self._cgroups, self._instance_id, self._process_id)
        self._cgroups.remove_child(self._instance_id, self._process_id)

    def release(self) -> None:
        """Remove the group; while something is in it, leave it to the instance to remove later."""
        if not self._cgroups.remove_child(self._instance_id, self._process_id):
            self._linger(self._process_id)

    def signal_command(self, runtime_pid: int, number: int) -> None:
        """Signal the command itself: the runtime's one child in the host's process table."""
        for pid in _children(runtime_pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def child_of(self, pid: int) -> int:
        """Return the first child of a process; 0 (nobody) when it has none."""
        return next(iter(_children(pid)), 0)


def _children(pid: int) -> list[int]:
    """Return the direct children of a process (proc_pid_task_tid_children(5)); empty when it has ended."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []
