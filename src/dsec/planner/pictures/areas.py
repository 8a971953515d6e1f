"""Amounts over time, filled below."""

from __future__ import annotations

from dsec.planner.picture import Area, Steps
from dsec.planner.pictures.canvas import Canvas, with_unit
from dsec.planner.pictures.theme import DASHES


def draw(canvas: Canvas, picture: Area) -> None:
    """Draw every series as steps; where several overlap their areas shine through."""
    axes = canvas.axes
    for turn, series in enumerate(picture.series):
        _draw_steps(canvas, series, turn, alone=len(picture.series) == 1)
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


def _draw_steps(canvas: Canvas, series: Steps, turn: int, *, alone: bool) -> None:
    colour = canvas.palette.colour(series.role) if alone else canvas.palette.distinct(turn)
    xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
    canvas.axes.fill_between(xs, ys, step="post", color=colour, alpha=0.35 if alone else 0.22, linewidth=0, zorder=2)
    canvas.axes.step(
        xs,
        ys,
        where="post",
        color=colour,
        linestyle="-" if alone else DASHES[turn % len(DASHES)],
        label=series.label,
        zorder=3,
    )
