"""The least loaded of a few random nodes."""

from __future__ import annotations

from dsec.placement.decision import Reason
from dsec.placement.load import Increment
from dsec.placement.node_state import NodeState
from dsec.placement.sampling import RandomBits, draw_distinct


def choose(
    nodes: list[NodeState], increment: Increment, *, choices: int, draws: int, bits: RandomBits
) -> tuple[NodeState, Reason] | None:
    """Return the node that a sandbox goes to; None when none of these has room.

    Draws `choices` nodes up to `draws` times. When all of those are full it looks at every node, so that the last free
    place of a fleet is found.
    """
    if not nodes:
        return None
    for _ in range(draws):
        best = least_of_few(nodes, increment, choices, bits)
        if best.has_room(increment):
            return best, Reason.CHOICE
    roomy = [node for node in nodes if node.has_room(increment)]
    return (min(roomy, key=lambda node: node.rank_with(increment)), Reason.SCAN) if roomy else None


def least_of_few(nodes: list[NodeState], increment: Increment, choices: int, bits: RandomBits) -> NodeState:
    """Draw so many nodes and return the least loaded, the first drawn of equals."""
    first, *others = draw_distinct(choices, len(nodes), bits)
    best = nodes[first]
    least = best.rank_with(increment)
    for at in others:
        node = nodes[at]
        load = node.rank_with(increment)
        if load < least:
            best, least = node, load
    return best
