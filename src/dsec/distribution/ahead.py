"""Whom to name for chunks that are going to be fetched soon: a few peers for all of them together.

Comparing six peers for each chunk by itself took most of a tracker's time. A few that have something of the layer are
drawn once for a whole question instead, and each chunk is given to whichever of those that have it was given least so
far, the better ones first. So a node takes what comes next from several peers at once, and each question draws others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_Peer = TypeVar("_Peer")


def share_out(
    wanted: Iterable[str],
    peers: Sequence[tuple[_Peer, frozenset[str]]],
    others: Callable[[str], Sequence[_Peer]],
    most: int,
) -> tuple[list[tuple[str, list[_Peer]]], dict[_Peer, int]]:
    """Return for each chunk whom to ask, one after the other, and how many chunks each of them is asked for first.

    Args:
        wanted: names of chunks; one that nobody has is left out.
        peers: the best first; and what of the chunks each has.
        others: returns peers that have a chunk, where none of those has it.
        most: how many are named for a chunk.
    """
    having: dict[str, list[_Peer]] = {}
    for peer, chunks in peers:
        for chunk in chunks:
            having.setdefault(chunk, []).append(peer)
    given: dict[_Peer, int] = {}
    shared = []
    for chunk in wanted:
        found = having.get(chunk) or others(chunk)
        if not found:
            continue
        counts = [given.get(peer, 0) for peer in found]
        first = counts.index(min(counts))
        chosen = found[first]
        given[chosen] = counts[first] + 1
        named = [chosen]
        for peer in found:
            if len(named) >= most:
                break
            if peer is not chosen:
                named.append(peer)
        shared.append((chunk, named))
    return shared, given
