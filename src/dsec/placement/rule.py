"""The rule of placement in plain words, without anything kept from one decision to the next.

`PlacementEngine` gives the same answers faster: it keeps the list of nodes that a shape may go to, and each node's
sums. A property test holds the two against each other on the same random bits; a benchmark measures what the keeping
is worth. `least_loaded` is the rule that people write first. It is here to be measured, and nothing places by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsec.placement.filter import capable
from dsec.placement.load import NOTHING, Increment, Shares, aged, shares
from dsec.placement.policy import PlacementPolicy
from dsec.placement.request import Shape
from dsec.placement.sampling import RandomBits, draw_distinct
from dsec.placement.view import NodeView, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one node when a decision is made.

    Attributes:
        view: its last report.
        own: increments of the placements made here that the report does not show.
        own_weight: what each of these counts for in the order among nodes.
        offered: whether it gets sandboxes at all.
        view_weight: what the report counts, for its age.
        mean: the fleet's mean shares, which take the rest of its place.
        trust: how far its word is believed.
    """

    view: NodeView
    own: tuple[Increment, ...] = ()
    own_weight: int = 1
    offered: bool = True
    view_weight: float = 1.0
    mean: Shares = NOTHING
    trust: float = 1.0


def believed_load(node: Known, more: Iterable[Increment] = (), *, own_weight: int = 1) -> float:
    """Return the load that a node is believed to have with these further placements."""
    base = aged(node.view.used, node.view.capacity, node.view_weight, node.mean)
    added = [*node.own * own_weight, *more]
    used = Usage(
        cpu_millis=base.cpu_millis + int(sum(one.cpu_millis for one in added)),
        memory_bytes=base.memory_bytes + int(sum(one.memory_bytes for one in added)),
        sandboxes=base.sandboxes + len(added),
        creating=base.creating + len(added),
    )
    load = max(shares(used, node.view.capacity))
    return 1.0 - node.trust * (1.0 - load) if load < 1.0 and node.trust != 1.0 else load


def choose(nodes: Sequence[Known], shape: Shape, policy: PlacementPolicy, bits: RandomBits) -> tuple[str, float] | None:
    """Return the node for a sandbox of this shape and the load it will have; None when there is none.

    Of the nodes that are offered and could hold it, draw k at random; take the one with the least load, own placements
    weighted, the first drawn of equals, if it has room by the load that is known. If it has none, draw again,
    `policy.draws` times in all; then take the least loaded of all that have room.
    """
    candidates = [node for node in nodes if node.offered and capable(shape, node.view)]
    increment = Increment(shape, policy.expectation)
    for _ in range(policy.draws if candidates else 0):
        drawn = [candidates[at] for at in draw_distinct(policy.choices, len(candidates), bits)]
        best = min(drawn, key=lambda node: believed_load(node, (increment,), own_weight=node.own_weight))
        if (load := believed_load(best, (increment,))) <= 1.0:
            return best.view.node, load
    return least_loaded(candidates, shape, policy)


def least_loaded(nodes: Sequence[Known], shape: Shape, policy: PlacementPolicy) -> tuple[str, float] | None:
    """Return the least loaded of all nodes that have room for it, the first of equals; None when none has."""
    increment = Increment(shape, policy.expectation)
    candidates = [node for node in nodes if node.offered and capable(shape, node.view)]
    roomy = [node for node in candidates if believed_load(node, (increment,)) <= 1.0]
    if not roomy:
        return None
    best = min(roomy, key=lambda node: believed_load(node, (increment,), own_weight=node.own_weight))
    return best.view.node, believed_load(best, (increment,))
