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

- *age*. Of a node from which nothing was heard for a minute nothing better is known than what the others are like.
  With weight w for the view, each of its shares becomes ``w * share + (1 - w) * mean share of the fleet``. Own
  placements are added to that in full, since they are known.
- *trust*. A node that refuses while it says that it has room, or fails, is taken for fuller than it says:
  ``1 - trust * (1 - load)`` while the load is below 1. A node with no trust looks full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dsec.placement.policy import Ageing, Expectation
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


class Shares(NamedTuple):
    """How full each resource is; 1 is full, and more is possible."""

    processor: float
    memory: float
    sandboxes: float
    creations: float


NOTHING = Shares(0.0, 0.0, 0.0, 0.0)


def shares(used: Usage, capacity: Capacity) -> Shares:
    """Return what the load is the maximum of."""
    return Shares(
        used.cpu_millis / capacity.cpu_millis,
        used.memory_bytes / capacity.memory_bytes,
        used.sandboxes / capacity.sandboxes,
        used.creating / capacity.creations,
    )


def load_of(used: Usage, capacity: Capacity) -> float:
    """Return the load of a node as it says: the share of its fullest resource."""
    return max(shares(used, capacity))


def mean_of(every: Sequence[Shares]) -> Shares:
    """Return the mean of each share."""
    if not every:
        return NOTHING
    return Shares(*(sum(column) / len(every) for column in zip(*every, strict=True)))


def weight_of_age(age_s: float, ageing: Ageing) -> float:
    """Return what a view of this age counts: 1 while it is fresh, then less in proportion, down to the floor."""
    if age_s <= ageing.fresh_s:
        return 1.0
    return max(ageing.floor, 1.0 - (age_s - ageing.fresh_s) / (ageing.lost_s - ageing.fresh_s))


def aged(used: Usage, capacity: Capacity, weight: float, mean: Shares) -> Usage:
    """Return the usage that is believed of a node whose view counts `weight`, in whole numbers."""
    if weight >= 1.0:
        return used
    rest = 1.0 - weight
    return Usage(
        cpu_millis=round(weight * used.cpu_millis + rest * mean.processor * capacity.cpu_millis),
        memory_bytes=round(weight * used.memory_bytes + rest * mean.memory * capacity.memory_bytes),
        sandboxes=round(weight * used.sandboxes + rest * mean.sandboxes * capacity.sandboxes),
        creating=round(weight * used.creating + rest * mean.creations * capacity.creations),
    )
