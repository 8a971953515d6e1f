"""The load of a node: how full its fullest resource is.

Four resources count, each as a share of what the node's own admission allows:

=============  ==============================================  ==============================================
processor      measured use / processors                       a busy node answers its sandboxes late
memory         measured use / memory for sandboxes             what runs out first when sandboxes idle
sandboxes      number / most that the node holds               kernel objects, names, addresses
creations      being created / created at once                 what a newcomer waits for
=============  ==============================================  ==============================================

The load is their maximum, as in dominant-resource fairness (Ghodsi and others, NSDI 2011): a node refuses when any one
resource is used up, so that an average, in which an idle processor makes up for full memory, would send sandboxes where
they are rejected. Load 1 means that the node is expected to refuse.

Compared is the load *after* the sandbox, so that a small node is not taken for emptier than a large one that the
sandbox would hardly be noticed on. What a sandbox will use is not what it asks for: see `Expectation`.

A measured load is not the truth. Two things pull the figure of a node away from it:

- *age*. The load of an old view is drawn towards the fleet's mean: of a node from which nothing was heard for a
  minute nothing better is known. With weight w for the view: ``w * load + (1 - w) * mean``.
- *trust*. A node that refuses while it says that it has room, or fails, is taken for fuller than it says:
  ``1 - trust * (1 - load)``. A node with no trust looks full.

Both are linear in the load, so that a node carries one weight and one bias, and comparing stays cheap.
"""

from __future__ import annotations

from dsec.placement.policy import Expectation
from dsec.placement.request import Shape
from dsec.placement.view import Capacity, Usage


class Increment:
    """What one sandbox of a shape is expected to add to a node.

    Whole numbers, held as floats: sums of them are exact below 2**53, so that a load kept up to date step by step is
    the very number that a sum over all placements gives.

    Attributes:
        cpu_millis, memory_bytes: expected use.
    """

    __slots__ = ("cpu_millis", "memory_bytes")

    def __init__(self, shape: Shape, expectation: Expectation) -> None:
        self.cpu_millis = float(round(shape.cpu_millis * expectation.cpu_share))
        self.memory_bytes = float(round(shape.memory_bytes * expectation.memory_share))


def load_of(used: Usage, capacity: Capacity) -> float:
    """Return the load of a node as it says: the share of its fullest resource; 1 is full, and more is possible."""
    return max(shares(used, capacity).values())


def shares(used: Usage, capacity: Capacity) -> dict[str, float]:
    """Return what the load is the maximum of, by the resource's name."""
    return {
        "processor": used.cpu_millis / capacity.cpu_millis,
        "memory": used.memory_bytes / capacity.memory_bytes,
        "sandboxes": used.sandboxes / capacity.sandboxes,
        "creations": used.creating / capacity.creations,
    }


def weight_of_age(age_s: float, *, fresh_s: float, lost_s: float, floor: float) -> float:
    """Return what a view of this age weighs: 1 up to `fresh_s`, then less in proportion, `floor` from `lost_s` on."""
    if age_s <= fresh_s:
        return 1.0
    return max(floor, 1.0 - (age_s - fresh_s) / (lost_s - fresh_s))


def correction(view_weight: float, trust: float, mean_load: float) -> tuple[float, float]:
    """Return (weight, bias): the load that a scheduler believes is ``weight * load + bias``."""
    bias_of_age = (1.0 - view_weight) * mean_load
    return trust * view_weight, 1.0 - trust + trust * bias_of_age
