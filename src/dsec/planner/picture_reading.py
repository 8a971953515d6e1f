"""Read the pictures that a worksheet asks for, with every number computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dsec.base.errors import CallerError
from dsec.planner.binding import Binder
from dsec.planner.dimension import Dimension
from dsec.planner.document import Table
from dsec.planner.evaluation import Computed, Evaluator, call, placed
from dsec.planner.expression import evaluate
from dsec.planner.figure import Figure
from dsec.planner.picture import (
    Area,
    Bar,
    BarPart,
    Bars,
    Caption,
    Curve,
    Curves,
    Lane,
    Mark,
    Picture,
    Span,
    Steps,
    Timeline,
)
from dsec.planner.quantity import Quantity, in_unit, shown_unit, unit_scale
from dsec.planner.registry import find_formula
from dsec.planner.result import part_of
from dsec.planner.worksheet import check_name

_MOST_POINTS = 5_000


@dataclass(slots=True)
class Reader:
    """Quantities of a picture: written in place, referred to, or computed by an expression."""

    evaluator: Evaluator
    x: Figure | None = None
    source: str = ""
    seen: list[Quantity] = field(default_factory=list)

    def resolve(self, reference: str) -> Any:
        """Return what a reference leads to; `x` is the variable of a curve."""
        if reference == "x" and self.x is not None:
            return self.x
        return self.evaluator.resolve(reference)

    def evaluate(self, text: str) -> tuple[Quantity, dict[str, Figure]]:
        """Compute an expression that may use `$x`."""
        return evaluate(text, self.resolve), {}

    def quantity(self, table: Table, key: str | int, raw: Any) -> Quantity:
        """Return one quantity."""
        if isinstance(raw, str) and raw.startswith(("=", "$")):
            try:
                return evaluate(raw.removeprefix("=").strip(), self.resolve)
            except CallerError as error:
                raise placed(table, str(key), error) from error
        return table.read(key, raw)

    def at(self, table: Table, key: str) -> Quantity:
        """Return the quantity under a key."""
        return self.quantity(table, key, table.required(key, "a quantity"))

    def listed(self, table: Table, key: str) -> list[Quantity]:
        """Return a list of quantities: written out, or a reference to a result that is a list."""
        raw = table.raw(key)
        if isinstance(raw, str) and raw.startswith("$"):
            try:
                part = self.resolve(raw[1:])
            except CallerError as error:
                raise placed(table, key, error) from error
            if not isinstance(part, tuple):
                raise table.error(key, f"{raw} is not a list")
            return [Quantity(item.value, item.dimension) for item in part]
        return [self.quantity(table, key, item) for item in table.items(key)]


def read_pictures(computed: Computed) -> tuple[Picture, ...]:
    """Return the pictures of a worksheet.

    Raises:
        InvalidRequestError: a picture is not what docs/formats/planner.md says.
    """
    tables = computed.evaluator.worksheet.pictures
    reader = Reader(computed.evaluator, source=computed.heading.source)
    return tuple(_read(name, table, reader) for name, table in tables.items())


def _read(name: str, table: Table, reader: Reader) -> Picture:
    check_name(table, name, at_table=True)  # It becomes a file's name.
    kind = table.choice("kind", tuple(_KINDS))
    caption = Caption(
        name=name, title=table.text("title", name), where=table.text("where", ""), text=table.text("caption", "")
    )
    picture = _KINDS[kind](table, caption, reader)
    table.finish()
    return picture


def _unit(table: Table, key: str, values: Iterable[Quantity]) -> tuple[str, Callable[[Quantity, Table], float]]:
    """Return the unit of an axis, and what puts a quantity on it."""
    found = list(values)
    dimension = found[0].dimension if found else Dimension()
    largest = max((abs(value.value) for value in found), default=0.0)
    unit = table.text(key, "") or shown_unit(largest, dimension)
    if unit_scale(unit)[1] != dimension:
        raise table.error(key, f"the values are in {dimension}, and the axis is in {unit!r}")

    def put(value: Quantity, where: Table) -> float:
        if value.dimension != dimension:
            raise where.wrong_dimension("value", "a value of the same axis", value.dimension, dimension)
        return in_unit(value.value, unit)

    return unit, put


def _marks(table: Table, key: str, reader: Reader) -> list[tuple[Quantity, str, Table]]:
    found = []
    for item in table.listed(key):
        found.append((reader.at(item, "at"), item.text("label", ""), item))
        item.finish()
    return found


def _placed_marks(
    marks: list[tuple[Quantity, str, Table]], put: Callable[[Quantity, Table], float]
) -> tuple[Mark, ...]:
    return tuple(Mark(at=put(at, where), label=label) for at, label, where in marks)


def _timeline(table: Table, caption: Caption, reader: Reader) -> Timeline:
    rows = [*_lanes(table, reader), *_lanes_from(table, reader)]
    marks = _marks(table, "marks", reader)
    moments = [moment for _, spans, dots in rows for moment in (*(end for span in spans for end in span[:2]), *dots)]
    unit, put = _unit(table, "unit", [*moments, *(at for at, _, _ in marks)])
    lanes = tuple(
        Lane(
            label=label,
            spans=tuple(
                Span(start=put(start, table), end=put(end, table), role=role, label=text)
                for start, end, role, text in spans
            ),
            dots=tuple(put(dot, table) for dot in dots),
        )
        for label, spans, dots in rows
    )
    return Timeline(caption=caption, unit=unit, lanes=lanes, marks=_placed_marks(marks, put))


_Row = tuple[str, list[tuple[Quantity, Quantity, str, str]], list[Quantity]]


def _lanes(table: Table, reader: Reader) -> Iterator[_Row]:
    for lane in table.listed("lanes"):
        spans = []
        for span in lane.listed("spans"):
            start, end = reader.at(span, "from"), reader.at(span, "to")
            if end.value < start.value:
                raise span.error("to", "it ends before it begins")
            spans.append((start, end, span.text("role"), span.text("label", "")))
            span.finish()
        yield lane.text("label"), spans, reader.listed(lane, "dots")
        lane.finish()


def _lanes_from(table: Table, reader: Reader) -> Iterator[_Row]:
    many = table.table("lanes_from")
    if many is None:
        return
    label, role = many.text("label"), many.text("role")
    starts, ends, waits = (reader.listed(many, key) for key in ("start", "end", "wait_from"))
    many.finish()
    if len(starts) != len(ends) or (waits and len(waits) != len(starts)):
        raise many.error(None, f"there are {len(starts)} starts, {len(ends)} ends and {len(waits)} arrivals")
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        spans = [(start, end, role, "")]
        if waits and waits[index].value < start.value:
            spans.insert(0, (waits[index], start, "wait", ""))
        yield f"{label} {index + 1}", spans, waits[index : index + 1]


def _area(table: Table, caption: Caption, reader: Reader) -> Area:
    rows = []
    for series in table.listed("series"):
        steps = [_pair(series, index, item, reader) for index, item in enumerate(series.items("steps"))]
        rows.append((series.text("label"), series.text("role", "memory"), steps))
        series.finish()
    marks, limits = _marks(table, "marks", reader), _marks(table, "limits", reader)
    x_unit, put_x = _unit(table, "x_unit", [x for _, _, steps in rows for x, _ in steps])
    amounts = [y for _, _, steps in rows for _, y in steps]
    y_unit, put_y = _unit(table, "y_unit", [*amounts, *(at for at, _, _ in limits)])
    return Area(
        caption=caption,
        x_unit=x_unit,
        y_unit=y_unit,
        series=tuple(
            Steps(label=label, role=role, points=tuple((put_x(x, table), put_y(y, table)) for x, y in steps))
            for label, role, steps in rows
        ),
        marks=_placed_marks(marks, put_x),
        limits=_placed_marks(limits, put_y),
    )


def _pair(table: Table, index: int, item: Any, reader: Reader) -> tuple[Quantity, Quantity]:
    if not isinstance(item, list) or len(item) != 2:
        raise table.error("steps", f"element {index} is not a pair", resolution='write ["0 s", "2 GiB"]')
    return reader.quantity(table, "steps", item[0]), reader.quantity(table, "steps", item[1])


def _bars(table: Table, caption: Caption, reader: Reader) -> Bars:
    as_share = table.boolean("as_share", False)
    rows = []
    for bar in table.listed("bars"):
        parts = [
            (part.text("label"), reader.at(part, "value"), part.text("role", ""), part) for part in bar.listed("parts")
        ]
        for *_, part in parts:
            part.finish()
        label, role = bar.text("label"), bar.text("role", "")
        if "value" in bar:
            parts.append((label, reader.at(bar, "value"), role, bar))
        capacity = reader.at(bar, "capacity") if "capacity" in bar else None
        if as_share and capacity is None:
            raise bar.error(None, "a share needs a capacity", resolution='add capacity = "..."')
        rows.append((label, parts, capacity, bar))
        bar.finish()
    unit = table.text("unit", "")
    return Bars(caption=caption, as_share=as_share, bars=tuple(_bar(*row, unit=unit) for row in rows))


def _bar(
    label: str,
    parts: list[tuple[str, Quantity, str, Table]],
    capacity: Quantity | None,
    table: Table,
    *,
    unit: str,
) -> Bar:
    values = [value for _, value, _, _ in parts] + ([capacity] if capacity else [])
    if not values:
        raise table.error(None, "a bar has a value or parts", resolution='add value = "..."')
    unit = unit or (capacity.unit if capacity else "") or shown_unit(max(v.value for v in values), values[0].dimension)
    if any(value.dimension != unit_scale(unit)[1] for value in values):
        raise table.error(None, f"the parts of {label!r} and its capacity are in different units")
    return Bar(
        label=label,
        unit=unit,
        parts=tuple(BarPart(label=name, value=in_unit(v.value, unit), role=role) for name, v, role, _ in parts),
        capacity=in_unit(capacity.value, unit) if capacity else None,
    )


def _curves(table: Table, caption: Caption, reader: Reader) -> Curves:
    x, y = table.needed_table("x"), table.table("y")
    values = list(_grid(x, reader))
    rows = [_curve(curve, values, reader) for curve in table.listed("curves")]
    marks, limits = _marks(table, "marks", reader), _marks(table, "limits", reader)
    x_unit, put_x = _unit(x, "unit", values)
    heights = [*(height for _, _, points in rows for _, height in points), *(at for at, _, _ in limits)]
    y_table = y if y is not None else Table(table.document, (*table.path, "y"), {})
    y_unit, put_y = _unit(y_table, "unit", heights)
    picture = Curves(
        caption=caption,
        x_label=x.text("label", ""),
        x_unit=x_unit,
        y_label=y_table.text("label", ""),
        y_unit=y_unit,
        log=x.boolean("log", False),
        curves=tuple(
            Curve(label=label, role=role, points=tuple((put_x(a, table), put_y(b, table)) for a, b in points))
            for label, role, points in rows
        ),
        marks=_placed_marks(marks, put_x),
        limits=_placed_marks(limits, put_y),
    )
    x.finish()
    y_table.finish()
    return picture


def _grid(x: Table, reader: Reader) -> Iterator[Quantity]:
    start, end = reader.at(x, "from"), reader.at(x, "to")
    points, log = x.integer("points", 200), x.boolean("log", False)
    if start.dimension != end.dimension or end.value <= start.value or not 2 <= points <= _MOST_POINTS:
        raise x.error(None, "the range is empty, of two dimensions, or has fewer than 2 or more than 5,000 points")
    if log and start.value <= 0:
        raise x.error("from", "a logarithmic range begins above zero")
    for index in range(points):
        share = index / (points - 1)
        low, high = (math.log(start.value), math.log(end.value)) if log else (start.value, end.value)
        value = low + share * (high - low)
        yield Quantity(math.exp(value) if log else value, start.dimension, start.unit)


def _curve(table: Table, values: list[Quantity], reader: Reader) -> tuple[str, str, list[tuple[Quantity, Quantity]]]:
    label, role = table.text("label"), table.text("role", "")
    until = reader.at(table, "until").value if "until" in table else math.inf
    points = [(x, _height(table, x, reader)) for x in values if x.value <= until]
    for key in ("calculate", "formula", "vary", "field"):
        table.raw(key)
    table.finish()
    return label, role, points


def _height(table: Table, x: Quantity, reader: Reader) -> Quantity:
    variable = Figure(name="x", value=x.value, dimension=x.dimension, unit=x.unit)
    inner = Reader(reader.evaluator, variable)
    expression = table.text("calculate", "")
    if expression:
        return inner.quantity(table, "calculate", f"={expression}")
    try:
        formula = find_formula(table.text("formula"))
    except CallerError as error:
        raise placed(table, "formula", error) from error
    inputs = dict(table.raw("inputs") or {})
    inputs[table.text("vary")] = "$x"
    binder = Binder(inner, reader.source)
    arguments = binder.arguments(formula.parameters, Table(table.document, (*table.path, "inputs"), inputs))
    result = call("y", formula, arguments, binder.used, table)
    path = table.text("field", "")
    part = part_of(result, tuple(path.split(".")) if path else (), "y")
    if not isinstance(part, Figure):
        raise table.error("formula", f"{formula.name} returns several values", resolution='add field = "..."')
    return Quantity(part.value, part.dimension)


_KINDS: dict[str, Callable[[Table, Caption, Reader], Picture]] = {
    "timeline": _timeline,
    "area": _area,
    "bars": _bars,
    "curves": _curves,
}
