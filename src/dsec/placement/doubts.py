"""Sandboxes that may exist where they are not meant to be any more.

A creation that was not answered may have happened all the same, or may still happen: the request can lie in a queue.
The scheduler went elsewhere; what the node made, or makes later, has to go. So a doubt is kept for `KEEP_S` and said
again with every report that shows the sandbox, but not more often than every `REPEAT_S`: the word that withdraws a
claim can be lost, and withdrawing twice does no harm. What is forgotten is found later as a duplicate, or by the
sandbox's own lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.placement.decision import Orphan

KEEP_S = 600.0
"""Longer than any creation and any queue in front of it: twenty times the creation's time-out."""

REPEAT_S = 10.0


@dataclass(slots=True)
class _Doubt:
    reason: str
    noted_s: float
    said_s: float


class Doubts:
    """What one scheduler gave up, by sandbox and node.

    Args:
        limit: how much is remembered; the oldest makes room.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._doubts: dict[tuple[str, str], _Doubt] = {}
        self._by_node: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._doubts)

    def note(self, sandbox_id: str, node: str, reason: str, now_s: float) -> None:
        """Remember that the sandbox may be on the node."""
        self._doubts[sandbox_id, node] = _Doubt(reason, now_s, float("-inf"))
        self._by_node.setdefault(node, set()).add(sandbox_id)
        if len(self._doubts) > self._limit:
            self.settle(*next(iter(self._doubts)))

    def settle(self, sandbox_id: str, node: str) -> None:
        """Forget it: the sandbox is meant to be there after all."""
        if self._doubts.pop((sandbox_id, node), None) is None:
            return
        there = self._by_node[node]
        there.discard(sandbox_id)
        if not there:
            del self._by_node[node]

    def late(self, sandbox_id: str, node: str, now_s: float) -> Orphan | None:
        """Return what has to be withdrawn when the node says that it made the sandbox; None if there is no doubt."""
        doubt = self._doubts.get((sandbox_id, node))
        if doubt is None:
            return None
        doubt.said_s = now_s
        return Orphan(sandbox_id=sandbox_id, node=node, reason=doubt.reason)

    def seen(self, node: str, held: frozenset[str], now_s: float) -> tuple[Orphan, ...]:
        """Return what has to be withdrawn on a node that reports what it holds."""
        orphans = []
        for sandbox_id in sorted(self._by_node.get(node, ())):
            doubt = self._doubts[sandbox_id, node]
            if now_s - doubt.noted_s >= KEEP_S:
                self.settle(sandbox_id, node)
            elif sandbox_id in held and now_s - doubt.said_s >= REPEAT_S:
                doubt.said_s = now_s
                orphans.append(Orphan(sandbox_id=sandbox_id, node=node, reason=doubt.reason))
        return tuple(orphans)
