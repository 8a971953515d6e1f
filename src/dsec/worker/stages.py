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
            self._add(Segment(stage=stage, start_s=round(start, 6), end_s=round(self.elapsed_s(), 6)))

    def _add(self, segment: Segment) -> None:
        name = segment.stage.value
        self.totals_s[name] = round(self.totals_s.get(name, 0.0) + segment.end_s - segment.start_s, 6)
        if len(self._segments) < MAXIMUM_SEGMENTS:
            self._segments.append(segment)

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments so far."""
        return tuple(self._segments)
