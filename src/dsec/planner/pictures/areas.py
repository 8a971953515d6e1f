"""Amounts over time, filled below."""

from __future__ import annotations

from dsec.planner.picture import Area, Steps
from dsec.planner.pictures.canvas import Canvas, with_unit
from dsec.planner.pictures.theme import DASHES

_MOST_FILLED = 2


def draw(canvas: Canvas, picture: Area) -> None:
    """Draw every series as steps, filled below while they are few enough to shine through each other."""
    axes = canvas.axes
    for turn, series in enumerate(picture.series):
        _draw_steps(canvas, series, turn, alone=len(picture.series) == 1, filled=len(picture.series) <= _MOST_FILLED)
    axes.set_xlabel(with_unit("time", picture.x_unit))
    axes.set_ylabel(picture.y_unit)
    top = max([y for series in picture.series for _, y in series.points] + [mark.at for mark in picture.limits] + [0.0])
    axes.set_ylim(0.0, top * 1.18 or 1.0)
    axes.margins(x=0.01)
    axes.grid(visible=True)
    canvas.grouped_digits()
    canvas.horizontal(picture.limits)
    canvas.vertical(picture.marks)
    canvas.line_legend()


def _draw_steps(canvas: Canvas, series: Steps, turn: int, *, alone: bool, filled: bool) -> None:
    colour = canvas.palette.colour(series.role) if alone else canvas.palette.distinct(turn)
    xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
    if filled:
        alpha = 0.35 if alone else 0.22
        canvas.axes.fill_between(xs, ys, step="post", color=colour, alpha=alpha, linewidth=0, zorder=2)
    canvas.axes.step(
        xs,
        ys,
        where="post",
        color=colour,
        linestyle="-" if alone else DASHES[turn % len(DASHES)],
        label=series.label,
        zorder=3,
    )
