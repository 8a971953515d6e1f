"""What is to be drawn: plain numbers in the units of their axes, and no drawing.

A picture is made by whoever computes (worksheets, plans); `dsec.planner.pictures` draws it. Roles are words such as
`model`, `tool`, `memory`, from which the drawing chooses its colours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """What stands around every picture.

    Attributes:
        name: file name without ending.
        title: above it.
        where: such as "figure 11-17"; empty: nowhere.
        text: below it.
    """

    name: str
    title: str
    where: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line across the picture: vertical at an x, or horizontal at a y."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What runs from one moment to another."""

    start: float
    end: float
    role: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One row of a timeline; dots are moments, such as an arrival."""

    label: str
    spans: tuple[Span, ...]
    dots: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happens when, one row for each lane, from top to bottom."""

    caption: Caption
    unit: str
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """An amount that stays until its next point; points are (x, y from there on)."""

    label: str
    role: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Amounts over time, filled below."""

    caption: Caption
    x_unit: str
    y_unit: str
    series: tuple[Steps, ...]
    marks: tuple[Mark, ...] = ()
    limits: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """One piece of a stacked bar."""

    label: str
    value: float
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar.

    Attributes:
        label: beside it.
        parts: its pieces; one, where it is not stacked.
        unit: of its pieces and its capacity.
        capacity: what there is; None: nothing to compare with.
    """

    label: str
    parts: tuple[BarPart, ...]
    unit: str
    capacity: float | None = None

    @property
    def total(self) -> float:
        """Sum of the pieces."""
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars beside each other.

    Attributes:
        as_share: each as a share of its capacity, with a line at 100 %; otherwise all are in one unit.
    """

    caption: Caption
    bars: tuple[Bar, ...]
    as_share: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line; points are (x, y) in the axes' units."""

    label: str
    role: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Lines over one variable."""

    caption: Caption
    x_label: str
    x_unit: str
    y_label: str
    y_unit: str
    curves: tuple[Curve, ...]
    log: bool = False
    marks: tuple[Mark, ...] = ()
    limits: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points of a cloud, the chosen one and a front among them.

    Attributes:
        points: (x, y, label, role) of each; roles: `feasible`, `infeasible`, `front`, `chosen`.
    """

    caption: Caption
    x_label: str
    x_unit: str
    y_label: str
    y_unit: str
    points: tuple[tuple[float, float, str, str], ...]
    marks: tuple[Mark, ...] = ()
    limits: tuple[Mark, ...] = ()


Picture = Timeline | Area | Bars | Curves | Dots
