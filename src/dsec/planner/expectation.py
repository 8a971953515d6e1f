"""Expected numbers beside computed ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsec.base.errors import CallerError
from dsec.planner.document import Table
from dsec.planner.figure import Figure
from dsec.planner.quantity import Quantity, show
from dsec.planner.result import Record, part_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One expected value, and what was computed.

    Attributes:
        name: of the figure.
        expected: as it was written.
        computed: in the expected one's unit.
        holds: whether the computed value rounds to the expected one, or lies within the tolerance.
        off_by: computed less expected, relative to the expected; None: not numbers, or expected is zero.
        where: where the expected value stands.
        assumed: what was assumed.
        place: ``file:line``.
    """

    name: str
    expected: str
    computed: str
    holds: bool
    off_by: float | None = None
    where: str = ""
    assumed: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every check of one calculation shares."""

    table: Table
    where: str
    assumed: str
    tolerance: Quantity | None


def check_all(name: str, result: Any, raw: Any, context: Context) -> Iterator[Check]:
    """Compare a result with what a table's `expect` says: a value, a list, or a table by field.

    Raises:
        InvalidRequestError: the expected value is of another kind or dimension, or names a field that is not there.
    """
    if isinstance(raw, dict):
        for key, item in raw.items():
            yield from check_all(f"{name}.{key}", _part(name, result, str(key), context), item, context)
    elif isinstance(raw, list):
        if not isinstance(result, tuple) or len(result) != len(raw):
            size = len(result) if isinstance(result, tuple) else "no"
            raise context.table.error("expect", f"{name} has {size} elements, and {len(raw)} are expected")
        for index, item in enumerate(raw):
            yield from check_all(f"{name}.{index}", result[index], item, context)
    elif isinstance(result, Figure):
        yield _number(name, result, raw, context)
    elif isinstance(result, Record | tuple):
        raise context.table.error("expect", f"{name} is not one value", resolution="write expect.FIELD = ...")
    else:
        yield _check(name, str(raw), str(result), result == raw, None, context)


def _part(name: str, result: Any, key: str, context: Context) -> Any:
    try:
        return part_of(result, (key,), name)
    except CallerError as error:
        raise context.table.error("expect", error.brief, detail=error.detail) from error


def _number(name: str, figure: Figure, raw: Any, context: Context) -> Check:
    written = _as_number(raw) if isinstance(raw, int | float) else raw
    expected = context.table.read("expect", written, figure.dimension)
    if expected.dimension != figure.dimension:
        raise context.table.wrong_dimension("expect", str(raw), expected.dimension, figure.dimension)
    allowed = _allowed(expected, context)
    # Half of the last digit is exact in decimal and not in binary, hence the sliver.
    holds = abs(figure.value - expected.value) <= allowed * (1 + 1e-9) + abs(expected.value) * 1e-12
    off_by = (figure.value - expected.value) / expected.value if expected.value else None
    computed = show(figure.value, figure.dimension, expected.unit, digits=7)
    return _check(name, str(raw), computed, holds, off_by, context)


def _as_number(raw: int | float) -> str:
    return repr(raw)


def _allowed(expected: Quantity, context: Context) -> float:
    tolerance = context.tolerance
    if tolerance is None:
        return expected.step
    if tolerance.dimension == expected.dimension and tolerance.unit == expected.unit and not expected.dimension.is_pure:
        return tolerance.value
    if tolerance.dimension.is_pure:
        return tolerance.value * abs(expected.value)
    if tolerance.dimension == expected.dimension:
        return tolerance.value
    raise context.table.wrong_dimension("tolerance", "tolerance", tolerance.dimension, expected.dimension)


def _check(name: str, expected: str, computed: str, holds: bool, off_by: float | None, context: Context) -> Check:
    return Check(
        name=name,
        expected=expected,
        computed=computed,
        holds=holds,
        off_by=off_by,
        where=context.where,
        assumed=context.assumed,
        place=context.table.place("expect"),
    )
