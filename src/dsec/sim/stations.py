"""Stations: places that serve a limited amount at once, first come, first served.

With one unit for each customer this is the multi-server queue of queueing theory, and what a station reports is what
that theory speaks of: the
mean number in service and in the queue, and the waits, zero ones included. The tests hold it against M/M/c, M/D/1 and
Little's law.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from dsec.sim.calendar import Handler
from dsec.sim.figures import Level, Samples


class Station:
    """Serve up to `capacity` units at once.

    Args:
        capacity: units; infinite for a station that never makes anybody wait.
    """

    __slots__ = ("_queue", "busy", "capacity", "queued", "waits_s")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.busy = Level()
        self.queued = Level()
        self.waits_s = Samples()
        self._queue: deque[tuple[float, float, Handler, Any]] = deque()

    def acquire(self, now_s: float, units: float, handler: Handler, argument: Any) -> None:
        """Take `units` as soon as they are free and nobody waits before; then call ``handler(time_s, argument)``."""
        if not self._queue and self.busy.value + units <= self.capacity:
            self.busy.add(now_s, units)
            self.waits_s.add(0.0)
            handler(now_s, argument)
            return
        self._queue.append((now_s, units, handler, argument))
        self.queued.add(now_s, 1)

    def release(self, now_s: float, units: float) -> None:
        """Give units back, and let those begin that now can."""
        self.busy.add(now_s, -units)
        queue = self._queue
        while queue and self.busy.value + queue[0][1] <= self.capacity:
            since_s, wanted, handler, argument = queue.popleft()
            self.queued.add(now_s, -1)
            self.busy.add(now_s, wanted)
            self.waits_s.add(now_s - since_s)
            handler(now_s, argument)

    def restart(self, now_s: float) -> None:
        """Forget what was measured so far: the warm-up is over."""
        self.busy.restart(now_s)
        self.queued.restart(now_s)
        self.waits_s = Samples()
