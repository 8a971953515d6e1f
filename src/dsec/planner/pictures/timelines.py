"""Timelines: one row for each lane, what ran in it as bars."""

from __future__ import annotations

from dsec.planner.picture import Lane, Timeline
from dsec.planner.pictures.canvas import Canvas, with_unit
from dsec.planner.pictures.theme import ink_on

_MANY = 16
"""From this number of lanes on, labels are thinned out and spans carry none."""


def height_in(picture: Timeline) -> float:
    """Return a height at which every lane can be told apart."""
    return min(2.1 + 0.52 * len(picture.lanes), 9.0)


def draw(canvas: Canvas, picture: Timeline) -> None:
    """Draw lanes from top to bottom."""
    axes, roles = canvas.axes, dict[str, str]()
    start = min((span.start for lane in picture.lanes for span in lane.spans), default=0.0)
    end = max((span.end for lane in picture.lanes for span in lane.spans), default=1.0)
    end = max([end, *(mark.at for mark in picture.marks)])
    for row, lane in enumerate(picture.lanes):
        _draw_lane(canvas, row, lane, roles, end - start, thin=len(picture.lanes) > _MANY)
    step = max(1, len(picture.lanes) // _MANY)
    axes.set_yticks(range(0, len(picture.lanes), step), [lane.label for lane in picture.lanes[::step]])
    axes.set_ylim(len(picture.lanes) - 0.4, -1.1 if picture.marks else -0.6)
    axes.set_xlim(min(0.0, start), end + (end - start) * 0.02)
    axes.set_xlabel(with_unit("time", picture.unit))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", visible=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    canvas.vertical(picture.marks)
    canvas.legend(roles)


def _draw_lane(canvas: Canvas, row: int, lane: Lane, roles: dict[str, str], length: float, *, thin: bool) -> None:
    for span in lane.spans:
        colour = canvas.palette.colour(span.role, span.role)
        roles.setdefault(span.role, colour)
        width = span.end - span.start
        canvas.axes.barh(
            row,
            width,
            left=span.start,
            height=0.62,
            color=colour,
            edgecolor=canvas.theme.ground,
            linewidth=0.8,
            zorder=3,
        )
        # A label that is longer than its bar would run into the next one.
        if span.label and not thin and width > length * 0.0115 * len(span.label):
            canvas.axes.text(
                span.start + width / 2, row, span.label, ha="center", va="center", fontsize=9, zorder=5,
                color=ink_on(colour),
            )  # fmt: skip
    if lane.dots:
        canvas.axes.plot(
            lane.dots, [row] * len(lane.dots), "o", color=canvas.theme.ink, markersize=5.5, zorder=6,
            markeredgecolor=canvas.theme.ground, clip_on=False,
        )  # fmt: skip
