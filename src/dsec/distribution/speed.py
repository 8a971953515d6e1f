"""How fast a node's link is, as far as its own transfers tell.

Where nobody set a bound on what a node sends, nobody knows what it can send either, and how chunks should spread
depends on it (`ChoicePolicy.relay_s`). What came in while a chunk was under way, divided by how long that took, is at
most what the link carries: whoever sent it may have been busy, or have waited itself. So the best of the last ones
counts. Links are taken to carry the same both ways; one that carries less up than down is asked too often for a while,
and its load says so.
"""

from __future__ import annotations

from collections import deque

_LAST = 16
_LEAST_BYTES = 1 << 20
"""What is smaller says more of round trips than of links."""


class Speed:
    """What one node's transfers tell."""

    def __init__(self) -> None:
        self._came_bytes = 0
        self._last: deque[float] = deque(maxlen=_LAST)

    @property
    def bytes_per_s(self) -> float:
        """The link's speed; 0: not known."""
        return max(self._last, default=0.0)

    def came(self, size_bytes: int) -> None:
        """Note bytes that came, of whatever."""
        self._came_bytes += size_bytes

    def begin(self) -> int:
        """Note that something was asked for; what is returned is for `end`."""
        return self._came_bytes

    def end(self, begun: int, took_s: float) -> None:
        """Note that it is here, so long after it was asked for. What else came meanwhile counts too."""
        size_bytes = self._came_bytes - begun
        if size_bytes >= _LEAST_BYTES and took_s > 0:
            self._last.append(size_bytes / took_s)

    def bound(self, limit_bytes_per_s: int) -> int:
        """Return what a node can send that is to send no more than so much; 0, for either: not known, no limit."""
        known = [int(each) for each in (self.bytes_per_s, limit_bytes_per_s) if each >= 1]
        return min(known, default=0)
