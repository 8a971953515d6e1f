"""Figures: numbers that know where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dsec.planner.dimension import PURE, Dimension
from dsec.planner.quantity import show

GIVEN = "given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, with its formula and what went into it.

    Attributes:
        name: by which it is asked for.
        value: in base units.
        dimension: its dimension.
        unit: in which it is shown; empty: what reads well.
        formula: the text of the formula; `given` for a given value.
        inputs: by the names that the formula uses.
        source: where the formula or the given value stands.
        note: what else a reader should know: an assumption, the line of a file.
    """

    name: str
    value: float
    dimension: Dimension = PURE
    unit: str = ""
    formula: str = GIVEN
    inputs: Mapping[str, Figure] = field(default_factory=dict)
    source: str = ""
    note: str = ""

    @property
    def is_given(self) -> bool:
        """Whether nobody computed it."""
        return self.formula == GIVEN

    def __str__(self) -> str:
        return show(self.value, self.dimension, self.unit or None)


def given(
    name: str, value: float, dimension: Dimension = PURE, *, unit: str = "", source: str, note: str = ""
) -> Figure:
    """Return a given value."""
    return Figure(name=name, value=value, dimension=dimension, unit=unit, source=source, note=note)


def explain(figure: Figure) -> Iterator[str]:
    """Return the lines that say where a figure comes from; what was explained once is not explained again."""
    yield from _explain(figure, "", set())


def _explain(figure: Figure, indent: str, seen: set[tuple[str, float]]) -> Iterator[str]:
    yield f"{indent}{figure.name} = {figure}"
    key = (figure.name, figure.value)
    if key in seen and figure.inputs:
        yield f"{indent}    (as above)"
        return
    seen.add(key)
    if not figure.is_given:
        yield f"{indent}    formula: {figure.formula}"
    yield f"{indent}    {'given by' if figure.is_given else 'source'}: {figure.source or 'this file'}"
    if figure.note:
        yield f"{indent}    note: {figure.note}"
    for inner in figure.inputs.values():
        yield from _explain(inner, indent + "    ", seen)
