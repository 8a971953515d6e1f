"""The timeline as SVG. Horizontal places are percentages, so that it fills any width without a script."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from dsec.base.units import format_duration
from dsec.verification.outcome import Outcome
from dsec.worker.report.lanes import OUTCOME_WORDS, STAGE_WORDS, Piece, Timeline, tick_step_s

_TOP = 22
_HIGHEST, _LOWEST = 22, 3
_TALLEST = 620


def _row_height(rows: int) -> float:
    return max(_LOWEST, min(_HIGHEST, _TALLEST / max(rows, 1)))


def _axis(timeline: Timeline, height: float) -> list[str]:
    step = tick_step_s(timeline.length_s)
    parts = []
    for index in range(int(timeline.length_s / step) + 1):
        x = 100 * index * step / timeline.length_s
        anchor = "start" if index == 0 else "end" if x > 97 else "middle"
        label = "0" if index == 0 else format_duration(index * step)
        parts.append(f'<line class="grid" x1="{x:.3f}%" x2="{x:.3f}%" y1="{_TOP - 4}" y2="{height:.0f}"/>')
        parts.append(f'<text x="{x:.3f}%" y="{_TOP - 9}" text-anchor="{anchor}">{label}</text>')
    for cut in timeline.cuts_s:
        x = 100 * cut / timeline.length_s
        parts.append(f'<line class="cut" x1="{x:.3f}%" x2="{x:.3f}%" y1="{_TOP - 4}" y2="{height:.0f}"/>')
    return parts


def _attempt(piece: Piece, length_s: float, y: float, height: float, task_index: int | None) -> str:
    result = piece.result
    title = (
        f"{result.task} · attempt {result.attempt}: {OUTCOME_WORDS[result.outcome]}"
        f" in {format_duration(result.duration_s)}\n"
        + "\n".join(
            f"{STAGE_WORDS[stage]}: {format_duration(result.totals_s[stage.value])}"
            for stage in STAGE_WORDS
            if stage.value in result.totals_s
        )
    )
    rects = "".join(
        f'<rect x="{100 * segment.start_s / length_s:.3f}%" y="{y:.1f}" height="{height:.1f}"'
        f' width="{max(0.02, 100 * (segment.end_s - segment.start_s) / length_s):.3f}%"'
        f' fill="var(--{segment.stage.value})"/>'
        for segment in piece.segments
    )
    if result.outcome is not Outcome.PASSED:
        rects += (
            f'<circle class="bad" cx="{100 * piece.end_s / length_s:.3f}%" cy="{y + height / 2:.1f}"'
            f' r="{min(5.0, height / 2 + 1):.1f}" fill="var(--{result.outcome.value})"/>'
        )
    target = "" if task_index is None else f' data-task="{task_index}"'
    return f'<g class="seg"{target}><title>{escape(title)}</title>{rects}</g>'


def timeline_svg(timeline: Timeline, task_indices: Mapping[str, int]) -> str:
    """Return the picture; `task_indices` says which row of the table a task has."""
    row = _row_height(len(timeline.rows))
    bar = row * 0.72 if row > 6 else row
    height = _TOP + row * len(timeline.rows)
    parts = [f'<svg height="{height:.0f}" role="img" aria-label="timeline of the attempts by lane">']
    for number in range(len(timeline.rows)):
        if row > 6:
            parts.append(
                f'<rect class="row" x="0" y="{_TOP + number * row:.1f}" width="100%" height="{bar:.1f}" rx="3"/>'
            )
    parts += _axis(timeline, height)
    for number, pieces in enumerate(timeline.rows):
        y = _TOP + number * row
        parts += [_attempt(piece, timeline.length_s, y, bar, task_indices.get(piece.result.task)) for piece in pieces]
    return "".join([*parts, "</svg>"])
