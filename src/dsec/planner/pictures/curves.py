"""Lines over one variable, and clouds of points."""

from __future__ import annotations

from dsec.planner.picture import Curves, Dots
from dsec.planner.pictures.canvas import Canvas, with_unit
from dsec.planner.pictures.theme import DASHES

_CLOUD = {"infeasible": (14, "x", 1), "feasible": (22, "o", 2), "front": (44, "D", 3), "chosen": (150, "*", 4)}
"""Size, marker and height of the points of a role."""


def draw_curves(canvas: Canvas, picture: Curves) -> None:
    """Draw every curve in a colour and dashes of its own."""
    axes = canvas.axes
    for turn, curve in enumerate(picture.curves):
        axes.plot(
            [x for x, _ in curve.points], [y for _, y in curve.points], label=curve.label,
            color=canvas.palette.distinct(turn), linestyle=DASHES[turn % len(DASHES)], zorder=3,
        )  # fmt: skip
    if picture.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    values = [y for curve in picture.curves for _, y in curve.points]
    if values and min(values) >= 0:
        axes.set_ylim(0.0, max([*values, *(mark.at for mark in picture.limits)]) * 1.12 or 1.0)
    axes.set_xlabel(with_unit(picture.x_label, picture.x_unit))
    axes.set_ylabel(with_unit(picture.y_label, picture.y_unit))
    axes.margins(x=0.01)
    axes.grid(visible=True)
    canvas.grouped_digits()
    canvas.horizontal(picture.limits)
    canvas.vertical(picture.marks)
    canvas.line_legend()


def draw_dots(canvas: Canvas, picture: Dots) -> None:
    """Draw points by their roles, the rarer ones above and named."""
    axes = canvas.axes
    for role in dict.fromkeys([*_CLOUD, *(point[3] for point in picture.points)]):
        points = [point for point in picture.points if point[3] == role]
        size, marker, height = _CLOUD.get(role, (24, "o", 2))
        if points:
            axes.scatter(
                [point[0] for point in points], [point[1] for point in points], s=size, marker=marker, label=role,
                color=canvas.palette.colour(role), zorder=height + 2, linewidths=1.0,
            )  # fmt: skip
    for x, y, label, role in picture.points:
        if label and role == "chosen":
            axes.annotate(label, (x, y), xytext=(8, 8), textcoords="offset points", fontsize=9.5, zorder=9)
    axes.set_xlabel(with_unit(picture.x_label, picture.x_unit))
    axes.set_ylabel(with_unit(picture.y_label, picture.y_unit))
    axes.margins(0.06)
    axes.grid(visible=True)
    canvas.grouped_digits()
    canvas.horizontal(picture.limits)
    canvas.vertical(picture.marks)
    canvas.line_legend()
