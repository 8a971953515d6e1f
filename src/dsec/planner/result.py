"""Results of formulas as trees of figures, so that a worksheet can refer to any part of one."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsec.base.errors import NotFoundError
from dsec.planner.dimension import PURE, Dimension, Unit
from dsec.planner.figure import Figure
from dsec.planner.formula import keys_of

Part = "Figure | str | bool | None | tuple[Any, ...] | Record"


@dataclass(frozen=True, slots=True)
class Record:
    """A result with fields.

    Attributes:
        value: the object that the formula returned.
        fields: its parts, named without units.
    """

    value: Any
    fields: Mapping[str, Any]


MakeFigure = Callable[[str, float, Dimension], Figure]


def wrap(name: str, value: Any, unit: Unit, make: MakeFigure) -> Any:
    """Return a value that Python computed as a tree of figures.

    Args:
        name: of the result; parts get dotted names.
        value: floats are in `unit`; dataclasses name their units themselves.
        unit: of a number or of the numbers in a list.
        make: makes a figure of a name, a value in base units and a dimension.
    """
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, int | float):
        return make(name, float(value) * unit.scale, unit.dimension)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return Record(value, dict(_fields(name, value, make)))
    if isinstance(value, Mapping):
        return Record(value, {str(key): wrap(f"{name}.{key}", item, unit, make) for key, item in value.items()})
    return tuple(wrap(f"{name}.{index}", item, unit, make) for index, item in enumerate(value))


def _fields(name: str, value: Any, make: MakeFigure) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    attributes = [field.name for field in dataclasses.fields(kind)]
    attributes += [item for item in dir(kind) if item[0] != "_" and isinstance(getattr(kind, item), property)]
    for attribute, (key, unit) in keys_of(attributes).items():
        yield key, wrap(f"{name}.{key}", getattr(value, attribute), unit, make)


def part_of(result: Any, path: tuple[str, ...], name: str) -> Any:
    """Return the part of a result that a dotted path leads to.

    Raises:
        NotFoundError: it leads nowhere.
    """
    for depth, step in enumerate(path):
        if isinstance(result, Record) and step in result.fields:
            result = result.fields[step]
        elif isinstance(result, tuple) and step.isdigit() and int(step) < len(result):
            result = result[int(step)]
        else:
            raise NotFoundError(
                f"${name} has no part {'.'.join(path[: depth + 1])!r}", detail=f"it has: {_parts(result)}"
            )
    return result


def _parts(result: Any) -> str:
    if isinstance(result, Record):
        return ", ".join(result.fields)
    if isinstance(result, tuple):
        return f"elements 0 to {len(result) - 1}"
    return "no parts; it is one value"


def figures_in(result: Any) -> Iterator[Figure]:
    """Return every figure of a result."""
    if isinstance(result, Figure):
        yield result
    elif isinstance(result, Record):
        for part in result.fields.values():
            yield from figures_in(part)
    elif isinstance(result, tuple):
        for part in result:
            yield from figures_in(part)


def unwrap(part: Any, unit: Unit) -> Any:
    """Return a part of a result as Python had it, its numbers in `unit`."""
    if isinstance(part, Figure):
        return part.value / unit.scale
    if isinstance(part, Record):
        return part.value
    if isinstance(part, tuple):
        return tuple(unwrap(item, unit) for item in part)
    return part


def dimension_of(part: Any) -> Dimension:
    """Return the dimension of a figure, or that which the figures of a list share; otherwise of a pure number."""
    return next((figure.dimension for figure in figures_in(part)), PURE)
