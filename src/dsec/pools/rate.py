"""Rates over a sliding window, in constant time and memory.

The window is cut into buckets of a second. A bucket leaves as a whole, so that a rate is exact to one bucket. A counter
that is younger than its window divides by its age instead, else a pool would see a burst a minute late; by at least
`least_s`, else one arrival in the first instant would look like a flood.
"""

from __future__ import annotations

from collections import deque

_BUCKET_S = 1.0


class RateWindow:
    """Count events; tell their rate and how unevenly they come.

    Args:
        window_s: how far back it looks.
        least_s: shortest time that a rate is taken over.
    """

    __slots__ = ("_buckets", "_least_s", "_since_s", "_squares", "_total", "window_s")

    def __init__(self, window_s: float, *, least_s: float) -> None:
        self.window_s = window_s
        self._least_s = min(least_s, window_s)
        self._buckets: deque[list[int]] = deque()
        self._total = 0
        self._squares = 0
        self._since_s: float | None = None

    def add(self, now_s: float, count: int = 1) -> None:
        """Count `count` events at `now_s`; a time before the last one counts as the last one."""
        if self._since_s is None:
            self._since_s = now_s
        bucket = int(now_s // _BUCKET_S)
        if not self._buckets or self._buckets[-1][0] < bucket:
            self._buckets.append([bucket, 0])
        last = self._buckets[-1]
        self._squares += count * (2 * last[1] + count)
        self._total += count
        last[1] += count

    def _forget(self, now_s: float) -> None:
        oldest = (now_s - self.window_s) // _BUCKET_S
        while self._buckets and self._buckets[0][0] <= oldest:
            count = self._buckets.popleft()[1]
            self._total -= count
            self._squares -= count * count

    def _length_s(self, now_s: float) -> float:
        assert self._since_s is not None
        return min(self.window_s, max(now_s - self._since_s, self._least_s))

    def per_s(self, now_s: float) -> float:
        """Return the rate over the window that ends at `now_s`."""
        if self._since_s is None:
            return 0.0
        self._forget(now_s)
        return self._total / self._length_s(now_s)

    def dispersion(self, now_s: float) -> float:
        """Return the variance of the counts of a second over their mean: 1 for independent events, n for groups of n
        that come together; 0 when nothing came."""
        if self._since_s is None:
            return 0.0
        self._forget(now_s)
        if not self._total:
            return 0.0
        seconds = self._length_s(now_s) / _BUCKET_S
        mean = self._total / seconds
        return max(0.0, (self._squares / seconds - mean * mean) / mean)


class MeanOfLast:
    """The mean of the last `count` values; None before the first."""

    __slots__ = ("_sum", "_values")

    def __init__(self, count: int) -> None:
        self._values: deque[float] = deque(maxlen=count)
        self._sum = 0.0

    def add(self, value: float) -> None:
        if len(self._values) == self._values.maxlen:
            self._sum -= self._values[0]
        self._values.append(value)
        self._sum += value

    def mean(self) -> float | None:
        return max(0.0, self._sum / len(self._values)) if self._values else None
