"""Soft affinity: the sandboxes of one task like to be on the same nodes, and are not made to.

Sandboxes of a task share image layers, caches and sometimes state, so that the second one starts sooner where the
first one is. A rule that had to be kept would refuse work while other nodes are idle, and let one large task fill one
node; so the wish gives way in two steps:

1. Up to ``max_load_threshold`` the task's home, the least loaded of its homes if it has several, gets the sandbox.
2. Above it the sandbox may spill over to the node that the ordinary choice finds, if that one is less loaded, as long
   as at most ``spillover_ratio`` of the task's sandboxes are away from home. When the ratio is used up they stay at
   home.
3. A home that is full, or refuses, is no home: the ordinary choice finds another, and the task then has two.

The first sandbox of a task goes where the ordinary choice sends it, which becomes its home. The memory of homes is
bounded, is rebuilt by placing, and is never asked for by anybody else, since all sandboxes of a task belong to one
scheduler (`dsec.placement.shards`).
"""

from __future__ import annotations

import enum

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value
from dsec.placement.request import PlacementRequest


class AffinityMode(enum.Enum):
    """Whether tasks keep together."""

    OFF = "off"
    SOFT = "soft"


_OFF = AffinityMode.OFF  # Looking up a member of an enumeration is a call in this version of Python.


class GroupBy(enum.Enum):
    """What makes sandboxes one group: the name of a field of `PlacementRequest`."""

    TASK_ID = "task_id"
    JOB_ID = "job_id"


class AffinityPolicy(Value, frozen=True):
    """How far tasks keep together.

    Attributes:
        mode: off or soft.
        group_by: whose sandboxes keep together.
        max_load_threshold: a home above this load (with the sandbox) may be left; 0 to 1.
        spillover_enabled: whether it may be left before it is full.
        spillover_ratio: the most of a group's sandboxes that leave; 0 to 1.
    """

    mode: AffinityMode = AffinityMode.SOFT
    group_by: GroupBy = GroupBy.TASK_ID
    max_load_threshold: float = 0.85
    spillover_enabled: bool = True
    spillover_ratio: float = 0.2

    def __post_init__(self) -> None:
        for name in ("max_load_threshold", "spillover_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidRequestError(
                    f"affinity.{name} is {getattr(self, name)}", resolution="give a share from 0 to 1, such as 0.85"
                )

    def group(self, request: PlacementRequest) -> str:
        """Return the group of a request; empty if it has none."""
        if self.mode is _OFF:
            return ""
        return request.task_id if self.group_by is GroupBy.TASK_ID else request.job_id


NO_AFFINITY = AffinityPolicy(mode=AffinityMode.OFF)


class Group:
    """What is remembered of one group.

    Attributes:
        homes: ids of its nodes, the oldest first.
        placed: sandboxes placed.
        spilled: of these, how many away from home because home was too loaded.
    """

    __slots__ = ("homes", "placed", "spilled")

    def __init__(self) -> None:
        self.homes: list[str] = []
        self.placed = 0
        self.spilled = 0

    def count(self, spilled: bool) -> None:
        """Count a placement."""
        self.placed += 1
        self.spilled += spilled

    def uncount(self, spilled: bool) -> None:
        """Count a placement no more, because its node rejected or failed it."""
        self.placed = max(0, self.placed - 1)
        self.spilled = max(0, self.spilled - spilled)

    def may_spill(self, policy: AffinityPolicy) -> bool:
        """Say whether one more may leave and the ratio still hold."""
        return policy.spillover_enabled and self.spilled + 1 <= policy.spillover_ratio * (self.placed + 1)


class Groups:
    """The groups of one scheduler; the one that was used longest ago makes room.

    Args:
        limit: how many are remembered.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._groups: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> Group:
        """Return a group, new if it is not remembered."""
        group = self._groups.pop(name, None)
        if group is None:
            group = Group()
            if len(self._groups) >= self._limit:
                del self._groups[next(iter(self._groups))]
        self._groups[name] = group
        return group
