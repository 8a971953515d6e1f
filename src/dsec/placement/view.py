"""What is known of a node: a report that the node made of itself, and which may be old.

A view has no time of day. Clocks of different hosts are never compared, because one of them may be an hour off: the
order of two views of one node is that of the pair (incarnation, version), both counted by the node itself, and the
age of a view is measured by whoever holds it, on its own clock, from when it asked for it.

``creations_seen`` is what lets a scheduler forget its own placements at the right moment. A node numbers the
creations that it admits in one incarnation: 1, 2, 3 and so on. The number (the *ticket*) goes back with the answer to
each creation, and the highest number goes into each view. A placement with ticket 41 is in every view that has seen
41 creations or more, and in no earlier one.
"""

from __future__ import annotations

import enum

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value


class Health(enum.Enum):
    """What a node says about itself."""

    ACCEPTING = "accepting"
    CLOSED = "closed"  # Its admission refuses at the moment, for lack of disk for example.
    DRAINING = "draining"  # It finishes what it has and takes no more.
    FAILED = "failed"


class Capacity(Value, frozen=True):
    """What a node has, by its own rule of admission.

    Attributes:
        cpu_millis: processors, in thousandths of a core.
        memory_bytes: memory that sandboxes may fill.
        disk_bytes: disk that writable layers may fill.
        sandboxes: how many it holds at most.
        creations: how many it creates at once.
    """

    cpu_millis: int
    memory_bytes: int
    disk_bytes: int
    sandboxes: int
    creations: int

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise InvalidRequestError(
                    f"a node's capacity has {name} = {getattr(self, name)}",
                    resolution=f"every capacity is above 0; correct {name} in the node's settings",
                )


class Usage(Value, frozen=True):
    """What is taken of it, measured; not the sum of what was asked for.

    Attributes:
        cpu_millis: processor time in use.
        memory_bytes: memory in use by sandboxes.
        sandboxes: sandboxes that exist, those being created included.
        creating: of these, how many are being created.
    """

    cpu_millis: int = 0
    memory_bytes: int = 0
    sandboxes: int = 0
    creating: int = 0


class NodeView(Value, frozen=True):
    """One report of one node.

    Attributes:
        node: its id.
        capacity, used: what it has, and what is taken.
        incarnation: grows each time the node starts anew.
        version: grows with each report of one incarnation.
        creations_seen: how many creations it had admitted in this incarnation.
        health: whether it takes sandboxes.
        features: what it declares: capabilities, backends, devices.
        note: why it is not accepting, in its own words; empty when it is.
    """

    node: str
    capacity: Capacity
    used: Usage = Usage()
    incarnation: int = 1
    version: int = 1
    creations_seen: int = 0
    health: Health = Health.ACCEPTING
    features: frozenset[str] = frozenset()
    note: str = ""


def is_newer(view: NodeView, than: NodeView | None) -> bool:
    """Say whether `view` supersedes `than` of the same node."""
    return than is None or (view.incarnation, view.version) > (than.incarnation, than.version)
