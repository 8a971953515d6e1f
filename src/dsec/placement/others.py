"""How many placements others make for each of one's own, learnt from the views.

Why it matters -------------- An engine that counts its own placements on top of an old view assumes that nothing else
happens to the node. With eight schedulers that is wrong by a factor of eight: all of them see the same node lowest,
each puts there what it needs to come up to the others, and together they put eight times as much. The next view shows
it highest, and it gets nothing. More choices make it worse, because more of them find the same node.

They do not have to talk to each other. All follow the same rule on the same views, so that what one does is the best
guess at what each of the others does in the same moment. So an engine counts each placement of its own for as many as
are made in the whole fleet for each of its own: with eight equal schedulers, for eight. The gap is then closed once
and not eight times. (The same thought as in a distributed rate limit, where each of n nodes spends 1/n of what is
left.)

The number is measured and not configured: between two views of a node ``creations_seen`` grows by what all schedulers
did, and of its own placements the engine knows by their tickets which ones the later view shows. The ratio over the
last few thousand is the weight, rounded to a whole number so that sums stay exact.

It counts for the order among nodes only. Whether a node has room is judged without it: that is a fact about one node,
which a guess must not make full.
"""

from __future__ import annotations

ENOUGH = 32
"""Own placements before the ratio is believed; with fewer it is chance."""

MEMORY = 4096
"""Own placements after which the older half of what was learnt is let go."""

LARGEST = 256
"""The weight of an engine that places next to nothing; more would say no more."""

_CHANGE = 1.25
"""The weight is changed only for a ratio that differs by so much, because every change makes all sums anew."""


class Others:
    """What one engine knows of how much the others place.

    Args:
        weight: what to assume before anything was learnt.

    Attributes:
        weight: placements in the fleet for each own one, as a whole number of 1 or more.
    """

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight
        self._all = 0.0
        self._own = 0.0

    def note(self, everybody: int, own: int) -> bool:
        """Note that views showed so many new creations, of which so many are own; return whether the weight changed."""
        self._all += everybody
        self._own += own
        if self._own < ENOUGH:
            return False
        ratio = self._all / self._own
        ratio = 1.0 if ratio < 1.0 else min(ratio, float(LARGEST))
        if self._own >= MEMORY:
            self._all /= 2.0
            self._own /= 2.0
        if self.weight / _CHANGE < ratio < self.weight * _CHANGE:
            return False
        changed = round(ratio) != self.weight
        self.weight = round(ratio)
        return changed
