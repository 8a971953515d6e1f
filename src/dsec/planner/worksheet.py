"""Worksheets: named calculations that refer to each other (docs/formats/planner.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dsec.planner.document import Document, Table
from dsec.planner.figure import Figure, given

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What every file begins with.

    Attributes:
        title: one line.
        where: which example or exercise this is.
        source: of the given values.
        assumed: what was assumed throughout.
        file: its name.
    """

    title: str
    where: str
    source: str
    assumed: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation:
    """One calculation, not yet computed.

    Attributes:
        name: of its result.
        table: where it is written.
        formula: name of a formula; empty: `expression` is computed.
        expression: arithmetic on earlier results.
    """

    name: str
    table: Table
    formula: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worksheet:
    """A worksheet that was read and not yet computed."""

    heading: Heading
    given: Mapping[str, Figure]
    calculations: Mapping[str, Calculation]
    pictures: Mapping[str, Table]


def read_heading(root: Table) -> Heading:
    """Read title, place, source and assumptions."""
    root.raw("kind")
    root.raw("version")
    return Heading(
        title=root.text("title"),
        where=root.text("where", ""),
        source=root.text("source", ""),
        assumed=root.text("assumed", ""),
        file=root.document.name,
    )


def read_worksheet(document: Document) -> Worksheet:
    """Read a worksheet; formulas and references are looked up when it is computed.

    Raises:
        InvalidRequestError: a key, a name or a value is not what it should be.
    """
    root = document.root()
    worksheet = read_sections(root, read_heading(root))
    root.finish()
    return worksheet


def read_sections(root: Table, heading: Heading) -> Worksheet:
    """Read given values, calculations and pictures, wherever they stand."""
    values = _read_given(root, heading)
    calculations = {name: _read_calculation(name, table) for name, table in root.tables("calculation").items()}
    for name in calculations:
        if name in values:
            raise calculations[name].table.error(None, f"{name!r} is the name of a given value as well")
    return Worksheet(heading=heading, given=values, calculations=calculations, pictures=root.tables("picture"))


def _read_given(root: Table, heading: Heading) -> dict[str, Figure]:
    table = root.table("given")
    if table is None:
        return {}
    return {name: _read_value(table, name, heading) for name in table.data}


def _read_value(table: Table, name: str, heading: Heading) -> Figure:
    check_name(table, name)
    raw, source, note = table.raw(name), heading.source or heading.where, ""
    owner, key = table, name
    if isinstance(raw, dict):
        owner, key = table.needed_table(name), "value"
        raw = owner.required("value", "a quantity")
        source, note = owner.text("source", source), owner.text("assumed", "")
        owner.finish()
    quantity = owner.read(key, raw)
    written = f"written at {table.place(name)}"
    return given(
        name,
        quantity.value,
        quantity.dimension,
        unit=quantity.unit,
        source=source,
        note=f"{note}; {written}" if note else written,
    )


def _read_calculation(name: str, table: Table) -> Calculation:
    check_name(table, name, at_table=True)
    formula, expression = table.text("formula", ""), table.text("calculate", "")
    if bool(formula) == bool(expression):
        raise table.error(None, "a calculation has either a formula or an expression", resolution="add formula = ...")
    return Calculation(name=name, table=table, formula=formula, expression=expression)


def check_name(table: Table, name: str, *, at_table: bool = False) -> None:
    """Refuse a name that no reference could be written to."""
    if not _NAME.fullmatch(name):
        raise table.error(
            None if at_table else name,
            f"{name!r} is not a name",
            resolution="use lower-case letters, digits and underscores",
        )
