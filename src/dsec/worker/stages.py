"""Where an attempt's time goes: a stopwatch over its stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsec.base.clock import Clock
from dsec.verification.stages import Segment, Stage

MAXIMUM_SEGMENTS = 200
"""Kept per attempt for the picture; the totals stay exact when more rounds than that were played."""


class Stopwatch:
    """Measure the stages of one attempt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin = clock.boot_s()
        self._segments: list[Segment] = []
        self.totals_s: dict[str, float] = {}

    def elapsed_s(self) -> float:
        """Seconds since the attempt began."""
        return self._clock.boot_s() - self._origin

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Count the time of the block to `stage`."""
        start = self.elapsed_s()
        try:
            yield
        finally:
            self.add(stage, start, self.elapsed_s())

    def began_before(self, seconds: float) -> None:
        """Let the attempt have begun so many seconds earlier: it goes on with what another process began."""
        self._origin -= seconds
        self._segments = [
            Segment(stage=each.stage, start_s=each.start_s + seconds, end_s=each.end_s + seconds)
            for each in self._segments
        ]

    def add(self, stage: Stage, start_s: float, end_s: float) -> None:
        """Count a time to `stage` that somebody else measured, in seconds since the attempt began."""
        start_s = max(0.0, start_s)
        self._add(Segment(stage=stage, start_s=round(start_s, 6), end_s=round(max(start_s, end_s), 6)))

    def count(self, stage: Stage, seconds: float) -> None:
        """Count seconds to `stage` that nobody knows the place of."""
        self.totals_s[stage.value] = round(self.totals_s.get(stage.value, 0.0) + seconds, 6)

    def _add(self, segment: Segment) -> None:
        self.count(segment.stage, segment.end_s - segment.start_s)
        if len(self._segments) < MAXIMUM_SEGMENTS:
            self._segments.append(segment)

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments so far, in the order of their times."""
        return tuple(sorted(self._segments, key=lambda segment: (segment.start_s, segment.end_s)))
