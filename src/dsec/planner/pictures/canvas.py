"""What all drawings share: axes with a caption, marks, legends and numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsec.planner.picture import Caption, Mark
from dsec.planner.pictures.theme import Palette, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAPTION_COLUMNS = 118
_LEGEND_COLUMNS, _HANDLE_COLUMNS = 110, 6
"""Letters that fit beside each other, and how many of them a line or a patch with its gap takes."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """One picture that is being drawn."""

    figure: Figure
    axes: Axes
    theme: Theme
    palette: Palette

    def caption(self, caption: Caption) -> None:
        """Write below where the picture belongs and what it says."""
        parts = [caption.where[:1].upper() + caption.where[1:], caption.text]
        text = ". ".join(part.rstrip(".") for part in parts if part)
        if text:
            self.figure.supxlabel(
                "\n".join(textwrap.wrap(text, _CAPTION_COLUMNS)),
                x=0.015,
                ha="left",
                fontsize=9.5,
                color=self.theme.faint,
            )

    def vertical(self, marks: Sequence[Mark]) -> None:
        """Draw marks at an x, with their labels inside at two heights so that neighbours stay apart."""
        low, high = self.axes.get_xlim()
        for turn, mark in enumerate(sorted(marks, key=lambda mark: mark.at)):
            # Near the right end a label goes to the left of its line, so that it stays inside the picture.
            left = mark.at > low + 0.85 * (high - low)
            self.axes.axvline(mark.at, color=self.theme.ink, linestyle=(0, (4, 3)), linewidth=1.2, zorder=4)
            self.axes.annotate(
                mark.label, (mark.at, 1.0), xycoords=("data", "axes fraction"), ha="right" if left else "left",
                xytext=(-4 if left else 4, -4 - 14 * (turn % 2)), textcoords="offset points", va="top", fontsize=9.5,
                zorder=6, bbox=self.plate(),
            )  # fmt: skip

    def horizontal(self, limits: Sequence[Mark]) -> None:
        """Draw limits at a y, with their labels at the right end."""
        for mark in limits:
            self.axes.axhline(mark.at, color=self.theme.ink, linestyle=(0, (4, 3)), linewidth=1.2, zorder=4)
            self.axes.annotate(
                mark.label, (1.0, mark.at), xycoords=("axes fraction", "data"), xytext=(-4, 4),
                textcoords="offset points", ha="right", fontsize=9.5, zorder=6, bbox=self.plate(),
            )  # fmt: skip

    def legend(self, entries: Mapping[str, str]) -> None:
        """Say which colour is what; one entry needs no legend."""
        from matplotlib.patches import Patch

        if len(entries) > 1:
            self._place_legend([Patch(facecolor=colour, label=label) for label, colour in entries.items()])

    def line_legend(self) -> None:
        """Say which line is what."""
        handles, _ = self.axes.get_legend_handles_labels()
        if len(handles) > 1:
            self._place_legend(handles)

    def _place_legend(self, handles: Sequence[Any]) -> None:
        """Put the legend between the title and the axes, in as many rows as it needs."""
        # A legend that is wider than the picture would squeeze the axes to nothing.
        widest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(len(handles), 5, _LEGEND_COLUMNS // (widest + _HANDLE_COLUMNS)))
        rows = -(-len(handles) // columns)
        self.axes.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, fontsize=9.5,
            handlelength=1.6, columnspacing=1.4, borderaxespad=0.3,
        )  # fmt: skip
        self.axes.set_title(self.axes.get_title(loc="left"), pad=14.0 + 15.0 * rows)

    def grouped_digits(self) -> None:
        """Write the numbers of the axes in full, with their digits in groups."""
        for axis in (self.axes.xaxis, self.axes.yaxis):
            if axis.get_scale() == "linear":
                axis.set_major_formatter(lambda value, _: f"{value:,.10g}")

    def plate(self) -> dict[str, object]:
        """Return a ground behind a label, so that it reads where lines cross it."""
        return {"facecolor": self.theme.ground, "edgecolor": "none", "alpha": 0.85, "pad": 1.5}


def number(value: float) -> str:
    """Return a number as people write it: no more digits than say something."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 0.001:
        return f"{value:.4g}"
    return f"{value:.2e}"


def with_unit(label: str, unit: str) -> str:
    """Return an axis label; money and pure numbers read naturally."""
    return f"{label} / {unit}" if label and unit else label or unit
