"""Bars, stacked or not, beside a capacity or not."""

from __future__ import annotations

from dsec.planner.picture import Bar, Bars
from dsec.planner.pictures.canvas import Canvas, number
from dsec.planner.pictures.theme import ink_on

_LETTER_SHARE = 0.017
"""Of the longest bar; a piece that is shorter than its number has no room for it."""


def height_in(picture: Bars) -> float:
    """Return a height at which every bar has room."""
    return min(2.0 + 0.62 * len(picture.bars), 9.0)


def draw(canvas: Canvas, picture: Bars) -> None:
    """Draw bars from top to bottom with their numbers at the end."""
    axes, roles = canvas.axes, dict[str, str]()
    lengths = [_scaled(bar, bar.total, picture) for bar in picture.bars]
    longest = max([*lengths, 1.0 if picture.as_share else 0.0]) or 1.0
    for row, bar in enumerate(picture.bars):
        _draw_bar(canvas, row, bar, picture, longest, roles)
        end = lengths[row] + longest * 0.012
        axes.text(end, row, _ending(bar, picture), va="center", fontsize=9.5, zorder=5, bbox=canvas.plate())
    axes.set_yticks(range(len(picture.bars)), [bar.label for bar in picture.bars])
    axes.set_ylim(len(picture.bars) - 0.4, -0.6)
    axes.set_xlim(0.0, longest * 1.24)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", visible=True)
    if picture.as_share:
        axes.set_xlabel("share of capacity")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.axvline(1.0, color=canvas.theme.ink, linestyle=(0, (4, 3)), linewidth=1.2, zorder=4)
    elif picture.bars:
        axes.set_xlabel(picture.bars[0].unit)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    canvas.legend(roles)


def _draw_bar(canvas: Canvas, row: int, bar: Bar, picture: Bars, longest: float, roles: dict[str, str]) -> None:
    left, stacked = 0.0, any(len(each.parts) > 1 for each in picture.bars)
    for part in bar.parts:
        width, colour = (
            _scaled(bar, part.value, picture),
            canvas.palette.colour(part.role, part.label if stacked else ""),
        )
        if len(bar.parts) > 1:
            roles.setdefault(part.label or part.role, colour)
        canvas.axes.barh(
            row, width, left=left, height=0.58, color=colour, edgecolor=canvas.theme.ground, linewidth=0.8, zorder=3
        )
        if len(bar.parts) > 1 and width > longest * _LETTER_SHARE * len(number(part.value)):
            ink = ink_on(colour)
            canvas.axes.text(
                left + width / 2, row, number(part.value), ha="center", va="center", fontsize=8.5, color=ink, zorder=5
            )
        left += width
    if bar.capacity is not None and not picture.as_share:
        canvas.axes.plot([bar.capacity] * 2, [row - 0.38, row + 0.38], color=canvas.theme.ink, linewidth=2.0, zorder=5)


def _scaled(bar: Bar, value: float, picture: Bars) -> float:
    return value / bar.capacity if picture.as_share and bar.capacity else value


def _ending(bar: Bar, picture: Bars) -> str:
    amount = f"{number(bar.total)} {bar.unit}".strip()
    if bar.capacity is None:
        return amount
    of = f"{number(bar.total)} of {number(bar.capacity)} {bar.unit}".strip()
    return f"{bar.total / bar.capacity:.0%}: {of}" if picture.as_share else of
