"""Whom nodes may be following without asking: what a tracker knows of their places (`dsec.distribution.places`).

Who was told to wait for a chunk at a node that is fetching it may ask that one for the next chunks of the layer too,
unseen. Three things depend on it:

- what comes so loads the parent, and counts in what is fair. It is laid to the parent in advance, as far as it is
  expected; otherwise all that comes between two announcements would be missing when the next tree is made. Who asks
  before that was not followed for so long, and the rest is taken back;
- who has as many followers as it can well have is not given more;
- when a follower says that its parent gave something wrong, the tracker had sent it there.

All of it rests on nodes' words, and so is bounded: a place is good for so many chunks, and accusations, and so long.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dsec.distribution.places import MOST_BETWEEN_TURNS
from dsec.distribution.random_set import RandomSet
from dsec.placement.sampling import RandomBits

_LAYERS = 8
"""A node's places that are remembered: an image has few layers that are read at the same moment."""
_LASTS_S = 30.0
"""Nothing is laid to a parent after so long."""


@dataclass(slots=True)
class _Following:
    """One place.

    Attributes:
        parent: who is followed.
        until_s: nothing is laid to it any longer.
        expected: chunks that were laid to the parent in advance, and have not come yet as far as is known.
        chunks: that may still be laid to it,
        accusations: and accusations of the parent.
        is_over: whether the node asked the tracker since.
    """

    parent: str
    until_s: float
    expected: int
    chunks: int = MOST_BETWEEN_TURNS
    accusations: int = MOST_BETWEEN_TURNS
    is_over: bool = False


class Followings:
    """The places of all nodes, as far as a tracker knows: the last one of each node in each layer."""

    def __init__(self) -> None:
        self._of_node: dict[str, OrderedDict[str, _Following]] = {}
        self._followers: dict[str, RandomSet[tuple[str, str]]] = {}

    def followers(self, node: str) -> int:
        """Return how many follow a node."""
        return len(self._followers.get(node, ()))

    def follower(self, node: str, layer: str, bits: RandomBits) -> str | None:
        """Return one of those who follow a node in a layer."""
        found = self._followers.get(node)
        drawn = [] if found is None else found.draw(1, bits)
        return next((follower for follower, of in drawn if of == layer), None)

    def begin(self, node: str, layer: str, parent: str, expected: int, now_s: float) -> None:
        """Note that a node was told to wait at another one for a chunk of a layer.

        Args:
            node: the one.
            layer: which.
            parent: the other one.
            expected: how many chunks are going to come from it unseen, and are laid to it already.
            now_s: the time.
        """
        mine = self._of_node.setdefault(node, OrderedDict())
        if layer in mine:
            self._end(node, layer, mine.pop(layer))
        mine[layer] = _Following(parent, now_s + _LASTS_S, expected)
        self._followers.setdefault(parent, RandomSet()).add((node, layer))
        if len(mine) > _LAYERS:
            self._end(node, *mine.popitem(last=False))

    def asked(self, node: str, layer: str, *, at_turn: bool) -> tuple[str, int]:
        """Note that a node asks for a chunk of a layer, so that its place is over; return its parent, and what is to be
        laid to it for that.

        Args:
            node: who asks.
            layer: which.
            at_turn: whether everybody asks for that chunk. Otherwise the place ended early, and what was expected of it
                did not come.
        """
        following = self._at(node, layer)
        if following is None or following.is_over:
            return "", 0
        self._end(node, layer, following)
        if at_turn:
            return following.parent, 0
        expected, following.expected = following.expected, 0
        return following.parent, -expected

    def gained(self, node: str, layer: str, now_s: float) -> tuple[str, int]:
        """Note a chunk of a layer that a node has and the tracker was not asked for; return who probably sent it, and
        what is to be laid to that one for it.
        """
        following = self._at(node, layer)
        if following is None or not following.chunks or following.until_s <= now_s:
            return "", 0
        following.chunks -= 1
        if following.expected:
            following.expected -= 1
            return following.parent, 0
        return following.parent, 1

    def may_accuse(self, node: str, peer: str, now_s: float) -> bool:
        """Say whether a node was sent to a peer for chunks that nobody names, and count what it says of it."""
        for following in self._of_node.get(node, OrderedDict[str, _Following]()).values():
            if following.parent == peer and following.accusations and following.until_s > now_s:
                following.accusations -= 1
                return True
        return False

    def expire(self, now_s: float) -> None:
        """Forget what is too old."""
        for node, mine in list(self._of_node.items()):
            for layer in [layer for layer, following in mine.items() if following.until_s <= now_s]:
                self._end(node, layer, mine.pop(layer))
            if not mine:
                del self._of_node[node]

    def forget(self, node: str) -> None:
        """Forget whom a node follows that is gone; who follows it finds out."""
        for layer, following in self._of_node.pop(node, OrderedDict()).items():
            self._end(node, layer, following)

    def _at(self, node: str, layer: str) -> _Following | None:
        mine = self._of_node.get(node)
        return None if mine is None else mine.get(layer)

    def _end(self, node: str, layer: str, following: _Following) -> None:
        if following.is_over:
            return
        following.is_over = True
        followers = self._followers[following.parent]
        followers.discard((node, layer))
        if not followers:
            del self._followers[following.parent]
