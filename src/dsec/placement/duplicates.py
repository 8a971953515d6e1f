"""One sandbox id on two nodes: keep one, remove the others.

It comes about when a node was given up too early (it answered late), or when two schedulers placed the same request
because they did not agree about a shard. On one node the ledger prevents it; across nodes it can only be found and
cleared up, by whoever sees both. Everybody must come to the same verdict without talking, so it depends on nothing
but what nodes report:

A verdict removes a sandbox for good, so it is passed by one instance only, the owner of the task's shard, and only on
what several reports in a row have shown.

1. what a caller was told of is kept;
2. of the rest, one that is ready before one that is being created;
3. of equals, the one whose (id, node) has the greatest hash.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsec.model.value import Value
from dsec.placement.decision import Orphan
from dsec.placement.hashing import hash64


class Holder(Value, frozen=True):
    """A node that has the sandbox.

    Attributes:
        node: its id.
        ready: whether the sandbox is ready there.
        handed_out: whether a caller was given it there.
    """

    node: str
    ready: bool = False
    handed_out: bool = False


def keep_one(sandbox_id: str, holders: Iterable[Holder]) -> tuple[str | None, tuple[Orphan, ...]]:
    """Return the node that keeps the sandbox, and what to remove from the others; (None, ()) if nobody has it."""
    ranked = sorted(
        holders,
        key=lambda holder: (holder.handed_out, holder.ready, hash64(sandbox_id, holder.node), holder.node),
        reverse=True,
    )
    if not ranked:
        return None, ()
    kept = ranked[0].node
    reason = f"the sandbox exists on {kept} too, and is kept there"
    others = sorted({holder.node for holder in ranked} - {kept})
    return kept, tuple(Orphan(sandbox_id=sandbox_id, node=node, reason=reason) for node in others)
