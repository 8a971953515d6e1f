"""The event engine: a calendar queue whose buckets are sorted when their time comes.

*Theory.* A binary heap pays log2(n) scattered comparisons for each event; with the 380,000 events that one scale unit
has pending
that is mostly cache misses. A calendar queue (R. Brown, "Calendar queues", CACM 31(10), 1988) puts an event into the
bucket
of its time slice, which is one append, and orders a slice only when the clock reaches it. Sorting a short list of
floats is among
the fastest things CPython does, so that the order costs far less than the heap's. Days without events cost nothing: the
indices of the buckets in use stand in a heap of their own, which is short.

*Order.* Times are exact floats, not ticks: buckets only group them. Events of one time run in the order in which they
were scheduled
(the sort is stable, and a late insertion goes behind its equals), so that a run is determined by its scenario and its
seed alone.

*Tried and not taken* is in docs/simulation/engine.md, with figures.
"""

from __future__ import annotations

import gc
from bisect import insort_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from dsec.base.errors import InvalidRequestError

Handler = Callable[[float, Any], object]
"""What an event calls, with its time in seconds and its argument."""
Event = tuple[float, Handler, Any]

EVENTS_PER_BUCKET = 64.0
"""Where the hold benchmark has its flat optimum: shorter buckets pay for their index, longer ones for insertions."""
_time_of = itemgetter(0)


class Calendar:
    """Pending events and the time.

    Args:
        events_per_s: about how many events a simulated second has; sets the width of a bucket, and so the speed, never
            the order.
    """

    __slots__ = ("_active", "_buckets", "_current", "_indices", "_per_width", "_stopped", "events", "now_s")

    def __init__(self, events_per_s: float = 64.0) -> None:
        if not 0 < events_per_s < float("inf"):
            raise InvalidRequestError(
                f"{events_per_s} is no rate of events", resolution="give a positive number per second"
            )
        self._per_width = events_per_s / EVENTS_PER_BUCKET
        self._buckets: dict[int, list[Event]] = {}
        self._indices: list[int] = []
        self._active: list[Event] = []
        self._current = -1
        self._stopped = False
        self.events = 0
        self.now_s = 0.0

    def at(self, time_s: float, handler: Handler, argument: Any = None) -> None:
        """Schedule ``handler(time_s, argument)``. A time before now is an error of the model: it would be lost, or run
        at a wrong time.
        """
        index = int(time_s * self._per_width)
        if index <= self._current:
            self._refuse_past(time_s)
            insort_right(self._active, (time_s, handler, argument), key=_time_of)
            return
        try:
            self._buckets[index].append((time_s, handler, argument))
        except KeyError:
            self._buckets[index] = [(time_s, handler, argument)]
            heappush(self._indices, index)

    def stop(self) -> None:
        """End the run after the current event."""
        self._stopped = True

    def run(self, until_s: float = float("inf")) -> None:
        """Run events in order until none is left, one asks to stop, or the next is later than `until_s`; the clock
        then stands there.
        """
        self._stopped = False
        while self._indices and not self._stopped:
            if self._indices[0] > until_s * self._per_width:
                break
            bucket = self._take(heappop(self._indices))
            done = self._run_bucket(bucket, until_s)
            self.events += done
            if done < len(bucket):
                self._keep(bucket[done:])
                break
        self._current = -1  # Nothing is active: whatever is scheduled until the next run goes into a bucket.
        self._active = []
        if until_s != float("inf") and not self._stopped:
            self.now_s = max(self.now_s, until_s)

    def _take(self, index: int) -> list[Event]:
        bucket = self._buckets.pop(index)
        bucket.sort(key=_time_of)
        self._refuse_past(bucket[0][0])
        self._current, self._active = index, bucket
        return bucket

    def _refuse_past(self, time_s: float) -> None:
        if not time_s >= self.now_s:
            raise InvalidRequestError(f"an event was scheduled at {time_s} s, and it is {self.now_s} s already")

    def _run_bucket(self, bucket: list[Event], until_s: float) -> int:
        """Run the events of the active bucket; return how many ran. Events may be inserted behind the one that runs."""
        done = 0
        for time_s, handler, argument in bucket:
            if time_s > until_s or self._stopped:
                break
            self.now_s = time_s
            handler(time_s, argument)
            done += 1
        return done

    def _keep(self, rest: list[Event]) -> None:
        """Put back what was not reached, so that another `run` goes on from here; then leave this one."""
        self._buckets[self._current] = rest
        heappush(self._indices, self._current)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep the cyclic collector out of a run.

    A simulation holds hundreds of thousands of live tuples and makes no cycles in its events; every full collection
    would walk them all.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
