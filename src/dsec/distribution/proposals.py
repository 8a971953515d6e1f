"""Whom nodes were told to ask, remembered for a while after it is over.

An accuser is believed for others only if the tracker had sent it to whom it accuses (`dsec.distribution.suspicion`).
As long as the chunk is under way, its flight says so. Accusations come later too: a node that got wrong bytes from one
peer has the chunk from the next before it tells. Of chunks that are asked for ahead there is no flight at all.
"""

from __future__ import annotations

_REMEMBERED = 65_536
_NOBODY: frozenset[str] = frozenset()


class Proposals:
    """The latest of them, by who was told and for which chunk."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, str], frozenset[str]] = {}

    def of(self, node: str, chunk: str) -> frozenset[str]:
        """Return whom a node was told to ask for a chunk, as far as it is remembered."""
        return self._peers.get((node, chunk), _NOBODY)

    def remember(self, node: str, chunk: str, peers: frozenset[str]) -> None:
        """Keep whom a node was told to ask, in place of whom it was told before; nobody changes nothing."""
        if peers:
            self._peers[(node, chunk)] = peers
            while len(self._peers) > _REMEMBERED:
                del self._peers[next(iter(self._peers))]
