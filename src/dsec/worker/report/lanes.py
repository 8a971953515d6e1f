"""Geometry of the timeline. Pure: results in, rows of segments out.

A rollout may have been run in several sittings, days apart. Stretches in which nothing ran are cut out of the axis, and
the cuts are marked, so that the picture shows work and not nights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.verification.stages import Segment, Stage

LONGEST_GAP_S = 30.0
"""A pause longer than this, and longer than a tenth of the work, is cut out."""
RESOLUTION = 1500
"""Distinguishable places along the axis; what lies closer together is drawn as one."""
DETAILED_ATTEMPTS = 4_000
"""With more attempts than this each is drawn as one piece, in the colour of its longest stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One attempt in its row; the segments are in seconds on the cut axis."""

    result: AttemptResult
    start_s: float
    end_s: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Rows of attempts by lane.

    Attributes:
        length_s: of the axis.
        rows: pieces of each lane, in time.
        cuts_s: places on the axis where a pause was cut out.
    """

    length_s: float
    rows: tuple[tuple[Piece, ...], ...]
    cuts_s: tuple[float, ...]


class _Axis:
    """Maps wall-clock time to the cut axis."""

    def __init__(self, results: Sequence[AttemptResult]) -> None:
        spans = sorted((result.started_at_s, result.started_at_s + result.duration_s) for result in results)
        work_s = sum(end - start for start, end in spans)
        limit_s = max(LONGEST_GAP_S, work_s / 10)
        self._steps: list[tuple[float, float]] = [(spans[0][0], 0.0)]
        self.cuts: list[float] = []
        end_s = spans[0][0]
        for start, end in spans:
            if start - end_s > limit_s:
                position = self.place(end_s) + limit_s / 10
                self._steps.append((start, position))
                self.cuts.append(position - limit_s / 20)
            end_s = max(end_s, end)
        self.length_s = max(self.place(end_s), 1e-6)

    def place(self, wall_s: float) -> float:
        """Return the place of a wall-clock time."""
        wall, position = next(step for step in reversed(self._steps) if step[0] <= wall_s or step is self._steps[0])
        return wall_s - wall + position


def coalesce(segments: Sequence[Segment], resolution_s: float) -> tuple[Segment, ...]:
    """Join neighbours that are too short to tell apart; the joint one has the stage of the longest."""
    joined: list[Segment] = []
    longest_s: list[float] = []
    for segment in segments:
        length_s = segment.end_s - segment.start_s
        if joined and segment.end_s - joined[-1].start_s < resolution_s:
            stage = segment.stage if length_s > longest_s[-1] else joined[-1].stage
            joined[-1] = Segment(stage=stage, start_s=joined[-1].start_s, end_s=segment.end_s)
            longest_s[-1] = max(longest_s[-1], length_s)
        else:
            joined.append(segment)
            longest_s.append(length_s)
    return tuple(joined)


def _piece(result: AttemptResult, axis: _Axis, resolution_s: float) -> Piece:
    start_s = axis.place(result.started_at_s)
    moved = [
        Segment(stage=segment.stage, start_s=start_s + segment.start_s, end_s=start_s + segment.end_s)
        for segment in result.segments
    ]
    return Piece(
        result=result,
        start_s=start_s,
        end_s=start_s + result.duration_s,
        segments=coalesce(moved, resolution_s),
    )


def timeline(results: Sequence[AttemptResult]) -> Timeline | None:
    """Return the timeline, None when there are no results."""
    if not results:
        return None
    axis = _Axis(results)
    resolution_s = axis.length_s / RESOLUTION if len(results) <= DETAILED_ATTEMPTS else float("inf")
    lanes: dict[int, list[Piece]] = {}
    for result in sorted(results, key=lambda item: item.started_at_s):
        lanes.setdefault(result.lane, []).append(_piece(result, axis, resolution_s))
    rows = tuple(tuple(lanes[lane]) for lane in sorted(lanes))
    return Timeline(length_s=axis.length_s, rows=rows, cuts_s=tuple(axis.cuts))


def tick_step_s(length_s: float, *, most: int = 10) -> float:
    """Return a round distance of ticks with which there are at most `most`."""
    steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400]
    return next((step for step in steps if length_s / step <= most), length_s / most)


STAGE_WORDS = {
    Stage.WAIT: "waiting",
    Stage.CREATE: "creating sandboxes",
    Stage.DECIDE: "policy deciding",
    Stage.TOOLS: "policy's calls",
    Stage.RECORD: "recording rounds",
    Stage.VERIFY: "verifying",
    Stage.DESTROY: "removing sandboxes",
}
OUTCOME_WORDS = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed out",
    Outcome.INFRASTRUCTURE_ERROR: "infrastructure error",
    Outcome.UNKNOWN: "unknown",
}
