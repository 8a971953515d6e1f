"""Tasks that wait, served in turn between groups.

Within a group the first to come is served first. Between groups it goes round: a group that was served goes to the
back. So a task at the head of its group waits for at most one hand-out to each other group that waits, whatever
number of tasks those have: that is the bound on starvation. (Round robin with equal quanta; M. Shreedhar and G.
Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", SIGCOMM 1995, where all packets have one size.)
"""

from __future__ import annotations

from collections import OrderedDict


class WaitingTasks:
    """The queue of tasks. Every operation takes constant time, but for `oldest_s`, which looks at each group."""

    __slots__ = ("_group_of", "_groups")

    def __init__(self) -> None:
        self._groups: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()
        self._group_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, task: str) -> bool:
        return task in self._group_of

    def add(self, task: str, group: str, now_s: float) -> None:
        """Let a task wait; one that waits already keeps its place."""
        if task in self._group_of:
            return
        self._group_of[task] = group
        self._groups.setdefault(group, OrderedDict())[task] = now_s

    def leave(self, task: str) -> bool:
        """Take a task out; return whether it waited."""
        group = self._group_of.pop(task, None)
        if group is None:
            return False
        del self._groups[group][task]
        if not self._groups[group]:
            del self._groups[group]
        return True

    def next(self) -> tuple[str, float]:
        """Take the task whose turn it is; return it and since when it has waited. There must be one."""
        group, tasks = next(iter(self._groups.items()))
        task, since_s = tasks.popitem(last=False)
        del self._group_of[task]
        if tasks:
            self._groups.move_to_end(group)
        else:
            del self._groups[group]
        return task, since_s

    def groups(self) -> int:
        """How many groups wait."""
        return len(self._groups)

    def oldest_s(self) -> float | None:
        """Return since when the first task has waited; None when none waits."""
        if not self._groups:
            return None
        return min(next(iter(tasks.values())) for tasks in self._groups.values())
