"""A node's places: from whom the next chunks come without asking the tracker again.

Nodes that run the same command at the same moment want the same chunk at the same instant, and none knows what it wants
next. (Who does, asks ahead, and keeps no place.) If each asked for each chunk, the tracker would be all that is waited
for. A node that waited for a chunk at a *parent*, which was fetching it too, therefore asks the parent for the
following chunks of the layer at once: a parent that is in step is fetching those as well. One that is not says so,
which costs a round trip, and the tracker is asked.

Trees that never change would let those in the middle send twice what is fair and the others nothing. At certain chunks,
the *turns*, everybody asks the tracker, which makes another tree. Which chunks are turns, their names say: names are
hashes, so that one in `every` is one, and the same for all nodes, however late each began and whatever failed on its
way. (Time or counting would not do: soon each node would ask at another chunk, and the tracker would know of too few
who fetch it to make a tree of them.) What is a turn where one in 16 is, is one where one in 8 is: nodes need not agree.

Who has a chunk first asks first, and would come to stand near the root again. The tracker therefore lets those stand
back for a moment that sent more than others did, which is what turns the tree over.

How many are turns follows from what the tracker tells nodes about their number (`Acknowledgement.news_s`). Few nodes
ask for each chunk, and get the best choice for each. Nothing of this is on the wire.

Sources: the new CoolStreaming (Li et al., INFOCOM 2008) stays at a parent until it falls behind; SplitStream (Castro et
al., SOSP 2003) has many trees, so that each node is in the middle of some.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from dsec.distribution.messages import Candidate

_NEWS_A_TURN_S = 0.06
"""Nodes that gather news for so long ask the tracker for each chunk; those that do for twice as long, for every second
one. With 500 nodes one in eight chunks is a turn: with one in 16 it takes a sixth less, and chance is less even."""
MOST_BETWEEN_TURNS = 64
"""Whatever the tracker says; of these places no more chunks come either."""
_TIMES_EVERY = 2
"""Chunks after which a place is given up for which no turn came."""
_LATE_TIMES, _LATE_S = 2.0, 0.5
"""A parent that takes so many usual times, and so long, has fallen behind."""
_FIRST_REST, _LONGEST_REST = 8, 128
"""Who lost a place keeps none for so many chunks, twice as many with each time until one held to a turn: its reader is
not in step with others, each of its places would cost a round trip in vain, and what it sends could not be foreseen."""
_LAYERS = 64
_DIGITS = 8


def turns_every(news_s: float) -> int:
    """Return which share of chunks are turns: one in so many, a power of two.

    Args:
        news_s: how long nodes gather news.
    """
    every = 1
    while every < MOST_BETWEEN_TURNS and news_s >= 2 * every * _NEWS_A_TURN_S:
        every *= 2
    return every


def is_turn(chunk: str, every: int) -> bool:
    """Say whether everybody asks the tracker for a chunk."""
    return int(chunk[-_DIGITS:], 16) % every == 0


@dataclass(slots=True)
class _Place:
    """Where one is.

    Attributes:
        parent: who gave the last chunk.
        left: how many chunks are still asked of it.
    """

    parent: Candidate
    left: int


class Places:
    """The places of one node, one in each layer. Each is used for one chunk at a time."""

    def __init__(self) -> None:
        self._of_layer: OrderedDict[str, _Place] = OrderedDict()
        self._taken: dict[str, _Place] = {}
        self._rest = 0
        self._resting = 0
        self.every = 1

    def heed(self, news_s: float) -> None:
        """Take the tracker's word how long nodes gather news."""
        self.every = turns_every(news_s)

    def take(self, layer: str, chunk: str) -> Candidate | None:
        """Return who is asked for a chunk without asking the tracker. Who failed meanwhile, the caller leaves out.

        Afterwards call `came` when it gave the chunk; otherwise the place is lost.
        """
        place = self._of_layer.pop(layer, None)
        if place is None or not place.left:
            return None
        if is_turn(chunk, self.every):
            self._rest = 0
            return None
        place.left -= 1
        self._taken[chunk] = place
        return place.parent

    def came(self, layer: str, chunk: str, giver: Candidate, took_s: float, usual_s: float) -> None:
        """Note who gave a chunk.

        Args:
            layer: that it is of.
            chunk: its name.
            giver: as who was asked for it.
            took_s: how long that took.
            usual_s: how long chunks take lately.
        """
        place = self._taken.pop(chunk, None)
        if place is not None and place.parent.node != giver.node:
            self._lose()
            place = None
        if self._resting:
            self._resting -= 1
            return
        if place is None and self.every > 1 and (giver.pending or is_turn(chunk, self.every)):
            chunks = min(_TIMES_EVERY * self.every, MOST_BETWEEN_TURNS)
            place = _Place(msgspec.structs.replace(giver, pending=True), chunks)
        if place is None or took_s > max(_LATE_S, _LATE_TIMES * usual_s):
            return
        self._of_layer[layer] = place
        self._of_layer.move_to_end(layer)
        while len(self._of_layer) > _LAYERS:
            self._of_layer.popitem(last=False)

    def over(self, chunk: str) -> None:
        """Note that nothing more is done for a chunk, however it ended."""
        if self._taken.pop(chunk, None) is not None:
            self._lose()

    def leave(self, node: str) -> None:
        """Give up the places at a node that did wrong."""
        for layer in [layer for layer, place in self._of_layer.items() if place.parent.node == node]:
            del self._of_layer[layer]

    def _lose(self) -> None:
        self._rest = min(2 * self._rest or _FIRST_REST, _LONGEST_REST)
        self._resting = self._rest
