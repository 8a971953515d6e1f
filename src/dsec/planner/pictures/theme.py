"""Colours of roles, on a light and on a dark ground.

The hues are those of Okabe and Ito, which people with any colour vision tell apart; on the dark ground they are
lighter, so that both have the same contrast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_BLUE, _ORANGE, _GREEN, _PINK = (
    ("#1f6fb4", "#6cb4ee"),
    ("#d9730d", "#f5a04c"),
    ("#0b8f6a", "#4fc9a4"),
    ("#b8578f", "#e294c2"),
)
_GREY, _PALE, _OLIVE, _RED = (
    ("#8a8f98", "#8d939d"),
    ("#c9cdd4", "#555b66"),
    ("#8a7a00", "#cdbd4a"),
    ("#c0392b", "#f08075"),
)
_SKY, _BROWN = ("#4aa3df", "#9fd3f5"), ("#7b5b3a", "#c9a27a")

_ROLES = {
    "model": _BLUE, "tool": _ORANGE, "prepare": _GREEN, "idle": _PALE, "wait": _PALE, "save": _PINK, "restore": _GREEN,
    "wasted": _GREY, "memory": _SKY, "cpu": _ORANGE, "generate": _BLUE, "verify": _ORANGE, "update": _GREEN,
    "publish": _PINK, "input": _BLUE, "output": _GREEN, "thinking": _ORANGE, "cached": _SKY, "fixed": _GREY,
    "success": _GREEN, "failure": _RED, "network": _SKY, "feasible": _BLUE, "infeasible": _PALE, "front": _GREEN,
    "chosen": _ORANGE,
}  # fmt: skip
_FREE = (_BLUE, _ORANGE, _GREEN, _PINK, _OLIVE, _SKY, _GREY, _BROWN)
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (3, 1)))
"""Lines differ in their dashes as well as in their colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """One ground and what is drawn on it.

    Attributes:
        name: `light` or `dark`.
        ground, ink, faint, grid: colours of the page, of writing, of notes and of helping lines.
    """

    name: str
    ground: str
    ink: str
    faint: str
    grid: str

    @property
    def is_dark(self) -> bool:
        return self.name == "dark"

    def style(self) -> dict[str, Any]:
        """Return the settings of matplotlib for this ground; nothing in a file depends on when it was made."""
        return {
            "figure.facecolor": self.ground, "axes.facecolor": self.ground, "savefig.facecolor": self.ground,
            "axes.edgecolor": self.faint, "axes.labelcolor": self.ink, "text.color": self.ink,
            "xtick.color": self.ink, "ytick.color": self.ink, "grid.color": self.grid, "axes.axisbelow": True,
            "axes.spines.top": False, "axes.spines.right": False, "font.size": 11.0, "axes.titlesize": 13.0,
            "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.titlepad": 14.0, "legend.frameon": False,
            "svg.hashsalt": "dsec", "svg.fonttype": "path", "lines.linewidth": 2.2, "font.family": "DejaVu Sans",
            "text.parse_math": False,  # What a file says is text: a dollar sign is one.
        }  # fmt: skip


LIGHT = Theme(name="light", ground="#ffffff", ink="#1c2025", faint="#5f6670", grid="#e3e6ea")
DARK = Theme(name="dark", ground="#16191d", ink="#e8eaed", faint="#9aa1ab", grid="#2c3138")


class Palette:
    """Gives everything that a picture tells apart its colour: that of its role, while nothing else has it."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._given: dict[str, tuple[str, str]] = {}

    def colour(self, role: str, thing: str = "") -> str:
        """Return the colour of a thing, the same one each time.

        Args:
            role: what it does in the picture; a role that is not known gets the next free colour.
            thing: what is told apart by its colour; empty: nothing, it only has a role.
        """
        wanted = _ROLES.get(role)
        if not thing and wanted is not None:
            return wanted[self._theme.is_dark]
        key = thing or role
        if key not in self._given:
            taken = set(self._given.values())
            free = next((each for each in _FREE if each not in taken), _FREE[len(self._given) % len(_FREE)])
            self._given[key] = free if wanted is None or wanted in taken else wanted
        return self._given[key][self._theme.is_dark]

    def distinct(self, index: int) -> str:
        """Return a colour for the n-th of several lines."""
        return _FREE[index % len(_FREE)][self._theme.is_dark]


def ink_on(colour: str) -> str:
    """Return whether dark or light writing reads on a colour (``#rrggbb``), by its relative luminance (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return "#10131a" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.3 else "#ffffff"
