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

LONGEST_NAME = 128
"""Characters of a node's name or of a feature."""

MOST_FEATURES = 128
LONGEST_NOTE = 500

_LARGEST = 1 << 52
"""Sums of whole numbers below it are exact as floats, too."""


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
            if not 0 < getattr(self, name) <= _LARGEST:
                raise InvalidRequestError(
                    f"a node's capacity has {name} = {getattr(self, name)}",
                    resolution=f"every capacity is from 1 to {_LARGEST:,}; correct {name} in the node's settings",
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

    def __post_init__(self) -> None:
        # A node that reports less than nothing would attract every sandbox of the fleet. One expression, because a view
        # is made for every node in every second.
        if (
            0 <= self.cpu_millis <= _LARGEST
            and 0 <= self.memory_bytes <= _LARGEST
            and 0 <= self.sandboxes <= _LARGEST
            and 0 <= self.creating <= _LARGEST
        ):
            return
        raise InvalidRequestError(
            f"a node's usage is {self}",
            resolution=f"every usage is from 0 to {_LARGEST:,}; look at the node that reported it",
        )


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

    def __post_init__(self) -> None:
        if not 0 < len(self.node) <= LONGEST_NAME:
            raise InvalidRequestError(
                f"a node is called {self.node[:80]!r}", resolution=f"a name has 1 to {LONGEST_NAME} characters"
            )
        features = self.features
        if len(features) > MOST_FEATURES or max(map(len, features), default=0) > LONGEST_NAME:
            raise InvalidRequestError(
                f"{self.node} declares {len(self.features)} features",
                resolution=f"declare at most {MOST_FEATURES}, each of at most {LONGEST_NAME} characters",
            )
        negative = self.incarnation < 0 or self.version < 0 or self.creations_seen < 0
        if negative or len(self.note) > LONGEST_NOTE:
            raise InvalidRequestError(
                f"{self.node} reports a note of {len(self.note)} characters, incarnation {self.incarnation}, "
                f"version {self.version}, {self.creations_seen} creations",
                resolution=f"a note has at most {LONGEST_NOTE} characters, and numbers are 0 or more",
            )


def is_newer(view: NodeView, than: NodeView | None) -> bool:
    """Say whether `view` supersedes `than` of the same node."""
    if than is None or view.incarnation > than.incarnation:
        return True
    return view.incarnation == than.incarnation and view.version > than.version
