"""What is to be placed: a sandbox with an id, and the shape that decides which nodes can hold it.

Many requests share few shapes (a job of 32,000 sandboxes has one), so that a scheduler keeps for each shape the nodes
that can hold it, and looks it up by the shape alone.
"""

from __future__ import annotations

from dsec.base.errors import InvalidRequestError
from dsec.base.units import GIB
from dsec.model.value import Value


class Shape(Value, frozen=True, cache_hash=True):
    """What a node must be and have to hold a sandbox.

    Attributes:
        needs: features that the node must declare, such as ``gpu``, ``backend:microvm`` or the value of a
            `dsec.model.capability.Capability`.
        cpu_millis: processor limit of the sandbox, in thousandths of a core.
        memory_bytes: its memory limit.
        disk_bytes: its disk quota.
    """

    needs: frozenset[str] = frozenset()
    cpu_millis: int = 1000
    memory_bytes: int = 2 * GIB
    disk_bytes: int = 2 * GIB

    def __post_init__(self) -> None:
        for name in ("cpu_millis", "memory_bytes", "disk_bytes"):
            if getattr(self, name) < 0:
                raise InvalidRequestError(
                    f"{name} is {getattr(self, name)}, below nothing", resolution=f"give a {name} of 0 or more"
                )


class PlacementRequest(Value, frozen=True):
    """One sandbox to place.

    Attributes:
        sandbox_id: its id, which is also the key by which a repeated request is recognised.
        shape: what it needs.
        task_id: sandboxes of one task like to be together; empty: no wish.
        job_id: the job that the task belongs to; empty: none.
    """

    sandbox_id: str
    shape: Shape = Shape()
    task_id: str = ""
    job_id: str = ""
